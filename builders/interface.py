"""What a backend's builder is: one job file that runs in the toolchain's interpreter, and these records around it.

A job file (`builders/ort.py`) runs on Python 3.8 or newer with the standard library, NumPy and its backend alone,
and offers the job `build`. A new backend is such a file, a row in `BUILDERS` of `builders/backends.py`, and its
rows in the table of `builders/precision.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from modelreg.builders.profiles import ProfileShapes
from modelreg.builders.trt_options import TensorRTOptions
from modelreg.registry.contents import Signature
from modelreg.registry.records import VersionRecord
from modelreg.registry.words import Backend, Json, Precision

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from modelreg.builders.calibration import CalibrationSet

    Array = NDArray[np.generic]

OnProgress = Callable[[float | None, str], None]
"""Called with the part of the current step that is done (None when unknown) and what is going on."""

DEFAULT_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolchainSpec:
    """A backend that can build: its name, exact version and the interpreter that has it."""

    name: str
    backend: Backend
    version: str
    python: str
    details: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One square of the matrix version x target x precision x backend version."""

    version: VersionRecord
    target: str
    precision: Precision
    toolchain: ToolchainSpec

    @property
    def name(self) -> str:
        """Return the cell without its backend, for example `lenet:1 fp16 for cpu`."""
        return f"{self.version.reference} {self.precision} for {self.target}"

    def __str__(self) -> str:
        backend = f"{self.toolchain.backend} {self.toolchain.version}"
        return f"{self.name} with {backend}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """
    How INT8 ranges are found.

    Attributes:
        path: The calibration set, `.safetensors` or `.npz` with `input.NAME` keys.
        method: `entropy` (KL), `minmax` or `percentile`.
        percentile: What part of the values lies inside the range, in percent; for `percentile` alone.
        samples: How many rows to use; None for all.
        seed: Chooses the rows when not all are used.
    """

    path: Path
    method: str = "percentile"
    percentile: float = 99.99
    samples: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """
    What the user says about a build beyond the cell.

    Attributes:
        calibration: Needed for INT8.
        nodes_to_exclude: Names of nodes that stay in FP32.
        op_types_to_exclude: Op types that stay in FP32.
        optimisation_level: `disabled`, `basic`, `extended` or `all`; None for the backend's default.
        keep_io_types: Whether inputs and outputs keep their types in FP16.
        profiles: The ranges of free dimensions, for TensorRT; none for its default.
        tensorrt: What TensorRT alone knows.
        seed: Seeds the inputs that the new plan is tried on when there is no golden set.
        timeout_s: Limit of each step in the child process, in seconds.
    """

    calibration: CalibrationOptions | None = None
    nodes_to_exclude: tuple[str, ...] = ()
    op_types_to_exclude: tuple[str, ...] = ()
    optimisation_level: str | None = None
    keep_io_types: bool = True
    profiles: tuple[ProfileShapes, ...] = ()
    tensorrt: TensorRTOptions = field(default_factory=TensorRTOptions)
    seed: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendPart:
    """What a backend's options add to a recipe: its `build` part, and builder flags by name."""

    body: Json
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """
    What a builder gets: local files, and the recipe.

    Attributes:
        model: The ONNX to build, with its external data beside it; a variant or the source itself.
        source: The ONNX as registered: what the plan's outputs must look like.
        target: What to build for.
        signature: The inputs and outputs of the source.
        recipe: The whole recipe.
        options: What the user said, for files that the recipe knows by their digests.
        pinned: Names of the nodes of `model` that stay in FP32 by a constraint instead of by their types.
        is_preferred: Whether every other layer is constrained to the precision that was asked, as far as that goes.
        calibration: The checked set of an implicit calibration, or None.
        taps: Tensors between nodes whose values can be read in the plan; a served plan has none.
        tapped_as: How: `debug`, or `output` for releases that have no debug tensors.
        size_bytes: Bytes of the model and its external data.
        inputs: Inputs to try the plan on, by name; empty when there is no golden set.
        keep_io_types: Whether the plan's outputs must have the source's types.
        folder: Where the plan goes; exists and is empty.
        log_path: Where the child's output goes.
    """

    model: Path
    source: Path
    target: str
    signature: Signature
    recipe: Json
    options: BuildOptions
    size_bytes: int
    inputs: Mapping[str, Array]
    keep_io_types: bool
    folder: Path
    log_path: Path
    pinned: tuple[str, ...] = ()
    is_preferred: bool = False
    calibration: CalibrationSet | None = None
    taps: tuple[str, ...] = ()
    tapped_as: str = "debug"

    @property
    def flags(self) -> list[str]:
        """Return the backend's flags, by name."""
        return list(self.recipe["flags"])


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """
    A plan that was saved, and where it can be, loaded again and run.

    Attributes:
        files: The plan first.
        checked: What running it showed, or `runs` 0 and the reason why it was not run.
        build_s: Seconds that the backend took.
        layers: A file with the layers of a TensorRT plan, which nothing but TensorRT can read.
        gpu: The GPU that it was built on: `name`, `sm_count`, `driver`, `cuda`; empty for what needs none.
        timing_cache: The timings of this build, to be kept.
        taps: The tensors that can be read, of those that were asked for.
    """

    files: tuple[Path, ...]
    checked: Json
    build_s: float
    layers: Path | None = None
    gpu: Json = field(default_factory=dict)
    timing_cache: Path | None = None
    taps: tuple[str, ...] = ()


class Builder(Protocol):
    """Builds plans of one backend."""

    @property
    def backend(self) -> Backend:
        """Return what it builds for."""
        ...

    def recipe_part(self, options: BuildOptions, signature: Signature, toolchain: ToolchainSpec) -> BackendPart:
        """Return what these options add to the recipe; refuse what the toolchain or the model has not."""
        ...

    def refuse_target(self, target: str, toolchain: ToolchainSpec) -> str:
        """Return why the toolchain cannot build for the target, or an empty string."""
        ...

    def build(self, toolchain: ToolchainSpec, request: BuildRequest, on_progress: OnProgress) -> BuildResult:
        """
        Build and save one plan in a child process; load it again and execute it where it can run.

        Raises:
            BuildError: The backend refused, or what it saved does not run.
            WorkerError: The child crashed, hung, or spoke garbage.
        """
        ...
