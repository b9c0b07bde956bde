"""What to do where a release has no engine for this host: promote one that passes, validate one, or build it.

`which` reads the store alone. Only here, where it has nothing to show, is the database asked too, if there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelreg.registry.errors import ModelregError

if TYPE_CHECKING:
    from modelreg.config.settings import Home
    from modelreg.registry.pointers import Pointer
    from modelreg.registry.promotion import Candidate
    from modelreg.runtime.host import Host


def advise_engine(home: Home, pointer: Pointer, host: Host) -> str:
    """Return the next step for a host that runs no engine of what a channel serves."""
    version = f"{pointer.model}:{pointer.version}"
    candidates = _find_candidates(home, pointer, host)
    passing = [each for each in candidates if each.usable]
    if passing:
        number, cell = passing[0].engine.id, f"{passing[0].engine.target.name} {passing[0].engine.precision}"
        promote = f"modelreg promote {version} --to {pointer.channel} --engine {number}"
        return f"Engine {number} ({cell}) runs here and passes; promote it: {promote}"
    if candidates:
        engine = candidates[0].engine
        return (
            f"Engine {engine.id} ({engine.target.name} {engine.precision}) runs here: {candidates[0].reason}."
            f" Validate it, then promote it: modelreg validate {version} --engine {engine.id}"
        )
    return f"Build one for it and promote it: modelreg build {version} --target {host.targets[0]}"


def _find_candidates(home: Home, pointer: Pointer, host: Host) -> list[Candidate]:
    """Return the engines of the version that this host would load and that pass, or wait for a verdict; best first."""
    try:
        return _read_candidates(home, pointer, host)
    except (ModelregError, OSError):  # a serving host has no database, or one that it may not read
        return []


def _read_candidates(home: Home, pointer: Pointer, host: Host) -> list[Candidate]:
    from modelreg.cli.context import open_database
    from modelreg.cli.policies_in_force import policies_in_force
    from modelreg.registry import engines, golden_sets, validations, versions
    from modelreg.registry.manifest import make_manifest
    from modelreg.registry.references import ModelReference
    from modelreg.registry.standings import judge_engines
    from modelreg.runtime.suitability import judge

    with open_database(home) as database:
        policies = policies_in_force(home, database, model=pointer.model, channel=pointer.channel)
        with database.read() as connection:
            reference = ModelReference(model=pointer.model, version=pointer.version)
            version = versions.get_version(connection, reference)
            golden = golden_sets.newest_golden_set(connection, version_id=version.id)
            newest = validations.newest_validations(connection, version_id=version.id)
            built = engines.current_engines(connection, version_id=version.id)
        fitting = [
            engine
            for engine in built
            if engine.files and not engine.is_swept
            if judge(make_manifest(version, {engine.target.name: engine}).engines[0], host).usable
        ]
        found = judge_engines(fitting, newest, golden, accepts=policies.object_to, can_pass_now=policies.can_pass_now)

    def rank(candidate: Candidate) -> tuple[int, int, int]:
        engine, targets = candidate.engine, host.targets
        target = engine.target.name
        wanted = list(home.settings.preference_for(target))
        return (
            targets.index(target) if target in targets else len(targets),
            wanted.index(engine.precision) if engine.precision in wanted else len(wanted),
            -engine.id,
        )

    return sorted((each for each in found if each.usable or each.needs_validation), key=rank)
