"""Looking at which modules a PyTorch reference calls, and at what they give, without keeping any of it.

PyTorch comes as an argument: `torch_reference` alone imports it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.validators.activations import MODULE, Activation

Array = NDArray[Any]

ALL = "all"
_ROUNDING = 1e-2
_LOOKED_AT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundActivation:
    """A tensor that a call of a module gave: what it will be called, the module and its class, and the shape."""

    name: str
    module: str
    kind: str
    shape: tuple[int, ...]


class Study:
    """One run that only looks: which modules were called, which called no other, and the shapes of what they gave."""

    def __init__(self, torch: Any, module: Any, patterns: tuple[str, ...], *, rows: int) -> None:
        self._torch, self._module, self._patterns, self._rows = torch, module, patterns, rows
        self.found: dict[str, FoundActivation] = {}
        self.widths: dict[str, int] = {}
        self.left_out: dict[str, str] = {}
        self.values: dict[str, Array] = {}
        self._seen: list[FoundActivation] = []
        self._called: set[str] = set()
        self._parents: set[str] = set()

    def listen(self, run: Callable[[], None]) -> None:
        """Run, and learn which modules are there."""
        named = {name: module for name, module in self._module.named_modules() if name}
        graphs = {name for name, module in named.items() if isinstance(module, self._torch.jit.ScriptModule)}
        kinds = {name: type(module).__name__ for name, module in named.items() if name not in graphs}
        stack: list[str] = []

        def enter(name: str) -> None:
            self._parents.update(stack)
            stack.append(name)

        def leave(name: str, call: int, output: Any) -> None:
            stack.pop()
            self._called.add(name)
            self._look(name, kinds[name], call, output)

        with hooks(self._module, set(kinds), leave, enter):
            run()
        self.found = {found.name: found for found in self._seen if self._is_wanted(found.module)}
        self.left_out = {name: why for name, why in self.left_out.items() if self._is_wanted(_module_of(name))}
        for name in kinds.keys() - self._called:
            if self._is_wanted(name) and not any(each.startswith(f"{name}.") for each in self._called):
                self.left_out[name] = "it was never called: it is unused, or its parameters are used by another module"
        for name in graphs:
            if name.rpartition(".")[0] not in graphs:
                self.left_out[name] = "it is a scripted or frozen graph, which calls no hooks"

    def _is_wanted(self, module: str) -> bool:
        is_leaf = module not in self._parents
        return any(is_leaf if pattern == ALL else fnmatchcase(module, pattern) for pattern in self._patterns)

    def _look(self, module: str, kind: str, call: int, output: Any) -> None:
        is_empty = True
        for item, tensor in tensors_of(self._torch, output):
            is_empty = False
            name, shape = activation_name(module, call, item), tuple(int(length) for length in tensor.shape)
            if not tensor.is_floating_point() or tensor.layout != self._torch.strided or not tensor.numel():
                self.left_out[name] = f"it gives no plain floating numbers ({tensor.dtype}, {list(shape)})"
                continue
            self.widths[name] = 4 if tensor.dtype == self._torch.bfloat16 else tensor.element_size()
            if shape and shape[0] != self._rows:  # where its samples lie is a question
                self.values[name] = as_numpy(self._torch, tensor[..., :_LOOKED_AT])
            self._seen.append(FoundActivation(name=name, module=module, kind=kind, shape=shape))
        if is_empty:
            self.left_out[activation_name(module, call, "")] = f"it gives no tensor but a {type(output).__name__}"


def is_sample_major(tap: Activation, whole: Study, fewer: Study, rows: int) -> bool:
    """Return whether the samples of a run of fewer are at the same places: they lie one after the other then."""
    one, two = whole.values.get(tap.name), fewer.values.get(tap.name)
    if one is None or two is None or one.ndim != len(tap.shape) or two.ndim != len(tap.shape):
        return False
    if tap.axis == len(tap.shape) - 1 and tap.shape[-1] > _LOOKED_AT:
        return False  # the values looked at do not reach every sample
    first = np.moveaxis(one, tap.axis, 0)[: (rows - 1) * tap.per]
    second = np.moveaxis(two, tap.axis, 0)
    scale = float(np.abs(second).max(initial=0)) or 1.0
    return first.shape == second.shape and bool(np.allclose(first, second, rtol=0, atol=_ROUNDING * scale))


def tensors_of(torch: Any, output: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of an output with what stands behind the module's name for them."""
    if isinstance(output, torch.Tensor):
        yield "", output
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield from ((f"[{key}]{rest}", tensor) for rest, tensor in tensors_of(torch, value))
    elif isinstance(output, tuple | list):
        for index, value in enumerate(output):
            yield from ((f"[{index}]{rest}", tensor) for rest, tensor in tensors_of(torch, value))


def _module_of(name: str) -> str:
    return MODULE.split(name)[0]


def activation_name(module: str, call: int, item: str) -> str:
    """Return what an output is called: the module's name, the number of the call from the second on, the item."""
    return f"{module}#{call}{item}" if call > 1 else f"{module}{item}"


def as_numpy(torch: Any, tensor: Any) -> Array:
    """Return a copy on the host; BF16 becomes FP32."""
    tensor = tensor.detach().cpu().contiguous()
    return np.array((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


@contextlib.contextmanager
def hooks(
    module: Any,
    names: set[str],
    leave: Callable[[str, int, Any], None],
    enter: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Call `leave` with the name, the number of the call and the output of each of these modules."""
    calls: dict[str, int] = {}
    handles = []

    def on_leave(name: str) -> Callable[[Any, Any, Any], None]:
        def listen(_module: Any, _inputs: Any, output: Any) -> None:
            calls[name] = calls.get(name, 0) + 1
            leave(name, calls[name], output)

        return listen

    def on_enter(name: str, enter: Callable[[str], None]) -> Callable[[Any, Any], None]:
        def listen(_module: Any, _inputs: Any) -> None:
            enter(name)

        return listen

    for name, each in module.named_modules():
        if name in names:
            if enter is not None:
                handles.append(each.register_forward_pre_hook(on_enter(name, enter)))
            handles.append(each.register_forward_hook(on_leave(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
