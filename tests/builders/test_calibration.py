from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.builders.calibration import CalibrationSet, check_calibration_set, iterate_batches, recipe_part
from modelreg.builders.interface import CalibrationOptions
from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.errors import CellRefusedError, GoldenSetError, UsageError
from modelreg.registry.tensor_sets import open_tensor_set, write_tensor_set


def signature(*shape: int | str | None, dtype: str = "float32", name: str = "x") -> Signature:
    return Signature(inputs=(TensorSpec(name=name, dtype=dtype, shape=shape),), outputs=())


def check(
    tmp_path: Path, arrays: dict[str, NDArray[np.generic]], declared: Signature, **options: object
) -> CalibrationSet:
    path = tmp_path / "set.safetensors"
    write_tensor_set(path, arrays, {})
    return check_calibration_set(CalibrationOptions(path=path, **options), declared)  # type: ignore[arg-type]


def floats(*shape: int) -> NDArray[np.generic]:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("key", ["input.x", "x"])
def test_a_set_that_fits_is_known_by_the_digest_of_its_bytes(tmp_path: Path, key: str) -> None:
    checked = check(tmp_path, {key: floats(120, 3)}, signature("N", 3))
    assert checked.digest == hashlib.sha256((tmp_path / "set.safetensors").read_bytes()).hexdigest()
    assert (checked.keys, checked.rows, checked.warnings) == ({"x": key}, tuple(range(120)), ())


def test_few_samples_are_a_warning(tmp_path: Path) -> None:
    assert "7 calibration samples are few" in check(tmp_path, {"x": floats(7, 3)}, signature("N", 3)).warnings[0]


@pytest.mark.parametrize(
    ("arrays", "declared", "fact"),
    [
        ({}, signature("N", 3), "is empty"),
        ({"x": floats(0, 3)}, signature("N", 3), "holds no samples"),
        ({"x": floats(5, 0)}, signature("N", 0), "holds no samples"),
        ({"input.image": floats(5, 3)}, signature("N", 3), "no input 'x'; it holds: input.image"),
        ({"x": floats(5, 3).astype(np.float16)}, signature("N", 3), "has dtype float16, the model takes float32"),
        ({"x": floats(5, 4)}, signature("N", 3), "has shape 5 x 4, the model takes N x 3"),
        ({"x": floats(5, 3, 1)}, signature("N", 3), "has shape 5 x 3 x 1, the model takes N x 3"),
        ({"x": np.float32(1).reshape(())}, signature("N", 3), "is a scalar"),
        ({"x": floats(3, 3)}, signature(8, 3), "3 samples, fewer than the model's batch of 8"),
    ],
)
def test_a_set_that_does_not_fit_is_refused_with_the_fact(
    tmp_path: Path, arrays: dict[str, NDArray[np.generic]], declared: Signature, fact: str
) -> None:
    with pytest.raises(GoldenSetError, match=fact):
        check(tmp_path, arrays, declared)


def test_inputs_with_different_numbers_of_samples_are_refused(tmp_path: Path) -> None:
    two = Signature(inputs=(*signature("N", 3).inputs, *signature("N", 3, name="z").inputs), outputs=())
    with pytest.raises(GoldenSetError, match=r"x: 5, z: 6"):
        check(tmp_path, {"x": floats(5, 3), "z": floats(6, 3)}, two)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_are_refused_with_the_sample(tmp_path: Path, bad: float) -> None:
    array = floats(50, 3)
    array[31, 1] = bad
    with pytest.raises(GoldenSetError, match="first in sample 31"):
        check(tmp_path, {"x": array}, signature("N", 3))


def test_integers_have_no_nan_to_look_for(tmp_path: Path) -> None:
    ids = np.arange(200).reshape(100, 2)
    assert check(tmp_path, {"x": ids}, signature("N", 2, dtype="int64")).warnings == ()


def test_an_unknown_rank_takes_any_shape(tmp_path: Path) -> None:
    declared = Signature(inputs=(TensorSpec(name="x", dtype="float32", shape=None),), outputs=())
    assert len(check(tmp_path, {"x": floats(4, 2, 2)}, declared).rows) == 4


def test_an_unknown_dimension_is_shown_as_a_question_mark(tmp_path: Path) -> None:
    with pytest.raises(GoldenSetError, match=r"the model takes \? x 3"):
        check(tmp_path, {"x": floats(5, 4)}, signature(None, 3))


def test_a_fixed_batch_leaves_the_rest_out_and_says_so(tmp_path: Path) -> None:
    checked = check(tmp_path, {"x": floats(103, 3)}, signature(10, 3))
    assert (len(checked.rows), checked.batch) == (100, 10)
    assert "3 calibration samples do not fill a batch of 10" in checked.warnings[0]


def test_a_part_of_the_samples_is_chosen_by_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "set.safetensors"
    write_tensor_set(path, {"x": floats(300, 3)}, {})
    chosen = {
        seed: check_calibration_set(CalibrationOptions(path=path, samples=120, seed=seed), signature("N", 3)).rows
        for seed in (1, 1, 2)
    }
    assert len(chosen[1]) == 120
    assert chosen[1] != chosen[2]
    again = check_calibration_set(CalibrationOptions(path=path, samples=120, seed=1), signature("N", 3)).rows
    assert again == chosen[1]


def test_more_samples_than_there_are_is_a_warning(tmp_path: Path) -> None:
    checked = check(tmp_path, {"x": floats(120, 3)}, signature("N", 3), samples=500)
    assert "500 calibration samples were asked, the set has 120" in checked.warnings


@pytest.mark.parametrize(
    "options", [{"method": "guess"}, {"percentile": 40.0}, {"percentile": float("nan")}, {"samples": 0}]
)
def test_options_that_mean_nothing_are_refused(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        check(tmp_path, {"x": floats(120, 3)}, signature("N", 3), **options)


def test_batches_cover_the_chosen_rows_in_order(tmp_path: Path) -> None:
    array = np.arange(240, dtype=np.float32).reshape(80, 3)
    checked = check(tmp_path, {"x": array}, signature("N", 3), samples=50, seed=4)
    with open_tensor_set(tmp_path / "set.safetensors") as tensors:
        batches = [batch["x"] for batch in iterate_batches(tensors, checked.to_request())]
    assert max(len(batch) for batch in batches) == 32
    np.testing.assert_array_equal(np.concatenate(batches), array[list(checked.rows)])


def test_a_batch_holds_a_few_megabytes_whatever_the_rows(tmp_path: Path) -> None:
    assert check(tmp_path, {"x": floats(3, 1_000_000)}, signature("N", 1_000_000)).batch == 1


@pytest.mark.parametrize(
    ("method", "keys"), [("minmax", set()), ("entropy", {"bins", "levels"}), ("percentile", {"bins", "percentile"})]
)
def test_the_recipe_holds_what_decides_the_ranges_and_nothing_else(tmp_path: Path, method: str, keys: set[str]) -> None:
    checked = check(tmp_path, {"x": floats(120, 3)}, signature("N", 3), method=method)
    body = recipe_part(CalibrationOptions(path=tmp_path, method=method), checked)
    assert set(body) == {"digest", "method", "samples"} | keys
    assert "seed" in recipe_part(CalibrationOptions(path=tmp_path, method=method, samples=3), checked)


def test_a_model_that_takes_no_samples_cannot_be_calibrated(tmp_path: Path) -> None:
    with pytest.raises(CellRefusedError, match="the model's batch is fixed at 0"):
        check(tmp_path, {"x": floats(16, 4)}, signature(0, 4))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (np.zeros((120, 3)), "calibration input 'x' is 0 in all samples"),
        (np.full((120, 3), 0.5), "calibration input 'x' is 0.5 in all samples"),
        (np.tile([1.0, 2.0, 3.0], (120, 1)), "calibration input 'x' is the same in all samples"),
    ],
)
def test_samples_that_are_all_the_same_are_a_warning(tmp_path: Path, rows: NDArray[np.generic], words: str) -> None:
    (warning,) = check(tmp_path, {"x": rows.astype(np.float32)}, signature("N", 3)).warnings
    assert warning.startswith(words)
    rows[119, 2] += 1
    (tmp_path / "set.safetensors").unlink()
    assert check(tmp_path, {"x": rows.astype(np.float32)}, signature("N", 3)).warnings == ()
