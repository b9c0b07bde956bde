"""What to do next with a version: the note that `register`, `build` and `validate` end with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelreg.cli.render import print_note

if TYPE_CHECKING:
    from modelreg.cli.context import Registry
    from modelreg.registry.promotion import Candidate
    from modelreg.registry.records import GoldenSetRecord, VersionRecord


def print_next(registry: Registry, version: VersionRecord) -> None:
    """Print the next step for a version as it stands now, if there is one."""
    from modelreg.config.current_policies import CurrentPolicies
    from modelreg.registry import engines, golden_sets, validations, versions
    from modelreg.registry.promotion import EngineStanding, judge_engine

    with registry.database.read() as connection:
        golden = golden_sets.newest_golden_set(connection, version_id=version.id)
        cells = engines.current_engines(connection, version_id=version.id)
        newest = validations.newest_validations(connection, version_id=version.id)
        active = next((m.channels for m in versions.list_models(connection) if m.name == version.model), {})
    policies = CurrentPolicies(registry.home.path, model=version.model)
    candidates = [
        judge_engine(
            EngineStanding(engine=engine, validation=newest.get(engine.id)),
            golden_digest=golden.digest if golden else None,
            accepts=policies.object_or_say_why_not,
        )
        for engine in cells
    ]
    is_active = any(number == version.number for number, _ in active.values())
    step = choose_next(version, golden, candidates, is_active=is_active)
    if step:
        print_note(f"next: {step}")


def choose_next(
    version: VersionRecord, golden: GoldenSetRecord | None, candidates: Sequence[Candidate], *, is_active: bool
) -> str:
    """Return the command that takes a version on, or an empty string where nothing is left or a person must decide."""
    from modelreg.registry.promotion import needs_validation

    reference = version.reference
    built = [candidate for candidate in candidates if candidate.engine.files]
    if version.source.unbuildable:
        return ""
    if not built:
        return f"modelreg build {reference} --precision fp32"
    if golden is None:
        return f"modelreg register {version.model} MODEL.onnx --golden FILE, with the ONNX of {reference}"
    if any(needs_validation(candidate) for candidate in built):
        return f"modelreg validate {reference}"
    if any(candidate.usable for candidate in built) and not is_active:
        return f"modelreg promote {reference} --to production"
    return ""
