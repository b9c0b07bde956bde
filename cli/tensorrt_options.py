"""The options of `build` that TensorRT alone knows, spelled as trtexec has them, with kebab-case beside."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelreg.cli.options import F, whole_number

if TYPE_CHECKING:
    from modelreg.builders.trt_options import TensorRTOptions

_LEVELS = ("none", "ampere+", "sameComputeCapability")

_PATH = click.Path(path_type=Path)
_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.option(
        "--builderOptimizationLevel",
        "--builder-optimization-level",
        "optimisation_level",
        type=click.Choice([str(level) for level in range(6)]),
        metavar="0...5",
        help="TensorRT: how hard to look for fast kernels.  [default: 3]",
    ),
    click.option(
        "--memPoolSize",
        "--mem-pool-size",
        "memory_pools",
        multiple=True,
        metavar="POOL:MIB,...",
        help="TensorRT: limits of memory pools, for example workspace:4096.",
    ),
    click.option(
        "--versionCompatible",
        "--version-compatible",
        "version_compatible",
        is_flag=True,
        help="TensorRT: a plan that newer releases of the same major version load too.",
    ),
    click.option(
        "--hardwareCompatibilityLevel",
        "--hardware-compatibility-level",
        "hardware_compatibility",
        type=click.Choice(_LEVELS),
        default="none",
        metavar="LEVEL",
        help="TensorRT: a plan that other GPUs load too: none, ampere+ or sameComputeCapability.",
    ),
    click.option("--refit", is_flag=True, help="TensorRT: a plan whose weights can be replaced."),
    click.option(
        "--tacticSources",
        "--tactic-sources",
        "tactic_sources",
        multiple=True,
        metavar="+NAME,-NAME,...",
        help="TensorRT: libraries that kernels may come from, or none.",
    ),
    click.option(
        "--timingCacheFile",
        "--timing-cache-file",
        "timing_cache",
        type=_PATH,
        metavar="FILE",
        help="TensorRT: timings of earlier builds, read and written.",
    ),
    click.option(
        "--errorOnTimingCacheMiss",
        "--error-on-timing-cache-miss",
        "pin_tactics",
        is_flag=True,
        help="TensorRT: fail where the timing cache lacks a kernel.",
    ),
    click.option(
        "--useDLACore",
        "--use-dla-core",
        "dla_core",
        type=whole_number(0),
        metavar="N",
        help="TensorRT: build for a DLA.",
    ),
    click.option(
        "--allowGPUFallback",
        "--allow-gpu-fallback",
        "gpu_fallback",
        is_flag=True,
        help="TensorRT: let the GPU run what the DLA cannot.",
    ),
    click.option(
        "--plugins",
        "--staticPlugins",
        "plugins",
        type=_PATH,
        multiple=True,
        metavar="LIB.so",
        help="TensorRT: a plugin library; its digest must be allowed in config.toml.",
    ),
    click.option(
        "--precisionConstraints",
        "--precision-constraints",
        "precision_constraints",
        type=click.Choice(["auto", "none", "prefer"]),
        default="auto",
        metavar="auto|none|prefer",
        help="TensorRT up to 10.11, fp16 and bf16: prefer it in every layer; auto: where no layer became it.",
    ),
    click.option(
        "--implicit-calibration",
        is_flag=True,
        help="TensorRT up to 10: INT8 ranges found by TensorRT instead of Q/DQ nodes.",
    ),
    click.option(
        "--calibration-cache",
        type=_PATH,
        metavar="FILE",
        help="Ranges of an implicit calibration, read and written.",
    ),
)


def tensorrt_options(command: F) -> F:
    """Add these options; the command gets them together, as `tensorrt`."""

    @functools.wraps(command)
    def with_options(*arguments: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in _names(with_options)}
        return command(*arguments, tensorrt=_read(given), **options)

    made: Any = with_options
    before = len(getattr(made, "__click_params__", []))
    for option in reversed(_OPTIONS):
        made = option(made)
    with_options.tensorrt_names = [  # type: ignore[attr-defined]
        parameter.name for parameter in made.__click_params__[before:]
    ]
    decorated: F = made
    return decorated


def _names(command: Any) -> list[str]:
    names: list[str] = command.tensorrt_names
    return names


def _read(given: dict[str, Any]) -> TensorRTOptions:
    from modelreg.builders.trt_options import LEVELS, TensorRTOptions, parse_pools, parse_tactic_sources

    pools, sources, level = (given.pop(name) for name in ("memory_pools", "tactic_sources", "optimisation_level"))
    if given["gpu_fallback"] and given["dla_core"] is None:
        raise click.UsageError("--allowGPUFallback belongs to --useDLACore")
    if given["calibration_cache"] is not None and not given["implicit_calibration"]:
        raise click.UsageError("--calibration-cache belongs to --implicit-calibration")
    return TensorRTOptions(
        **{**given, "hardware_compatibility": LEVELS[given["hardware_compatibility"]]},
        optimisation_level=None if level is None else int(level),
        memory_pools=parse_pools(",".join(pools)) if pools else {},
        tactic_sources=parse_tactic_sources(",".join(sources)) if sources else None,
    )
