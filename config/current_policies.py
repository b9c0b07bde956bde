"""Do earlier verdicts still count? What a registry's policies demand now, against what a verdict was reached under."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from modelreg.config.acknowledgements import Acknowledgement, is_acknowledged
from modelreg.config.channel_demands import ChannelDemands
from modelreg.config.policy import (
    Policy,
    load_policy,
    load_shipped_policy,
    loosened_rules,
    missing_demands,
    parse_policy,
)
from modelreg.registry.clock import utc_now
from modelreg.registry.errors import ConfigError
from modelreg.registry.records import EngineRecord, ValidationRecord
from modelreg.registry.words import Precision

_SHOWN_DEMANDS = 3

AskAcknowledged = Callable[[], Sequence[Acknowledgement]]
"""Returns which loosened policies somebody gave a reason for; called only where that matters."""


class CurrentPolicies:
    """The policies that a registry has for one model, or for a channel of it, now; each is read when first asked for.

    Args:
        home: The registry's folder.
        model: Whose policies.
        channel: With it, the channel's files count too.
        demands: What the channel demands of verdicts beside the limits.
        acknowledged: Which loosened policies somebody gave a reason for; without it that is not asked.
    """

    def __init__(
        self,
        home: Path,
        *,
        model: str,
        channel: str | None = None,
        demands: ChannelDemands | None = None,
        acknowledged: AskAcknowledged | None = None,
    ) -> None:
        self._home = home
        self._model = model
        self._channel = channel
        self._demands = demands or ChannelDemands()
        self._ask_acknowledged = acknowledged
        self._policies: dict[Precision, Policy] = {}

    def read(self, precision: Precision) -> Policy:
        """Return the policy of a precision; raises ConfigError for a file that is wrong."""
        if precision not in self._policies:
            self._policies[precision] = load_policy(
                precision, home=self._home, model=self._model, channel=self._channel
            )
        return self._policies[precision]

    def object_to(self, engine: EngineRecord, validation: ValidationRecord) -> str:
        """
        Return why a verdict does not count, or an empty string: it was reached under the policy of now, or under one
        that is nowhere looser, as new as the channel demands and where it demands.

        Raises:
            ConfigError: The policy of now cannot be read, so that nobody can say.
        """
        return self._object_to_policy(engine, validation) or self._demands.object_to(engine, validation, now=utc_now())

    def can_pass_now(self, engine: EngineRecord, validation: ValidationRecord) -> bool:
        """
        Return whether a verdict that is no pass was reached under a policy that demanded more than that of now.

        Raises:
            ConfigError: The policy of now cannot be read: a file that is wrong is never skipped, whatever the verdict.
        """
        current = self.read(engine.precision)
        if validation.policy_digest == current.digest:
            return False
        try:
            return bool(missing_demands(current, current=parse_policy(validation.policy)))
        except ConfigError:
            return True

    def could_pass_now(self, engine: EngineRecord, validation: ValidationRecord) -> bool:
        """Return what `can_pass_now` does; False for a policy that cannot be read, since nothing depends on it."""
        try:
            return self.can_pass_now(engine, validation)
        except ConfigError:
            return False

    def object_or_say_why_not(self, engine: EngineRecord, validation: ValidationRecord) -> str:
        """Return what `object_to` does; a policy that cannot be read is a reason here, since nothing depends on it."""
        try:
            return self.object_to(engine, validation)
        except ConfigError as error:
            return f"its policy cannot be read: {error}"

    def _object_to_policy(self, engine: EngineRecord, validation: ValidationRecord) -> str:
        current = self.read(engine.precision)
        earlier = current
        if validation.policy_digest != current.digest:
            try:
                earlier = parse_policy(validation.policy)
            except ConfigError as error:
                return f"validated under a policy that cannot be compared ({error})"
            if lacking := missing_demands(earlier, current=current):
                return f"validated under another policy ({_list(lacking)})"
        return self._object_to_loosening(earlier)

    def _object_to_loosening(self, policy: Policy) -> str:
        """Return that nobody said why a policy is looser than the shipped one, where that is so."""
        if self._ask_acknowledged is None:
            return ""
        loosened = loosened_rules(policy, base=load_shipped_policy(policy.precision))
        if not loosened or self.is_acknowledged(policy):
            return ""
        return f"validated under a loosened policy that nobody gave a reason for ({_list(loosened)})"

    def is_acknowledged(self, policy: Policy) -> bool:
        """Return whether somebody gave a reason for a policy, or for one that is at least as loose."""
        return is_acknowledged(policy, self._acknowledged, model=self._model, channel=self._channel)

    @cached_property
    def _acknowledged(self) -> Sequence[Acknowledgement]:
        return () if self._ask_acknowledged is None else self._ask_acknowledged()


def _list(texts: list[str]) -> str:
    more = f" and {len(texts) - _SHOWN_DEMANDS} more" if len(texts) > _SHOWN_DEMANDS else ""
    return f"{', '.join(texts[:_SHOWN_DEMANDS])}{more}"
