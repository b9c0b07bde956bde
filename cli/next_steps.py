"""What to do next with a version: the note that `register`, `build` and `validate` end with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from modelreg.cli.render import print_note

if TYPE_CHECKING:
    from modelreg.cli.context import Registry
    from modelreg.registry.promotion import Candidate
    from modelreg.registry.records import EngineRecord, GoldenSetRecord, VersionRecord


def print_next(registry: Registry, version: VersionRecord, *, among: Collection[int] | None = None) -> None:
    """
    Print the next step for a version as it stands now, if there is one.

    `among` are the ids of the engines that may be named for validation: those that were made now; None for all.
    """
    from modelreg.cli.policies_in_force import policies_in_force
    from modelreg.registry import engines, golden_sets, validations, versions
    from modelreg.registry.repaired_engines import find_superseded
    from modelreg.registry.standings import judge_engines

    with registry.database.read() as connection:
        golden = golden_sets.newest_golden_set(connection, version_id=version.id)
        cells = engines.current_engines(connection, version_id=version.id)
        newest = validations.newest_validations(connection, version_id=version.id)
        active = next((m.channels for m in versions.list_models(connection) if m.name == version.model), {})
    gone = find_superseded(cells, newest)
    policies = policies_in_force(registry.home, registry.database, model=version.model)
    candidates = judge_engines(
        [engine for engine in cells if engine.id not in gone],
        newest,
        golden,
        accepts=policies.object_or_say_why_not,
        can_pass_now=policies.could_pass_now,
    )
    is_active = any(number == version.number for number, _ in active.values())
    step = choose_next(version, golden, candidates, is_active=is_active, why_not_here=ask_this_host(), among=among)
    if step:
        print_note(f"next: {step}")


def ask_this_host() -> Callable[[EngineRecord], str]:
    """Return what says why this host cannot run an engine; the host is looked at when first asked, and once."""
    import functools

    from modelreg.runtime.host import describe_host
    from modelreg.runtime.suitability import why_not_here

    describe = functools.cache(describe_host)
    return lambda engine: why_not_here(engine.target.name, level=engine.hardware_compatibility, host=describe())


def choose_next(
    version: VersionRecord,
    golden: GoldenSetRecord | None,
    candidates: Sequence[Candidate],
    *,
    is_active: bool,
    why_not_here: Callable[[EngineRecord], str],
    among: Collection[int] | None = None,
) -> str:
    """
    Return the command that takes a version on, or an empty string where nothing is left or a person must decide.

    Args:
        version: The version.
        golden: Its golden set.
        candidates: Its engines, judged.
        is_active: Whether a channel serves it.
        why_not_here: Returns why this host cannot run an engine, or an empty string.
        among: The engines that are named for validation where any of them waits for it; None for all.
    """
    reference = version.reference
    built = [candidate for candidate in candidates if candidate.engine.files]
    if version.source.unbuildable:
        return ""
    if not built:
        return f"modelreg build {reference} --precision fp32"
    if golden is None:
        return f"modelreg register {version.model} MODEL.onnx --golden FILE, with the ONNX of {reference}"
    waiting = [candidate.engine for candidate in built if candidate.needs_validation]
    if waiting:
        named = [engine for engine in waiting if among is not None and engine.id in among]
        here = [engine for engine in named or waiting if not why_not_here(engine)]
        return say_validate(reference, named or waiting, here, others=len(named or waiting) < len(waiting))
    if any(candidate.usable for candidate in built) and not is_active:
        return f"modelreg promote {reference} --to production"
    return ""


def say_validate(
    reference: str, waiting: Sequence[EngineRecord], here: Sequence[EngineRecord], *, others: bool = False
) -> str:
    """Return how to validate what waits for it: what runs here first, else where; by target where `others` wait too."""
    from modelreg.registry.target_order import in_order

    targets = in_order(engine.target.name for engine in here or waiting)
    command = f"modelreg validate {reference}"
    if len(here) == len(waiting) and not others:
        return command
    if here:
        return f"{command} --target {','.join(targets)}"
    if len(targets) == 1:
        return f"{command}, on a host that runs {targets[0]}"
    return f"{command}, on a host for each of {', '.join(targets)}"
