"""An engine beside others: its FP16 sibling, which it must be worth something beside, and what a channel serves now."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.cli.context import Registry
from modelreg.cli.evaluation import fetch_files, make_passes
from modelreg.registry.errors import ModelregError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.config.policy import Policy
    from modelreg.registry.manifest import Manifest
    from modelreg.registry.records import EngineRecord, GateResult, VersionRecord
    from modelreg.registry.tensor_sets import TensorSet
    from modelreg.registry.words import Json
    from modelreg.validators.golden import CheckedGolden
    from modelreg.validators.interface import EvaluationPass
    from modelreg.validators.pairing import PairedLatency


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """What a channel serves now."""

    channel: str
    generation: int
    manifest: Manifest
    version: VersionRecord
    engines: tuple[EngineRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What one engine is compared with once the golden set is checked; called by the validation."""

    registry: Registry
    version: VersionRecord
    engine: EngineRecord
    own: EvaluationPass
    policy: Policy
    folder: Path
    active: Active | None

    def __call__(self, golden: TensorSet, checked: CheckedGolden) -> tuple[list[GateResult], Json]:
        """Return the gates of value and of the active engine, and what the report says of them."""
        from modelreg.config.policy import Scope

        gates: list[GateResult] = []
        report: Json = {}
        if self.policy.rules_for(Scope.VALUE):
            found, body = self._beside_sibling(golden, checked)
            gates += found
            report["value"] = body
        if self.active is not None and self.policy.rules_for(Scope.ACTIVE):
            found, body = self._beside_active(self.active, golden, checked)
            gates += found
            report["active"] = body
        return gates, report

    # -- value ---------------------------------------------------------------------------------------------
    def _beside_sibling(self, golden: TensorSet, checked: CheckedGolden) -> tuple[list[GateResult], Json | None]:
        from modelreg.validators.value import Worth, value_gates

        sibling = self._find_sibling()
        if sibling is None:
            return value_gates(None, policy=self.policy, precision=self.engine.precision), None
        other = self._open(sibling, self.version, self.folder / "sibling")
        latency, not_timed = self._time(other, golden, checked.within(sibling.profiles))
        worth = Worth(
            sibling=f"engine {sibling.id} ({sibling.precision})",
            size_ratio=self.engine.size_bytes / sibling.size_bytes,
            latency=latency,
            not_timed=not_timed,
        )
        return value_gates(worth, policy=self.policy, precision=self.engine.precision), worth.to_json()

    def _find_sibling(self) -> EngineRecord | None:
        """Return the FP16 engine of the same version, target and backend."""
        from modelreg.registry import engines
        from modelreg.registry.words import Precision

        with self.registry.database.read() as connection:
            built = engines.current_engines(connection, version_id=self.version.id)
        wanted = (self.engine.target.name, self.engine.toolchain.backend, self.engine.toolchain.version)
        for each in reversed(built):
            found = (each.target.name, each.toolchain.backend, each.toolchain.version)
            if each.files and each.precision is Precision.FP16 and found == wanted:
                return each
        return None

    # -- what is active ------------------------------------------------------------------------------------
    def _beside_active(
        self, active: Active, golden: TensorSet, checked: CheckedGolden
    ) -> tuple[list[GateResult], Json | None]:
        from modelreg.validators.active import BesideActive, active_gates, decide_in_step

        name = f"{active.version.reference} in {active.channel}"
        why_not, other = self._find_active(active)
        if other is None:
            beside = BesideActive(name=name, decisions=None, latency=None, undecided=why_not, not_timed=why_not)
            return active_gates(beside, policy=self.policy), beside.to_json()
        served = self._open(other, active.version, self.folder / "active")
        checked = checked.within(other.profiles)
        latency, not_timed = self._time(served, golden, checked)
        decisions, undecided = None, "the golden set has no labels"
        if checked.labelled_output is not None:
            try:
                decisions = decide_in_step(self.own, served, golden=golden, checked=checked)
            except ModelregError as error:
                undecided = str(error)
        beside = BesideActive(name=name, decisions=decisions, latency=latency, undecided=undecided, not_timed=not_timed)
        return active_gates(beside, policy=self.policy), beside.to_json()

    def _find_active(self, active: Active) -> tuple[str, EngineRecord | None]:
        """Return the engine that the channel serves for the same target, or why none can be compared."""
        target = self.engine.target.name
        released = next((each for each in active.manifest.engines if each.target == target), None)
        if released is None:
            return f"{active.channel} serves nothing for {target}", None
        if released.plan.digest == self.engine.plan_digest:
            return f"it is what {active.channel} serves now", None
        ours, theirs = self.version.source.signature, active.manifest.signature
        if any(
            [(spec.name, spec.dtype) for spec in one] != [(spec.name, spec.dtype) for spec in two]
            for one, two in ((ours.inputs, theirs.inputs), (ours.outputs, theirs.outputs))
        ):
            return f"{active.version.reference} has other inputs or outputs", None
        for engine in active.engines:
            if engine.plan_digest == released.plan.digest and engine.target.name == target:
                return "", engine
        return f"the database does not know the engine that {active.channel} serves", None

    # -- running -------------------------------------------------------------------------------------------
    def _open(self, engine: EngineRecord, version: VersionRecord, folder: Path) -> EvaluationPass:
        plan = fetch_files(engine.files, self.registry.storage, folder)
        return make_passes(engine, plan, version, self.registry, folder)[0]

    def _time(
        self, other: EvaluationPass, golden: TensorSet, checked: CheckedGolden
    ) -> tuple[PairedLatency | None, str]:
        """Return the paired latency on the golden set's first run, or why there is none."""
        from modelreg.validators.pairing import Timed, time_in_turns

        batch = next(iter(checked.feed.iterate_batches(golden)))
        try:
            with ExitStack() as stack:
                one, two = (stack.enter_context(each.open_runner()) for each in (self.own, other))
                if not (isinstance(one, Timed) and isinstance(two, Timed)):
                    return None, "it cannot be timed"
                return time_in_turns(one, two, batch.inputs, samples=batch.stop - batch.start), ""
        except ModelregError as error:
            return None, str(error)


def read_active(registry: Registry, model: str, channel: str) -> Active:
    """
    Return what a channel serves now.

    Raises:
        NotFoundError: It serves nothing, or what the database does not know.
    """
    from modelreg.cli.versions import read_version
    from modelreg.registry import engines
    from modelreg.registry.manifest import parse_manifest
    from modelreg.registry.suggestions import no_active_release

    pointer = registry.storage.read_pointer(model, channel)
    if pointer is None:
        raise no_active_release(model, channel, served=registry.storage.list_channels())
    manifest = parse_manifest(registry.storage.read_manifest(pointer.release), where=pointer.release[:12])
    with registry.database.read() as connection:
        version = read_version(connection, ModelReference(model=model, version=pointer.version))
        known = engines.list_engines(connection, version_id=version.id)
    return Active(
        channel=channel, generation=pointer.generation, manifest=manifest, version=version, engines=tuple(known)
    )
