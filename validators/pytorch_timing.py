"""PyTorch in eager mode as a rival of engines: timed in a process of its own, block by block, in turns with them.

Nothing of PyTorch is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from modelreg.registry.errors import WorkerError
from modelreg.registry.toolchains.process import Worker
from modelreg.registry.words import Json, Precision, Word
from modelreg.validators.reference_capture import carried_error, explain_failure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_JOB_FILE = Path(__file__).with_name("pytorch_job.py")
_TIMEOUT_S = 600.0
_BLOCK: Json = {"warmup_ms": 0.0, "duration_s": 0.01, "iterations": 3}
"""As long as a block of an engine."""


class Variant(Word):
    """How eager PyTorch computes: FP32 without TF32, FP16, and FP16 with channels last, as tensor cores like it."""

    FP32 = "fp32"
    FP16 = "fp16"
    FP16_CHANNELS_LAST = "fp16-channels-last"


def choose_variants(precision: Precision, *, device: str) -> tuple[Variant, ...]:
    """Return what an engine is compared with: on a GPU, any precision below TF32 has both FP16 variants as rivals."""
    if device != "cuda" or precision in (Precision.FP32, Precision.TF32):
        return (Variant.FP32,)
    return (Variant.FP16, Variant.FP16_CHANNELS_LAST)


class PyTorchModel:
    """A PyTorch reference in a child process; a context manager."""

    def __init__(
        self, reference: str, *, weights: Path | None, device: str, threads: int | None, log_path: Path
    ) -> None:
        """
        Start the child and import PyTorch there; the reference is loaded when it is first timed.

        Args:
            reference: `FILE.py:factory`, or the path of a TorchScript archive or an exported program.
            weights: safetensors, or a `torch.save` file of plain tensors.
            device: `cpu` or `cuda`.
            threads: Threads of one operator on the CPU; None leaves it to PyTorch.
            log_path: The file that gets what the reference prints.

        Raises:
            ReferenceModelError: PyTorch cannot use the device, or the process ended.
            WorkerError: No process can be started.
        """
        self.device = device
        self._worker = Worker.start(sys.executable, _JOB_FILE, log_path=log_path)
        request = {"path": sys.path, "reference": reference, "device": device, "threads": threads}
        try:
            weights_text = None if weights is None else str(weights)
            self.info: Json = self._call("load", {**request, "weights": weights_text}, {})[0]
        except BaseException:
            self._worker.close()
            raise

    def bench(self, variant: Variant, inputs: Mapping[str, Array], request: Json) -> tuple[Json, dict[str, Array]]:
        """
        Return `wall_s`, and the milliseconds of many runs on the same inputs under the name of their boundary.

        Args:
            variant: Which.
            inputs: By the ONNX's names, in its order.
            request: `warmup_ms`, `duration_s` and `iterations` (the longer of both counts).

        Raises:
            ReferenceModelError: The reference failed, took too long, or ended the process.
        """
        return self._call("bench", {**request, "variant": str(variant)}, inputs)

    def rival(self, variant: Variant) -> Rival:
        """Return a variant as one side of a paired comparison."""
        return Rival(model=self, variant=variant)

    def _call(self, job: str, request: Json, arrays: Mapping[str, Array]) -> tuple[Json, dict[str, Array]]:
        try:
            answer, found = self._worker.call(job, request, arrays, timeout_s=_TIMEOUT_S)
        except WorkerError as error:
            raise explain_failure(error, _TIMEOUT_S, hint="Time smaller batches.") from error
        if "error" in answer:
            raise carried_error(**answer["error"])
        return answer, found

    def __enter__(self) -> PyTorchModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One variant of a model, which `time_in_turns` takes."""

    model: PyTorchModel
    variant: Variant

    def time_block(self, inputs: Mapping[str, Array]) -> float:
        """Return the median milliseconds of a few runs, at least three."""
        (times,) = self.model.bench(self.variant, inputs, _BLOCK)[1].values()
        ordered = sorted(times.tolist())
        return float(ordered[len(ordered) // 2])
