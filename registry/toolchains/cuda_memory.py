"""Device memory, a stream, copies, events and graphs, through NVIDIA's `cuda-bindings`. Python 3.8.

A thin layer: every call is checked, and buffers only grow. Used by the job files of TensorRT.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Dict, Tuple

_MODULES = ("cuda.bindings.runtime", "cuda.cudart")
"""Where the runtime's bindings are, newest first."""


class CudaError(Exception):
    """CUDA refuses a call."""


def load_cuda() -> Any:
    """
    Return the bindings of CUDA's runtime.

    Raises:
        CudaError: They are not installed in this interpreter.
    """
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise CudaError("cuda-bindings is not installed beside TensorRT: pip install cuda-bindings")


class Device:
    """One stream of the current GPU and the buffers that belong to it; close it to give the memory back."""

    def __init__(self) -> None:
        self._cuda = load_cuda()
        self.stream = self._call("cudaStreamCreate")
        self._buffers: Dict[str, Tuple[int, int]] = {}

    def reserve(self, name: str, size_bytes: int) -> int:
        """Return the address of a buffer of at least `size_bytes`, kept under `name`; it may move when it grows."""
        address, capacity = self._buffers.get(name, (0, -1))
        if capacity < size_bytes:
            if address:
                self._call("cudaFree", address)
                del self._buffers[name]
            address = int(self._call("cudaMalloc", max(1, size_bytes)))
            self._buffers[name] = (address, size_bytes)
        return address

    def upload(self, address: int, array: Any) -> None:
        """Copy a C-contiguous array to the device, in the stream's order."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        if array.nbytes:
            self._call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, kind, self.stream)

    def download(self, array: Any, address: int) -> None:
        """Fill a C-contiguous array from the device, in the stream's order; valid after `wait`."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        if array.nbytes:
            self._call("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, kind, self.stream)

    def wait(self) -> None:
        """Wait until the stream has done all that was asked."""
        self._call("cudaStreamSynchronize", self.stream)

    def make_event(self) -> Any:
        """Return an event that can be timed."""
        return self._call("cudaEventCreate")

    def record(self, event: Any) -> None:
        """Note the time at this point of the stream."""
        self._call("cudaEventRecord", event, self.stream)

    def elapsed_ms(self, first: Any, last: Any) -> float:
        """Return the milliseconds between two recorded events; both must have passed."""
        return float(self._call("cudaEventElapsedTime", first, last))

    def drop_event(self, event: Any) -> None:
        """Give an event back."""
        self._call("cudaEventDestroy", event)

    def begin_capture(self) -> None:
        """Record what follows into a graph instead of doing it."""
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", self.stream, mode)

    def end_capture(self) -> Any:
        """Return what was recorded, ready to be launched."""
        graph = self._call("cudaStreamEndCapture", self.stream)
        try:
            return self._call("cudaGraphInstantiate", graph, 0)
        finally:
            self._call("cudaGraphDestroy", graph)

    def launch(self, graph: Any) -> None:
        """Do what a graph recorded."""
        self._call("cudaGraphLaunch", graph, self.stream)

    def drop_graph(self, graph: Any) -> None:
        """Give a graph back."""
        self._call("cudaGraphExecDestroy", graph)

    def pin(self, address: int, size_bytes: int) -> None:
        """Have host memory stay where it is, so that the device copies it by itself; `unpin` before it is freed."""
        self._call("cudaHostRegister", address, size_bytes, 0)

    def unpin(self, address: int) -> None:
        """Let go of pinned host memory."""
        self._call("cudaHostUnregister", address)

    def clear_error(self) -> None:
        """Forget the last error, so that nobody takes it for one of his own."""
        self._cuda.cudaGetLastError()

    def is_lost(self) -> bool:
        """Return whether the context answers with an error to everything: only a new process can use the device."""
        return int(self._cuda.cudaDeviceSynchronize()[0]) != 0

    def close(self) -> None:
        """Free the buffers and the stream."""
        for address, _ in self._buffers.values():
            self._call("cudaFree", address)
        self._buffers.clear()
        self._call("cudaStreamDestroy", self.stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        code, *values = getattr(self._cuda, name)(*arguments)
        if int(code) != 0:
            raise CudaError("%s failed: %s" % (name, getattr(code, "name", code)))
        return values[0] if values else None
