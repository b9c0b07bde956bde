"""A released engine that answers: ONNX Runtime in this process, TensorRT in a child of its own.

Why so: docs/decisions/0045-where-a-served-engine-runs.md. What crashes is tried in a child first, whatever it is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from modelreg.registry.contents import Signature
from modelreg.registry.errors import IntegrityError, WorkerError
from modelreg.registry.manifest import ReleasedEngine
from modelreg.registry.toolchains.pieces import whole
from modelreg.registry.toolchains.process import WorkerJobError
from modelreg.registry.toolchains.worker import native
from modelreg.registry.words import Backend, Json
from modelreg.runtime.admission import read_free_memory
from modelreg.runtime.devices import Device
from modelreg.runtime.pull_place import matches
from modelreg.runtime.runner import GpuLoad, RunError, WorkerRunner, one_line
from modelreg.runtime.serving import InstanceState, expired
from modelreg.runtime.suitability import Suitability

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from modelreg.registry.toolchains.pieces import Feed

    Array = NDArray[np.generic]


_CLOSE_S = 5.0


class Engine(Protocol):
    """A loaded engine; any thread may run it, one closes it when no other does."""

    @property
    def profiles(self) -> Sequence[Json]:
        """Return the shapes of each optimisation profile; none where the backend has no profiles."""
        ...

    @property
    def instances(self) -> Sequence[InstanceState]:
        """Return a look at its instances; none where it is no group of them."""
        ...

    @property
    def waiting(self) -> int:
        """Return how many requests wait in its queue; 0 where it has none."""
        ...

    def run(self, inputs: Feed, *, until_s: float | None = None) -> dict[str, Array]:
        """
        Return every output.

        Args:
            inputs: One array for each input, or the pieces of one.
            until_s: When the request is not worth running any more (`time.monotonic`), if it still waits then.

        Raises:
            RunError: The backend refuses the inputs; the engine lives on.
            DeadlineExceededError: It waited until then, and was not run.
            WorkerError: The engine is dead.
        """
        ...

    def read_free_memory(self) -> int | None:
        """Return the free bytes of the memory that it lives in; None where nobody can tell."""
        ...

    def close(self) -> None:
        """Free it."""
        ...

    def is_gone(self) -> bool:
        """Return whether all that it had is freed, as far as this host shows it."""
        ...


class OrtEngine:
    """A session of ONNX Runtime in this process: a call costs what the session's own does, and a little."""

    profiles: Sequence[Json] = ()
    instances: Sequence[InstanceState] = ()
    waiting = 0

    def __init__(self, path: Path, *, target: str, threads: int | None, device_id: int = 0) -> None:
        """
        Load a plan whose digest the caller has checked.

        Raises:
            RunError: It cannot be loaded.
        """
        from modelreg.runtime.ort import open_session  # noqa: PLC0415 - only who serves it needs the backend

        try:
            self._session: Any = open_session(str(path), threads=threads, target=target, device_id=device_id)
        except Exception as error:
            raise RunError(f"the plan cannot be loaded: {one_line(error)}") from error
        self._output_names = [each.name for each in self._session.get_outputs()]
        self._half_names = [each.name for each in self._session.get_inputs() if each.type == "tensor(float16)"]
        self._gone = weakref.ref(self._session)

    @property
    def session(self) -> Any:
        """Return the backend's own session."""
        return self._session

    def run(self, inputs: Feed, *, until_s: float | None = None) -> dict[str, Array]:
        """Return every output; raises RunError where the session refuses. Nobody waits for a session."""
        arrays: dict[str, Array] = {name: native(whole(array)) for name, array in inputs.items()}
        if self._half_names:
            arrays |= {n: arrays[n].astype("float16") for n in self._half_names if n in arrays}
        try:
            return dict(zip(self._output_names, self._session.run(None, arrays), strict=True))
        except Exception as error:
            raise RunError(f"the plan cannot be run: {one_line(error)}") from error

    def read_free_memory(self) -> int | None:
        """Return the free bytes of this host, or of its container."""
        return read_free_memory()

    def close(self) -> None:
        """Destroy the session, and give what the allocator keeps back to the system."""
        self._session = None
        _trim()

    def is_gone(self) -> bool:
        """Return whether the session is destroyed."""
        return self._gone() is None


class WorkerEngine:
    """A plan in a child process; one request at a time is on it. The thread that makes it must outlive it."""

    instances: Sequence[InstanceState] = ()
    waiting = 0

    def __init__(self, runner: WorkerRunner) -> None:
        self._runner = runner
        self._lock = threading.Lock()

    @property
    def profiles(self) -> Sequence[Json]:
        """Return the profiles of the plan."""
        found: Sequence[Json] = self._runner.info.get("profiles", ())
        return found

    @property
    def pid(self) -> int:
        """Return the process id of the child."""
        return self._runner.pid

    def run(self, inputs: Feed, *, until_s: float | None = None) -> dict[str, Array]:
        """Return every output; raises RunError where the backend refuses, WorkerError where the child died."""
        if not self._lock.acquire(timeout=-1 if until_s is None else max(0.0, until_s - time.monotonic())):
            raise expired()
        try:
            return self._runner.run(inputs)
        finally:
            self._lock.release()

    def read_free_memory(self) -> int | None:
        """Return the free bytes of the device, by the child's report; of this host, where it runs on the CPU."""
        if self._runner.backend is Backend.ONNXRUNTIME:
            return read_free_memory()
        try:
            with self._lock:
                return self._runner.read_free_memory()
        except (WorkerError, RunError):
            return None

    def close(self) -> None:
        """End the child; a call that is still on it after a while fails."""
        if not self._lock.acquire(timeout=_CLOSE_S):  # it hangs, and who closes would hang with it
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._lock.acquire()
        try:
            self._runner.close()
        finally:
            self._lock.release()

    def is_gone(self) -> bool:
        """Return whether the child's process is gone, and with it what it had of the device."""
        return self._runner.has_ended


def open_engine(
    found: Suitability,
    folder: Path,
    signature: Signature,
    *,
    threads: int | None,
    isolate: bool,
    device: Device | None = None,
    cuda_graphs: bool = False,
) -> Engine:
    """
    Load an engine of a release that lies in `folder`.

    Args:
        found: The engine, and what of this host it suits.
        folder: The release's.
        signature: The model's.
        threads: Threads of one operator in ONNX Runtime.
        isolate: Whether ONNX Runtime on the CPU runs in a child too.
        device: Where it shall run; None: the first GPU of the target, or the CPU.
        cuda_graphs: Whether TensorRT replays a graph where a shape repeats.

    Raises:
        ModelregError: It cannot be loaded.
    """
    engine = found.engine
    path = folder / engine.plan.path
    target = found.runs_on if device is None else device.target
    if engine.backend is not Backend.ONNXRUNTIME:
        gpu = describe_gpu_load(engine, target, signature, device=device, cuda_graphs=cuda_graphs)
        return WorkerEngine(WorkerRunner(path, backend=engine.backend, python=found.python or sys.executable, gpu=gpu))
    if isolate and target == "cpu":
        return WorkerEngine(WorkerRunner(path, backend=engine.backend, threads=threads))
    return OrtEngine(path, target=target, threads=threads, device_id=0 if device is None else device.number)


def describe_gpu_load(
    engine: ReleasedEngine,
    runs_on: str,
    signature: Signature,
    *,
    device: Device | None = None,
    cuda_graphs: bool = False,
) -> GpuLoad:
    """Return what a child needs to load a released plan of TensorRT on the target `runs_on`."""
    return GpuLoad(
        digest=engine.plan.digest,
        version=engine.backend_version,
        built_for=engine.plan_targets or (engine.target,),
        target=runs_on,
        host_code=engine.version_compatible,
        output_types={spec.name: spec.dtype for spec in signature.outputs},
        visible="" if device is None else device.visible,
        uuid="" if device is None else device.uuid,
        cuda_graphs=cuda_graphs,
    )


def open_trial(engine: ReleasedEngine, folder: Path, *, threads: int | None) -> WorkerRunner:
    """
    Load an engine of ONNX Runtime in a child, where it may crash.

    Raises:
        ModelregError: It cannot be loaded, or the child crashed.
    """
    return WorkerRunner(folder / engine.plan.path, backend=engine.backend, threads=threads)


def require_intact(engine: ReleasedEngine, folder: Path) -> None:
    """
    Read every file of an engine.

    Raises:
        IntegrityError: One is missing, or is not what the release says.
    """
    for file in engine.files:
        if not matches(folder / file.path, file):
            raise IntegrityError(
                f"{folder / file.path} does not match its digest", hint="It is fetched again at the next try."
            )


def is_dead(error: Exception) -> bool:
    """Return whether an engine that raised this can answer nothing any more."""
    return isinstance(error, WorkerError) and not isinstance(error, WorkerJobError)


def _trim() -> None:
    """Have glibc give free memory back: a freed session is many small pieces, which it would keep."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # pragma: no cover - another libc
        return
