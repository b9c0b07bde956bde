"""A plan of TensorRT loaded and run: the bytes, a context, one stream. Python 3.8 and NumPy.

The job files of building and of running use it, and pass their backend's module in. Bytes are loaded only after
their digest was checked: a plan is native code.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from modelreg.registry.toolchains import shared
from modelreg.registry.toolchains.cuda_graphs import Graphs, PinnedArenas
from modelreg.registry.toolchains.cuda_memory import Device

Json = Dict[str, Any]
Arrays = Dict[str, Any]

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
    "BF16": "uint16",  # NumPy has no BF16: its bits travel, and are widened to float32 on the way out
}


class PlanRunError(Exception):
    """A plan cannot be loaded or run; the message is for the user."""


def read_checked(path: str, digest: str) -> bytes:
    """
    Return the bytes of a plan, whose SHA-256 is `digest`; what is checked here is what is loaded.

    Raises:
        PlanRunError: The bytes are others.
    """
    content = Path(path).read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise PlanRunError("the plan has the digest %s instead of %s: it is not loaded" % (found[:12], digest[:12]))
    return content


def load_plugins(trt: Any, log: Any, libraries: Sequence[str]) -> None:
    """
    Load plugin libraries, whose digests the caller has checked, and offer TensorRT's own plugins; RTX has none.

    Raises:
        PlanRunError: One cannot be loaded.
    """
    trt.init_libnvinfer_plugins(log, "")
    for library in libraries:
        if trt.get_plugin_registry().load_library(library) is None:
            reason = log.say_errors() or "no reason given"
            raise PlanRunError("the plugin library %s cannot be loaded: %s" % (Path(library).name, reason))


class Session:
    """A loaded plan, ready to run; close it to give the device's memory back."""

    def __init__(
        self,
        trt: Any,
        log: Any,
        plan: bytes,
        *,
        host_code: bool,
        output_types: Optional[Mapping[str, str]] = None,
        cuda_graphs: bool = False,
    ) -> None:
        """
        Load a plan.

        Args:
            trt: The backend's module.
            log: Its logger, of `make_log`.
            plan: The bytes, checked by the caller.
            host_code: Whether the plan carries the lean runtime that it may run: those made version-compatible do.
            output_types: The types that outputs shall have where the plan narrowed INT64 to INT32.
            cuda_graphs: Whether `run` replays a graph where a shape repeats.

        Raises:
            PlanRunError: TensorRT refuses the plan.
        """
        self._trt, self._log = trt, log
        self._output_types = dict(output_types or {})
        runtime = trt.Runtime(log)
        if host_code:
            runtime.engine_host_code_allowed = True
        engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise PlanRunError("%s refuses the plan: %s" % (log.product, log.say_errors() or "it gives no reason"))
        self._runtime, self.engine = runtime, engine
        self._context = engine.create_execution_context()
        if self._context is None:
            raise PlanRunError("%s makes no context: %s" % (log.product, log.say_errors() or "out of memory?"))
        self._device = Device()
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        is_input = {name: engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT for name in names}
        self.inputs = [name for name in names if is_input[name]]
        self.outputs = [name for name in names if not is_input[name]]
        self._allocators: Dict[str, Any] = {}
        self._profile = 0
        self._bound: Optional[Json] = None
        self._in: Dict[str, int] = {}
        self._out: Dict[str, int] = {}
        self._arenas = PinnedArenas(self._device)
        self._graphs = Graphs(self._device, self.enqueue) if cuda_graphs else None

    def describe(self) -> Json:
        """Return the inputs and outputs, each with `name`, `type` and `shape`, and the shapes of every profile."""
        return {
            "inputs": [self._describe(name) for name in self.inputs],
            "outputs": [self._describe(name) for name in self.outputs],
            "profiles": [self._profile_shapes(index) for index in range(self.engine.num_optimization_profiles)],
        }

    def run(self, inputs: Mapping[str, Any]) -> Arrays:
        """
        Return every output for one set of inputs.

        Raises:
            PlanRunError: An input is missing, no profile covers the shapes, or TensorRT refuses.
        """
        self._arenas.update()
        arrays = self._stage(inputs)
        if self._graphs is None or self._allocators:
            self.enqueue()
        else:
            addresses = tuple(self._in.values()), tuple(self._out.values())
            shapes = tuple(array.shape for array in arrays.values())
            self._graphs.run((self._profile, shapes, addresses))
        found = {name: shared.empty(self._output_shape(name), self._dtype(name)) for name in self.outputs}
        for name, array in found.items():
            self._device.download(array, self._output_address(name))
        self._device.wait()  # and as long, `arrays` must be there
        return {name: self._widen(name, array) for name, array in found.items()}

    @property
    def replayed(self) -> int:
        """Return how many runs were a graph's."""
        return 0 if self._graphs is None else self._graphs.replayed

    def bind(self, inputs: Mapping[str, Any]) -> None:
        """Choose the profile that covers the inputs, upload them, and give the outputs their memory."""
        self._stage(inputs)
        self._device.wait()  # the arrays may go once they are uploaded

    def _stage(self, inputs: Mapping[str, Any]) -> Arrays:
        """Do the same without waiting; return the arrays that are being uploaded."""
        arrays = {name: self._as_input(name, inputs) for name in self.inputs}
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        if shapes != self._bound:
            self._bound = None  # an error on the way leaves the context with some of both
            self._bind_shapes(arrays, shapes)
            self._bound = shapes
        for name, array in arrays.items():
            self._device.upload(self._in[name], array)
        return arrays

    def _bind_shapes(self, arrays: Arrays, shapes: Mapping[str, List[int]]) -> None:
        if self._graphs is not None:
            self._graphs.forget_shape()
        self._use_profile(shapes)
        for name, array in arrays.items():
            self._in[name] = self._device.reserve(name, array.nbytes)
            if not self._context.set_input_shape(name, array.shape):
                raise PlanRunError("input %r cannot be %s: %s" % (name, list(array.shape), self._log.say_errors()))
            self._context.set_tensor_address(name, self._in[name])
        missing = self._context.infer_shapes()
        if missing:
            raise PlanRunError("shapes are missing for %s" % ", ".join(missing))
        for name in self.outputs:
            self._bind_output(name)

    def enqueue(self) -> None:
        """Run what is bound, in the stream's order."""
        if not self._context.execute_async_v3(self._stream_handle()):
            raise PlanRunError("the plan does not run: %s" % (self._log.say_errors() or "no reason given"))

    def inspect(self, shapes: Optional[Mapping[str, Sequence[int]]] = None) -> str:
        """Return what the engine's inspector tells of its layers, as JSON; with shapes, free dimensions are known."""
        inspector = self.engine.create_engine_inspector()
        if shapes is not None:
            self._bound = None
            for name, shape in shapes.items():
                self._context.set_input_shape(name, tuple(shape))
            inspector.execution_context = self._context
        text: str = inspector.get_engine_information(self._trt.LayerInformationFormat.JSON)
        return text

    @property
    def context(self) -> Any:
        """Return the execution context."""
        return self._context

    @property
    def device(self) -> Device:
        """Return the stream and memory that the plan runs on."""
        return self._device

    def close(self) -> None:
        """Give the context, the engine and the device's memory back."""
        self._device.wait()
        if self._graphs is not None:
            self._graphs.close()
        self._arenas.close()
        self._context = self.engine = self._runtime = None
        self._device.close()

    def _describe(self, name: str) -> Json:
        return {"name": name, "type": self._type_name(name), "shape": list(self.engine.get_tensor_shape(name))}

    def _type_name(self, name: str) -> str:
        declared = self.engine.get_tensor_dtype(name).name
        if declared not in _DTYPES:
            raise PlanRunError("%r is %s, which cannot be run here" % (name, declared))
        return "bfloat16" if declared == "BF16" else _DTYPES[declared]

    def _dtype(self, name: str) -> Any:
        return np.dtype(_DTYPES[self.engine.get_tensor_dtype(name).name])

    def _widen(self, name: str, array: Any) -> Any:
        declared = self._type_name(name)
        if (declared, self._output_types.get(name)) == ("int32", "int64"):
            return array.astype(np.int64)
        return array if declared != "bfloat16" else widen_bf16(array)

    def _as_input(self, name: str, inputs: Mapping[str, Any]) -> Any:
        if name not in inputs:
            raise PlanRunError("input %r is missing" % name)
        wanted, array = self._type_name(name), inputs[name]
        if wanted == "bfloat16":
            bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
            return rounded.astype(np.uint16)
        narrows = {("float32", "float16"), ("int64", "int32")}
        if str(array.dtype) != wanted and (str(array.dtype), wanted) not in narrows:
            raise PlanRunError("input %r is %s, the plan takes %s" % (name, array.dtype, wanted))
        converted = np.ascontiguousarray(array, wanted)
        if wanted == "int32" and not np.array_equal(converted, array):
            raise PlanRunError("input %r has values beyond INT32, which the plan takes" % name)
        return converted.reshape(array.shape)

    def _profile_shapes(self, index: int) -> Json:
        shapes = {}
        for name in self.inputs:
            low, best, high = self.engine.get_tensor_profile_shape(name, index)
            shapes[name] = {"min": list(low), "opt": list(best), "max": list(high)}
        return shapes

    def _use_profile(self, shapes: Mapping[str, List[int]]) -> None:
        profiles = [self._profile_shapes(index) for index in range(self.engine.num_optimization_profiles)]
        index = choose_profile(profiles, shapes)
        if index is None:
            raise PlanRunError(_say_uncovered(profiles, shapes))
        if index != self._profile:
            if not self._context.set_optimization_profile_async(index, self._stream_handle()):
                raise PlanRunError("profile %d cannot be used: %s" % (index, self._log.say_errors()))
            self._device.wait()
            self._profile = index

    def _bind_output(self, name: str) -> None:
        shape = [int(length) for length in self._context.get_tensor_shape(name)]
        if any(length < 0 for length in shape):
            allocator = self._allocators.setdefault(name, _make_allocator(self._trt, self._device))
            self._context.set_output_allocator(name, allocator)
            return
        size_bytes = int(np.prod(shape, dtype=np.int64)) * self._dtype(name).itemsize
        self._out[name] = self._device.reserve(name, size_bytes)
        self._context.set_tensor_address(name, self._out[name])

    def _output_shape(self, name: str) -> List[int]:
        if name in self._allocators:
            self._device.wait()
            return list(self._allocators[name].shapes[name])
        return [int(length) for length in self._context.get_tensor_shape(name)]

    def _output_address(self, name: str) -> int:
        if name in self._allocators:
            return int(self._allocators[name].addresses[name])
        return self._out[name]

    def _stream_handle(self) -> int:
        return int(self._device.stream)


def numpy_type(declared: Any) -> Any:
    """Return the NumPy type of a type of TensorRT, or None for one that NumPy has not."""
    return np.dtype(_DTYPES[declared.name]) if declared.name in _DTYPES else None


def widen_bf16(bits: Any) -> Any:
    """Return the FP32 numbers of BF16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def choose_profile(profiles: Sequence[Json], shapes: Mapping[str, Sequence[int]]) -> Optional[int]:
    """Return the first profile whose ranges hold every shape, or None."""
    for index, profile in enumerate(profiles):
        if all(_covers(profile[name], shape) for name, shape in shapes.items()):
            return index
    return None


def _covers(points: Json, shape: Sequence[int]) -> bool:
    low, high = points["min"], points["max"]
    return len(low) == len(shape) and all(a <= n <= b for a, n, b in zip(low, shape, high))  # noqa: B905 - Python 3.8


def _say_uncovered(profiles: Sequence[Json], shapes: Mapping[str, Sequence[int]]) -> str:
    given = ", ".join("%s %s" % (name, _say(shape)) for name, shape in shapes.items())
    ranges = [
        ", ".join("%s %s to %s" % (name, _say(points["min"]), _say(points["max"])) for name, points in each.items())
        for each in profiles
    ]
    return "no profile covers %s; the plan has %s" % (given, "; ".join(ranges))


def _say(shape: Sequence[int]) -> str:
    return "x".join(str(length) for length in shape) or "a scalar"


def _make_allocator(trt: Any, device: Device) -> Any:
    """Return what gives outputs their memory whose size TensorRT only knows while it runs."""

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        """Keeps the address and shape of each output."""

        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.addresses: Dict[str, int] = {}
            self.shapes: Dict[str, Sequence[int]] = {}

        def reallocate_output(self, name: str, _memory: int, size_bytes: int, _alignment: int) -> int:
            """Return memory for an output; called in the middle of a run."""
            self.addresses[name] = device.reserve("output " + name, size_bytes)
            return self.addresses[name]

        def reallocate_output_async(self, name: str, memory: int, size_bytes: int, alignment: int, _stream: int) -> int:
            """Return memory for an output, as newer releases ask."""
            return self.reallocate_output(name, memory, size_bytes, alignment)

        def notify_shape(self, name: str, shape: Any) -> None:
            """Keep the shape that an output has got."""
            self.shapes[name] = tuple(shape)

    return Allocator()
