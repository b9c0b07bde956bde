"""Listen to the modules of a PyTorch reference, and keep a part of what they give that fits into a byte budget.

PyTorch comes as an argument: `torch_reference` alone imports it. Nothing but what is kept is ever copied: a hook takes
the kept rows and elements out of an output at once, before an in-place module behind it changes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.errors import ReferenceModelError
from modelreg.validators.activation_study import (
    ALL,
    FoundActivation,
    Study,
    activation_name,
    as_numpy,
    hooks,
    is_sample_major,
    tensors_of,
)
from modelreg.validators.activations import DEFAULT_BYTES, Activation, KeptActivations, plan_elements
from modelreg.validators.golden import ACTIVATION
from modelreg.validators.reference_models import Reference
from modelreg.validators.spool import Spool

Array = NDArray[Any]
Run = Callable[[int | None], None]
"""Runs the reference on the first batch, cut to so many samples (None: whole)."""


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
        whole = Study(self._torch, self._module, self._wanted.patterns, rows=rows)
        whole.listen(lambda: run(None))
        self._left_out |= whole.left_out
        fewer = None
        if is_cut and rows > 1:
            fewer = Study(self._torch, self._module, self._wanted.patterns, rows=rows - 1)
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
        with hooks(self._module, {tap.module for tap in self._taps.values()}, self._keep(seen, count, places)):
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
            for item, tensor in tensors_of(self._torch, output):
                tap = self._taps.get(activation_name(module, call, item))
                if tap is None:
                    continue
                with contextlib.suppress(ValueError):
                    chosen = _take(tensor, tap, units, places)
                    seen[tap.name] = tap.choose(as_numpy(self._torch, chosen))

        return keep

    def _leave_out(self, name: str, reason: str) -> None:
        del self._taps[name]
        self._left_out[name] = reason
        self._spool.drop(ACTIVATION + name)

    def _settle(self, found: FoundActivation, whole: Study, fewer: Study | None, rows: int) -> Activation | str:
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
        if found.shape[axis] % rows or (tap.per > 1 and not is_sample_major(tap, whole, fewer, rows)):
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
