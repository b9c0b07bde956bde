"""Why a promotion is refused, and what to do then. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelreg.registry.errors import GateFailedError
from modelreg.registry.words import EngineStatus, Precision

if TYPE_CHECKING:
    from modelreg.registry.promotion import Candidate, PromotionPlan, TargetChoice


def refusal(plan: PromotionPlan) -> GateFailedError:
    """Return the error for a plan in which something is missing: every missing target is named."""
    return GateFailedError(
        f"{plan.version.reference} cannot be promoted: {'; '.join(plan.missing)}",
        missing=plan.missing,
        hint=_advise(plan),
    )


def _advise(plan: PromotionPlan) -> str:
    """Return the next step: to build where nothing is built, else to validate, else to look at what failed."""
    reference = plan.version.reference
    waiting = [choice for choice in plan.choices if choice.engine is None]
    options = (plan.validate_options, _name_engine(plan, waiting))
    validate = " ".join(part for part in ("modelreg validate", reference, *options) if part)
    unbuilt = [choice for choice in waiting if all(not candidate.is_built for candidate in choice.candidates)]
    if unbuilt or not plan.choices:
        build = " ".join((f"modelreg build {reference}", *_build_options(plan, unbuilt)))
        failed = [
            str(candidate.engine.id)
            for choice in unbuilt
            for candidate in choice.candidates
            if candidate.engine.status is EngineStatus.FAILED
        ]
        log = f" `modelreg show {reference} --log {failed[0]}` prints why a build failed." if failed else ""
        return f"Run `{build}`, then `{validate}`.{log}"
    override = "or go over the gates with --override-gates --message WHY."
    served = [choice.target for choice in plan.choices if choice.engine is not None]
    if served:
        override = f"promote the rest alone with --target {','.join(served)}, {override}"
    if any(candidate.needs_validation for choice in waiting for candidate in choice.candidates):
        return f"Run `{validate}`, {override}"
    return f"See `modelreg show {reference}`, and build another engine, {override}"


def _name_engine(plan: PromotionPlan, waiting: Sequence[TargetChoice]) -> str:
    """Return how `validate` is told of the one engine that is wanted: it may be one that others stand in for."""
    if len(waiting) != 1 or waiting[0].target not in plan.named:
        return ""
    return f"--engine {waiting[0].candidates[0].engine.id}"


def _build_options(plan: PromotionPlan, unbuilt: Sequence[TargetChoice]) -> list[str]:
    targets = ",".join(choice.target for choice in unbuilt)
    options = [f"--target {targets}"] if targets else []
    return options + ([f"--precision {plan.precision}"] if plan.precision is not None else [])


def say_missing(target: str, candidates: Sequence[Candidate]) -> str:
    """Return why a target gets no engine; engines that are alike in that are named together."""
    if not candidates:
        return f"{target} has no engine"
    alike: dict[tuple[Precision, str], list[str]] = {}
    for candidate in candidates:
        alike.setdefault((candidate.engine.precision, candidate.reason), []).append(str(candidate.engine.id))
    reasons = "; ".join(
        f"{precision} engine{'s' if len(ids) > 1 else ''} {', '.join(ids)}: {reason}"
        for (precision, reason), ids in alike.items()
    )
    return f"{target} has no engine that passes ({reasons})"
