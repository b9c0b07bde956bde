"""Building a plan of TensorRT once more so that values between its layers can be read; it is never served.

The recipe is the engine's own. Debug tensors leave fusions alone as far as TensorRT can; releases before 10 have none,
and there a few tensors at a time become outputs, each few in a build of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from modelreg.builders.backends import BUILDERS
from modelreg.builders.choosing import to_spec
from modelreg.builders.interface import BuildOptions, BuildRequest, BuildResult, OnProgress
from modelreg.builders.making import PREFERRED
from modelreg.builders.trt_capabilities import has
from modelreg.builders.trt_options import TensorRTOptions
from modelreg.builders.variants import VariantWorker
from modelreg.registry.errors import BuildError
from modelreg.registry.records import EngineRecord, VersionRecord

OUTPUTS_A_BUILD = 16
"""More outputs take apart more fusions, and a plan that differs more from what is served."""


def tap_parts(engine: EngineRecord, names: Sequence[str]) -> tuple[str, list[list[str]]]:
    """Return how tensors are made readable, and which of them in each build."""
    spec = engine.toolchain
    if has("debug tensors", str(spec.backend), spec.version):
        return "debug", [list(names)]
    return "output", [list(names[start : start + OUTPUTS_A_BUILD]) for start in range(0, len(names), OUTPUTS_A_BUILD)]


def build_tapped(
    engine: EngineRecord,
    version: VersionRecord,
    *,
    model: Path,
    source: Path,
    plugins: tuple[Path, ...],
    names: Sequence[str],
    tapped_as: str,
    folder: Path,
    timeout_s: float,
    on_progress: OnProgress,
) -> BuildResult:
    """
    Build an engine's recipe with readable tensors.

    Args:
        engine: Whose recipe and toolchain are used.
        version: What it was built from.
        model: The variant, or the source.
        source: The ONNX as registered.
        plugins: The plugin libraries that the engine has.
        names: Tensors of the ONNX.
        tapped_as: `debug` or `output`.
        folder: Where the plan goes; exists and is empty.
        timeout_s: Limit of the build, in seconds.
        on_progress: Told what is going on.

    Raises:
        BuildError: TensorRT refuses, or the recipe cannot be built again.
        WorkerError: The child crashed, hung, or spoke garbage.
    """
    if "implicit_calibration" in engine.recipe:
        raise BuildError("an engine of an implicit calibration cannot be looked into: its ranges are TensorRT's own")
    log = folder.parent / f"{folder.name}.log"
    options = BuildOptions(tensorrt=TensorRTOptions(plugins=plugins), timeout_s=timeout_s)
    pins = engine.recipe.get("pins")
    pinned: tuple[str, ...] = ()
    if pins:
        with VariantWorker(log_path=log, timeout_s=timeout_s) as worker:
            model, pinned = worker.pin(model, pins=pins)
    variant = engine.recipe["variant"]
    request = BuildRequest(
        model=model,
        source=source,
        target=engine.target.name,
        signature=version.source.signature,
        recipe=engine.recipe,
        options=options,
        size_bytes=model.stat().st_size,
        inputs={},
        keep_io_types=variant is None or variant.get("keep_io_types", True),
        folder=folder,
        log_path=log,
        pinned=pinned,
    )
    is_preferred = any(PREFERRED in step for step in engine.realised.get("translation", ()))
    request = replace(request, taps=tuple(names), tapped_as=tapped_as, is_preferred=is_preferred)
    return BUILDERS[engine.toolchain.backend].build(to_spec(engine.toolchain), request, on_progress)
