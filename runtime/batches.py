"""Dynamic batching, the decisions: which requests may share a batch, when it goes, and whose rows are whose. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.errors import UsageError
from modelreg.registry.toolchains.pieces import Pieces
from modelreg.registry.words import Json
from modelreg.runtime.runner import RunError

Array = NDArray[Any]
Lane = tuple[tuple[str, str, tuple[int, ...]], ...]
"""What requests of one batch have in common: names, types and trailing shapes of their inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """
    How requests are gathered, in the words of Triton's dynamic batcher.

    Attributes:
        max_batch: Rows of a batch at most. A request of more goes alone, where the engine takes it.
        max_delay_us: How long the oldest request of a batch waits for others while an instance is idle.
        preferred: Sizes that go at once, without the delay; `max_batch` always does.
        max_queue: Requests that may wait; one more is refused at once.

    Raises:
        ValueError: A number is out of its range.
    """

    max_batch: int
    max_delay_us: int = 0
    preferred: tuple[int, ...] = ()
    max_queue: int = 1024

    def __post_init__(self) -> None:
        if self.max_batch < 1 or self.max_delay_us < 0 or self.max_queue < 1:
            raise ValueError("max_batch and max_queue are at least 1, max_delay_us at least 0")
        if any(not 1 <= size <= self.max_batch for size in self.preferred):
            raise ValueError(f"preferred sizes are from 1 to max_batch, {self.max_batch}")


def require_batchable(signature: Signature, profiles: Sequence[Json], batching: Batching) -> None:
    """
    Check that requests of a model can be laid side by side.

    Raises:
        UsageError: An input or output has no free first axis, or not the same one; or no profile takes such a batch.
    """
    axes = {axis for spec in signature.inputs if isinstance(axis := _first_axis(spec), str)}
    fixed = [spec.name for spec in (*signature.inputs, *signature.outputs) if isinstance(_first_axis(spec), int)]
    if fixed or len(axes) > 1:
        reason = (
            f"{fixed[0]!r} has no free first axis" if fixed else f"its inputs are free in {', '.join(sorted(axes))}"
        )
        raise UsageError(
            f"this model cannot be batched: {reason}", hint="Serve it without ServingOptions.batching, or --max-batch."
        )
    largest = largest_batch(profiles)
    if largest is not None and batching.max_batch > largest:
        raise UsageError(
            f"batches of {batching.max_batch} are asked for, and the largest profile takes {largest}",
            hint=f"Set max_batch to {largest}, or build with a larger profile.",
        )


def _first_axis(spec: TensorSpec) -> int | str | None:
    """Return a symbol or None for a free first axis; 0, which no axis is, for a scalar or what is no tensor."""
    if spec.kind != "tensor" or spec.shape == ():
        return 0
    return None if spec.shape is None else spec.shape[0]


def largest_batch(profiles: Sequence[Json]) -> int | None:
    """Return the most rows that a profile takes; None where there are no profiles."""
    return max((min(points["max"][0] for points in profile.values()) for profile in profiles), default=None)


def find_lane(inputs: Mapping[str, Array]) -> tuple[Lane, int]:
    """
    Return what a request has in common with those that may join it, and its rows.

    Raises:
        RunError: It has no rows, or inputs of different lengths.
    """
    try:
        rows = {array.shape[0] for array in inputs.values()}
        lane = tuple((name, array.dtype.str, array.shape[1:]) for name, array in sorted(inputs.items()))
    except (AttributeError, IndexError):
        raise RunError("each input is an array with one row a sample") from None
    if len(rows) != 1 or 0 in rows:
        raise RunError(f"each input has the same number of rows, at least one; these have {sorted(rows)}")
    return lane, rows.pop()


def count_ready(rows: Sequence[int], batching: Batching, *, waited_us: float) -> int:
    """
    Return how many of the first requests go now as one batch; 0: none yet.

    Args:
        rows: Rows of each request of one lane, the oldest first; at least one.
        batching: The rules.
        waited_us: How long the oldest has waited.
    """
    if rows[0] >= batching.max_batch:
        return 1
    total, count, preferred = 0, 0, 0
    for size in rows:
        if total + size > batching.max_batch:
            return count  # nothing more fits: waiting gains nothing
        total += size
        count += 1
        if total in batching.preferred:
            preferred = count
    if total == batching.max_batch or waited_us >= batching.max_delay_us:
        return count
    return preferred


def join(requests: Sequence[Mapping[str, Array]]) -> dict[str, Pieces]:
    """Return the inputs of several requests of one lane as those of one batch, in order; the engine joins them."""
    return {name: Pieces([each[name] for each in requests]) for name in requests[0]}


def split(outputs: Mapping[str, Array], rows: Sequence[int]) -> list[dict[str, Array]]:
    """
    Return each request's rows of the answers, as views.

    Raises:
        RunError: An output has not one row for each row of the inputs.
    """
    for name, array in outputs.items():
        if array.shape[:1] != (sum(rows),):
            raise RunError(f"output {name!r} is {list(array.shape)} for {sum(rows)} rows: it cannot be batched")
    ends = np.cumsum(rows).tolist()
    starts = [0, *ends[:-1]]
    return [
        {name: array[start:end] for name, array in outputs.items()} for start, end in zip(starts, ends, strict=True)
    ]
