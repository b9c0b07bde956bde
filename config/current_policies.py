"""Do earlier verdicts still count? What a registry's policies demand now, against what a verdict was reached under."""

from __future__ import annotations

from pathlib import Path

from modelreg.config.policy import Policy, load_policy, missing_demands, parse_policy
from modelreg.registry.errors import ConfigError
from modelreg.registry.records import EngineRecord, ValidationRecord
from modelreg.registry.words import Precision

_SHOWN_DEMANDS = 3


class CurrentPolicies:
    """The policies that a registry has for one model now; each is read when it is first asked for."""

    def __init__(self, home: Path, *, model: str) -> None:
        self._home = home
        self._model = model
        self._policies: dict[Precision, Policy] = {}

    def read(self, precision: Precision) -> Policy:
        """Return the policy of a precision; raises ConfigError for a file that is wrong."""
        if precision not in self._policies:
            self._policies[precision] = load_policy(precision, home=self._home, model=self._model)
        return self._policies[precision]

    def object_to(self, engine: EngineRecord, validation: ValidationRecord) -> str:
        """
        Return why a verdict does not count, or an empty string: it was reached under the policy of now, or under one
        that is nowhere looser.

        Raises:
            ConfigError: The policy of now cannot be read, so that nobody can say.
        """
        current = self.read(engine.precision)
        if validation.policy_digest == current.digest:
            return ""
        try:
            earlier = parse_policy(validation.policy)
        except ConfigError as error:
            return f"validated under a policy that cannot be compared ({error})"
        lacking = missing_demands(earlier, current=current)
        if not lacking:
            return ""
        more = f" and {len(lacking) - _SHOWN_DEMANDS} more" if len(lacking) > _SHOWN_DEMANDS else ""
        return f"validated under another policy ({', '.join(lacking[:_SHOWN_DEMANDS])}{more})"

    def object_or_say_why_not(self, engine: EngineRecord, validation: ValidationRecord) -> str:
        """Return what `object_to` does; a policy that cannot be read is a reason here, since nothing depends on it."""
        try:
            return self.object_to(engine, validation)
        except ConfigError as error:
            return f"its policy cannot be read: {error}"
