"""What a new engine is tried with before it serves: inputs of every shape that it has, and answers that are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.tensor_sets import open_tensor_set
from modelreg.registry.words import Json
from modelreg.runtime.serving import SmokeTestError

Array = NDArray[Any]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]
SmokeTest = Callable[[Run], None]
"""Tries an engine; raises `SmokeTestError` where it does not answer as it should."""
Shapes = Mapping[str, Sequence[int]]

_BATCHES = (1, 8)
_INPUT, _OUTPUT = "input.", "output."


def plan_shapes(signature: Signature, *, profiles: Sequence[Json] = (), given: Sequence[Shapes] = ()) -> list[Shapes]:
    """
    Return the shapes to warm up, each with one for every input. Pure.

    Args:
        signature: The model's.
        profiles: Those of the engine: per input `min`, `opt` and `max`. All three of each are tried.
        given: What the user knows; it replaces the guess from the signature.

    Returns:
        Without profiles, 1 and 8 for a free first axis. Nothing where other axes are free: 1 may be no length for them.
    """
    points: list[Shapes]
    if profiles:
        points = [
            {name: profile[name][point] for name in profile} for profile in profiles for point in ("min", "opt", "max")
        ]
    elif given:
        points = [dict(shapes) for shapes in given]
    else:
        points = [shapes for batch in _BATCHES if (shapes := _guess(signature, batch)) is not None]
    distinct = {tuple(sorted((name, tuple(shape)) for name, shape in shapes.items())): shapes for shapes in points}
    return list(distinct.values())


def _guess(signature: Signature, batch: int) -> Shapes | None:
    found: dict[str, list[int]] = {}
    for spec in signature.inputs:
        if spec.shape is None or any(not isinstance(axis, int) for axis in spec.shape[1:]):
            return None
        found[spec.name] = [axis if isinstance(axis, int) else batch for axis in spec.shape]
    return found


def make_inputs(signature: Signature, shapes: Shapes, *, seed: int = 0) -> dict[str, Array] | None:
    """Return random inputs: normal for floats, 0 and 1 for all else; None for types that NumPy has no numbers for."""
    random = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for spec in signature.inputs:
        dtype = _find_dtype(spec)
        if dtype is None:
            return None
        shape = tuple(shapes[spec.name])
        drawn = random.normal(size=shape) if dtype.kind in "fc" else random.integers(0, 2, shape)
        found[spec.name] = np.asarray(drawn).astype(dtype)
    return found


def _find_dtype(spec: TensorSpec) -> np.dtype[Any] | None:
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError:
        return None
    return dtype if spec.kind == "tensor" and dtype.kind in "biufc" else None


def require_sound(
    outputs: Mapping[str, Array], signature: Signature, *, ask_old: Callable[[], Mapping[str, Array] | None]
) -> None:
    """
    Check that an answer to random inputs has every output, and no NaN or Inf that the engine before has not.

    Args:
        outputs: The answer.
        signature: The model's.
        ask_old: Returns what the engine before answers to the same; None where there is none, or it refuses.

    Raises:
        SmokeTestError: It has not.
    """
    for spec in signature.outputs:
        if spec.name not in outputs:
            raise SmokeTestError(f"the new engine gives no output {spec.name!r}")
        if is_finite(outputs[spec.name]):
            continue
        old = (ask_old() or {}).get(spec.name)
        if old is None or is_finite(old):
            raise SmokeTestError(f"the new engine answers NaN or Inf in {spec.name!r} to ordinary random inputs")


def is_finite(array: Array) -> bool:
    """Return whether every number is finite; what has no floats always is."""
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


class GoldenSmokeTest:
    """
    Compares some answers with those of a golden set: a file of `register --golden`, inputs `input.NAME`, outputs
    `output.NAME`, one sample a row.

    Args:
        path: `.npz` or `.safetensors`.
        samples: So many of the first ones.
        limit: The largest error, as RMS of the difference over RMS of the answer; 0.1 is 20 dB.
    """

    def __init__(self, path: Path | str, *, samples: int = 16, limit: float = 0.1) -> None:
        with open_tensor_set(Path(path)) as golden:
            names = list(golden.tensors)
            rows = {name: min(samples, golden.tensors[name].rows) for name in names}
            self._inputs = {n[len(_INPUT) :]: golden.read(n, 0, rows[n]) for n in names if n.startswith(_INPUT)}
            self._outputs = {n[len(_OUTPUT) :]: golden.read(n, 0, rows[n]) for n in names if n.startswith(_OUTPUT)}
        if not self._inputs or not self._outputs:
            raise ValueError(f"{path} has no inputs, or no outputs: it is no golden set")
        self._limit = limit

    def __call__(self, run: Run) -> None:
        """Try an engine; raises SmokeTestError where an answer is too far away."""
        found = run(self._inputs)
        for name, want in self._outputs.items():
            if name not in found or found[name].shape != want.shape:
                raise SmokeTestError(f"the new engine gives no output {name!r} of shape {list(want.shape)}")
            exact = want.astype(np.float64)
            error = float(np.sqrt(np.mean((found[name].astype(np.float64) - exact) ** 2)))
            scale = float(np.sqrt(np.mean(exact**2))) or 1.0
            if not error / scale <= self._limit:  # NaN fails
                raise SmokeTestError(
                    f"the new engine is off by {error / scale:.3g} of the scale of {name!r}, more than {self._limit:g}"
                )
