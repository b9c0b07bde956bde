"""Loosened policies that somebody gave a reason for: which policies a reason covers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from modelreg.config.policy import Policy, loosened_rules, parse_policy
from modelreg.registry.errors import ConfigError
from modelreg.registry.words import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """
    One reason that was given for a loosened policy.

    Attributes:
        digest: The policy's.
        policy: The policy, or None where its event does not hold it.
        model: The model that it was given for, None for all of them.
        channel: The channel that it was given for, None for all of them.
    """

    digest: str
    policy: Policy | None = None
    model: str | None = None
    channel: str | None = None

    def covers(self, policy: Policy, *, model: str, channel: str | None) -> bool:
        """Return whether the reason holds for a policy too: the same one, or one that is nowhere looser."""
        if self.model not in (None, model) or self.channel not in (None, channel):
            return False
        if policy.digest == self.digest:
            return True
        given = self.policy
        return given is not None and given.precision is policy.precision and not loosened_rules(policy, base=given)


def is_acknowledged(
    policy: Policy, given: Iterable[Acknowledgement], *, model: str, channel: str | None = None
) -> bool:
    """Return whether one of the reasons that were given covers a policy."""
    return any(each.covers(policy, model=model, channel=channel) for each in given)


def parse_acknowledgement(subject: str, details: Json) -> Acknowledgement:
    """Return the reason that an event keeps; `subject` is a model, NAME:VERSION, or `*` for all models."""
    model = subject.partition(":")[0]
    return Acknowledgement(
        digest=str(details.get("policy", "")),
        policy=_parse(details.get("demands")),
        model=None if model == "*" else model,
        channel=details.get("channel"),
    )


def _parse(body: object) -> Policy | None:
    if not isinstance(body, dict):
        return None
    try:
        return parse_policy(body)
    except ConfigError:  # written by a program whose rules this one does not know
        return None
