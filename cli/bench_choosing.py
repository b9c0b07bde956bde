"""Which engines `bench` times, and on what: those of a version or channel that this host runs, on random inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modelreg.cli.context import Registry
from modelreg.cli.no_engines import no_engine, say_cells
from modelreg.registry.errors import NotFoundError, UsageError
from modelreg.registry.references import ModelReference
from modelreg.registry.target_order import target_key

if TYPE_CHECKING:
    from modelreg.registry.records import EngineRecord, VersionRecord
    from modelreg.registry.words import Precision

DEFAULT_BATCHES = (1, 8, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """An engine and the version that it is of."""

    version: VersionRecord
    engine: EngineRecord

    @property
    def name(self) -> str:
        """Return what it is called."""
        return f"{self.version.reference} engine {self.engine.id} ({self.engine.target.name} {self.engine.precision})"

    @property
    def device(self) -> str:
        """Return where PyTorch must run to be compared with it."""
        return "cpu" if self.engine.target.name == "cpu" else "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which engines of a version or channel are meant."""

    precisions: Sequence[Precision]
    targets: Sequence[str]

    def includes(self, engine: EngineRecord) -> bool:
        """Return whether an engine is of the precisions and targets that are meant; none named: of any."""
        return (not self.precisions or engine.precision in self.precisions) and (
            not self.targets or engine.target.name in self.targets
        )


def choose_sides(registry: Registry, reference: ModelReference, choice: Choice) -> list[Side]:
    """
    Return the built engines of a version that this host runs; of a channel, those that it serves.

    Raises:
        NotFoundError: There is none of that kind, or this host runs none of them.
    """
    from modelreg.cli.comparing import read_active
    from modelreg.cli.versions import read_version
    from modelreg.registry import engines
    from modelreg.runtime.host import describe_host
    from modelreg.runtime.suitability import why_not_here

    if reference.channel is not None:
        active = read_active(registry, reference.model, reference.channel)
        plans = {each.plan.digest for each in active.manifest.engines}
        version = active.version
        found = [each for each in active.engines if each.files and each.plan_digest in plans]
    else:
        with registry.database.read() as connection:
            version = read_version(connection, reference)
            found = [each for each in engines.current_engines(connection, version_id=version.id) if each.files]
    meant = [each for each in found if not each.is_swept and choice.includes(each)]
    if not meant:
        raise no_engine(version, found, precisions=choice.precisions, targets=choice.targets)
    host = describe_host()
    reasons = {each.id: why_not_here(each.target.name, level=each.hardware_compatibility, host=host) for each in meant}
    chosen = [Side(version=version, engine=each) for each in meant if not reasons[each.id]]
    if not chosen:
        raise _none_here(reference, meant, reasons)
    return chosen


def _none_here(reference: ModelReference, meant: Sequence[EngineRecord], reasons: Mapping[int, str]) -> NotFoundError:
    """Return the error for engines that other hosts run: each reason once."""
    ordered = sorted(meant, key=lambda engine: target_key(engine.target.name))
    why = dict.fromkeys(reasons[engine.id] for engine in ordered)
    number = f"engine {meant[0].id}" if len(meant) == 1 else f"{len(meant)} engines"
    return NotFoundError(
        f"this host runs none of {reference}: {number} ({say_cells(meant)}): {'; '.join(why)}",
        hint="Time them on a host with their GPU and toolchain.",
    )


def match_others(sides: Sequence[Side], others: Sequence[Side], *, reference: ModelReference) -> dict[int, Side]:
    """
    Return by engine the one of another version or channel with the same target and precision. Pure.

    Raises:
        NotFoundError: An engine has none.
    """
    found = {}
    for side in sides:
        wanted = (side.engine.target.name, side.engine.precision)
        same = [each for each in others if (each.engine.target.name, each.engine.precision) == wanted]
        if not same:
            raise NotFoundError(
                f"{reference} has no {wanted[0]} {wanted[1]} engine to compare with",
                hint=_advise(reference, wanted, others),
            )
        found[side.engine.id] = same[0]
    return found


def _advise(reference: ModelReference, wanted: tuple[str, Precision], others: Sequence[Side]) -> str:
    """Return what to do where the other side lacks an engine: compare what both have, or build it."""
    target, precision = wanted
    of_target = dict.fromkeys(str(each.engine.precision) for each in others if each.engine.target.name == target)
    there = f"Compare what both have with --precision {','.join(of_target)}, or build" if of_target else "Build"
    version = others[0].version.reference if others else str(reference)
    place = "" if target == "cpu" else f" --target {target}"
    calibration = " --calibration FILE" if precision in ("int8", "fp8") else ""
    return f"{there} it: `modelreg build {version}{place} --precision {precision}{calibration}`."


def settle_batches(version: VersionRecord, asked: Sequence[int]) -> tuple[int, ...]:
    """
    Return the batch sizes to time: those asked for, or ours; of a model whose batch is fixed, that one. Pure.

    Raises:
        UsageError: Others are asked for than the one that there is.
    """
    shapes = [spec.shape for spec in version.source.signature.inputs]
    if any(shape is None or (shape and not isinstance(shape[0], int)) for shape in shapes):
        return tuple(asked) or DEFAULT_BATCHES
    fixed = next((int(shape[0] or 1) for shape in shapes if shape), 1)
    if asked and tuple(asked) != (fixed,):
        raise UsageError(f"{version.reference} takes batches of {fixed} alone", hint="Leave --batch out.")
    return (fixed,)


def make_random_inputs(version: VersionRecord, batch: int) -> Mapping[str, Any]:
    """
    Return random inputs of so many samples, in the signature's order.

    Raises:
        UsageError: Other axes than the first are free, or an input has no numbers.
    """
    from modelreg.runtime.warming import make_inputs

    signature = version.source.signature
    shapes: dict[str, list[int]] = {}
    for spec in signature.inputs:
        axes = spec.shape
        if axes is None or any(not isinstance(axis, int) for axis in axes[1:]):
            raise UsageError(f"input {spec.name!r} of {version.reference} has free axes beside the batch")
        shapes[spec.name] = [
            batch if index == 0 and not isinstance(axis, int) else int(axis or 0) for index, axis in enumerate(axes)
        ]
    inputs = make_inputs(signature, shapes)
    if inputs is None:
        raise UsageError(f"{version.reference} takes inputs that are no numbers")
    return inputs
