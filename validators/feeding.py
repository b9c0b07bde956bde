"""How a golden set is cut into runs of the model.

An input whose first axis is not fixed is cut along it: `batch` rows a run (the set's metadata `batch`, as captured,
else 64). Where every shape is fixed, an array of n rows for an input of d rows is n / d runs. An array as large as
the fixed input is given to every run. A scalar input takes one value, or one per run. Outputs are compared by a
running offset of rows, so that an output may have any number of rows per run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.errors import GoldenSetError
from modelreg.registry.tensor_sets import TensorInfo, TensorSet
from modelreg.registry.words import Json

DEFAULT_BATCH = 64

Sizes = dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one run is given, and which samples of the golden set these are."""

    inputs: dict[str, NDArray[Any]]
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """How inputs become runs.

    Attributes:
        samples: Samples of the whole set.
        batch: Samples of one run; the last run may have fewer.
        runs: How often the model is run.
        rows: Per input, the rows of one run; None for an array that every run gets whole, 0 for a value per run.
    """

    samples: int
    batch: int
    runs: int
    rows: dict[str, int | None]

    def iterate_batches(self, golden: TensorSet) -> Iterator[Batch]:
        """Yield the inputs of each run, in order; only one run's inputs are in memory."""
        whole = {name: golden.read(f"input.{name}") for name, rows in self.rows.items() if rows is None}
        for run in range(self.runs):
            inputs = dict(whole)
            for name, rows in self.rows.items():
                if rows is not None:
                    inputs[name] = _cut(golden, f"input.{name}", rows, run)
            start = run * self.batch
            ordered = {name: inputs[name] for name in self.rows}
            yield Batch(inputs=ordered, start=start, stop=min(self.samples, start + self.batch))

    def within(self, profiles: Sequence[Json]) -> Feed:
        """
        Return the same samples in runs that an engine takes: of no more rows than its largest profile has. Pure.

        A row is compared with its own row of the reference, however many are run at once. Where a run has a value of
        its own (a scalar input), its rows belong together and are left so.

        Args:
            profiles: As in a recipe: for each, `min`, `opt` and `max` by input; empty for an engine that has none.
        """
        largest = max((self._rows_of(profile) for profile in profiles), default=self.batch)
        if not 0 < largest < self.batch or 0 in self.rows.values():
            return self
        rows = {name: largest if rows == self.batch else rows for name, rows in self.rows.items()}
        return replace(self, batch=largest, runs=-(-self.samples // largest), rows=rows)

    def _rows_of(self, profile: Json) -> int:
        """Return how many rows a profile takes at most; what it does not mention has no free axis."""
        cut = [name for name, rows in self.rows.items() if rows == self.batch and name in profile]
        return min((int(profile[name]["max"][0]) for name in cut if profile[name]["max"]), default=self.batch)


def plan_feed(
    signature: Signature,
    inputs: Mapping[str, TensorInfo],
    outputs: Mapping[str, TensorInfo],
    metadata: Mapping[str, str],
) -> Feed:
    """Return how golden arrays are fed to a model.

    Args:
        signature: The model's inputs and outputs.
        inputs: The golden arrays' shapes by input name.
        outputs: The same by output name.
        metadata: The set's metadata; `batch` is the number of rows a run was captured with.

    Raises:
        GoldenSetError: A shape does not fit the signature, counts disagree, or there is no sample.
    """
    symbols: Sizes = {}
    for spec in signature.inputs:
        _check_shape("input", spec, inputs[spec.name], symbols)
    cut = [spec for spec in signature.inputs if _is_cut(spec, inputs[spec.name])]
    fixed = [spec for spec in signature.inputs if spec not in cut]
    batch = _wanted_batch(signature, metadata)
    feed = _feed_cut(cut, fixed, inputs, batch) if cut else _feed_fixed(fixed, inputs)
    if feed.samples == 0:
        raise GoldenSetError("golden set has no samples")
    names = {spec.shape[0] for spec in cut if spec.shape is not None}
    for spec in signature.outputs:
        _check_shape("output", spec, outputs[spec.name], symbols)
        _check_output_rows(spec, outputs[spec.name], feed, names)
    return feed


def _is_cut(spec: TensorSpec, info: TensorInfo) -> bool:
    if spec.shape is None:
        return bool(info.shape)
    return bool(spec.shape) and not isinstance(spec.shape[0], int)


def _check_shape(kind: str, spec: TensorSpec, info: TensorInfo, symbols: Sizes) -> None:
    if spec.shape is None or (not spec.shape and len(info.shape) <= 1):
        return
    fits = len(spec.shape) == len(info.shape)
    for declared, size in zip(spec.shape[1:], info.shape[1:], strict=False):
        if isinstance(declared, str):
            fits &= symbols.setdefault(declared, size) == size
        else:
            fits &= declared is None or declared == size
    if not fits:
        declared_shape = "[" + ", ".join("?" if d is None else str(d) for d in spec.shape) + "]"
        known = {s: symbols[s] for s in spec.shape[1:] if isinstance(s, str) and s in symbols}
        where = f" with {', '.join(f'{s} = {n}' for s, n in known.items())}" if known else ""
        raise GoldenSetError(
            f"{kind} {spec.name!r} has shape {list(info.shape)} in the golden set, "
            f"the model has {declared_shape}{where}"
        )


def _wanted_batch(signature: Signature, metadata: Mapping[str, str]) -> int | None:
    """Return the rows of a run, or None where the set must go in whole."""
    if "batch" in metadata:
        text = metadata["batch"]
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise GoldenSetError(f"metadata 'batch' of the golden set is {text!r}, not a number of rows")
        return int(text)
    shapes = [spec.shape for spec in (*signature.inputs, *signature.outputs) if spec.shape]
    first = {shape[0] for shape in shapes if isinstance(shape[0], str)}
    later = {size for shape in shapes for size in shape[1:]}
    # A first axis that is a later axis elsewhere (time before batch, attention maps): which one counts samples?
    if first & later:
        return None
    return DEFAULT_BATCH


def _feed_cut(
    cut: list[TensorSpec], fixed: list[TensorSpec], inputs: Mapping[str, TensorInfo], batch: int | None
) -> Feed:
    samples = _agreed("rows", {spec.name: inputs[spec.name].rows for spec in cut})
    rows: dict[str, int | None] = {}
    per_run: Sizes = {}
    for spec in fixed:
        info = inputs[spec.name]
        if spec.shape and info.shape[0] != spec.shape[0]:
            raise GoldenSetError(
                f"input {spec.name!r} has {info.shape[0]} rows in the golden set, the model takes {spec.shape[0]}"
            )
        if not spec.shape and info.shape:
            per_run[spec.name] = info.shape[0]
    if per_run:
        batch = _batch_of_values(samples, _agreed("values", per_run), next(iter(per_run)), batch)
    step = max(1, min(samples, batch or samples))
    for spec in (*cut, *fixed):
        rows[spec.name] = step if spec in cut else (0 if spec.name in per_run else None)
    return Feed(samples=samples, batch=step, runs=-(-samples // step), rows=rows)


def _batch_of_values(samples: int, runs: int, name: str, batch: int | None) -> int:
    """Return the rows of a run where a scalar input has one value per run."""
    if batch is not None and -(-samples // batch) == runs:
        return batch
    if not runs or samples % runs:
        raise GoldenSetError(f"{samples} samples cannot be given {runs} values of input {name!r}, one per run")
    return samples // runs


def _feed_fixed(fixed: list[TensorSpec], inputs: Mapping[str, TensorInfo]) -> Feed:
    runs_by_name: Sizes = {}
    rows: dict[str, int | None] = {}
    cut_samples: list[int] = []
    whole_samples: list[int] = []
    for spec in fixed:
        rows[spec.name], found, runs = _fixed_rows(spec, inputs[spec.name])
        if runs is not None:
            runs_by_name[spec.name] = runs
        if spec.shape:
            (whole_samples if rows[spec.name] is None else cut_samples).append(found)
    runs = _agreed("runs", runs_by_name) if runs_by_name else 1
    known = cut_samples or (whole_samples if runs == 1 else [])
    samples = known[0] if known else runs
    return Feed(samples=samples, batch=samples // max(1, runs), runs=runs, rows=rows)


def _fixed_rows(spec: TensorSpec, info: TensorInfo) -> tuple[int | None, int, int | None]:
    """Return the rows of one run (see `Feed.rows`), the golden rows, and the runs they make if they are cut."""
    if not spec.shape:
        return (0, info.rows, info.rows) if info.shape else (None, 1, None)
    size = spec.shape[0]
    assert isinstance(size, int)
    if info.rows == size:
        return None, info.rows, None
    if size == 0 or info.rows % size:
        raise GoldenSetError(
            f"input {spec.name!r} has {info.rows} rows in the golden set, no multiple of the model's {size}"
        )
    return size, info.rows, info.rows // size


def _agreed(what: str, sizes: Sizes) -> int:
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name!r} {size}" for name, size in sizes.items())
        raise GoldenSetError(f"inputs of the golden set disagree in their number of {what}: {listed}")
    return next(iter(sizes.values()))


def _check_output_rows(spec: TensorSpec, info: TensorInfo, feed: Feed, names: set[Any]) -> None:
    if spec.shape is None:
        return
    if not spec.shape:
        wanted = feed.runs
    elif isinstance(spec.shape[0], int):
        wanted = feed.runs * spec.shape[0]
    elif spec.shape[0] in names and spec.shape[0] is not None:
        wanted = feed.samples
    else:
        return
    if info.rows != wanted:
        runs = f" in {feed.runs} runs of the model" if feed.runs > 1 else ""
        raise GoldenSetError(
            f"output {spec.name!r} has {info.rows} rows in the golden set, and the inputs have {feed.samples} samples, "
            f"which make {wanted} rows{runs}"
        )


def _cut(golden: TensorSet, key: str, rows: int, run: int) -> NDArray[Any]:
    if rows == 0:
        return golden.read(key, run, run + 1).reshape(())
    last = golden.tensors[key].rows
    return golden.read(key, run * rows, min(last, (run + 1) * rows))
