from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.runtime.serving import SmokeTestError
from modelreg.runtime.warming import GoldenSmokeTest, make_inputs, plan_shapes, require_sound
from modelreg_testing.cli import save_npz


def takes(*shape: int | str, dtype: str = "float32") -> Signature:
    spec = TensorSpec(name="x", dtype=dtype, shape=shape)
    return Signature(inputs=(spec,), outputs=(TensorSpec(name="y", dtype="float32", shape=("N",)),))


def test_a_free_first_axis_is_tried_at_1_and_8_and_another_is_not_guessed() -> None:
    assert plan_shapes(takes("N", 3)) == [{"x": [1, 3]}, {"x": [8, 3]}]
    assert plan_shapes(takes(4, 3)) == [{"x": [4, 3]}]
    assert plan_shapes(takes("N", "length")) == []
    assert plan_shapes(takes("N", "length"), given=[{"x": [2, 7]}]) == [{"x": [2, 7]}]


def test_every_point_of_every_profile_is_tried_once() -> None:
    profiles = [
        {"x": {"min": [1, 3], "opt": [4, 3], "max": [8, 3]}},
        {"x": {"min": [8, 3], "opt": [8, 3], "max": [32, 3]}},
    ]
    found = plan_shapes(takes("N", 3), profiles=profiles, given=[{"x": [2, 3]}])
    assert [shapes["x"][0] for shapes in found] == [1, 4, 8, 32]


def test_inputs_have_the_types_of_the_signature_and_integers_are_small() -> None:
    found = make_inputs(takes("N", 3, dtype="int64"), {"x": [5, 3]})
    assert found is not None
    assert (str(found["x"].dtype), found["x"].shape, set(found["x"].ravel().tolist())) == ("int64", (5, 3), {0, 1})
    assert make_inputs(takes("N", dtype="string"), {"x": [5]}) is None


def test_nan_is_refused_unless_the_engine_before_gives_it_too() -> None:
    nan = {"y": np.array([np.nan])}
    require_sound(nan, takes(1), ask_old=lambda: nan)
    for old in (None, {"y": np.zeros(1)}):
        with pytest.raises(SmokeTestError, match="NaN"):
            require_sound(nan, takes(1), ask_old=lambda old=old: old)  # type: ignore[misc]
    with pytest.raises(SmokeTestError, match="no output 'y'"):
        require_sound({}, takes(1), ask_old=lambda: None)


def test_a_golden_set_refuses_what_is_further_away_than_its_limit(tmp_path: Path) -> None:
    save_npz(tmp_path / "g.npz", {"input.x": np.ones((4, 3)), "output.y": np.full((4, 2), 10.0)})
    test = GoldenSmokeTest(tmp_path / "g.npz", limit=0.1)
    test(lambda _inputs: {"y": np.full((4, 2), 10.9)})
    for answer in (np.full((4, 2), 11.1), np.full((4, 2), np.nan), np.zeros((4, 3))):
        with pytest.raises(SmokeTestError):
            test(lambda _inputs, answer=answer: {"y": answer})  # type: ignore[misc]
    save_npz(tmp_path / "other.npz", {"x": np.ones(3)})
    with pytest.raises(ValueError, match="no golden set"):
        GoldenSmokeTest(tmp_path / "other.npz")
