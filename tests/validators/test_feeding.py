from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelreg.registry.contents import TensorSpec
from modelreg.registry.errors import GoldenSetError
from modelreg.registry.tensor_sets import TensorInfo
from modelreg.validators.feeding import Feed, plan_feed
from modelreg_testing.golden import golden_file, signature, spec

Shapes = dict[str, tuple[int, ...]]


def plan(inputs: list[tuple[TensorSpec, tuple[int, ...]]], outputs: Any = (), **metadata: str) -> Feed:
    declared = signature([i for i, _ in inputs], [o for o, _ in outputs])
    return plan_feed(
        declared,
        {i.name: TensorInfo(dtype="float32", shape=shape) for i, shape in inputs},
        {o.name: TensorInfo(dtype="float32", shape=shape) for o, shape in outputs},
        metadata,
    )


def numbers(feed: Feed) -> tuple[int, int, int]:
    return feed.samples, feed.batch, feed.runs


X = spec("x", ("N", 3))
Y = spec("y", ("N", 4))


def test_an_open_first_axis_is_cut_into_batches_of_64_or_as_captured() -> None:
    assert numbers(plan([(X, (150, 3))])) == (150, 64, 3)
    assert numbers(plan([(X, (150, 3))], batch="50")) == (150, 50, 3)
    assert numbers(plan([(X, (10, 3))], batch="50")) == (10, 10, 1)
    assert numbers(plan([(spec("x", (None, 3)), (150, 3))])) == (150, 64, 3)
    assert numbers(plan([(spec("x", None), (150, 3))])) == (150, 64, 3)


def profile(**largest: int) -> dict[str, Any]:
    """Return a profile from one row to so many for each input."""
    return {name: {"min": [1, 3], "opt": [1, 3], "max": [rows, 3]} for name, rows in largest.items()}


def test_no_run_has_more_rows_than_the_engine_takes() -> None:
    # Seen on a GPU: a profile of 1 to 32 images could not be validated, since the golden set was run 64 at a time.
    feed = plan([(X, (150, 3))])
    assert numbers(feed.within([profile(x=32)])) == (150, 32, 5)
    assert feed.within([profile(x=32)]).rows == {"x": 32}
    assert numbers(feed.within([profile(x=1), profile(x=50)])) == (150, 50, 3)
    assert feed.within([profile(x=64)]) == feed.within([profile(x=512)]) == feed.within([]) == feed
    captured = plan([(X, (150, 3))], batch="50")
    assert numbers(captured.within([profile(x=20)])) == (150, 20, 8)


def test_the_input_that_takes_fewest_rows_decides_and_what_has_no_profile_does_not() -> None:
    feed = plan([(X, (150, 3)), (spec("z", ("N", 3)), (150, 3)), (spec("fixed", (5, 3)), (5, 3))])
    within = feed.within([profile(x=32, z=16)])
    assert numbers(within) == (150, 16, 10)
    assert within.rows == {"x": 16, "z": 16, "fixed": None}
    assert numbers(feed.within([profile(x=32)])) == (150, 32, 5)


def test_runs_that_have_a_value_of_their_own_stay_as_they_were_captured() -> None:
    feed = plan([(X, (100, 3)), (spec("scale", ()), (2,))], batch="50")
    assert feed.within([profile(x=10)]) == feed


@pytest.mark.parametrize("batch", ["0", "-1", "many", "", "1.5", "\uff16"])
def test_a_batch_that_is_no_number_of_rows_is_refused(batch: str) -> None:
    with pytest.raises(GoldenSetError, match="metadata 'batch'"):
        plan([(X, (150, 3))], batch=batch)


def test_inputs_that_are_cut_must_have_as_many_rows() -> None:
    assert plan([(X, (70, 3)), (spec("z", ("M",)), (70,))]).rows == {"x": 64, "z": 64}
    with pytest.raises(GoldenSetError, match="disagree in their number of rows: 'x' 70, 'z' 71"):
        plan([(X, (70, 3)), (spec("z", ("M",)), (71,))])


def test_a_fixed_input_beside_cut_ones_is_given_to_every_run() -> None:
    assert plan([(X, (70, 3)), (spec("mask", (1, 5)), (1, 5))]).rows == {"x": 64, "mask": None}
    with pytest.raises(GoldenSetError, match="'mask' has 2 rows in the golden set, the model takes 1"):
        plan([(X, (70, 3)), (spec("mask", (1, 5)), (2, 5))])


def test_fixed_shapes_are_run_as_often_as_they_fit() -> None:
    fixed = spec("x", (8, 3))
    assert numbers(plan([(fixed, (8, 3))])) == (8, 8, 1)
    assert numbers(plan([(fixed, (24, 3))])) == (24, 8, 3)
    assert plan([(fixed, (24, 3)), (spec("w", (5,)), (5,))]).rows == {"x": 8, "w": None}
    assert numbers(plan([(spec("w", (5,)), (5,)), (fixed, (24, 3))])) == (24, 8, 3)
    with pytest.raises(GoldenSetError, match=r"20 rows .* no multiple of the model's 8"):
        plan([(fixed, (20, 3))])
    with pytest.raises(GoldenSetError, match="disagree in their number of runs: 'x' 3, 'w' 2"):
        plan([(fixed, (24, 3)), (spec("w", (5,)), (10,))])


def test_a_scalar_input_takes_one_value_or_one_per_run() -> None:
    scalar = spec("s", ())
    assert plan([(scalar, ()), (X, (70, 3))]).rows == {"x": 64, "s": None}
    assert numbers(plan([(scalar, (7,)), (X, (70, 3))])) == (70, 10, 7)
    assert plan([(scalar, (7,)), (X, (70, 3))]).rows["s"] == 0
    assert numbers(plan([(scalar, (2,)), (X, (70, 3))], batch="64")) == (70, 64, 2)
    with pytest.raises(GoldenSetError, match="70 samples cannot be given 3 values of input 's'"):
        plan([(scalar, (3,)), (X, (70, 3))])
    with pytest.raises(GoldenSetError, match="70 samples cannot be given 0 values"):
        plan([(scalar, (0,)), (X, (70, 3))])
    assert numbers(plan([(scalar, (7,))])) == (7, 1, 7)
    assert numbers(plan([(scalar, ())])) == (1, 1, 1)
    assert numbers(plan([(scalar, (3,)), (spec("w", (5,)), (5,))])) == (3, 1, 3)


def test_a_model_without_inputs_is_run_once() -> None:
    assert numbers(plan([], [(spec("y", (3,)), (3,))])) == (1, 1, 1)


def test_no_samples_are_refused() -> None:
    cases: list[tuple[TensorSpec, tuple[int, ...]]] = [(X, (0, 3)), (spec("x", (0, 3)), (0, 3)), (spec("s", ()), (0,))]
    for case in cases:
        with pytest.raises(GoldenSetError, match="no samples"):
            plan([case])
    with pytest.raises(GoldenSetError, match="no multiple of the model's 0"):
        plan([(spec("x", (0, 3)), (4, 3))])


@pytest.mark.parametrize(
    ("declared", "shape"),
    [(("N", 3), (6, 4)), (("N", 3), (6, 3, 1)), (("N", 3), (6,)), (("N",), (6, 3)), ((), (2, 2)), (("N", 3), ())],
)
def test_a_wrong_shape_is_named_with_the_models(declared: Any, shape: Any) -> None:
    with pytest.raises(GoldenSetError, match=r"input 'x' has shape \[.*\] in the golden set, the model has \["):
        plan([(spec("x", declared), shape)])
    with pytest.raises(GoldenSetError, match="output 'y' has shape"):
        plan([(X, (6, 3))], [(spec("y", declared), shape)])


def test_a_symbol_has_one_size() -> None:
    text, mask = spec("text", ("N", "T")), spec("mask", ("N", "T"))
    scores = spec("scores", ("N", "T", None))
    assert plan([(text, (6, 9)), (mask, (6, 9))], [(scores, (6, 9, 2))]).samples == 6
    with pytest.raises(GoldenSetError, match=r"'mask' .* the model has \[N, T\] with T = 9"):
        plan([(text, (6, 9)), (mask, (6, 8))])
    with pytest.raises(GoldenSetError, match=r"'scores' .* the model has \[N, T, \?\] with T = 9"):
        plan([(text, (6, 9))], [(scores, (6, 8, 2))])


def test_outputs_must_have_the_rows_that_the_runs_give() -> None:
    outputs = [(Y, (70, 4)), (spec("found", ("K", 6)), (123, 6)), (spec("any", None), ())]
    assert plan([(X, (70, 3))], outputs).samples == 70
    with pytest.raises(GoldenSetError, match=r"output 'y' has 69 rows .* have 70 samples, which make 70 rows in 2"):
        plan([(X, (70, 3))], [(Y, (69, 4))])
    assert plan([(X, (70, 3))], [(spec("mean", (1, 4)), (2, 4)), (spec("sum", ()), (2,))]).samples == 70
    with pytest.raises(GoldenSetError, match=r"output 'mean' has 1 rows .* which make 2 rows in 2 runs"):
        plan([(X, (70, 3))], [(spec("mean", (1, 4)), (1, 4))])
    with pytest.raises(GoldenSetError, match="output 'sum' has 1 rows"):
        plan([(X, (70, 3))], [(spec("sum", ()), ())])
    assert plan([(X, (10, 3))], [(spec("sum", ()), ())]).samples == 10


def test_a_first_axis_that_is_a_later_axis_elsewhere_is_not_cut() -> None:
    time_first = spec("x", ("T", "N", 3))
    assert numbers(plan([(time_first, (100, 5, 3))], [(spec("h", ("N", 8)), (5, 8))])) == (100, 100, 1)
    assert numbers(plan([(X, (100, 3))], [(spec("pairs", ("N", "N")), (100, 100))])) == (100, 100, 1)


def test_batches_hold_the_right_rows_in_the_models_order(tmp_path: Path) -> None:
    contents = {
        "input.x": np.arange(10, dtype=np.float32).reshape(5, 2),
        "input.s": np.array([1.0, 2.0, 3.0], dtype=np.float32),
        "input.mask": np.array([[9.0]], dtype=np.float32),
    }
    feed = plan([(spec("s", ()), (3,)), (spec("x", ("N", 2)), (5, 2)), (spec("mask", (1, 1)), (1, 1))], batch="2")
    with golden_file(tmp_path / "set", contents) as golden:
        batches = list(feed.iterate_batches(golden))
    assert [(b.start, b.stop) for b in batches] == [(0, 2), (2, 4), (4, 5)]
    assert [list(b.inputs) for b in batches] == [["x", "s", "mask"]] * 3
    assert [b.inputs["s"].shape for b in batches] == [()] * 3
    assert [float(b.inputs["s"]) for b in batches] == [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(np.concatenate([b.inputs["x"] for b in batches]), contents["input.x"])
    assert all(b.inputs["mask"].tolist() == [[9.0]] for b in batches)
