"""What a channel demands of a verdict beside the limits: that it is new and comes from its own target. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from modelreg.registry.errors import ConfigError
from modelreg.registry.suggestions import say_close
from modelreg.registry.words import Json, Word

if TYPE_CHECKING:
    from modelreg.registry.records import EngineRecord, ValidationRecord

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"([1-9][0-9]{0,5})([mhdw])", re.ASCII)
_CLOCKS_DIFFER_S = 300.0


class VerdictsFrom(Word):
    """Where an engine must have been validated: anywhere, on a host with its compute capability, or with its GPU."""

    ANYWHERE = "anywhere"
    SAME_TARGET = "same-target"
    SAME_GPU = "same-gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelDemands:
    """A channel's demands; `max_verdict_age` is as written, for example `1d`, and None where age does not matter."""

    max_verdict_age: str | None = None
    verdicts_from: VerdictsFrom = VerdictsFrom.ANYWHERE

    @property
    def max_age_s(self) -> float | None:
        """Return the oldest age of a verdict that counts, in seconds."""
        return None if self.max_verdict_age is None else parse_duration(self.max_verdict_age)

    def to_json(self) -> Json:
        """Return the demands as JSON, in the settings' spelling."""
        return {"max_verdict_age": self.max_verdict_age, "verdicts_from": str(self.verdicts_from)}

    def object_to(self, engine: EngineRecord, validation: ValidationRecord, *, now: datetime) -> str:
        """Return why a passing verdict does not satisfy the channel, or an empty string."""
        return self._object_to_age(validation, now) or self._object_to_host(engine, validation.host)

    def _object_to_age(self, validation: ValidationRecord, now: datetime) -> str:
        if self.max_age_s is None:
            return ""
        age_s = (now - validation.created_at).total_seconds()
        if age_s < -_CLOCKS_DIFFER_S:
            return f"validated {say_duration(-age_s)} in the future: the clocks of the hosts differ"
        if age_s <= self.max_age_s:
            return ""
        return (
            f"validated {say_duration(age_s)} ago, and the channel demands a verdict of the last {self.max_verdict_age}"
        )

    def _object_to_host(self, engine: EngineRecord, host: Json) -> str:
        target = engine.target
        if self.verdicts_from is VerdictsFrom.ANYWHERE:
            return ""
        if target.name not in host.get("targets", []):
            return f"validated on {_describe(host)}, and the channel demands a verdict from {target.name}"
        if self.verdicts_from is VerdictsFrom.SAME_GPU and target.gpu:
            names = [gpu.get("name") for gpu in host.get("gpus", [])]
            if target.gpu not in names:
                return f"validated on {_describe(host)}, and the channel demands a verdict from its own {target.gpu}"
        return ""


def _describe(host: Json) -> str:
    gpus = [str(gpu.get("name")) for gpu in host.get("gpus", [])]
    what = (
        ", ".join(gpus or [str(target) for target in host.get("targets", [])]) or "a host that said nothing of itself"
    )
    return f"{host['name']} ({what})" if host.get("name") else what


def read_max_verdict_age(value: object, where: str) -> str:
    """Return a duration as it is written; raises ConfigError for what is none."""
    if not isinstance(value, str):
        raise ConfigError(f'{where} must be a text such as "1d", found {value!r:.40}')
    try:
        parse_duration(value)
    except ValueError:
        raise ConfigError(
            f"{where} {value!r:.40} is no duration", hint="A whole number and a unit: 90m, 12h, 1d, 2w."
        ) from None
    return value


def read_verdicts_from(value: object, where: str) -> VerdictsFrom:
    """Return where verdicts must come from; raises ConfigError for a word that is not known."""
    words = [str(word) for word in VerdictsFrom]
    if not isinstance(value, str) or value not in words:
        close = say_close(value, words) if isinstance(value, str) else ""
        hint = " ".join(part for part in (close, f"Known: {', '.join(words)}.") if part)
        raise ConfigError(f"{where} {value!r:.40} is unknown", hint=hint)
    return VerdictsFrom(value)


def parse_duration(text: str) -> float:
    """
    Return the seconds that `90m`, `12h`, `1d` or `2w` means.

    Raises:
        ValueError: It is none of these.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration")
    return float(found[1]) * _UNITS_S[found[2]]


def say_duration(seconds: float) -> str:
    """Return a duration for people in its largest unit, for example `3 days`."""
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}" + ("" if number == 1 else "s")
    return "less than a minute"
