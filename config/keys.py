"""Every setting: its key, and what turns a value of a TOML file, or a text, into what the program uses. Pure.

A part of a key in capitals stands for any name: `promote.preference.TARGET`, `channels.CHANNEL.targets`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from modelreg.config.toml import as_finite
from modelreg.registry.errors import ConfigError, UsageError
from modelreg.registry.references import check_name
from modelreg.registry.words import Precision

if TYPE_CHECKING:
    from modelreg.config.channel_demands import VerdictsFrom

VARIABLE_PREFIX = "MODELREG_"

_LONGEST_S = 2_000_000_000
"""Some sixty years: what a length of time can be everywhere."""

HOME_VARIABLE, ACTOR_VARIABLE = "MODELREG_HOME", "MODELREG_ACTOR"
"""What no `config.toml` can say: where it is, and who is at work."""

ELSEWHERE = (
    *(HOME_VARIABLE, ACTOR_VARIABLE, "MODELREG_TOOLCHAINS"),
    *("MODELREG_WORKER_", "MODELREG_TEST_", "MODELREG_GPU_", "MODELREG_FAULT"),
)
"""Names, or beginnings of names, of variables that are no settings and documented elsewhere."""


class Key(NamedTuple):  # and no dataclass: every command makes it, in a seventh of the time
    """
    One setting, or one for each name.

    Args:
        name: `section.key`, the name of its place in `config.toml`.
        read: Makes the program's value of a TOML value; raises ConfigError without saying where the value stands.
        parse: Makes a TOML value of a text, of which `read` says what is wrong with it.
        summary: What it sets, in a few words.
        absent: The list that is meant where a file has the table of a name without this key; None for no value.
    """

    name: str
    read: Callable[[object, str], Any]
    parse: Callable[[str], object]
    summary: str
    absent: tuple[str, ...] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the parts of the name."""
        return tuple(self.name.split("."))

    def names(self, name: str) -> bool:
        """Return whether `name` is this key with a name where it has capitals."""
        word = next(part for part in self.parts if part.isupper())
        before, _, after = self.name.partition(word)
        return name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)

    def match_variable(self, variable: str) -> str | None:
        """Return the key that a variable sets, if it is this one: the name in it, if any, in small letters."""
        pattern = "_".join("(.+)" if part.isupper() else spell(part) for part in self.parts)
        found = re.fullmatch(VARIABLE_PREFIX + pattern, variable)
        if found is None:
            return None
        names = iter(found.groups())
        return ".".join(next(names).lower() if part.isupper() else part for part in self.parts)


def spell(text: str) -> str:
    """Return a key as variables spell it: capitals, and underscores for everything else."""
    return re.sub(r"[^A-Z0-9]", "_", text.upper())


def variable_of(name: str) -> str:
    """Return the variable that sets the key `name`."""
    return VARIABLE_PREFIX + spell(name)


def find_key(name: str) -> Key | None:
    """Return what `name` is one of, or None for no setting; the name in it may have dots itself."""
    return _PLAIN.get(name) or next((key for key in _NAMED if key.names(name)), None)


def find_named(variable: str, known: Iterable[str]) -> str | None:
    """Return the key that `variable` sets: one of those that are `known`, since spelling loses dashes, or a new one."""
    spelled = next((name for name in known if variable_of(name) == variable), None)
    return spelled or next(filter(None, (key.match_variable(variable) for key in KEYS)), None)


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """Return the variables that look like ours and set nothing, sorted."""
    return sorted(
        variable
        for variable in environment
        if variable.startswith(VARIABLE_PREFIX)
        and not variable.startswith(ELSEWHERE)
        and find_named(variable, ()) is None
    )


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be a text, found {value!r:.40}")
    return value


def _database(value: object, name: str) -> str:
    from modelreg.registry.database_url import check_database_url  # noqa: PLC0415 - start-up time

    url = _text(value, name)
    try:
        return check_database_url(url)
    except UsageError as error:
        raise ConfigError(f"{name}: {error}", hint=error.hint()) from None


def _seconds(value: object, name: str) -> float:
    seconds = as_finite(value)
    if seconds is None or not 0 < seconds <= _LONGEST_S:
        said = f" and at most {_LONGEST_S}" if seconds is not None and seconds > 0 else ""
        raise ConfigError(f"{name} must be a number of seconds above 0{said}, found {value!r:.40}")
    return seconds


def _share(value: object, name: str) -> float:
    share = as_finite(value)
    if share is None or not 0 < share <= 1:
        raise ConfigError(f"{name} must be a part above 0 and at most 1, found {value!r:.40}")
    return share


def _degrees(value: object, name: str) -> float:
    degrees = as_finite(value)
    if degrees is None or not 0 < degrees <= 200:
        raise ConfigError(f"{name} must be degrees Celsius above 0 and at most 200, found {value!r:.40}")
    return degrees


def _whole(value: object, name: str) -> int:
    return _count(value, name, minimum=0)


def _whole_above_0(value: object, name: str) -> int:
    return _count(value, name, minimum=1)


def _count(value: object, name: str, *, minimum: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ConfigError(f"{name} must be a whole number of at least {minimum}, found {value!r:.40}")
    return value


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, found {value!r:.40}")
    return value


def _port(value: object, name: str) -> int:
    port = _whole(value, name)
    if port > 65535:
        raise ConfigError(f"{name} must be a port, 0 to 65535, found {port}")
    return port


def _names(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise ConfigError(f"{name} must be a list of names, found {value!r:.40}")
    return tuple(value)


def _precisions(value: object, name: str) -> tuple[Precision, ...]:
    try:
        return tuple(Precision(each) for each in _names(value, name))
    except ValueError:
        known = ", ".join(Precision)
        raise ConfigError(f"{name} has an unknown precision in {value!r:.80}", hint=f"Known: {known}.") from None


def _targets(value: object, name: str) -> tuple[str, ...]:
    check_name(name.removeprefix("channels.").removesuffix(".targets"), what="channel")
    return _names(value, name)


def _age(value: object, name: str) -> str:
    check_name(name.removeprefix("channels.").removesuffix(".max_verdict_age"), what="channel")
    from modelreg.config.channel_demands import read_max_verdict_age  # noqa: PLC0415 - start-up time

    return read_max_verdict_age(value, name)


def _origin(value: object, name: str) -> VerdictsFrom:
    check_name(name.removeprefix("channels.").removesuffix(".verdicts_from"), what="channel")
    from modelreg.config.channel_demands import read_verdicts_from  # noqa: PLC0415 - start-up time

    return read_verdicts_from(value, name)


def _parse_number(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def _parse_whole(text: str) -> object:
    return int(text) if text.isascii() and text.isdigit() else text


def _parse_flag(text: str) -> object:
    return {"true": True, "false": False}.get(text.strip().lower(), text)


def _parse_words(text: str) -> object:
    return [word.strip() for word in text.split(",")] if text.strip() else []


KEYS = (
    Key(name="store.url", read=_text, parse=str, summary="where bytes live"),
    Key(name="database.url", read=_database, parse=str, summary="the database"),
    Key(name="limits.lock_timeout_s", read=_seconds, parse=_parse_number, summary="how long to wait for another one"),
    Key(name="limits.build_timeout_s", read=_seconds, parse=_parse_number, summary="how long a cell may take"),
    Key(name="gc.keep_releases", read=_whole_above_0, parse=_parse_whole, summary="the releases that gc keeps"),
    Key(name="gc.keep_versions", read=_whole, parse=_parse_whole, summary="the newest versions whose engines gc keeps"),
    Key(name="gc.grace_s", read=_seconds, parse=_parse_number, summary="how long garbage is left there"),
    Key(name="promote.preference.TARGET", read=_precisions, parse=_parse_words, summary="the most wanted first"),
    Key(name="serve.python", read=_names, parse=_parse_words, summary="what loads plans on this host"),
    Key(name="serve.host", read=_text, parse=str, summary="the address that serve listens on"),
    Key(name="serve.http_port", read=_port, parse=_parse_whole, summary="the port that serve listens on"),
    Key(name="serve.concurrency", read=_whole_above_0, parse=_parse_whole, summary="requests on an engine at a time"),
    Key(name="serve.max_queue", read=_whole, parse=_parse_whole, summary="requests that may wait for it"),
    Key(name="serve.max_body_mib", read=_whole_above_0, parse=_parse_whole, summary="the largest request"),
    Key(name="serve.request_timeout_s", read=_seconds, parse=_parse_number, summary="when a request is given up"),
    Key(name="serve.read_timeout_s", read=_seconds, parse=_parse_number, summary="how long a client may send"),
    Key(name="serve.shutdown_timeout_s", read=_seconds, parse=_parse_number, summary="how long serve may end"),
    Key(name="serve.devices", read=_names, parse=_parse_words, summary="the GPUs that serve uses"),
    Key(name="serve.instances", read=_whole_above_0, parse=_parse_whole, summary="copies of an engine on each of them"),
    Key(name="serve.max_batch", read=_whole, parse=_parse_whole, summary="rows of a batch at most; 0 for no batching"),
    Key(name="serve.max_delay_us", read=_whole, parse=_parse_whole, summary="how long a request waits for others"),
    Key(name="serve.cuda_graphs", read=_flag, parse=_parse_flag, summary="whether TensorRT replays CUDA graphs"),
    Key(name="health.gpu_utilization", read=_share, parse=_parse_number, summary="a GPU is busy above it"),
    Key(name="health.gpu_memory", read=_share, parse=_parse_number, summary="a GPU's memory is short above it"),
    Key(name="health.gpu_memory_critical", read=_share, parse=_parse_number, summary="the same, as CRITICAL"),
    Key(name="health.gpu_temperature_c", read=_degrees, parse=_parse_number, summary="a GPU is hot above it"),
    Key(name="health.host_memory", read=_share, parse=_parse_number, summary="the host's memory is short above it"),
    Key(name="health.error_rate", read=_share, parse=_parse_number, summary="too many requests fail above it"),
    Key(name="health.error_rate_critical", read=_share, parse=_parse_number, summary="the same, as CRITICAL"),
    Key(name="health.stale_s", read=_seconds, parse=_parse_number, summary="a generation is stale after it"),
    Key(name="health.stale_critical_s", read=_seconds, parse=_parse_number, summary="the same, as CRITICAL"),
    Key(name="health.sustained_s", read=_seconds, parse=_parse_number, summary="how long a load must last to count"),
    Key(name="plugins.allowed", read=_names, parse=_parse_words, summary="digests of libraries that a build may load"),
    Key(
        name="channels.CHANNEL.targets",
        read=_targets,
        parse=_parse_words,
        summary="what a promotion must serve",
        absent=(),
    ),
    Key(name="channels.CHANNEL.max_verdict_age", read=_age, parse=str, summary="how old a verdict may be"),
    Key(name="channels.CHANNEL.verdicts_from", read=_origin, parse=str, summary="where verdicts must come from"),
)
_NAMED = [key for key in KEYS if any(part.isupper() for part in key.parts)]
_PLAIN = {key.name: key for key in KEYS if key not in _NAMED}
