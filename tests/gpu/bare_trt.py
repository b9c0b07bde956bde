"""TensorRT without modelreg: the loop that our runner is measured against, in the toolchain's interpreter.

A job file of `modelreg.registry.toolchains.worker`, so that both loops can take turns in two living processes. It
shares nothing else with our runner: one stream, plain allocations, two events around each run, as trtexec does it.
"""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import numpy as np

trt: Any = importlib.import_module("tensorrt")
cuda: Any = importlib.import_module("cuda.bindings.runtime")

IN_FLIGHT = 64
DTYPES = {"FLOAT": "float32", "HALF": "float16", "INT8": "int8", "INT32": "int32", "INT64": "int64", "BOOL": "bool"}
"""TensorRT 8.6's own `nptype` asks NumPy for names that it dropped."""

state: dict[str, Any] = {}


def load(request: dict[str, Any], _arrays: dict[str, Any], _report: Any) -> dict[str, Any]:
    """Load the plan at `request["path"]`."""
    check(cuda.cudaSetDevice(0))
    check(cuda.cudaFree(0))
    logger = trt.Logger(trt.Logger.WARNING)
    runtime = trt.Runtime(logger)
    engine = runtime.deserialize_cuda_engine(Path(request["path"]).read_bytes())
    if engine is None:
        raise RuntimeError("the plan cannot be loaded")
    context = engine.create_execution_context()
    state.update(logger=logger, runtime=runtime, engine=engine, context=context)
    state["stream"] = check(cuda.cudaStreamCreate())
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    return {"tensors": names, "layers": engine.num_layers}


def bench(request: dict[str, Any], arrays: dict[str, Any], _report: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Time the plan on the inputs; answer with the GPU's milliseconds of every run, as `gpu_ms`."""
    context, stream = state["context"], state["stream"]
    addresses = bind(arrays)
    first = [check(cuda.cudaEventCreate()) for _ in range(IN_FLIGHT)]
    last = [check(cuda.cudaEventCreate()) for _ in range(IN_FLIGHT)]
    handle = int(stream)
    began = time.monotonic()
    while (time.monotonic() - began) * 1000 < request["warmup_ms"]:
        context.execute_async_v3(handle)
        check(cuda.cudaStreamSynchronize(stream))
    samples: list[float] = []
    began = time.monotonic()
    while len(samples) < request["iterations"] or time.monotonic() - began < request["duration_s"]:
        for before, after in zip(first, last, strict=True):
            cuda.cudaEventRecord(before, stream)
            context.execute_async_v3(handle)
            cuda.cudaEventRecord(after, stream)
        check(cuda.cudaStreamSynchronize(stream))
        samples += [check(cuda.cudaEventElapsedTime(*pair)) for pair in zip(first, last, strict=True)]
    for event in first + last:
        check(cuda.cudaEventDestroy(event))
    for address in addresses:
        check(cuda.cudaFree(address))
    return {"runs": len(samples)}, {"gpu_ms": np.array(samples)}


def bind(arrays: dict[str, Any]) -> list[Any]:
    """Upload the inputs, then give the outputs their memory; return the addresses."""
    engine, context = state["engine"], state["context"]
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    is_input = {name: engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT for name in names}
    addresses = []
    for name in sorted(names, key=lambda each: not is_input[each]):
        dtype = np.dtype(DTYPES[engine.get_tensor_dtype(name).name])
        if is_input[name]:
            array = np.ascontiguousarray(arrays[name], dtype)
            address = check(cuda.cudaMalloc(array.nbytes))
            kind = cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
            check(cuda.cudaMemcpy(address, array.ctypes.data, array.nbytes, kind))
            if not context.set_input_shape(name, array.shape):
                raise RuntimeError(f"input {name} cannot be {list(array.shape)}")
        else:
            elements = int(np.prod(tuple(context.get_tensor_shape(name))))
            address = check(cuda.cudaMalloc(elements * dtype.itemsize))
        context.set_tensor_address(name, int(address))
        addresses.append(address)
    return addresses


def inspect(request: dict[str, Any], _arrays: dict[str, Any], _report: Any) -> dict[str, Any]:
    """Write what the engine inspector tells, with the shapes of `request["shapes"]`, to `request["to"]`."""
    inspector = state["engine"].create_engine_inspector()
    for name, shape in request["shapes"].items():
        state["context"].set_input_shape(name, tuple(shape))
    inspector.execution_context = state["context"]
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    Path(request["to"]).write_text(text, encoding="utf-8", errors="replace")
    return {"characters": len(text)}


def check(answer: Any) -> Any:
    """Return what a call of CUDA's runtime gave; raise where it failed."""
    code, values = answer[0], answer[1:]
    if int(code) != 0:
        raise RuntimeError(f"CUDA: {code}")
    return values[0] if values else None


JOBS = {"load": load, "bench": bench, "inspect": inspect}
