"""The cells of one `build`: every precision on every target, with the toolchains that build for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelreg.cli.context import Registry
from modelreg.cli.own_backend import advise_own_backend
from modelreg.registry.errors import BuildError, CellRefusedError

if TYPE_CHECKING:
    from modelreg.builders.choosing import TargetChoice
    from modelreg.builders.interface import BuildOptions
    from modelreg.builders.planning import CellRequest
    from modelreg.registry.records import VersionRecord
    from modelreg.registry.words import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asks for: every precision on every target; `on_workers` where it is built on other hosts."""

    version: VersionRecord
    targets: tuple[str, ...]
    precisions: tuple[Precision, ...]
    on_workers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A cell that cannot be built here; `toolchain` is empty where none builds for the target."""

    target: str
    precision: Precision
    toolchain: str
    error: BuildError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCells:
    """What is built, and what is not."""

    wanted: Wanted
    requests: list[CellRequest]
    refusals: list[Refusal]


def choose_cells(
    registry: Registry, wanted: Wanted, names: tuple[str, ...], options: BuildOptions, *, rebuild: bool
) -> ChosenCells:
    """Return the cells of all targets, precisions and the toolchains that build for them."""
    from modelreg.builders.interface import Cell
    from modelreg.builders.planning import CellRequest, spare_unconverted

    requests: list[CellRequest] = []
    refusals: list[Refusal] = []
    for choice in _choose_toolchains(registry, wanted, names):
        for precision in wanted.precisions:
            if not choice.toolchains:
                own = "" if names else advise_own_backend(registry, choice.target)
                error = CellRefusedError(choice.reason, hint=own or _hint(names))
                refusals.append(Refusal(target=choice.target, precision=precision, toolchain="", error=error))
            for spec in choice.toolchains:
                cell = Cell(version=wanted.version, target=choice.target, precision=precision, toolchain=spec)
                requests.append(CellRequest(cell=cell, options=options, rebuild=rebuild))
    return ChosenCells(wanted=wanted, requests=spare_unconverted(requests), refusals=refusals)


def _choose_toolchains(registry: Registry, wanted: Wanted, names: tuple[str, ...]) -> list[TargetChoice]:
    from modelreg.builders.backends import embedded_toolchain
    from modelreg.builders.choosing import choose_named, choose_toolchains, to_spec
    from modelreg.builders.elsewhere.resources import building_on_workers
    from modelreg.registry.toolchains.catalogue import EMBEDDED, get_toolchain, list_toolchains

    with registry.database.read() as connection:
        if names:
            known = [
                embedded_toolchain() if name == EMBEDDED else to_spec(get_toolchain(connection, name)) for name in names
            ]
        else:
            known = [embedded_toolchain(), *(to_spec(record) for record in list_toolchains(connection))]
    if wanted.on_workers:
        known = [building_on_workers(spec, wanted.targets) for spec in known]
    if names:
        return [choose_named(target, known) for target in wanted.targets]
    # Our own ONNX Runtime builds for the CPU unless another one is named.
    return [choose_toolchains(target, known[:1] if target == "cpu" else known) for target in wanted.targets]


def _hint(names: tuple[str, ...]) -> str:
    if names:
        return ""
    return (
        "Add one with: modelreg toolchain add NAME --python PATH, PATH being an environment that has TensorRT-RTX or"
        " TensorRT; `modelreg toolchain list` shows them."
    )


def sort_out(cells: ChosenCells) -> tuple[list[CellRequest], list[Refusal]]:
    """Return what can be built and what not; what is wrong with the command itself is raised before any build."""
    from modelreg.builders.planning import prepare_cell

    requests: list[CellRequest] = []
    refusals = list(cells.refusals)
    for request in cells.requests:
        cell = request.cell
        try:
            prepare_cell(request)
        except CellRefusedError as error:
            name = cell.toolchain.name
            refusals.append(Refusal(target=cell.target, precision=cell.precision, toolchain=name, error=error))
        else:
            requests.append(request)
    return requests, refusals


def name_cell(request: CellRequest) -> str:
    """Return a cell in words, with its toolchain where that is not our own ONNX Runtime."""
    from modelreg.registry.toolchains.catalogue import EMBEDDED

    cell = request.cell
    name = f"{cell.precision} for {cell.target}"
    return name if cell.toolchain.name == EMBEDDED else f"{name} with {cell.toolchain.name}"
