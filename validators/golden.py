"""Golden sets: do they fit the model, how are they fed to it, and in which form are they kept.

Keys are `input.NAME`, `output.NAME`, and if wanted `label` (class numbers), `label.NAME` (whatever else a task's own
metric needs, one row per sample), `slice` (which group each sample belongs to) and `activation.NAME`; `NAME` is the
ONNX's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.errors import GoldenSetError
from modelreg.registry.records import GoldenContents
from modelreg.registry.tensor_sets import TensorInfo, TensorSet, copy_tensor_set, row_chunks
from modelreg.registry.words import Json
from modelreg.validators.feeding import Feed, plan_feed
from modelreg.validators.formulas import reference_scale

INPUT, OUTPUT, LABEL, ACTIVATION, SLICE = "input.", "output.", "label", "activation.", "slice"
LABEL_MORE = "label."
SLICE_NAMES = "slice_names"
MAX_SLICES = 1000
_KEYS = "Keys are input.NAME, output.NAME, label, label.NAME, slice and activation.NAME, with the ONNX's names."


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedGolden:
    """A golden set that fits a model.

    Attributes:
        feed: How the inputs are cut into runs.
        labelled_output: The output that the labels belong to, or None without labels.
        scales: Per output, what its errors are compared with (see `reference_scale`); 0 without values.
        slices: The names of the slices by their numbers in `slice`; empty without slices.
    """

    feed: Feed
    labelled_output: str | None
    scales: dict[str, float]
    slices: dict[int, str] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Return how many samples the set has."""
        return self.feed.samples

    def within(self, profiles: Sequence[Json]) -> CheckedGolden:
        """Return the same, in runs that an engine with these profiles takes."""
        return replace(self, feed=self.feed.within(profiles))


def check_golden(golden: TensorSet, signature: Signature, *, profiles: Sequence[Json] = ()) -> CheckedGolden:
    """Return how a golden set is used with a model, if it fits the model. Reads all of it, a part at a time.

    With the `profiles` of an engine, no run has more rows than they cover.

    Raises:
        GoldenSetError: Names, dtypes, shapes, sample counts or labels do not fit, or a value is not finite.
    """
    _check_names(golden, signature)
    inputs = {spec.name: golden.tensors[INPUT + spec.name] for spec in signature.inputs}
    outputs = {spec.name: golden.tensors[OUTPUT + spec.name] for spec in signature.outputs}
    for kind, specs, infos in (("input", signature.inputs, inputs), ("output", signature.outputs, outputs)):
        for spec in specs:
            _check_type(f"{kind} {spec.name!r}", spec, infos[spec.name])
    feed = plan_feed(signature, inputs, outputs, golden.metadata)
    labelled = _check_labels(golden, outputs, signature.outputs, feed.samples)
    _check_more_labels(golden, feed.samples)
    slices = _check_slices(golden, feed.samples)
    for name in inputs:
        _check_values(golden, INPUT + name)
    scales = {name: _check_values(golden, OUTPUT + name) for name in outputs}
    return CheckedGolden(feed=feed.within(profiles), labelled_output=labelled, scales=scales, slices=slices)


def describe_contents(golden: TensorSet) -> GoldenContents:
    """Return what a golden set that was checked holds beside inputs and outputs."""
    return GoldenContents(
        labels=sum(key == LABEL or key.startswith(LABEL_MORE) for key in golden.tensors),
        slices=len(np.unique(golden.read(SLICE))) if SLICE in golden.tensors else 0,
        layers=sum(key.startswith(ACTIVATION) for key in golden.tensors),
    )


def write_golden(golden: TensorSet, destination: Path) -> None:
    """Write the canonical form: a safetensors file whose bytes depend on the contents alone.

    Raises:
        GoldenSetError: The set is damaged, or the file cannot be written.
    """
    copy_tensor_set(golden, destination, golden.metadata)


def class_scores(array: NDArray[Any]) -> NDArray[Any]:
    """Return (rows, classes) of scores with trailing axes of one dropped; class numbers, (rows,), unchanged."""
    return array if array.ndim == 1 else array.reshape(array.shape[:2])


def _check_names(golden: TensorSet, signature: Signature) -> None:
    wanted = [INPUT + i.name for i in signature.inputs] + [OUTPUT + o.name for o in signature.outputs]
    missing = [key for key in wanted if key not in golden.tensors]
    extra = [
        key
        for key in golden.tensors
        if key not in wanted and key not in (LABEL, SLICE) and not key.startswith((ACTIVATION, LABEL_MORE))
    ]
    if missing or extra:
        parts = [f"lacks {_listed(missing)}"] if missing else []
        parts += [f"has {_listed(extra)}, which the model does not have"] if extra else []
        raise GoldenSetError(f"golden set {' and '.join(parts)}", hint=_KEYS)


def _listed(names: Iterable[str]) -> str:
    shown = [repr(name) for name in names]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def _check_type(what: str, spec: TensorSpec, info: TensorInfo) -> None:
    if spec.kind != "tensor" or spec.dtype == "string":
        kind = spec.kind if spec.kind != "tensor" else "string tensor"
        raise GoldenSetError(f"{what} of the model is a {kind}: no golden set can hold it")
    if spec.dtype not in {"unknown", info.dtype}:
        raise GoldenSetError(
            f"{what} is {info.dtype} in the golden set, the model has {spec.dtype}",
            hint=f"Convert the array to {spec.dtype} before it is saved.",
        )


def _check_values(golden: TensorSet, key: str) -> float:
    """Return the scale of the values; refuse what is not finite."""
    info = golden.tensors[key]
    smallest, largest = np.inf, -np.inf
    for start, stop in row_chunks(info):
        values = golden.read(key, start, stop)
        if not values.size:
            continue
        if values.dtype.itemsize < 4 and values.dtype.kind not in "biu":
            values = values.astype(np.float32)  # NumPy has no minimum for every narrow float
        low, high = float(values.min()), float(values.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            _refuse_values(key, values, start)
        smallest, largest = min(smallest, low), max(largest, high)
    return reference_scale(smallest, largest) if smallest <= largest else 0.0


def _refuse_values(key: str, values: NDArray[Any], start: int) -> None:
    odd = ~np.isfinite(values)
    row = start + int(np.argmax(odd.reshape(len(values), -1).any(axis=1))) if values.ndim else 0
    what = "NaN" if np.isnan(values).any() else "an infinity"
    source = "The reference itself computes it" if key.startswith(OUTPUT) else "It is in the inputs"
    raise GoldenSetError(
        f"{key!r} holds {what} in row {row} of the golden set",
        hint=f"{source}: leave that sample out, or correct what makes it.",
    )


def _check_labels(
    golden: TensorSet, outputs: dict[str, TensorInfo], specs: tuple[TensorSpec, ...], samples: int
) -> str | None:
    if LABEL not in golden.tensors:
        return None
    info = golden.tensors[LABEL]
    if not info.dtype.startswith(("int", "uint")):
        raise GoldenSetError(f"label is {info.dtype}; labels are class numbers, so integers")
    if info.shape != (samples,):
        raise GoldenSetError(f"label has shape {info.shape}, but the golden set has {samples} samples")
    name = _labelled_output(outputs, specs, samples)
    if name is None:
        raise GoldenSetError(
            "label is there, but no output of the model has one row of class scores per sample",
            hint="Leave label out.",
        )
    classes = outputs[name].shape[1] if len(outputs[name].shape) > 1 else None
    labels = golden.read(LABEL)
    wrong = np.flatnonzero((labels < 0) | (labels >= classes) if classes is not None else labels < 0)
    if wrong.size:
        raise GoldenSetError(
            f"label {labels[wrong[0]]} of sample {wrong[0]} is no class of output {name!r}"
            + (f", which has {classes}" if classes is not None else "")
        )
    return name


def _check_more_labels(golden: TensorSet, samples: int) -> None:
    for key, info in golden.tensors.items():
        if key.startswith(LABEL_MORE) and info.shape[:1] != (samples,):
            raise GoldenSetError(f"{key} has shape {list(info.shape)}, but the golden set has {samples} samples")


def _check_slices(golden: TensorSet, samples: int) -> dict[int, str]:
    """Return the slices that are there, by number, with their names from the metadata `slice_names` (a JSON list)."""
    if SLICE not in golden.tensors:
        return {}
    info = golden.tensors[SLICE]
    if not info.dtype.startswith(("int", "uint", "bool")):
        raise GoldenSetError(f"slice is {info.dtype}; slices are numbers, so integers")
    if info.shape != (samples,):
        raise GoldenSetError(f"slice has shape {list(info.shape)}, but the golden set has {samples} samples")
    numbers = [int(number) for number in np.unique(golden.read(SLICE))]
    if len(numbers) > MAX_SLICES:
        raise GoldenSetError(f"slice has {len(numbers)} groups, more than {MAX_SLICES}")
    try:
        names = json.loads(golden.metadata.get(SLICE_NAMES, "[]"))
    except ValueError as error:
        raise GoldenSetError("metadata 'slice_names' of the golden set is no JSON list of names") from error
    if not isinstance(names, list):
        raise GoldenSetError("metadata 'slice_names' of the golden set is no JSON list of names")
    return {number: str(names[number]) if 0 <= number < len(names) else str(number) for number in numbers}


def _labelled_output(outputs: dict[str, TensorInfo], specs: tuple[TensorSpec, ...], samples: int) -> str | None:
    """Return the first output with class scores, else the first with class numbers."""
    ordered = [(spec.name, outputs[spec.name]) for spec in specs]
    for name, info in ordered:
        has_scores = "float" in info.dtype and len(info.shape) >= 2 and info.shape[1] >= 2
        if has_scores and info.shape[0] == samples and all(size == 1 for size in info.shape[2:]):
            return name
    for name, info in ordered:
        if info.dtype.startswith(("int", "uint")) and info.shape == (samples,):
            return name
    return None
