"""Listen to the modules of a PyTorch reference, and keep a part of what they give that fits into a byte budget.

PyTorch comes as an argument: `torch_reference` alone imports it. Nothing but what is kept is ever copied: a hook takes
the kept rows and elements out of an output at once, before an in-place module behind it changes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.errors import ReferenceModelError
from modelreg.validators.activations import DEFAULT_BYTES, MODULE, Activation, KeptActivations, plan_elements
from modelreg.validators.golden import ACTIVATION
from modelreg.validators.reference_models import Reference
from modelreg.validators.spool import Spool

Array = NDArray[Any]
Run = Callable[[int | None], None]
"""Runs the reference on the first batch, cut to so many samples (None: whole)."""

ALL = "all"
_ROUNDING = 1e-2
_LOOKED_AT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedActivations:
    """What is to be kept: every leaf module (`all`), or those that match a pattern; and in how many bytes."""

    patterns: tuple[str, ...] = (ALL,)
    budget_bytes: int = DEFAULT_BYTES


class ActivationKeeper:
    """Keeps activations of a reference while it is run batch by batch."""

    def __init__(self, torch: Any, reference: Reference, wanted: WantedActivations, spool: Spool, *, seed: int) -> None:
        """
        Prepare to listen.

        Raises:
            ReferenceModelError: It has no modules that can be listened to, or a pattern matches none.
        """
        require_modules(torch, reference, wanted)
        self._torch, self._module, self._wanted, self._spool, self._seed = torch, reference.module, wanted, spool, seed
        self._taps: dict[str, Activation] = {}
        self._left_out: dict[str, str] = {}
        self._unit, self._most, self._stride = "sample", 0, 1
        self._units: list[int] = []
        self._runs = self._done = self._rows = 0

    def study(self, run: Run, *, rows: int, is_cut: bool) -> None:
        """
        Run the first batch to learn which modules are leaves and what they give, and choose what is kept.

        Args:
            run: Runs the first batch.
            rows: Its samples.
            is_cut: Whether it may be run with fewer of them.
        """
        whole = _Study(self._torch, self._module, self._wanted.patterns, rows=rows)
        whole.listen(lambda: run(None))
        self._left_out |= whole.left_out
        fewer = None
        if is_cut and rows > 1:
            fewer = _Study(self._torch, self._module, self._wanted.patterns, rows=rows - 1)
            try:
                fewer.listen(lambda: run(rows - 1))
            except ReferenceModelError:  # it takes batches of one size alone
                fewer = None
        self._unit = "sample" if fewer is not None or (is_cut and rows == 1) else "run"
        self._rows = rows
        settled = {name: self._settle(found, whole, fewer, rows) for name, found in whole.found.items()}
        self._taps = {name: tap for name, tap in settled.items() if not isinstance(tap, str)}
        self._left_out |= {name: reason for name, reason in settled.items() if isinstance(reason, str)}
        if not self._taps:
            reasons = "; ".join(f"{name}: {why}" for name, why in list(self._left_out.items())[:3])
            raise ReferenceModelError(
                f"no activation of the reference can be kept ({reasons or 'no module was called'})",
                hint="Leave --activations out, or choose other modules.",
            )
        units = rows if self._unit == "sample" else 1
        sizes = {
            tap.name: (int(np.prod(tap.unit_shape(rows=units), dtype=np.int64)), whole.widths[tap.name])
            for tap in self._taps.values()
        }
        self._most, elements = plan_elements(sizes, budget_bytes=self._wanted.budget_bytes, seed=self._seed)
        self._taps = {name: replace(tap, elements=elements[name]) for name, tap in self._taps.items()}

    @contextlib.contextmanager
    def listening(self, *, rows: int) -> Iterator[None]:
        """Keep what belongs to the budget of the run inside the block, which has so many samples."""
        first, count = (self._done, rows) if self._unit == "sample" else (self._runs, 1)
        self._done, self._runs = self._done + rows, self._runs + 1
        if self._unit == "run" and rows != self._rows:  # a last run that is shorter has other shapes
            yield
            return
        chosen = [number for number in range(first, first + count) if number % self._stride == 0]
        if not chosen:
            yield
            return
        seen: dict[str, Array] = {}
        places = [number - first for number in chosen]
        with _hooks(self._module, {tap.module for tap in self._taps.values()}, self._keep(seen, count, places)):
            yield
        for name in self._taps.keys() - seen.keys():
            self._leave_out(name, "it is not there, or has another shape, in every run")
        for name in self._taps:
            self._spool.append(ACTIVATION + name, seen[name])
        self._units += chosen
        while self._kept_at(self._stride) > self._most:
            self._stride *= 2

    def finish(self) -> KeptActivations:
        """Thin out what is spooled to what the budget allows; return what was kept."""
        kept = [index for index, number in enumerate(self._units) if number % self._stride == 0]
        if len(kept) < len(self._units):
            for name in self._taps:
                self._spool.thin(ACTIVATION + name, kept)
        return KeptActivations(
            unit=self._unit,
            units=tuple(self._units[index] for index in kept),
            activations=tuple(self._taps.values()),
            left_out=self._left_out,
            budget_bytes=self._wanted.budget_bytes,
        )

    def _kept_at(self, stride: int) -> int:
        return sum(number % stride == 0 for number in self._units)

    def _keep(self, seen: dict[str, Array], units: int, places: list[int]) -> Callable[[str, int, Any], None]:
        def keep(module: str, call: int, output: Any) -> None:
            for item, tensor in _tensors(self._torch, output):
                tap = self._taps.get(_name(module, call, item))
                if tap is None:
                    continue
                with contextlib.suppress(ValueError):
                    chosen = _take(tensor, tap, units, places)
                    seen[tap.name] = tap.choose(_as_numpy(self._torch, chosen))

        return keep

    def _leave_out(self, name: str, reason: str) -> None:
        del self._taps[name]
        self._left_out[name] = reason
        self._spool.drop(ACTIVATION + name)

    def _settle(self, found: _Found, whole: _Study, fewer: _Study | None, rows: int) -> Activation | str:
        """Return how an activation's samples are told apart, or why they cannot be."""
        tap = Activation(name=found.name, module=found.module, kind=found.kind, shape=(1, *found.shape), axis=0, per=1)
        if self._unit == "run":
            return tap
        if fewer is None:  # one sample in all
            is_first = found.shape[:1] == (1,)
            return replace(tap, shape=found.shape) if is_first else "one sample does not tell where samples lie"
        other = fewer.found.get(found.name)
        if other is None or len(other.shape) != len(found.shape):
            return "it is another tensor in a run of fewer samples"
        changed = [axis for axis, (a, b) in enumerate(zip(found.shape, other.shape, strict=True)) if a != b]
        if len(changed) != 1 or found.shape[changed[0]] * (rows - 1) != other.shape[changed[0]] * rows:
            return "its shape does not grow with the number of samples"
        axis = changed[0]
        tap = replace(tap, shape=found.shape, axis=axis, per=found.shape[axis] // rows)
        if found.shape[axis] % rows or (tap.per > 1 and not _is_sample_major(tap, whole, fewer, rows)):
            return "its samples do not lie one after the other"
        return tap


def require_modules(torch: Any, reference: Reference, wanted: WantedActivations) -> None:
    """
    Refuse a reference that cannot be listened to.

    Raises:
        ReferenceModelError: It is an archive, was scripted or frozen, or a pattern matches no module.
    """
    if reference.kind != "module":
        raise ReferenceModelError("activations need FILE.py:factory: an archive has no modules to listen to")
    if isinstance(reference.module, torch.jit.ScriptModule):
        raise ReferenceModelError(
            "the reference is a scripted or traced graph, which calls no hooks of its modules",
            hint="Give a factory that returns the module before torch.jit, or leave --activations out.",
        )
    names = [name for name, _ in reference.module.named_modules() if name]
    for pattern in wanted.patterns:
        if pattern != ALL and not any(fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            raise ReferenceModelError(f"the reference has no module {pattern!r}", hint=f"It has {shown or 'none'}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    name: str
    module: str
    kind: str
    shape: tuple[int, ...]


class _Study:
    """One run that only looks: which modules were called, which called no other, and the shapes of what they gave."""

    def __init__(self, torch: Any, module: Any, patterns: tuple[str, ...], *, rows: int) -> None:
        self._torch, self._module, self._patterns, self._rows = torch, module, patterns, rows
        self.found: dict[str, _Found] = {}
        self.widths: dict[str, int] = {}
        self.left_out: dict[str, str] = {}
        self.values: dict[str, Array] = {}
        self._seen: list[_Found] = []
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

        with _hooks(self._module, set(kinds), leave, enter):
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
        for item, tensor in _tensors(self._torch, output):
            is_empty = False
            name, shape = _name(module, call, item), tuple(int(length) for length in tensor.shape)
            if not tensor.is_floating_point() or tensor.layout != self._torch.strided or not tensor.numel():
                self.left_out[name] = f"it gives no plain floating numbers ({tensor.dtype}, {list(shape)})"
                continue
            self.widths[name] = 4 if tensor.dtype == self._torch.bfloat16 else tensor.element_size()
            if shape and shape[0] != self._rows:  # where its samples lie is a question
                self.values[name] = _as_numpy(self._torch, tensor[..., :_LOOKED_AT])
            self._seen.append(_Found(name=name, module=module, kind=kind, shape=shape))
        if is_empty:
            self.left_out[_name(module, call, "")] = f"it gives no tensor but a {type(output).__name__}"


def _is_sample_major(tap: Activation, whole: _Study, fewer: _Study, rows: int) -> bool:
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


def _take(tensor: Any, tap: Activation, units: int, places: list[int]) -> Any:
    """Return the kept rows of a tensor as a new one, with a row for each unit."""
    if tap.shape[1:] == tuple(tensor.shape) and tap.axis == 0 and units == 1 and tap.shape[0] == 1:
        return tensor.unsqueeze(0).clone()
    moved = tensor.movedim(tap.axis, 0)
    if moved.shape[0] != units * tap.per:
        raise ValueError("another number of samples")
    if tap.per > 1:
        moved = moved.reshape(units, tap.per, *moved.shape[1:])
    expected = (*tap.shape[: tap.axis], *tap.shape[tap.axis + 1 :])
    if tuple(moved.shape[1 if tap.per == 1 else 2 :]) != expected:
        raise ValueError("another shape")
    return moved[places].clone()


def _tensors(torch: Any, output: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of an output with what stands behind the module's name for them."""
    if isinstance(output, torch.Tensor):
        yield "", output
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield from ((f"[{key}]{rest}", tensor) for rest, tensor in _tensors(torch, value))
    elif isinstance(output, tuple | list):
        for index, value in enumerate(output):
            yield from ((f"[{index}]{rest}", tensor) for rest, tensor in _tensors(torch, value))


def _module_of(name: str) -> str:
    return MODULE.split(name)[0]


def _name(module: str, call: int, item: str) -> str:
    return f"{module}#{call}{item}" if call > 1 else f"{module}{item}"


def _as_numpy(torch: Any, tensor: Any) -> Array:
    tensor = tensor.detach().cpu().contiguous()
    return np.array((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


@contextlib.contextmanager
def _hooks(
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
