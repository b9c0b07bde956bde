"""What TensorRT tells a listener of debug tensors, as its bindings call it."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.toolchains.trt_debug import make_listener, read_debug_tensors
from modelreg.registry.toolchains.trt_session import PlanRunError


class Base:
    """As a bound class of TensorRT, whose `__init__` must be called."""

    ready = False

    def __init__(self) -> None:
        self.ready = True


class Device:
    """Copies from "the device", which is this process."""

    def download(self, array: NDArray[Any], address: int) -> None:
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def wait(self) -> None:
        """Nothing is pending."""


def kind(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name)


TRT = SimpleNamespace(IDebugListener=Base)
VALUES = np.array([[1.5, -2.0], [0.25, 65504.0]], np.float32)


def tell(listener: Any, name: str, array: NDArray[Any], declared: str, location: str = "DEVICE") -> None:
    assert listener.process_debug_tensor(array.ctypes.data, kind(location), kind(declared), array.shape, name, 0)


def test_values_are_copied_in_their_types_from_device_and_host() -> None:
    listener = make_listener(TRT, Device())
    assert listener.ready
    half, bits = VALUES.astype(np.float16), (VALUES.view(np.uint32) >> 16).astype(np.uint16)
    tell(listener, "a", VALUES, "FLOAT")
    tell(listener, "b", half, "HALF", "HOST")
    tell(listener, "c", bits, "BF16")
    tell(listener, "d", bits, "FP8")  # no type of NumPy: passed over
    found_before = VALUES.copy()
    found = listener.values()
    assert sorted(found) == ["a", "b", "c"]
    np.testing.assert_array_equal(found["a"], found_before)
    assert found["b"].dtype == np.float16
    np.testing.assert_allclose(found["c"], VALUES, rtol=1e-2)


class Context:
    """Runs by telling the listener of what is switched on."""

    def __init__(self, known: dict[str, NDArray[Any]]) -> None:
        self.known, self.on, self.listener, self.copied = known, set[str](), None, list[str]()

    def set_debug_listener(self, listener: Any) -> bool:
        self.listener = listener
        return True

    def set_tensor_debug_state(self, name: str, state: bool) -> bool:
        if name not in self.known:
            return False
        (self.on.add if state else self.on.discard)(name)
        return True

    def run(self) -> None:
        for name in sorted(self.on):
            self.copied.append(name)
            tell(self.listener, name, self.known[name], "FLOAT")


class Session:
    def __init__(self, context: Context) -> None:
        self.context, self.device = context, Device()
        self.enqueue = context.run

    def bind(self, inputs: Any) -> None:
        assert inputs


def test_only_what_is_asked_for_is_switched_on_and_all_is_off_afterwards() -> None:
    context = Context({"a": VALUES, "b": VALUES + 1, "c": VALUES})
    found = read_debug_tensors(TRT, Session(context), {"x": VALUES}, ["b"])  # type: ignore[arg-type]
    assert list(found) == context.copied == ["b"]
    np.testing.assert_array_equal(found["b"], VALUES + 1)
    assert context.on == set()
    assert context.listener is None


def test_a_tensor_that_the_plan_does_not_show_is_refused_and_the_others_are_off_again() -> None:
    context = Context({"a": VALUES})
    with pytest.raises(PlanRunError, match="tensor 'z' cannot be shown: the plan was not built for that"):
        read_debug_tensors(TRT, Session(context), {"x": VALUES}, ["a", "z"])  # type: ignore[arg-type]
    assert context.on == set()
