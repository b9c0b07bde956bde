"""`modelreg build`: fill cells of the matrix; each backend works in a child process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.build_choices import Wanted, choose_cells
from modelreg.cli.build_preview import preview
from modelreg.cli.building import build_all
from modelreg.cli.context import Invocation
from modelreg.cli.executors import choose_place, executor_options
from modelreg.cli.old_spellings import TrtexecCommand
from modelreg.cli.options import (
    dry_run_option,
    list_option,
    make_command,
    positive_number,
    profile_options,
    read_precisions,
    read_reference,
    read_targets,
    read_words,
    whole_number,
)
from modelreg.cli.tensorrt_options import tensorrt_options
from modelreg.cli.versions import find_version
from modelreg.registry.errors import UsageError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.builders.profiles import ProfileShapes
    from modelreg.builders.trt_options import TensorRTOptions
    from modelreg.cli.build_choices import ChosenCells
    from modelreg.registry.words import Precision

_METHODS = ("entropy", "minmax", "percentile")


@make_command(
    "build",
    help_line="Build engines of a version.",
    cls=TrtexecCommand,
    examples="""
    modelreg build lenet:1
    modelreg build lenet:1 --precision fp32,fp16,int8 --calibration digits.npz
    modelreg build lenet:1 --precision int8 --calibration digits.npz --nodes-to-exclude /conv1/Conv
    modelreg build lenet:1 --target sm_86,sm_89,sm_120 --precision fp32,fp16 --jobs 4
    modelreg build net:1 --target sm_90 --precision fp16 --builderOptimizationLevel 4 --memPoolSize workspace:8192
    modelreg build net:1 --target sm_86,sm_90 --precision fp16 --toolchain trt103 --executor dask://10.0.0.5:8786
    modelreg build net:1 --target sm_89 --minShapes x:1x3x64x64 --optShapes x:8x3x224x224 --maxShapes x:32x3x512x512
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@list_option(
    "--precision",
    "precisions",
    type=read_precisions,
    default=("fp32",),
    metavar="P,...",
    help="What to build: fp32, tf32, fp16, bf16, int8, fp8.",
)
@list_option(
    "--target",
    "targets",
    type=read_targets,
    default=("cpu",),
    metavar="T,...",
    help="What to build for: cpu, sm_86, ...",
)
@list_option(
    "--toolchain",
    "toolchains",
    type=read_words,
    metavar="NAME,...",
    help="What to build with (default: the newest of each backend that builds for the target).",
)
@profile_options
@tensorrt_options
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Real samples for INT8 and FP8: .npz or .safetensors with input.NAME.",
)
@click.option(
    "--calibration-method",
    type=click.Choice(_METHODS),
    help="How INT8 and FP8 ranges are found.  [default: percentile; where TensorRT calibrates: entropy]",
)
@click.option(
    "--percentile",
    type=positive_number,
    metavar="P",
    help="For the percentile method: how much of the values lies in range.  [default: 99.99]",
)
@click.option(
    "--calibration-samples",
    type=whole_number(1),
    metavar="N",
    help="Use so many samples, chosen by --seed (default: all).",
)
@list_option("--nodes-to-exclude", type=read_words, metavar="NODE,...", help="Nodes that stay in FP32.")
@list_option("--op-types-to-exclude", type=read_words, metavar="OP,...", help="Op types that stay in FP32.")
@click.option(
    "--seed",
    type=whole_number(0),
    default=0,
    show_default=True,
    help="Chooses samples, and inputs to try the plan on.",
)
@click.option(
    "--timeout",
    type=positive_number,
    metavar="S",
    help="Seconds that one step may take (default: the registry's setting).",
)
@executor_options
@click.option(
    "--rebuild",
    is_flag=True,
    help="Build again where an engine of the same recipe exists; the new one stands in its place, to be validated.",
)
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    reference: ModelReference,
    precisions: tuple[Precision, ...],
    targets: tuple[str, ...],
    toolchains: tuple[str, ...],
    profiles: tuple[ProfileShapes, ...],
    tensorrt: TensorRTOptions,
    calibration: Path | None,
    calibration_method: str | None,
    percentile: float | None,
    calibration_samples: int | None,
    nodes_to_exclude: tuple[str, ...],
    op_types_to_exclude: tuple[str, ...],
    seed: int,
    timeout: float | None,
    scheduler: str,
    retries: int | None,
    wait_s: int | None,
    jobs: int | None,
    rebuild: bool,
    dry_run: bool,
) -> int:
    """Build engines of REF, one for each precision, target and toolchain.

    An engine of the same recipe is reused. An engine that did not become the precision asked for is a failed build.
    Engines for the CPU are run before they count as built; those for a GPU are compiled ahead of time. What cannot be
    built says why, and the rest is built.
    """
    if percentile is not None and calibration_method not in (None, "percentile"):
        raise click.UsageError("--percentile belongs to --calibration-method percentile")
    place = choose_place(scheduler, jobs=jobs, retries=retries, wait_s=wait_s)
    from modelreg.builders.exclusions import require_known_nodes
    from modelreg.builders.interface import BuildOptions, CalibrationOptions

    registry = invocation.open_registry()
    registry.open()
    ranges = {"percentile": percentile} if percentile is not None else {}
    method = calibration_method or ("entropy" if tensorrt.implicit_calibration else "percentile")
    options = BuildOptions(
        calibration=None
        if calibration is None
        else CalibrationOptions(path=calibration, method=method, samples=calibration_samples, seed=seed, **ranges),
        nodes_to_exclude=nodes_to_exclude,
        op_types_to_exclude=op_types_to_exclude,
        profiles=profiles,
        tensorrt=tensorrt,
        seed=seed,
        timeout_s=timeout or registry.home.settings.build_timeout_s,
    )
    _require_allowed(tensorrt.plugins, registry.home.settings.allowed_plugins)
    version = find_version(registry, reference)
    require_known_nodes(version, nodes_to_exclude, registry.storage)
    wanted = Wanted(version=version, targets=targets, precisions=precisions, on_workers=bool(place.scheduler))
    cells = choose_cells(registry, wanted, toolchains, options, rebuild=rebuild)
    _refuse_idle_options(cells, profiles, tensorrt)
    if dry_run:
        return preview(invocation, registry, cells)
    return build_all(invocation, registry, cells, place)


def _require_allowed(plugins: tuple[Path, ...], allowed: tuple[str, ...]) -> None:
    """Refuse a plugin library that nobody allowed: it is native code, and runs in every host that loads the plan."""
    from modelreg.builders.trt_options import digest_file

    for path in plugins:
        digest = digest_file(path)
        if digest not in allowed:
            raise UsageError(
                f"the plugin library {path} is not allowed here",
                hint=f'If you trust it, add "{digest}" to allowed under [plugins] in config.toml.',
            )


def _refuse_idle_options(cells: ChosenCells, profiles: tuple[ProfileShapes, ...], tensorrt: TensorRTOptions) -> None:
    """Refuse options of TensorRT where nothing of it is built: they would change nothing, and say nothing."""
    from modelreg.builders.trt_options import given_options

    if not all(request.cell.target == "cpu" for request in cells.requests):
        return
    if profiles:
        raise UsageError("profiles are for TensorRT, and nothing of it is built here", hint="Leave the shapes out.")
    given = given_options(tensorrt)
    if given and cells.requests:
        raise UsageError(f"{given[0]} is for TensorRT, and nothing of it is built here", hint="Leave it out.")
