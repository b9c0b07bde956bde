"""Variants from the parent's side: made and inspected in a child with the registry's own interpreter."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from modelreg.builders.calibration import CalibrationSet
from modelreg.builders.failures import build_error
from modelreg.builders.interface import OnProgress
from modelreg.registry.toolchains.process import (
    Worker,
    WorkerJobError,
    WorkerLogError,
    WorkerTimeoutError,
    ignore_progress,
)
from modelreg.registry.words import Json

_DOING = {
    "start": "starting Python for the variant",
    "make": "making the variant",
    "merge": "merging the external data",
    "pin": "naming the nodes to keep",
    "inspect": "reading the realised precision",
}
_JOB_FILE = Path(__file__).with_name("variant_jobs.py")


class VariantWorker:
    """One child for the variant of a cell and for reading what became of it; a context manager."""

    def __init__(self, *, log_path: Path, timeout_s: float) -> None:
        # The converters iterate over sets: with a fixed hash seed the same recipe gives the same bytes.
        env = {"PYTHONHASHSEED": "0"}
        with _naming("start", timeout_s):
            self._worker = Worker.start(sys.executable, _JOB_FILE, log_path=log_path, env=env, timeout_s=timeout_s)
        self._timeout_s = timeout_s

    def __enter__(self) -> VariantWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.close()

    def make(
        self,
        source: Path,
        target: Path,
        *,
        variant: Json,
        calibration: CalibrationSet | None,
        on_progress: OnProgress,
    ) -> tuple[Path, ...]:
        """
        Write the variant of `source` to `target`; return its files, the ONNX first.

        Raises:
            BuildError: It cannot be made; says why.
            WorkerError: The child crashed, hung, or spoke garbage.
        """
        request = {
            "source": str(source),
            "target": str(target),
            "variant": variant,
            "calibration": None if calibration is None else calibration.to_request(),
        }
        answer = self._call("make", request, on_progress)
        return tuple(Path(path) for path in answer["files"])

    def merge(self, source: Path, target: Path, *, on_progress: OnProgress) -> Path:
        """Write `source` with its external data as the one file `target`; return it."""
        self._call("merge", {"source": str(source), "target": str(target)}, on_progress)
        return target

    def pin(self, model: Path, *, pins: Json) -> tuple[Path, tuple[str, ...]]:
        """
        Return the model with a name for every node, and the names of the nodes that `pins` means.

        Raises:
            BuildError: A node to exclude does not exist.
            WorkerError: The child crashed, hung, or spoke garbage.
        """
        answer = self._call("pin", {"model": str(model), "pins": pins}, ignore_progress)
        return Path(answer["model"]), tuple(answer["nodes"])

    def inspect(
        self,
        plan: Path,
        model: Path,
        *,
        recipe: Json,
        pinned: tuple[str, ...],
        layers: Path | None,
        on_progress: OnProgress,
    ) -> Json:
        """
        Return the realised precision of a plan made from `model`, read from `layers` where the builder gave some.

        Raises:
            BuildError: The plan cannot be read.
            WorkerError: The child crashed, hung, or spoke garbage.
        """
        request = {
            "plan": str(plan),
            "model": str(model),
            "recipe": recipe,
            "pinned": list(pinned),
            "layers": None if layers is None else str(layers),
        }
        realised: Json = self._call("inspect", request, on_progress)
        return realised

    def _call(self, job: str, request: Mapping[str, Any], on_progress: OnProgress) -> Any:
        try:
            with _naming(job, self._timeout_s):
                return self._worker.call(job, request, timeout_s=self._timeout_s, on_progress=on_progress)[0]
        except WorkerJobError as error:
            raise build_error(error) from error


@contextmanager
def _naming(job: str, timeout_s: float) -> Iterator[None]:
    """Say what took too long in the words of a build: a user knows nothing of our job files."""
    try:
        yield
    except WorkerLogError:
        raise
    except WorkerTimeoutError as error:
        raise WorkerTimeoutError(f"{_DOING[job]} took longer than {timeout_s:g} s and was ended") from error
