"""Which engines a promotion would activate, and why the others not. Pure: no IO, a table of tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from modelreg.registry.errors import NotFoundError
from modelreg.registry.pointers import Pointer
from modelreg.registry.promotion_refusal import refusal, say_missing
from modelreg.registry.records import EngineRecord, ValidationRecord, VersionRecord
from modelreg.registry.target_order import in_order
from modelreg.registry.words import EngineStatus, GateOutcome, Precision, Verdict

Preference = Callable[[str], Sequence[Precision]]
"""Returns a target's precisions, the most wanted first."""

_NOT_VALIDATED = "not validated"
_NONE_NAMED: Mapping[str, EngineRecord] = {}

Acceptance = Callable[[EngineRecord, ValidationRecord], str]
"""Returns why a passing verdict on an engine does not count, or an empty string where it does."""


CanPassNow = Callable[[EngineRecord, ValidationRecord], bool]
"""Returns whether a verdict that is no pass was reached under a policy that demands less now."""


def policies_never_change(_engine: EngineRecord, _validation: ValidationRecord) -> bool:
    """Take a verdict that is no pass as the last word."""
    return False


def accept_every_verdict(_engine: EngineRecord, _validation: ValidationRecord) -> str:
    """Accept a verdict whatever policy it was reached under."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRequest:
    """What a user asks of a promotion; `expect_current=0` means that nothing may be active yet."""

    preference: Preference
    targets: tuple[str, ...] = ()
    configured_targets: tuple[str, ...] = ()
    precision: Precision | None = None
    engine_ids: tuple[int, ...] = ()
    """Engines that are wanted for their targets, whatever else there is."""
    expect_current: int | None = None
    override_gates: bool = False
    message: str = ""
    accepts: Acceptance = accept_every_verdict
    can_pass_now: CanPassNow = policies_never_change
    validate_options: str = ""
    """What `validate` must be given so that its verdicts count here, for the advice of a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """What a user asks of a rollback."""

    to_generation: int | None = None
    expect_current: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStanding:
    """An engine with its newest validation."""

    engine: EngineRecord
    validation: ValidationRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An engine considered for a target; `reason` says why it may or may not be activated.

    `is_stale` says that there is a verdict and that it does not count: it must be reached anew.
    """

    engine: EngineRecord
    usable: bool
    reason: str
    is_stale: bool = False

    @property
    def is_built(self) -> bool:
        """Return whether there is a plan of it."""
        return self.engine.status is EngineStatus.BUILT and not self.engine.is_swept

    @property
    def needs_validation(self) -> bool:
        """Return whether an engine may count once it is validated, or validated again."""
        return self.is_stale or self.reason.startswith(_NOT_VALIDATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChoice:
    """What a target would get: the engine, or None, and everything that was considered."""

    target: str
    engine: EngineRecord | None
    candidates: tuple[Candidate, ...]

    @property
    def passed_over(self) -> tuple[Candidate, ...]:
        """Return the candidates that were wanted more than the one that is chosen."""
        engines = [candidate.engine for candidate in self.candidates]
        return () if self.engine is None else self.candidates[: engines.index(self.engine)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionPlan:
    """
    All targets of a promotion; it may go ahead when `missing` is empty.

    Attributes:
        named: Targets whose engine the user named by its id.
        doubts: What speaks against the choice though the gates of its engines pass.
    """

    version: VersionRecord
    choices: tuple[TargetChoice, ...]
    missing: tuple[str, ...]
    overridden: tuple[str, ...] = ()
    precision: Precision | None = None
    validate_options: str = ""
    named: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def engines(self) -> dict[str, EngineRecord]:
        """Return target -> engine for the targets that have one."""
        return {choice.target: choice.engine for choice in self.choices if choice.engine is not None}

    @property
    def passed_over(self) -> tuple[str, ...]:
        """Return what was wanted more than what is chosen, and why not: `cpu int8: validation fail: …`."""
        return tuple(
            f"{choice.target} {candidate.engine.precision}: {candidate.reason}"
            for choice in self.choices
            for candidate in choice.passed_over
        )


def required_targets(
    *,
    explicit: Sequence[str],
    configured: Sequence[str],
    active: Sequence[str],
    built: Sequence[str],
    named: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the targets a promotion must serve, in the order of their numbers.

    What the user names wins, then what the channel's settings demand; else every target of the release that is
    active now (so that a promotion never drops one silently) and every target this version is built for, or only
    those of the engines that the user names (`named`).
    """
    if explicit:
        return in_order(explicit)
    if configured:
        return in_order(configured)
    return in_order((*active, *(named or built)))


def judge_engine(
    standing: EngineStanding,
    *,
    golden_digest: str | None,
    accepts: Acceptance = accept_every_verdict,
    can_pass_now: CanPassNow = policies_never_change,
) -> Candidate:
    """Return whether the newest validation of an engine lets it be activated.

    Args:
        standing: The engine.
        golden_digest: The version's golden set; a verdict against another one does not count.
        accepts: Asked about a verdict that is a pass.
        can_pass_now: Asked about a verdict that is none.
    """
    engine, validation = standing.engine, standing.validation
    if engine.status is not EngineStatus.BUILT:
        return Candidate(engine=engine, usable=False, reason=f"build failed: {engine.brief_error}")
    if engine.is_swept:
        return Candidate(engine=engine, usable=False, reason="its plan was removed by gc")
    if validation is None:
        reason = _NOT_VALIDATED if _was_run(engine) else f"{_NOT_VALIDATED}, never run"
        return Candidate(engine=engine, usable=False, reason=reason)
    if validation.golden_digest != golden_digest:
        return Candidate(engine=engine, usable=False, reason="validated against another golden set", is_stale=True)
    if validation.verdict is not Verdict.PASS:
        is_stale = can_pass_now(engine, validation)
        since = ", under a policy that demands less now" if is_stale else ""
        reason = f"validation {validation.verdict}: {_failed_gates(validation)}{since}"
        return Candidate(engine=engine, usable=False, reason=reason, is_stale=is_stale)
    if objection := accepts(engine, validation):
        return Candidate(engine=engine, usable=False, reason=objection, is_stale=True)
    return Candidate(engine=engine, usable=True, reason="passes its gates")


def _was_run(engine: EngineRecord) -> bool:
    """Return whether the build tried the plan out, which it cannot when it compiles for a GPU that is not there."""
    runs: object = engine.realised.get("checked", {}).get("runs")
    return runs != 0


def _failed_gates(validation: ValidationRecord) -> str:
    bad = [
        f"{gate.gate} of {gate.subject}"
        for gate in validation.gates
        if gate.outcome in (GateOutcome.FAIL, GateOutcome.ERROR)
    ]
    shown = ", ".join(bad[:3]) or "no gate ran"
    return shown + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")


def plan_promotion(
    version: VersionRecord,
    standings: Sequence[EngineStanding],
    *,
    targets: Sequence[str],
    golden_digest: str | None,
    preference: Preference,
    precision: Precision | None = None,
    accepts: Acceptance = accept_every_verdict,
    can_pass_now: CanPassNow = policies_never_change,
    validate_options: str = "",
    named: Mapping[str, EngineRecord] = _NONE_NAMED,
) -> PromotionPlan:
    """Return the plan: per target the preferred precision among the engines that pass, or what is missing.

    For the targets of `named` no other engine is considered.
    """
    choices: list[TargetChoice] = []
    missing: list[str] = []
    for target in targets:
        considered = [
            judge_engine(standing, golden_digest=golden_digest, accepts=accepts, can_pass_now=can_pass_now)
            for standing in standings
            if standing.engine.target.name == target
            and precision in (None, standing.engine.precision)
            and (target not in named or standing.engine.id == named[target].id)
        ]
        candidates = _by_preference(considered, preference(target))
        engine = next((candidate.engine for candidate in candidates if candidate.usable), None)
        choices.append(TargetChoice(target=target, engine=engine, candidates=candidates))
        if engine is None:
            missing.append(say_missing(target, candidates))
    if not targets:
        missing.append("no engine is built")
    return PromotionPlan(
        version=version,
        choices=tuple(choices),
        missing=tuple(missing),
        precision=precision,
        validate_options=validate_options,
        named=tuple(target for target in targets if target in named),
    )


def override_gates(plan: PromotionPlan) -> PromotionPlan:
    """
    Return the plan with every target filled from engines that did not pass, noting what was gone over.

    Raises:
        GateFailedError: A target has no built engine at all: there is nothing to activate.
    """
    choices: list[TargetChoice] = []
    overridden: list[str] = []
    for choice in plan.choices:
        if choice.engine is not None:
            choices.append(choice)
            continue
        built = next((c for c in choice.candidates if c.is_built), None)
        if built is None:
            raise refusal(plan)
        overridden.append(f"{choice.target} {built.engine.precision}: {built.reason}")
        choices.append(TargetChoice(target=choice.target, engine=built.engine, candidates=choice.candidates))
    if not choices:
        raise refusal(plan)
    return replace(plan, choices=tuple(choices), missing=(), overridden=tuple(overridden))


def require_complete(plan: PromotionPlan) -> None:
    """
    Let the plan pass if every target has an engine.

    Raises:
        GateFailedError: Something is missing; every missing target is named.
    """
    if plan.missing:
        raise refusal(plan)


def _by_preference(considered: Sequence[Candidate], order: Sequence[Precision]) -> tuple[Candidate, ...]:
    def rank(candidate: Candidate) -> tuple[int, int]:
        wanted = candidate.engine.precision
        return (order.index(wanted) if wanted in order else len(order), -candidate.engine.id)

    return tuple(sorted(considered, key=rank))


def choose_rollback_generation(current: Pointer, *, to_generation: int | None, place: str) -> int:
    """
    Return the generation a rollback of `place`, `NAME@CHANNEL`, would bring back.

    Without `to_generation` that is the one that was active when the current release was promoted.

    Raises:
        NotFoundError: Nothing lies further back, or the generation cannot be meant.
    """
    if to_generation is None:
        if current.rolls_back_to is None:
            raise NotFoundError(
                f"{place} has no earlier release than version {current.version} to roll back to",
                hint=f"Choose one from `modelreg history {place}` with --to-generation, or promote a version.",
            )
        return current.rolls_back_to
    if not 1 <= to_generation < current.generation:
        raise NotFoundError(
            f"generation {to_generation} cannot be rolled back to: {place} is at {current.generation}",
            hint=f"Choose an earlier generation from `modelreg history {place}`.",
        )
    return to_generation
