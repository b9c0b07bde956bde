"""Read what a promotion decides on: a version's engines with their newest verdicts, against its golden set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa

from modelreg.registry import engines, golden_sets, releases, validations, versions
from modelreg.registry.named_engines import require_promotable, require_wanted
from modelreg.registry.promotion import (
    Acceptance,
    Candidate,
    CanPassNow,
    EngineStanding,
    PromotionPlan,
    PromotionRequest,
    accept_every_verdict,
    judge_engine,
    override_gates,
    plan_promotion,
    policies_never_change,
    required_targets,
)
from modelreg.registry.promotion_doubts import find_doubts
from modelreg.registry.records import EngineRecord, GoldenSetRecord, ValidationRecord, VersionRecord
from modelreg.registry.references import ModelReference
from modelreg.registry.words import Precision


def read_plan(
    connection: sa.Connection, reference: ModelReference, active: Sequence[str], request: PromotionRequest
) -> PromotionPlan:
    """
    Return what `request` would activate of the version that `reference` names.

    Args:
        connection: In any transaction; in a writing one no verdict can change before it ends.
        reference: The version; a channel means exactly the engines that it serves.
        active: The targets that the channel serves now.
        request: What the user asks.

    Raises:
        NotFoundError: There is no such version, or no such engine of it.
        GateFailedError: Gates are to be overridden, and a target has no engine that was built, or one is named that
            was not.
        UsageError: The engines that are named cannot make one release of these targets.
    """
    version = versions.get_version(connection, reference)
    cells = _candidates(connection, reference, version)
    newest = validations.newest_validations(connection, version_id=version.id)
    golden = golden_sets.newest_golden_set(connection, version_id=version.id)
    built = [engine.target.name for engine in cells if engine.files]
    named = _read_named(connection, reference, version, request, cells)
    targets = required_targets(
        explicit=request.targets, configured=request.configured_targets, active=active, built=built, named=tuple(named)
    )
    require_wanted(named, targets, explicit=request.targets, channel_wants=request.configured_targets)
    known = {engine.id: engine for engine in (*cells, *named.values())}
    plan = plan_promotion(
        version,
        [EngineStanding(engine=engine, validation=newest.get(engine.id)) for engine in known.values()],
        targets=targets,
        named=named,
        golden_digest=golden.digest if golden else None,
        preference=request.preference,
        precision=request.precision,
        accepts=request.accepts,
        can_pass_now=request.can_pass_now,
        validate_options=request.validate_options,
    )
    if request.override_gates and plan.missing:
        plan = override_gates(plan)
    # Of FP32 its verdicts as they are: whether they count is a matter for promoting it, and of its policy's file.
    current = engines.current_engines(connection, version_id=version.id)
    fp32 = judge_engines([engine for engine in current if engine.precision is Precision.FP32], newest, golden)
    return replace(plan, doubts=find_doubts(plan.engines, fp32))


def judge_engines(
    found: Iterable[EngineRecord],
    newest: Mapping[int, ValidationRecord],
    golden: GoldenSetRecord | None,
    *,
    accepts: Acceptance = accept_every_verdict,
    can_pass_now: CanPassNow = policies_never_change,
) -> list[Candidate]:
    """
    Return engines with what their newest verdicts come to.

    Args:
        found: The engines.
        newest: The newest verdict by engine.
        golden: The version's golden set, or None.
        accepts: As of `judge_engine`.
        can_pass_now: As of `judge_engine`.
    """
    return [
        judge_engine(
            EngineStanding(engine=engine, validation=newest.get(engine.id)),
            golden_digest=golden.digest if golden else None,
            accepts=accepts,
            can_pass_now=can_pass_now,
        )
        for engine in found
    ]


def _read_named(
    connection: sa.Connection,
    reference: ModelReference,
    version: VersionRecord,
    request: PromotionRequest,
    cells: Sequence[EngineRecord],
) -> dict[str, EngineRecord]:
    return require_promotable(
        [engines.get_engine(connection, number) for number in dict.fromkeys(request.engine_ids)],
        reference=reference,
        version=version,
        served=None if reference.channel is None else frozenset(engine.id for engine in cells),
        precision=request.precision,
    )


def _candidates(connection: sa.Connection, reference: ModelReference, version: VersionRecord) -> list[EngineRecord]:
    if reference.channel is None:
        return engines.current_engines(connection, version_id=version.id)
    channel_id = releases.find_channel(connection, model=reference.model, name=reference.channel)
    served = set() if channel_id is None else set(releases.active_engines(connection, channel_id=channel_id).values())
    return [engine for engine in engines.list_engines(connection, version_id=version.id) if engine.id in served]
