"""Releases to serve, made without building: real ONNX files in a real store, moved by real swaps of the pointer."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.manifest import Manifest, make_manifest
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.interface import Storage
from modelreg_testing.onnx_models import make_model, value, weight
from modelreg_testing.records import make_engine, make_version
from modelreg_testing.storage import pointer_after, stored_files

SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", dtype="float32", shape=("N", 3)),),
    outputs=(TensorSpec(name="y", dtype="float32", shape=("N", 3)),),
)


def adder(number: float) -> bytes:
    """Return a model that adds a number: its answers say which one it is."""
    content: bytes = make_model(
        [helper.make_node("Add", ["x", "c"], ["y"])],
        inputs=[value("x", ["N", 3])],
        outputs=[value("y", ["N", 3])],
        initializers=[weight("c", np.array(number, np.float32))],
    ).SerializeToString()
    return content


def crashing() -> bytes:
    """Return a valid model whose loading kills the process: a constant is folded, and -2**31 / -1 is SIGFPE."""
    ints = [
        numpy_helper.from_array(np.full(3, number, np.int32), name) for name, number in (("a", -(2**31)), ("b", -1))
    ]
    content: bytes = make_model(
        [
            helper.make_node("Div", ["a", "b"], ["q"]),
            helper.make_node("Cast", ["q"], ["c"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["x", "c"], ["y"]),
        ],
        inputs=[value("x", ["N", 3])],
        outputs=[value("y", ["N", 3])],
        initializers=ints,
    ).SerializeToString()
    return content


def renamed_input(number: float) -> bytes:
    """Return an adder that calls its input otherwise."""
    model = onnx.load_from_string(adder(number))
    model.graph.input[0].name = model.graph.node[0].input[0] = "image"
    content: bytes = model.SerializeToString()
    return content


def publish_plan(storage: Storage, plan: bytes, *, signature: Signature = SIGNATURE) -> str:
    """Publish a release of one engine for the CPU; return its digest."""
    made = make_manifest(make_version(), {"cpu": make_engine(1)})
    engine = made.engines[0]._replace(files=stored_files(storage, {"cpu/model.onnx": plan}))
    manifest: Manifest = made._replace(signature=signature, engines=(engine,))
    return storage.publish_release(manifest.to_bytes(), manifest.files)


def activate(storage: Storage, release: str) -> Pointer:
    """Make a release active; return the pointer."""
    current = storage.read_pointer("lenet", "production")
    new = pointer_after(current, release=release)
    storage.swap_pointer(new, expected=current)
    return new


def activate_plan(storage: Storage, plan: bytes, *, signature: Signature = SIGNATURE) -> Pointer:
    """Publish a release of one engine and make it active; return the pointer."""
    return activate(storage, publish_plan(storage, plan, signature=signature))


def eventually(is_so: Callable[[], Any], *, timeout_s: float = 60.0) -> None:
    """Wait until something is so, and fail where it never is."""
    until = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.01)


def open_files() -> int:
    """Return how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_bytes() -> int:
    """Return how much memory this process has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def children() -> set[int]:
    """Return the process ids of this process's children, whichever thread started them."""
    return {child.pid for child in psutil.Process().children()}
