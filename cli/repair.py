"""`modelreg repair`: find the fewest nodes that must stay in a high precision, and build the engine with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.build_choices import Wanted, choose_cells, sort_out
from modelreg.cli.context import Invocation, Registry
from modelreg.cli.next_steps import print_next
from modelreg.cli.options import (
    dry_run_option,
    list_option,
    make_command,
    message_option,
    positive_number,
    profile_options,
    read_precision,
    read_reference,
    read_target,
    read_words,
    whole_number,
)
from modelreg.cli.progress import interrupted_by_signals
from modelreg.cli.render import count, print_note
from modelreg.cli.repair_report import conclude_early, print_repair
from modelreg.cli.repair_trials import Budget, Notebook, explain_failures
from modelreg.cli.repairing import Repair, Workplace, notebook_path, open_golden
from modelreg.cli.versions import find_version
from modelreg.registry.errors import GateFailedError, NotFoundError, UsageError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.builders.planning import CellRequest
    from modelreg.builders.profiles import ProfileShapes
    from modelreg.config.policy import Policy
    from modelreg.registry.records import EngineRecord, GoldenSetRecord, ValidationRecord, VersionRecord
    from modelreg.registry.words import Precision

_METHODS = ("entropy", "minmax", "percentile")


@make_command(
    "repair",
    help_line="Find the nodes to keep in a high precision.",
    examples="""
    modelreg repair lenet:1 --precision int8 --calibration digits.npz
    modelreg repair resnet50:2 --precision fp16 --max-trials 20 --time-limit 1800
    modelreg repair lenet:1 --precision int8 --calibration digits.npz --dry-run
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@click.option("--precision", type=read_precision, required=True, metavar="P", help="int8, fp16, bf16 or fp8.")
@click.option(
    "--target", type=read_target, default="cpu", show_default=True, metavar="T", help="What the engine runs on."
)
@click.option("--toolchain", metavar="NAME", help="What builds it (default: the one that can).")
@click.option(
    "--calibration", type=click.Path(path_type=Path), metavar="FILE", help="The calibration set, for INT8 and FP8."
)
@click.option(
    "--calibration-method",
    type=click.Choice(_METHODS),
    default="percentile",
    show_default=True,
    help="How ranges are found.",
)
@click.option("--calibration-samples", type=whole_number(1), metavar="N", help="Use so many of its samples.")
@list_option(
    "--op-types-to-exclude",
    type=read_words,
    metavar="T,...",
    help="Op types that stay in a high precision in any case.",
)
@profile_options
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A TOML file that changes the policy, for the trials.",
)
@click.option(
    "--max-trials", type=whole_number(1), default=60, show_default=True, metavar="N", help="The most trial builds."
)
@click.option("--time-limit", type=positive_number, metavar="S", help="Begin no trial after so many seconds.")
@click.option("--timeout", type=positive_number, metavar="S", help="Seconds that one step of a build may take.")
@click.option(
    "--seed", type=whole_number(0), default=0, show_default=True, help="Seed of calibration and random inputs."
)
@message_option
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    reference: ModelReference,
    precision: Precision,
    target: str,
    toolchain: str | None,
    calibration: Path | None,
    calibration_method: str,
    calibration_samples: int | None,
    op_types_to_exclude: tuple[str, ...],
    profiles: tuple[ProfileShapes, ...],
    policy: Path | None,
    max_trials: int,
    time_limit: float | None,
    timeout: float | None,
    seed: int,
    message: str,
    dry_run: bool,
) -> int:
    """Find the fewest nodes of REF to keep in a high precision so that its engine passes the policy, and build that.

    Layers are run one by one on the reference's values to see where the error is born; sets of nodes are tried in that
    order, then thinned out until dropping any one node fails. Trials are not recorded, but remembered: an interrupted
    repair goes on where it was. The result is built, validated and compared with the engine before in size and time.
    """
    from modelreg.builders.interface import BuildOptions, CalibrationOptions

    registry = invocation.open_registry()
    registry.open()
    version = find_version(registry, reference)
    options = BuildOptions(
        calibration=None
        if calibration is None
        else CalibrationOptions(path=calibration, method=calibration_method, samples=calibration_samples, seed=seed),
        op_types_to_exclude=op_types_to_exclude,
        profiles=profiles,
        seed=seed,
        timeout_s=timeout or registry.home.settings.build_timeout_s,
    )
    wanted = Wanted(version=version, targets=(target,), precisions=(precision,))
    base = _choose(registry, wanted, (toolchain,) if toolchain else (), options)
    _require_runnable(base)
    rules, record = _demands(registry, version, precision, policy)
    if not dry_run:
        registry.require_writable()
    notebook = Notebook.open(None if dry_run else notebook_path(registry, base, record=record, policy=rules))
    if notebook.taken_up:
        print_note(f"going on with {count(notebook.taken_up, 'trial')} of an earlier run ({notebook.path})")
    with interrupted_by_signals(), open_golden(registry, record) as golden:
        workplace = Workplace(
            registry,
            invocation.reporter(),
            base,
            policy=rules,
            record=record,
            golden=golden,
            budget=Budget(trials=max_trials, limit_s=time_limit),
            notebook=notebook,
        )
        repair = workplace.look()
        if repair.unrepaired.passed or dry_run:
            return conclude_early(invocation, base, repair, dry_run=dry_run)
        workplace.search(repair)
        _require_found(base, repair, notebook)
        assert repair.result is not None
        assert repair.result.nodes is not None
        engine = _build(registry, invocation, workplace.request(repair.result.nodes))
        validation = _validate(registry, invocation, engine, policy, message)
        cost = workplace.measure_cost(engine, _first_samples(registry, version), fp32_size_bytes=repair.fp32_size_bytes)
    notebook.forget()
    print_repair(invocation, base, repair, engine, validation=validation, cost=cost)
    if validation.verdict != "pass":
        from modelreg.cli.failures import report_after_result

        others = "fails others" if validation.verdict == "fail" else "others could not be run"
        return report_after_result(
            GateFailedError(
                f"engine {engine.id} passed every trial gate and {others}: {explain_failures(validation.gates)}",
                hint=f"`modelreg show {version.reference}` keeps showing it.",
            )
        )
    if not invocation.as_json:
        print_next(registry, version)
    return 0


def _choose(registry: Registry, wanted: Wanted, toolchains: tuple[str, ...], options: object) -> CellRequest:
    """Return the one cell that is repaired."""
    from modelreg.builders.interface import BuildOptions
    from modelreg.builders.precision import translate

    assert isinstance(options, BuildOptions)
    cells = choose_cells(registry, wanted, toolchains, options, rebuild=False)
    requests, refusals = sort_out(cells)
    if refusals:
        raise refusals[0].error
    if len(requests) != 1:
        names = ", ".join(request.cell.toolchain.name for request in requests)
        raise UsageError(
            f"{len(requests)} toolchains build for {wanted.targets[0]}: {names}", hint="Name one with --toolchain."
        )
    cell = requests[0].cell
    if not translate(cell.precision, cell.toolchain.backend, cell.toolchain.version).can_exclude:
        raise UsageError(
            f"{cell.precision} converts nothing, so no node can be kept out of it",
            hint="Repair int8, fp16, bf16 or fp8.",
        )
    return requests[0]


def _require_runnable(base: CellRequest) -> None:
    """Refuse a cell whose engines cannot be run here: they could be built, and none of them judged."""
    from modelreg.runtime.host import describe_host
    from modelreg.runtime.suitability import why_not_here

    cell = base.cell
    reason = why_not_here(cell.target, level=base.options.tensorrt.hardware_compatibility, host=describe_host())
    if reason:
        raise GateFailedError(
            f"{cell.name} cannot be repaired on this host: {reason}",
            hint="Trials are judged by running them: repair it on a host with that GPU.",
        )


def _demands(
    registry: Registry, version: VersionRecord, precision: Precision, override: Path | None
) -> tuple[Policy, GoldenSetRecord]:
    from modelreg.config.policy import load_policy
    from modelreg.registry.golden_sets import newest_golden_set

    with registry.database.read() as connection:
        record = newest_golden_set(connection, version_id=version.id)
    if record is None:
        raise NotFoundError(
            f"{version.reference} has no golden set to be compared with",
            hint="Register the same file again with --golden or --reference.",
        )
    return load_policy(precision, override=override, home=registry.home.path, model=version.model), record


def _require_found(base: CellRequest, repair: Repair, notebook: Notebook) -> None:
    result = repair.result
    assert result is not None
    if result.nodes is not None:
        return
    if result.is_exhausted:
        raise GateFailedError(
            f"no set of nodes was found for {base.cell.name} in {count(len(repair.trials), 'trial')}",
            hint="Run the same command again to go on, with a larger --max-trials or --time-limit.",
        )
    notebook.forget()
    last = repair.trials[-1] if repair.trials else repair.unrepaired
    kept = f"with all {len(repair.suspects)} kept"
    if not last.was_judged:
        raise GateFailedError(f"{base.cell.name} cannot be repaired: {kept} it {last.say()}")
    raise GateFailedError(
        f"no set of nodes can repair {base.cell.name}: {kept} it fails too ({last.reason})",
        hint="Use a better calibration set, or another precision.",
    )


def _build(registry: Registry, invocation: Invocation, request: CellRequest) -> EngineRecord:
    from modelreg.builders.cells import build_cell

    with invocation.reporter().step(f"building {request.cell.name} with the nodes that were found") as tell:
        return build_cell(
            request, database=registry.database, storage=registry.storage, progress=tell, actor=registry.actor
        ).engine


def _validate(
    registry: Registry, invocation: Invocation, engine: EngineRecord, policy: Path | None, message: str
) -> ValidationRecord:
    from modelreg.cli.validating import plan_work, validate_all

    reference = ModelReference(model=engine.model, version=engine.version)
    work = plan_work(registry, reference, engine_id=engine.id, precisions=(), targets=(), policy=policy)
    loosened = [line for lines in work.loosened.values() for line in lines]
    if loosened and not message.strip():
        raise UsageError(
            f"the policy is loosened ({'; '.join(loosened)}), and that needs --message",
            hint="Say why; it becomes an event.",
        )
    done = validate_all(registry, invocation.reporter(), work, message=message)
    if not done.judged:
        raise GateFailedError(f"engine {engine.id} cannot be validated here: {done.skipped[0][1]}")
    return done.judged[0][1]


def _first_samples(registry: Registry, version: VersionRecord) -> dict[str, object]:
    from modelreg.builders.materials import KnownMaterials, golden_inputs
    from modelreg.registry.scratch import scratch_folder

    known = KnownMaterials.look_up(version, registry.database)
    with scratch_folder("golden") as folder:
        return dict(golden_inputs(version, known, registry.storage, Path(folder) / "golden.safetensors"))
