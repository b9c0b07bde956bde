"""Looking inside a source and a candidate in a child process: what is between their nodes, a part at a time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from modelreg.registry.errors import WorkerError, WorkerStartError
from modelreg.registry.scratch import scratch_folder
from modelreg.registry.toolchains.process import Worker, WorkerJobError
from modelreg.registry.words import Json
from modelreg.runtime.runner import LOAD_TIMEOUT_S, RUN_TIMEOUT_S, RunError, one_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]
    Arrays = Mapping[str, Array]

_JOBS = Path(__file__).with_name("layer_jobs.py")
_GIVEN = "layer_reference::"


class LayerRunner:
    """
    A source and a candidate of ONNX Runtime, open in a child process; a context manager.

    Attributes:
        tensors: What the source's nodes make, in order of execution: `name`, `node`, `op` and `inputs` of each.
        outputs: The names of the source's outputs.
        seen: How the candidate has them, by name.
    """

    def __init__(
        self,
        source: Path,
        candidate: Path | None = None,
        *,
        rounded: bool = False,
        threads: int | None = None,
        timeout_s: float = RUN_TIMEOUT_S,
    ) -> None:
        """
        Start the child and load the graphs.

        Args:
            source: The ONNX as registered, in a folder that can be written.
            candidate: A variant of it, in such a folder; None to look at the source alone.
            rounded: Whether the candidate is an FP16 variant whose rounding is to be kept.
            threads: Threads of one operator; None leaves it to ONNX Runtime.
            timeout_s: Limit of one run, in seconds.

        Raises:
            RunError: A graph cannot be loaded.
            WorkerStartError: No process can be started.
        """
        self._timeout_s = timeout_s
        self._belongings = contextlib.ExitStack()
        log = self._belongings.enter_context(scratch_folder("layers")) / "log"
        try:
            self._worker = Worker.start(sys.executable, _JOBS, log_path=log)
        except BaseException as error:
            self._belongings.close()
            if isinstance(error, WorkerError):
                raise WorkerStartError(str(error), hint=error.hint()) from error
            raise
        request = {
            "source": str(source),
            "candidate": "" if candidate is None else str(candidate),
            "rounded": rounded,
            "threads": threads,
        }
        try:
            answer = self._call("open", request, {}, timeout_s=LOAD_TIMEOUT_S)[0]
        except BaseException:
            self.close()
            raise
        self.tensors: list[Json] = answer["tensors"]
        self.outputs: list[str] = answer["outputs"]
        self.seen: dict[str, Json] = answer["seen"]

    def shapes(self, names: Sequence[str], inputs: Arrays) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the source's tensors in a run on these inputs."""
        request: Json = {"names": list(names), "shapes_only": True}
        answer = self._call("source", request, inputs, timeout_s=self._timeout_s)[0]
        return {name: tuple(shape) for name, shape in answer["shapes"].items()}

    def run_source(self, names: Sequence[str], inputs: Arrays) -> dict[str, Array]:
        """
        Return values between the source's nodes.

        Raises:
            RunError: ONNX Runtime refused the graph or the inputs.
            WorkerError: The child crashed, hung, or spoke garbage.
        """
        return self._call("source", {"names": list(names)}, inputs, timeout_s=self._timeout_s)[1]

    def run_candidate(
        self, names: Sequence[str], inputs: Arrays
    ) -> tuple[dict[str, Array], dict[str, tuple[int, int]]]:
        """Return values between the candidate's nodes as readers get them, and how many are cut off at each end."""
        answer, found = self._call("candidate", {"names": list(names)}, inputs, timeout_s=self._timeout_s)
        return found, {name: (below, above) for name, (below, above) in answer["saturated"].items()}

    def needs(self, names: Sequence[str], *, at: Sequence[str]) -> list[str]:
        """Return which of the tensors `at` must be given to run the layers that make `names` alone."""
        given: list[str] = self._call("needs", {"names": list(names), "at": list(at)}, {}, timeout_s=self._timeout_s)[
            0
        ]["given"]
        return given

    def run_isolated(
        self, names: Sequence[str], inputs: Arrays, *, at: Sequence[str], given: Arrays
    ) -> dict[str, Array]:
        """Return what the candidate makes of given values in place of what it would have made of its inputs itself."""
        arrays = {**inputs, **{_GIVEN + name: array for name, array in given.items()}}
        request: Json = {"names": list(names), "at": list(at)}
        return self._call("isolated", request, arrays, timeout_s=self._timeout_s)[1]

    def close(self) -> None:
        """End the child."""
        self._worker.close()
        self._belongings.close()

    def __enter__(self) -> LayerRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, job: str, request: Json, arrays: Arrays, *, timeout_s: float) -> tuple[Json, dict[str, Any]]:
        try:
            return self._worker.call(job, request, arrays, timeout_s=timeout_s)
        except WorkerJobError as error:
            raise RunError(f"the model cannot be looked into: {one_line(error)}") from error
