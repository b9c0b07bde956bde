"""The cells of one `build`: every precision on every target, with the toolchains that build for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelreg.cli.build_words import CellName
from modelreg.cli.context import Registry
from modelreg.cli.own_backend import advise_own_backend
from modelreg.cli.render import print_warning
from modelreg.registry.errors import CellRefusedError, GoldenSetError, ModelregError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelreg.builders.choosing import TargetChoice
    from modelreg.builders.interface import BuildOptions, ToolchainSpec
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
    error: ModelregError

    @property
    def name(self) -> CellName:
        """Return its precision and target."""
        return str(self.precision), self.target


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
    choices = _choose_toolchains(registry, wanted, names, timeout_s=options.timeout_s)
    for warning in dict.fromkeys(warning for choice in choices for warning in _say_passed_over(choice)):
        print_warning(warning)
    for choice in choices:
        for precision in wanted.precisions:
            if not choice.toolchains:
                own = "" if names else advise_own_backend(registry, choice.target)
                error = CellRefusedError(choice.reason, hint=own or choice.hint)
                refusals.append(Refusal(target=choice.target, precision=precision, toolchain="", error=error))
            for spec in choice.toolchains:
                cell = Cell(version=wanted.version, target=choice.target, precision=precision, toolchain=spec)
                fault = choice.faults.get(spec.name, "")
                requests.append(CellRequest(cell=cell, options=options, rebuild=rebuild, toolchain_fault=fault))
    return ChosenCells(wanted=wanted, requests=spare_unconverted(requests), refusals=refusals)


def _choose_toolchains(
    registry: Registry, wanted: Wanted, names: tuple[str, ...], *, timeout_s: float
) -> list[TargetChoice]:
    from modelreg.builders.backends import embedded_toolchain
    from modelreg.builders.choosing import choose_named, choose_toolchains, to_spec
    from modelreg.builders.elsewhere.resources import building_on_workers
    from modelreg.registry.toolchains.catalogue import list_toolchains

    with registry.database.read() as connection:
        known = [embedded_toolchain(), *(to_spec(record) for record in list_toolchains(connection))]
    if wanted.on_workers:
        known = [building_on_workers(spec, wanted.targets) for spec in known]
    # What the workers have is looked at there.
    find_fault = (lambda _spec: "") if wanted.on_workers else _fault_finder(timeout_s)
    if names:
        named = [_find_named(name, known) for name in names]
        return [choose_named(target, named, known, find_fault=find_fault) for target in wanted.targets]
    # Our own ONNX Runtime builds for the CPU unless another one is named.
    return [
        choose_toolchains(target, known[:1] if target == "cpu" else known, find_fault=find_fault)
        for target in wanted.targets
    ]


def _find_named(name: str, known: Sequence[ToolchainSpec]) -> ToolchainSpec:
    from modelreg.registry.suggestions import say_close

    names = [spec.name for spec in known]
    if name not in names:
        more = f"There are: {', '.join(names)}; `modelreg toolchain add NAME --python PATH` adds one."
        hint = " ".join(part for part in (say_close(name, names), more) if part)
        raise NotFoundError(f"there is no toolchain {name!r}", hint=hint)
    return known[names.index(name)]


def _fault_finder(timeout_s: float) -> Callable[[ToolchainSpec], str]:
    """Return what says why a toolchain cannot be used: each is looked at once, without importing its backend."""
    from modelreg.registry.toolchains.catalogue import EMBEDDED
    from modelreg.registry.toolchains.probing import PROBE_TIMEOUT_S, glance

    found = {EMBEDDED: ""}  # modelreg runs with it
    limit_s = min(timeout_s, PROBE_TIMEOUT_S)

    def find_fault(spec: ToolchainSpec) -> str:
        if spec.name not in found:
            _, reason = glance(spec.python, backend=spec.backend, version=spec.version, timeout_s=limit_s)
            found[spec.name] = reason
        return found[spec.name]

    return find_fault


def _say_passed_over(choice: TargetChoice) -> list[str]:
    """Return which toolchains would have been chosen if they could be used."""
    return [
        f"toolchain {name} cannot be used and is passed over ({fault}); see `modelreg toolchain list`"
        for name, fault in choice.passed_over.items()
    ]


def sort_out(
    cells: ChosenCells, *, is_filled: Callable[[CellRequest], bool] = lambda _request: False
) -> tuple[list[CellRequest], list[Refusal]]:
    """
    Return what can be built and what not; what is wrong with the command itself is raised before any build.

    `is_filled` says whether a cell has an engine that is reused: it needs no usable toolchain.
    """
    from modelreg.builders.planning import prepare_cell, toolchain_error

    requests: list[CellRequest] = []
    refusals = list(cells.refusals)
    for request in cells.requests:
        cell = request.cell
        try:
            prepare_cell(request)
            if request.toolchain_fault and not is_filled(request):
                raise toolchain_error(request)
        except (CellRefusedError, GoldenSetError) as error:  # a set that does not fit concerns what it calibrates
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
