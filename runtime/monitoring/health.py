"""Judge a serving process: findings with what was measured, since when, and what to do. Pure, but for the memory of
what was found before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from modelreg.config.health_limits import HealthLimits
from modelreg.registry.clock import iso
from modelreg.registry.words import Json
from modelreg.runtime.monitoring.facts import Facts
from modelreg.runtime.monitoring.hysteresis import HealthState, Latch, step, worst
from modelreg.runtime.monitoring.rules import Observation, Rule, observe_all

_FORGET_S = 120.0
"""A finding whose measurement does not come any more (no requests, a GPU that cannot be asked) lasts for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong; `measured` is None where it was, and cannot be measured any more."""

    rule: Rule
    subject: str
    part: str
    state: HealthState
    measured: float | None
    limit: float
    since: datetime
    message: str
    hint: str

    def to_json(self) -> Json:
        """Return it as JSON; NaN and infinity, which JSON has not, are words."""
        return {
            "rule": str(self.rule),
            "subject": self.subject,
            "part": self.part,
            "state": str(self.state),
            "measured": _finite(self.measured),
            "limit": _finite(self.limit),
            "since": iso(self.since),
            "message": self.message,
            "hint": self.hint,
        }

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """A rule that could not be looked at, and why."""

    rule: Rule
    subject: str
    part: str
    reason: str

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {"rule": str(self.rule), "subject": self.subject, "part": self.part, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """The state of all, of each model by its own findings, and what it comes from, the worst first."""

    state: HealthState
    models: dict[str, HealthState]
    findings: tuple[Finding, ...]
    unmeasured: tuple[Unmeasured, ...]

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {
            "state": str(self.state),
            "models": {name: str(state) for name, state in self.models.items()},
            "findings": [each.to_json() for each in self.findings],
            "unmeasured": [each.to_json() for each in self.unmeasured],
        }


class HealthWatch:
    """Judges moment after moment; remembers what each rule found, so that a state does not flutter."""

    def __init__(self, limits: HealthLimits) -> None:
        self._limits = limits
        self._latches: dict[tuple[Rule, str, str], Latch] = {}
        self._measured_s: dict[tuple[Rule, str, str], float] = {}

    def judge(self, facts: Facts, *, now_s: float, at: datetime) -> HealthReport:
        """
        Return the health at one moment.

        Args:
            facts: What was measured.
            now_s: A clock that only goes forward.
            at: The same moment for people.
        """
        latches: dict[tuple[Rule, str, str], Latch] = {}
        findings: list[Finding] = []
        unmeasured: list[Unmeasured] = []
        states: dict[str, list[HealthState]] = {model.name: [] for model in facts.models}
        all_states: list[HealthState] = []
        for each in observe_all(facts, self._limits):
            key = (each.rule, each.subject, each.part)
            latch = latches[key] = self._look(key, each, now_s=now_s)
            state = _state_of(each, latch)
            if state is not None:
                all_states.append(state)
                states.get(each.subject, []).append(state)
            if latch.state is not HealthState.HEALTHY:
                findings.append(_find(each, latch, at=at - timedelta(seconds=now_s - latch.since_s)))
            if each.measured is None:
                unmeasured.append(Unmeasured(rule=each.rule, subject=each.subject, part=each.part, reason=each.message))
        self._latches = latches  # what is no more (an alarm that was lifted, a GPU that went) is forgotten
        self._measured_s = {key: seen_s for key, seen_s in self._measured_s.items() if key in latches}
        return HealthReport(
            state=worst(*all_states),
            models={name: worst(*found) for name, found in states.items()},
            findings=tuple(sorted(findings, key=lambda each: (each.state is not HealthState.CRITICAL, each.since))),
            unmeasured=tuple(unmeasured),
        )

    def _look(self, key: tuple[Rule, str, str], each: Observation, *, now_s: float) -> Latch:
        """Return a rule's latch after this moment; what is not measured stays what it was, for a while."""
        latch = self._latches.get(key, Latch(since_s=now_s))
        if each.measured is not None:
            self._measured_s[key] = now_s
            return step(latch, each.measured, each.limit, now_s=now_s)
        is_old = now_s - self._measured_s.get(key, now_s) > _FORGET_S
        return Latch(since_s=now_s) if is_old else latch


def _state_of(each: Observation, latch: Latch) -> HealthState | None:
    """Return what an observation says of the whole; None where it says nothing."""
    if each.measured is not None or latch.state is not HealthState.HEALTHY:
        return latch.state
    return HealthState.UNKNOWN if each.is_needed else None


def _find(each: Observation, latch: Latch, *, at: datetime) -> Finding:
    return Finding(
        rule=each.rule,
        subject=each.subject,
        part=each.part,
        state=latch.state,
        measured=each.measured,
        limit=each.limit.of(latch.state),
        since=at,
        message=each.message,
        hint=each.hint,
    )


def _finite(value: float | None) -> float | str | None:
    if value is None or abs(value) < float("inf"):
        return value
    return str(value)
