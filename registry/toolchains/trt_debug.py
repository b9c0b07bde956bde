"""Reading values between the layers of a plan that was built with debug tensors. Python 3.8 and NumPy.

TensorRT calls a listener with the address of each value while it runs; only those that are asked for are switched on,
so that no more is copied than that.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from modelreg.registry.toolchains.trt_session import PlanRunError, Session, numpy_type, widen_bf16


def debug_tensors(session: Session, names: Sequence[str]) -> List[str]:
    """Return which of the tensors a plan can show."""
    return [name for name in names if session.engine.is_debug_tensor(name)]


def read_debug_tensors(trt: Any, session: Session, inputs: Mapping[str, Any], names: Sequence[str]) -> Dict[str, Any]:
    """
    Run a plan and return the values of these tensors; those that TensorRT did not make are not there.

    Raises:
        PlanRunError: The plan does not run, or a tensor cannot be switched on.
    """
    context = session.context
    listener = make_listener(trt, session.device)
    context.set_debug_listener(listener)
    switched = []
    try:
        for name in names:
            if not context.set_tensor_debug_state(name, True):
                raise PlanRunError("tensor %r cannot be shown: the plan was not built for that" % name)
            switched.append(name)
        session.bind(inputs)
        session.enqueue()
        session.device.wait()
    finally:
        for name in switched:
            context.set_tensor_debug_state(name, False)
        context.set_debug_listener(None)
    found: Dict[str, Any] = listener.values()
    return found


def make_listener(trt: Any, device: Any) -> Any:
    """Return what TensorRT tells of debug tensors, with `values()` for what it has told; wait for the stream first."""

    class Listener(trt.IDebugListener):  # type: ignore[misc]
        """Copies each value to the host in the stream's order."""

        def __init__(self) -> None:
            trt.IDebugListener.__init__(self)
            self._seen: Dict[str, Any] = {}
            self._is_bf16: Dict[str, bool] = {}

        def process_debug_tensor(
            self, address: Any, location: Any, declared: Any, shape: Any, name: str, _stream: Any
        ) -> bool:
            """Take one value; called in the middle of a run."""
            dtype = numpy_type(declared)
            if dtype is None:
                return True
            array = np.empty([int(length) for length in shape], dtype)
            if location.name == "HOST":
                ctypes.memmove(array.ctypes.data, int(address), array.nbytes)
            else:
                device.download(array, int(address))
            self._seen[name], self._is_bf16[name] = array, declared.name == "BF16"
            return True

        def values(self) -> Dict[str, Any]:
            """Return what was seen, in NumPy's types."""
            return {name: widen_bf16(array) if self._is_bf16[name] else array for name, array in self._seen.items()}

    return Listener()
