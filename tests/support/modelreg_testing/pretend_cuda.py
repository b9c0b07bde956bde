"""As much of CUDA's runtime and of TensorRT's as a session needs, on host memory: copies are copies, plans double.

The real ones are tested on a GPU (tests/gpu). This one finds what needs no GPU: wrong order, wrong addresses, leaks.
"""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class PretendCuda(types.ModuleType):
    """`cuda.bindings.runtime`; `alive` has what was made and not given back."""

    cudaMemcpyKind = types.SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)  # noqa: N815
    cudaStreamCaptureMode = types.SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)  # noqa: N815

    def __init__(self) -> None:
        super().__init__("cuda.bindings.runtime")
        self.alive: dict[Any, Any] = {}
        self.calls: list[str] = []
        self.refused: set[str] = set()
        self.recording: list[Callable[[], None]] | None = None
        self._last = 1000

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            if name in self.refused:
                return 801, None
            found = getattr(self, f"_{name}")(*arguments)
            return (0,) if found is None else (0, found)

        return call

    def do(self, work: Callable[[], None]) -> None:
        """Do something in the stream's order, or record it."""
        if self.recording is None:
            work()
        else:
            self.recording.append(work)

    def _make(self, thing: Any = None) -> int:
        self._last += 1
        self.alive[self._last] = thing
        return self._last

    def _cudaStreamCreate(self) -> int:  # noqa: N802 - CUDA's spelling, here and below
        return self._make()

    def _cudaStreamDestroy(self, stream: int) -> None:  # noqa: N802
        del self.alive[stream]

    def _cudaStreamSynchronize(self, _stream: int) -> None:  # noqa: N802
        assert self.recording is None, "a capture must not wait"

    def _cudaDeviceSynchronize(self) -> None:  # noqa: N802
        pass

    def _cudaGetLastError(self) -> None:  # noqa: N802
        pass

    def _cudaMalloc(self, size: int) -> int:  # noqa: N802
        memory = ctypes.create_string_buffer(size)
        self.alive[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def _cudaFree(self, address: int) -> None:  # noqa: N802
        del self.alive[address]

    def _cudaMemcpyAsync(self, to: int, source: int, size: int, _kind: int, _stream: int) -> None:  # noqa: N802
        def copy() -> None:
            ctypes.memmove(to, source, size)

        self.do(copy)

    def _cudaHostRegister(self, address: int, _size: int, _flags: int) -> None:  # noqa: N802
        assert ("pinned", address) not in self.alive
        self.alive["pinned", address] = None

    def _cudaHostUnregister(self, address: int) -> None:  # noqa: N802
        del self.alive["pinned", address]

    def _cudaStreamBeginCapture(self, _stream: int, _mode: int) -> None:  # noqa: N802
        self.recording = []

    def _cudaStreamEndCapture(self, _stream: int) -> int:  # noqa: N802
        recorded, self.recording = self.recording, None
        return self._make(recorded)

    def _cudaGraphInstantiate(self, graph: int, _flags: int) -> int:  # noqa: N802
        return self._make(self.alive[graph])

    def _cudaGraphDestroy(self, graph: int) -> None:  # noqa: N802
        del self.alive[graph]

    _cudaGraphExecDestroy = _cudaGraphDestroy  # noqa: N815

    def _cudaGraphLaunch(self, graph: int, _stream: int) -> None:  # noqa: N802
        for work in self.alive[graph]:
            work()


class _Named(NamedTuple):
    name: str


class PretendEngine:
    """A plan with an input `x` and an output `y`, (rows, 3) float32, that doubles; profiles of 1 to 4 and 5 to 16."""

    num_io_tensors = 2
    num_optimization_profiles = 2

    def __init__(self, cuda: PretendCuda) -> None:
        self.cuda = cuda
        self.enqueued = 0
        self.can_capture = True
        self.shape: Sequence[int] = ()
        self.addresses: dict[str, int] = {}
        self.written: Sequence[int] = ()

    def get_tensor_name(self, index: int) -> str:
        return "xy"[index]

    def get_tensor_mode(self, name: str) -> str:
        return {"x": "INPUT", "y": "OUTPUT"}[name]

    def get_tensor_dtype(self, _name: str) -> _Named:
        return _Named("FLOAT")

    def get_tensor_shape(self, _name: str) -> Sequence[int]:
        return tuple(self.shape)

    def get_tensor_profile_shape(self, _name: str, index: int) -> list[list[int]]:
        return [[1, 3], [2, 3], [4, 3]] if index == 0 else [[5, 3], [8, 3], [16, 3]]

    def create_execution_context(self) -> PretendEngine:
        return self

    def set_optimization_profile_async(self, _index: int, _stream: int) -> bool:
        return True

    def set_input_shape(self, _name: str, shape: Sequence[int]) -> bool:
        self.shape = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> None:
        self.addresses[name] = address

    def infer_shapes(self) -> list[str]:
        return []

    def execute_async_v3(self, _stream: int) -> bool:
        is_captured = self.cuda.recording is not None
        if is_captured and not self.can_capture:
            return False
        self.enqueued += 1
        shape, addresses = tuple(self.shape), dict(self.addresses)
        if not is_captured:
            self.written = shape  # what a shape decides is written by a run that is no replay

        def double() -> None:
            assert self.written == shape, "the context was left at another shape"
            size = int(np.prod(shape))
            x, y = (
                np.frombuffer(memoryview((ctypes.c_float * size).from_address(addresses[name])), np.float32)
                for name in ("x", "y")
            )
            y[:] = x * 2

        self.cuda.do(double)
        return True


def pretend_tensorrt(engine: PretendEngine) -> Any:
    """Return what stands for the backend's module."""
    runtime = types.SimpleNamespace(deserialize_cuda_engine=lambda _plan: engine)
    return types.SimpleNamespace(
        Runtime=lambda _log: runtime, TensorIOMode=types.SimpleNamespace(INPUT="INPUT"), __version__="8.6.0"
    )
