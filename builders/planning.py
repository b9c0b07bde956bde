"""Which cells would be built, reused or refused: a cell's recipe is fixed here, and nothing is done yet."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from modelreg.builders.backends import BUILDERS, embedded_toolchain
from modelreg.builders.calibration import CalibrationSet, check_calibration_set
from modelreg.builders.interface import Builder, BuildOptions, Cell
from modelreg.builders.precision import Translation, require_target, translate, translate_implicit
from modelreg.builders.recipe import Recipe, make_recipe
from modelreg.registry import engines
from modelreg.registry.database import Database
from modelreg.registry.errors import BuildError, CellRefusedError, ModelregError, UsageError
from modelreg.registry.records import EngineRecord
from modelreg.registry.words import EngineStatus, Json, Precision

_CALIBRATED = (Precision.INT8, Precision.FP8)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRequest:
    """
    A cell to fill, and what the user says about it.

    Attributes:
        cell: The cell.
        options: What the user says.
        rebuild: Whether no earlier engine is reused.
        toolchain_fault: Why the toolchain cannot be used now, or an empty string; an earlier engine is reused still.
    """

    cell: Cell
    options: BuildOptions
    rebuild: bool = False
    toolchain_fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCell:
    """A cell that can be built: its recipe is fixed, nothing has been done."""

    request: CellRequest
    translation: Translation
    recipe: Recipe
    builder: Builder
    calibration: CalibrationSet | None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what the user should know before the build."""
        return () if self.calibration is None else self.calibration.warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """What would happen to a cell: `build`, `reuse` or `refuse`, and why."""

    request: CellRequest
    action: str
    reason: str
    hint: str = ""
    steps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    recipe: Json | None = None


def prepare_cell(request: CellRequest) -> PreparedCell:
    """
    Fix the recipe of a cell, or refuse it.

    Raises:
        BuildError: No backend can build this source, or this one cannot build the precision or target.
        GoldenSetError: The calibration set does not fit the model.
        UsageError: An option means nothing for this cell.
    """
    cell, options = request.cell, request.options
    source = cell.version.source
    if source.unbuildable:
        raise BuildError(f"{cell.version.reference} cannot be built: {'; '.join(source.unbuildable)}")
    builder = BUILDERS[cell.toolchain.backend]
    reason = builder.refuse_target(cell.target, cell.toolchain)
    if reason:
        raise CellRefusedError(reason)
    translation = _translate(cell, options)
    require_target(cell.precision, cell.target)
    _require_op_types(options.op_types_to_exclude, known=source.node_counts)
    calibration = _calibration(cell, options)
    recipe = make_recipe(
        translation,
        options,
        backend=cell.toolchain.backend,
        part=builder.recipe_part(options, source.signature, cell.toolchain),
        calibration=calibration,
        tools={"onnx": importlib.metadata.version("onnx"), "onnxruntime": embedded_toolchain().version},
    )
    return PreparedCell(
        request=request, translation=translation, recipe=recipe, builder=builder, calibration=calibration
    )


def toolchain_error(request: CellRequest) -> CellRefusedError:
    """Return what is said of a cell that has to be built with a toolchain that cannot be used."""
    name = request.cell.toolchain.name
    return CellRefusedError(
        f"toolchain {name} cannot be used: {request.toolchain_fault}",
        hint="`modelreg toolchain list` shows the state of each; `modelreg toolchain add NAME --python PATH` registers"
        f" what is there now, `modelreg toolchain remove {name}` takes it out of use.",
    )


def spare_unconverted(requests: Sequence[CellRequest]) -> list[CellRequest]:
    """
    Return the requests, those that convert nothing without what is to be excluded from conversion.

    Where none converts, all are given back as they are: `prepare_cell` then refuses the exclusions.
    """
    if not any(_can_exclude(request) for request in requests):
        return list(requests)
    return [request if _can_exclude(request) else _exclude_nothing(request) for request in requests]


def _can_exclude(request: CellRequest) -> bool:
    try:
        return _translate(request.cell, request.options).can_exclude
    except CellRefusedError:
        return False


def _exclude_nothing(request: CellRequest) -> CellRequest:
    return replace(request, options=replace(request.options, nodes_to_exclude=(), op_types_to_exclude=()))


def plan_cells(requests: Sequence[CellRequest], *, database: Database) -> list[CellPlan]:
    """Return what `build_cell` would do with each request; nothing is written. Raises UsageError as that would."""
    return [_plan(request, database) for request in requests]


def _plan(request: CellRequest, database: Database) -> CellPlan:
    try:
        prepared = prepare_cell(request)
    except UsageError:
        raise  # the command line is wrong, whatever the cell
    except ModelregError as error:
        return CellPlan(request=request, action="refuse", reason=str(error), hint=error.hint())
    existing = None if request.rebuild else find_existing(prepared, database)
    if existing is None and request.toolchain_fault:
        unusable = toolchain_error(request)
        return CellPlan(request=request, action="refuse", reason=str(unusable), hint=unusable.hint())
    return CellPlan(
        request=request,
        action="build" if existing is None else "reuse",
        reason="" if existing is None else f"engine {existing.id} has the same recipe",
        steps=prepared.translation.steps,
        warnings=prepared.warnings,
        recipe=prepared.recipe.body,
    )


def _translate(cell: Cell, options: BuildOptions) -> Translation:
    if options.tensorrt.implicit_calibration and cell.precision is Precision.INT8:
        return translate_implicit(cell.toolchain.backend, cell.toolchain.version)
    return translate(cell.precision, cell.toolchain.backend, cell.toolchain.version)


def _require_op_types(op_types: Sequence[str], *, known: dict[str, int]) -> None:
    unknown = [op for op in op_types if not any(op == each.rpartition(".")[2] for each in known)]
    if unknown:
        raise UsageError(f"the model has no {unknown[0]} nodes to exclude", hint=f"It has: {', '.join(sorted(known))}.")


def _calibration(cell: Cell, options: BuildOptions) -> CalibrationSet | None:
    if cell.precision not in _CALIBRATED:
        return None  # several precisions share one command line
    if options.calibration is None:
        raise CellRefusedError(
            f"{cell.precision} of {cell.version.reference} needs a calibration set",
            hint="Give one with --calibration FILE.safetensors (keys input.NAME, some hundred real samples).",
        )
    return check_calibration_set(options.calibration, cell.version.source.signature)


def find_existing(prepared: PreparedCell, database: Database) -> EngineRecord | None:
    """Return the newest built engine of the same version, target, toolchain and recipe whose plan was not swept."""
    cell = prepared.request.cell
    spec = cell.toolchain
    with database.read() as connection:
        attempts = engines.list_engines(connection, version_id=cell.version.id)
    for engine in reversed(attempts):
        known = engine.toolchain
        same_toolchain = (known.name, known.backend, known.version) == (spec.name, spec.backend, spec.version)
        same_cell = same_toolchain and engine.target.name == cell.target and _is_same(known.python, spec.python)
        is_built = engine.status is EngineStatus.BUILT and not engine.is_swept
        if is_built and same_cell and engine.recipe_digest == prepared.recipe.digest:
            return engine
    return None


def _is_same(python: str, other: str) -> bool:
    """Return whether two paths name one interpreter: pip writes `python` or `python3` into the commands it installs."""
    one, two = Path(python), Path(other)
    return one == two or (one.parent == two.parent and one.resolve() == two.resolve())
