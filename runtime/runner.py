"""Running a plan in a child process: loaded once, asked often, ended whatever happens."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from modelreg.registry.errors import IntegrityError, ModelregError, WorkerError, WorkerStartError
from modelreg.registry.plans import disagreement, read_plan_header
from modelreg.registry.scratch import scratch_folder
from modelreg.registry.toolchains.process import Worker, WorkerJobError
from modelreg.registry.words import Backend, Json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from modelreg.registry.toolchains.pieces import Feed
    from modelreg.runtime.latency import Measurement

    Array = NDArray[np.generic]

JOB_FILES: dict[Backend, Path] = {
    Backend.ONNXRUNTIME: Path(__file__).with_name("ort.py"),
    Backend.TENSORRT: Path(__file__).with_name("trt.py"),
    Backend.TENSORRT_RTX: Path(__file__).with_name("trt.py"),
}
MODES = ("plan", "rounded", "ranged")
LOAD_TIMEOUT_S = 600.0
RUN_TIMEOUT_S = 600.0


class RunError(ModelregError):
    """A plan could not be loaded or run."""


def one_line(error: Exception) -> str:
    """Return what a backend said on one line, and no more of it than a person reads."""
    return " ".join(str(error).split())[:600]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLoad:
    """
    What is needed beside the file to load a plan of TensorRT.

    Attributes:
        digest: SHA-256 of the plan: the child checks the very bytes that it loads.
        version: The exact version that built it; the child refuses to load it with another.
        built_for: The targets that its header may name.
        target: The GPU to run on.
        host_code: Whether the plan may run the lean runtime that it carries, as version-compatible ones do.
        output_types: The source's types of the outputs, which older releases narrow.
        visible: What the child shall see of the GPUs that this process sees, as `CUDA_VISIBLE_DEVICES` has it; empty:
            all of them.
        uuid: The GPU that it must find there; empty: any of the target.
        cuda_graphs: Whether a graph is captured for each shape, and replayed while the shape stays.
    """

    digest: str
    version: str
    built_for: tuple[str, ...]
    target: str
    host_code: bool = False
    output_types: Mapping[str, str] = field(default_factory=dict)
    visible: str = ""
    uuid: str = ""
    cuda_graphs: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that the child gets."""
        return {"CUDA_VISIBLE_DEVICES": self.visible} if self.visible else {}

    def to_request(self) -> Json:
        """Return what the job file needs."""
        return {
            "digest": self.digest,
            "version": self.version,
            "target": self.target,
            "host_code": self.host_code,
            "output_types": dict(self.output_types),
            "uuid": self.uuid,
            "cuda_graphs": self.cuda_graphs,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """
    How a plan is timed, in trtexec's words; `iterations` and `duration_s` are both fulfilled.

    `streams` and `transfers` (of inputs and outputs, for every query, on a GPU) concern `measure` alone.
    """

    warmup_ms: float = 200.0
    duration_s: float = 1.0
    iterations: int = 10
    cuda_graph: bool = False
    streams: int = 1
    transfers: bool = True


_BLOCK = Timing(warmup_ms=0.0, duration_s=0.01, iterations=3)


class WorkerRunner:
    """
    A plan in a persistent child process; a context manager.

    For ONNX Runtime the caller has checked the digest of the file before: what is loaded here is trusted.
    """

    def __init__(
        self,
        path: Path,
        *,
        backend: Backend,
        python: str = sys.executable,
        mode: str = "plan",
        threads: int | None = None,
        timeout_s: float = RUN_TIMEOUT_S,
        log_path: Path | None = None,
        gpu: GpuLoad | None = None,
        absorbs_clips: bool = False,
    ) -> None:
        """
        Start the child and load the plan.

        Args:
            path: The plan, what belongs to it beside it; for the other modes the variant, in a folder that can be
                written.
            backend: What loads it.
            python: The toolchain's interpreter; the other modes always run in our own.
            mode: `plan`, or `rounded`: the FP16 variant with the rounding of every value to FP16 kept, or `ranged`: the
                INT8 variant in ONNX Runtime, looking at how its values use their ranges.
            threads: Threads of one operator; None leaves it to the backend.
            timeout_s: Limit of one run, in seconds.
            log_path: Where the child's output goes; a temporary file when None.
            gpu: For a plan of TensorRT.
            absorbs_clips: For mode `ranged`: whether the source has Clips, which a range may stand for.

        Raises:
            IntegrityError: A plan of TensorRT is not whole, or not what it is said to be; nothing was loaded.
            RunError: It cannot be loaded.
            WorkerStartError: The interpreter does not start, or has not what loads the plan.
            WorkerError: The child crashed, hung, or spoke garbage.
        """
        if mode not in MODES:
            raise ValueError(f"mode {mode!r} is none of {MODES}")
        if (gpu is None) != (backend is Backend.ONNXRUNTIME):
            raise ValueError(f"a plan of {backend} {'is not' if gpu else 'is'} run on a GPU")
        if gpu is not None:
            _require_header(path, backend, gpu)
        self.backend = backend
        self._timeout_s = timeout_s
        self.replayed = 0
        """Of TensorRT: runs so far that replayed a CUDA graph."""
        self._overflows: dict[str, int] | None = {} if mode == "rounded" else None
        self._ranges: dict[int, Json] | None = {} if mode == "ranged" else None
        self._belongings = contextlib.ExitStack()
        log = log_path or self._belongings.enter_context(scratch_folder("run")) / "run.log"
        interpreter = python if mode == "plan" else sys.executable
        try:
            environment = {} if gpu is None else gpu.environment
            from modelreg.registry.toolchains.shared import make_arenas  # noqa: PLC0415 - NumPy: start-up time

            self._worker = Worker.start(
                interpreter, JOB_FILES[backend], log_path=log, env=environment, arenas=make_arenas()
            )
        except BaseException as error:
            self._clean()
            if isinstance(error, WorkerError):
                raise WorkerStartError(str(error), hint=error.hint()) from error
            raise
        try:
            request: Json = {"path": str(path), "mode": mode, "threads": threads, "backend": str(backend)}
            request |= gpu.to_request() if gpu is not None else {}
            request |= {"absorbs_clips": absorbs_clips} if mode == "ranged" else {}
            self.info: Json = self._call("load", request, {}, timeout_s=LOAD_TIMEOUT_S)[0]
        except BaseException:
            self.close()
            raise

    @property
    def input_names(self) -> list[str]:
        """Return the names of the inputs, in order."""
        return [each["name"] for each in self.info["inputs"]]

    @property
    def output_names(self) -> list[str]:
        """Return the names of the outputs, in order."""
        return [each["name"] for each in self.info["outputs"]]

    def run(self, inputs: Feed) -> dict[str, Array]:
        """
        Return every output for one set of inputs, as C-contiguous arrays.

        Raises:
            RunError: The backend refused the inputs.
            WorkerError: The child crashed, hung, or spoke garbage; the runner is of no more use.
        """
        answer, outputs = self._call("run", {}, inputs, timeout_s=self._timeout_s)
        self.replayed = answer.get("replayed", 0)
        if self._overflows is not None:
            for node, count in answer["overflows"]:
                self._overflows[node] = self._overflows.get(node, 0) + count
        for number, found in enumerate(answer.get("ranges", ())):
            self._add_range(number, found)
        return outputs

    @property
    def ranges(self) -> list[Json] | None:
        """Return how quantised values used their ranges so far, in order; None but in mode `ranged`."""
        return None if self._ranges is None else [_use(found) for found in self._ranges.values()]

    def _add_range(self, number: int, found: Json) -> None:
        assert self._ranges is not None
        known = self._ranges.setdefault(number, found)
        if known is not found:
            known["cut"] += found["cut"]
            known["size"] += found["size"]
            known["smallest"] = min(known["smallest"], found["smallest"])
            known["largest"] = max(known["largest"], found["largest"])

    @property
    def overflows(self) -> dict[str, int] | None:
        """Return how many finite values FP16 made infinite so far, by node in order; None but in mode `rounded`."""
        return None if self._overflows is None else dict(self._overflows)

    def bench(self, inputs: Mapping[str, Array], timing: Timing) -> Array:
        """
        Return the milliseconds of each of many runs on the same inputs.

        On a GPU it is the GPU's own time, and the inputs are uploaded once; on the CPU it is the call.

        Raises:
            RunError: The backend refused, or cannot be timed.
            WorkerError: The child crashed, hung, or spoke garbage; the runner is of no more use.
        """
        (times,) = self._call("bench", asdict(timing), inputs, timeout_s=self._timeout_s)[1].values()
        return times

    def measure(self, inputs: Mapping[str, Array], timing: Timing, *, batch: int) -> Measurement:
        """
        Return every figure of many queries on the same inputs: each boundary, throughput, and how it was run.

        Args:
            inputs: Of one query.
            timing: How.
            batch: Samples of the inputs.

        Raises:
            RunError: The backend refused, or cannot be timed so.
            WorkerError: The child crashed, hung, or spoke garbage; the runner is of no more use.
        """
        from modelreg.runtime.latency import Boundary, measure  # noqa: PLC0415 - imports NumPy

        told, times = self._call("measure", asdict(timing), inputs, timeout_s=self._timeout_s)
        samples = {Boundary(name): each for name, each in times.items()}
        return measure(samples, batch=batch, wall_s=float(told.pop("wall_s")), told=told)

    def time_block(self, inputs: Mapping[str, Array], *, cuda_graph: bool = False) -> float:
        """Return the median milliseconds of a few runs, at least three: one side of a paired comparison."""
        times = sorted(self.bench(inputs, replace(_BLOCK, cuda_graph=cuda_graph)).tolist())
        return float(times[len(times) // 2])

    def show(self, names: Sequence[str], inputs: Mapping[str, Array]) -> dict[str, Array]:
        """
        Return values between the layers of a plan of TensorRT that was built to show them.

        Raises:
            RunError: TensorRT refused, or the plan does not show such a tensor.
            WorkerError: The child crashed, hung, or spoke garbage; the runner is of no more use.
        """
        return self._call("show", {"names": list(names)}, inputs, timeout_s=self._timeout_s)[1]

    @property
    def pid(self) -> int:
        """Return the process id of the child."""
        return self._worker.pid

    @property
    def has_ended(self) -> bool:
        """Return whether the child's process is gone, and with it all that it had of the device."""
        return self._worker.has_ended

    def read_free_memory(self) -> int | None:
        """Return how many bytes of the device are free, whoever has the rest; None where nobody can tell."""
        found = self._call("memory", {}, {}, timeout_s=self._timeout_s)[0].get("free_bytes")
        return None if found is None else int(found)

    def close(self) -> None:
        """End the child."""
        self._worker.close()
        self._clean()

    def __enter__(self) -> WorkerRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, job: str, request: Json, arrays: Feed, *, timeout_s: float) -> tuple[Json, dict[str, Array]]:
        try:
            return self._worker.call(job, request, arrays, timeout_s=timeout_s)
        except WorkerJobError as error:
            verb = "loaded" if job == "load" else "run"
            raise RunError(f"the plan cannot be {verb}: {one_line(error)}") from error

    def _clean(self) -> None:
        self._belongings.close()


def _use(found: Json) -> Json:
    """Return what came of one range, in the words of a validation."""
    low, high = float(found["low"]), float(found["high"])
    covered = min(high, float(found["largest"])) - max(low, float(found["smallest"]))
    return {
        "node": str(found["node"]),
        "saturated": int(found["cut"]),
        "values": int(found["size"]),
        "use": max(0.0, covered) / (high - low) if high > low else 0.0,
    }


def _require_header(path: Path, backend: Backend, gpu: GpuLoad) -> None:
    """Refuse a plan whose header says another backend, version or target, or another size, before it is loaded."""
    target = gpu.built_for[0]
    found = disagreement(
        read_plan_header(path), backend=backend, version=gpu.version, target=target, targets=gpu.built_for
    )
    if found:
        raise IntegrityError(f"the plan is not loaded: {found}", hint="Build it again.")
