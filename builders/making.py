"""Making the plan of a cell from the stored source, without recording anything: for a cell, or for a trial."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from modelreg.builders.asked_precision import may_become, require_precision
from modelreg.builders.failures import build_error
from modelreg.builders.graph_sizes import EXTERNAL_BYTES
from modelreg.builders.interface import BuildRequest, BuildResult, OnProgress, ToolchainSpec
from modelreg.builders.materials import CellFiles, KnownMaterials, golden_inputs
from modelreg.builders.planning import CellRequest, PreparedCell, prepare_cell
from modelreg.builders.variants import VariantWorker
from modelreg.registry.contents import StoredFile
from modelreg.registry.database import Database
from modelreg.registry.errors import BuildError, ToolchainError
from modelreg.registry.scratch import scratch_folder
from modelreg.registry.storage.interface import Storage
from modelreg.registry.toolchains.process import WorkerJobError
from modelreg.registry.words import Json

PREFERRED = "preferred in each"
"""What the steps of a translation say of an engine that was built again, since no layer had become its precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePlan:
    """
    A plan in a folder of its own.

    Attributes:
        result: What the builder gave.
        stored: The variant's files where it was made before and is in the store.
        made: What was built in place of the source, the ONNX first; empty where the source itself was.
        realised: What became of the precision.
    """

    result: BuildResult
    stored: tuple[StoredFile, ...]
    made: tuple[Path, ...]
    realised: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A plan that nobody records, with its variant (None: built from the source), and the seconds that it took."""

    prepared: PreparedCell
    plan: MadePlan
    variant: Path | None
    build_s: float


def make_plan(
    prepared: PreparedCell, files: CellFiles, known: KnownMaterials, storage: Storage, progress: OnProgress
) -> MadePlan:
    """
    Make the variant of a cell, build its plan, and read back what it became.

    Raises:
        BuildError: A step was refused or failed, or the plan did not become the precision.
        WorkerError: A child crashed, hung, or spoke garbage.
    """
    cell, options = prepared.request.cell, prepared.request.options
    variant = prepared.recipe.variant
    progress(0.0, "fetching the source")
    source = files.materialise_source(cell.version.source, storage)
    inputs = golden_inputs(cell.version, known, storage, files.golden)
    with VariantWorker(log_path=files.log, timeout_s=options.timeout_s) as worker:
        stored = files.fetch_variant(known.variant, storage)
        made = (files.variant / stored[0].path,) if stored else _derive(prepared, files, worker, source, progress)
        model, pinned = _pin(prepared, worker, made[0] if made else source)
        request = BuildRequest(
            model=model,
            source=source,
            target=cell.target,
            signature=cell.version.source.signature,
            recipe=prepared.recipe.body,
            options=options,
            size_bytes=sum(path.stat().st_size for path in model.parent.rglob("*") if path.is_file()),
            inputs=inputs,
            keep_io_types=variant is None or variant.get("keep_io_types", True),
            folder=files.plan,
            log_path=files.log,
            pinned=pinned,
            calibration=prepared.calibration,
        )
        steps = prepared.translation.steps
        result, realised = _build_and_read(prepared, worker, request, progress)
        if prepared.translation.is_chosen_by_layer and may_become(realised, pinned, prepared.recipe.body):
            again = f"TensorRT made no layer of {cell.precision}: built again, with {cell.precision} {PREFERRED}"
            progress(0.5, again)
            steps = (*steps, again)
            result, realised = _build_and_read(prepared, worker, replace(request, is_preferred=True), progress)
    excluded = (*options.nodes_to_exclude, *options.op_types_to_exclude)
    require_precision(realised, asked=cell.precision, excluded=excluded)
    checked = {"checked": result.checked, "translation": list(steps)}
    return MadePlan(result=result, stored=stored, made=made, realised={**realised, **checked})


def _build_and_read(
    prepared: PreparedCell, worker: VariantWorker, request: BuildRequest, progress: OnProgress
) -> tuple[BuildResult, Json]:
    """Return the plan, and what it became."""
    toolchain = prepared.request.cell.toolchain
    try:
        result = prepared.builder.build(toolchain, request, _part(progress, 0.5, 0.95))
    except BuildError as error:
        advised = _name_toolchain(error, toolchain)
        if advised is error:
            raise
        raise advised from error
    realised = worker.inspect(
        result.files[0],
        request.model,
        recipe=request.recipe,
        pinned=request.pinned,
        layers=result.layers,
        on_progress=_part(progress, 0.95, 0.98),
    )
    return result, realised


def _name_toolchain(error: BuildError, toolchain: ToolchainSpec) -> BuildError:
    """Return the error with where to look, where it is the toolchain that cannot be used."""
    found = build_error(error) if isinstance(error, WorkerJobError) else error
    if isinstance(found, ToolchainError) or not Path(toolchain.python).is_file():
        found.advise(f"It is toolchain {toolchain.name}: `modelreg toolchain list` shows whether it can be used.")
    return found


@contextmanager
def make_trial(request: CellRequest, *, database: Database, storage: Storage, progress: OnProgress) -> Iterator[Trial]:
    """
    Yield a cell's plan without recording or storing anything; it is gone behind the block.

    Raises:
        BuildError: Refused or failed.
        WorkerError: A child crashed, hung, or spoke garbage.
    """
    prepared = prepare_cell(request)
    known = KnownMaterials.look_up(request.cell.version, database, recipe=prepared.recipe)
    began = time.monotonic()
    with scratch_folder("trial") as folder:
        plan = make_plan(prepared, CellFiles.create(folder), known, storage, progress)
        variant = plan.made[0] if prepared.recipe.variant is not None else None
        yield Trial(prepared=prepared, plan=plan, variant=variant, build_s=time.monotonic() - began)


def _pin(prepared: PreparedCell, worker: VariantWorker, model: Path) -> tuple[Path, tuple[str, ...]]:
    """Return what is built, with a name for every node that a constraint is put on, and these names."""
    pins = prepared.recipe.body.get("pins")
    return worker.pin(model, pins=pins) if pins else (model, ())


def _derive(
    prepared: PreparedCell, files: CellFiles, worker: VariantWorker, source: Path, progress: OnProgress
) -> tuple[Path, ...]:
    """Return the files that are built in place of the source: the variant, or the source in one file, or none."""
    target, report = files.variant / "model.onnx", _part(progress, 0.0, 0.5)
    if prepared.recipe.variant is not None:
        variant, calibration = prepared.recipe.variant, prepared.calibration
        return worker.make(source, target, variant=variant, calibration=calibration, on_progress=report)
    listed = prepared.request.cell.version.source.files
    if len(listed) > 1 and sum(file.size_bytes for file in listed) <= EXTERNAL_BYTES:
        # Older releases of ONNX Runtime (1.20) let a plan refer to the external data of its source.
        return (worker.merge(source, target, on_progress=report),)
    return ()


def _part(progress: OnProgress, first: float, last: float) -> OnProgress:
    def scaled(fraction: float | None, message: str) -> None:
        progress(None if fraction is None else first + (last - first) * fraction, message)

    return scaled
