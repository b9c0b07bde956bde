"""The decisions of dynamic batching, without threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.errors import UsageError
from modelreg.runtime.batches import Batching, count_ready, find_lane, join, require_batchable, split
from modelreg.runtime.runner import RunError

RULES = Batching(max_batch=8, max_delay_us=100, preferred=(4,))


@pytest.mark.parametrize(
    ("rows", "waited_us", "count"),
    [
        ([1], 0, 0),
        ([1], 100, 1),
        ([1, 1, 1], 99, 0),
        ([1, 1, 1, 1], 0, 4),  # a preferred size
        ([1, 1, 1, 1, 1], 0, 4),
        ([1, 1, 1, 1, 1], 100, 5),  # its time is over: all that fits
        ([3, 2], 0, 0),
        ([8, 1], 0, 1),
        ([4, 4, 1], 0, 2),  # full
        ([3, 6], 0, 1),  # the next does not fit: waiting gains nothing
        ([9, 1], 0, 1),  # too large for a batch: alone
        ([1, 9], 0, 1),
    ],
)
def test_when_a_batch_goes(rows: list[int], waited_us: float, count: int) -> None:
    assert count_ready(rows, RULES, waited_us=waited_us) == count


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.integers(0, 200), st.integers(1, 10))
def test_every_batch_keeps_the_limit_and_none_waits_for_ever(rows: list[int], waited_us: int, max_batch: int) -> None:
    batching = Batching(max_batch=max_batch, max_delay_us=100)
    left = list(rows)
    while left:
        count = count_ready(left, batching, waited_us=max(waited_us, 100))
        assert count >= 1
        assert sum(left[:count]) <= max_batch or count == 1
        del left[:count]
    early = count_ready(rows, batching, waited_us=0)
    assert early <= count_ready(rows, batching, waited_us=100)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.sampled_from(["float32", "int64", "bool"]))
def test_what_is_joined_is_split_again_to_the_same_bytes(rows: list[int], dtype: str) -> None:
    random = np.random.default_rng(sum(rows))
    requests = [{"x": random.integers(0, 2, (size, 3)).astype(dtype)} for size in rows]
    parts = split({name: pieces.join() for name, pieces in join(requests).items()}, rows)
    assert [part["x"].tobytes() for part in parts] == [each["x"].tobytes() for each in requests]
    assert all(part["x"].dtype == dtype for part in parts)


def test_an_output_without_a_row_for_each_row_is_no_answer() -> None:
    with pytest.raises(RunError, match=r"output 'y' is \[1\] for 3 rows"):
        split({"y": np.zeros(1)}, [1, 2])
    with pytest.raises(RunError):
        split({"y": np.float32(1)}, [1, 2])


def test_only_equal_shapes_and_types_share_a_lane() -> None:
    def lane(*shape: int, dtype: str = "float32") -> Any:
        return find_lane({"x": np.zeros(shape, dtype)})

    assert lane(2, 3) == (lane(5, 3)[0], 2)
    assert lane(2, 3)[0] != lane(2, 4)[0]
    assert lane(2, 3)[0] != lane(2, 3, dtype="float64")[0]
    for wrong in ({}, {"x": np.float32(0)}, {"x": np.zeros((0, 3))}, {"x": [1, 2]}):
        with pytest.raises(RunError):
            find_lane(wrong)  # type: ignore[arg-type]
    with pytest.raises(RunError):
        find_lane({"x": np.zeros((1, 3)), "y": np.zeros((2, 3))})


def spec(*shape: int | str | None, kind: str = "tensor") -> TensorSpec:
    return TensorSpec(name="x", dtype="float32", shape=shape, kind=kind)


GOOD = Signature(inputs=(spec("N", 3), spec("N")), outputs=(spec(None, 2),))


def test_what_can_be_batched_is_found_out_before() -> None:
    require_batchable(GOOD, [], RULES)
    bad = [
        (GOOD._replace(outputs=(spec(1, 3),)), "'x' has no free first axis"),
        (GOOD._replace(inputs=(spec(),)), "'x' has no free first axis"),
        (GOOD._replace(outputs=(spec("N", kind="sequence"),)), "'x' has no free first axis"),
        (GOOD._replace(inputs=(spec("N"), spec("M"))), "free in M, N"),
    ]
    for signature, words in bad:
        with pytest.raises(UsageError, match=words):
            require_batchable(signature, [], RULES)


def test_a_batch_fits_the_largest_profile() -> None:
    profiles = [{"x": {"max": [4, 3]}}, {"x": {"max": [8, 3]}}]
    require_batchable(GOOD, profiles, RULES)
    with pytest.raises(UsageError, match="the largest profile takes 4"):
        require_batchable(GOOD, profiles[:1], RULES)


@pytest.mark.parametrize(
    "wrong", [{"max_batch": 0}, {"max_delay_us": -1}, {"max_queue": 0}, {"preferred": (9,)}, {"preferred": (0,)}]
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least|from 1"):
        Batching(**{"max_batch": 8, **wrong})
