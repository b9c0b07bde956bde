from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from modelreg.registry.contents import Signature
from modelreg.registry.errors import GoldenSetError
from modelreg.registry.tensor_sets import open_tensor_set
from modelreg.validators import golden as module
from modelreg.validators.golden import CheckedGolden, check_golden, class_scores, write_golden
from modelreg_testing.golden import LENET, golden_file, signature, spec

PAIR = signature([spec("x", ("N", 3))], [spec("y", ("N", 4))])


def arrays(**changes: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "input.x": np.ones((6, 3), dtype=np.float32),
        "output.y": np.arange(24, dtype=np.float32).reshape(6, 4),
    }
    found = usual | {name.replace("_", "."): array for name, array in changes.items()}
    return {name: array for name, array in found.items() if array is not None}


def check(tmp_path: Path, contents: dict[str, Any], declared: Signature = PAIR) -> CheckedGolden:
    (tmp_path / "set").unlink(missing_ok=True)
    with golden_file(tmp_path / "set", contents) as golden:
        return check_golden(golden, declared)


def refuse(tmp_path: Path, contents: dict[str, Any], match: str, declared: Signature = PAIR) -> GoldenSetError:
    with pytest.raises(GoldenSetError, match=match) as caught:
        check(tmp_path, contents, declared)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_set_that_fits_says_how_it_is_used(tmp_path: Path) -> None:
    found = check(tmp_path, arrays(label=np.arange(6) % 4, activation_conv=np.zeros(3)))
    assert found.samples == 6
    assert found.labelled_output == "y"
    assert found.scales == {"y": 23.0}
    assert check(tmp_path, arrays()).labelled_output is None


def test_missing_and_extra_names_are_both_said(tmp_path: Path) -> None:
    error = refuse(tmp_path, arrays(output_y=None, output_z=np.zeros((6, 4))), r"lacks 'output.y' and has 'output.z'")
    assert "input.NAME" in error.hint()
    refuse(tmp_path, arrays(input_x=None), "lacks 'input.x'$")
    refuse(tmp_path, arrays(x=np.zeros(3)), "has 'x', which the model does not have")
    many = {f"extra{i}": np.zeros(1) for i in range(9)}
    refuse(tmp_path, arrays() | many, "'extra4' and 4 more")


def test_a_wrong_dtype_is_named(tmp_path: Path) -> None:
    error = refuse(tmp_path, arrays(input_x=np.ones((6, 3))), "input 'x' is float64 .*, the model has float32")
    assert "float32" in error.hint()
    refuse(tmp_path, arrays(output_y=np.ones((6, 4), dtype=np.int64)), "output 'y' is int64")
    unknown = signature([spec("x", ("N", 3), "unknown")], [spec("y", ("N", 4))])
    assert check(tmp_path, arrays(input_x=np.ones((6, 3))), unknown).samples == 6


@pytest.mark.parametrize("kind", ["sequence", "optional", "map", "sparse"])
def test_what_no_array_can_hold_is_refused(tmp_path: Path, kind: str) -> None:
    declared = signature([spec("x", ("N", 3))], [spec("y", None, kind=kind)])
    refuse(tmp_path, arrays(), f"output 'y' of the model is a {kind}", declared)
    refuse(tmp_path, arrays(), "string tensor", signature([spec("x", ("N", 3), "string")], [spec("y", None)]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_with_their_row(tmp_path: Path, value: float) -> None:
    for key, where in (("input.x", "in the inputs"), ("output.y", "reference itself")):
        contents = arrays()
        contents[key] = contents[key].copy()
        contents[key][4, 1] = value
        error = refuse(tmp_path, contents, f"'{key}' holds (NaN|an infinity) in row 4")
        assert where in error.hint()


def test_nan_is_found_in_scalars_in_narrow_floats_and_beyond_the_first_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scalar = signature([spec("x", ("N", 3))], [spec("y", ())])
    refuse(tmp_path, arrays(output_y=np.array(np.nan, dtype=np.float32)), "row 0", scalar)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        declared = signature([spec("x", ("N", 3))], [spec("y", ("N", 4), np.dtype(dtype).name)])
        values = np.ones((6, 4), dtype=dtype)
        assert check(tmp_path, arrays(output_y=values), declared).scales["y"] == pytest.approx(0.1)
        values[5, 0] = np.nan
        refuse(tmp_path, arrays(output_y=values), "NaN in row 5", declared)
    monkeypatch.setattr(module, "row_chunks", lambda info: [(i, i + 1) for i in range(info.rows)])
    values = np.ones((6, 4), dtype=np.float32)
    values[5, 0] = np.nan
    refuse(tmp_path, arrays(output_y=values), "NaN in row 5")


def test_labels_must_be_one_class_number_per_sample(tmp_path: Path) -> None:
    refuse(tmp_path, arrays(label=np.zeros(6)), "label is float64; labels are class numbers")
    refuse(tmp_path, arrays(label=np.zeros(6, dtype=bool)), "label is bool")
    refuse(tmp_path, arrays(label=np.zeros(5, dtype=int)), r"label has shape \(5,\), but .* 6 samples")
    refuse(tmp_path, arrays(label=np.zeros((6, 1), dtype=int)), "label has shape")
    refuse(tmp_path, arrays(label=np.array([0, 1, 2, 3, 4, 0])), "label 4 of sample 4 is no class of output 'y'")
    refuse(tmp_path, arrays(label=np.array([0, 1, -1, 3, 0, 0])), "label -1 of sample 2 is no class")


def test_labels_belong_to_scores_first_then_to_class_numbers(tmp_path: Path) -> None:
    numbers, scores = spec("numbers", ("N",), "int64"), spec("scores", ("N", 4, 1, 1))
    one, box = spec("one", ("N", 1)), spec("box", ("N", 4, 7))
    contents: dict[str, Any] = {
        "input.x": np.ones((6, 3), dtype=np.float32),
        "output.numbers": np.zeros(6, dtype=np.int64),
        "output.scores": np.zeros((6, 4, 1, 1), dtype=np.float32),
        "output.one": np.zeros((6, 1), dtype=np.float32),
        "output.box": np.zeros((6, 4, 7), dtype=np.float32),
        "label": np.zeros(6, dtype=np.int32),
    }
    x = [spec("x", ("N", 3))]
    assert check(tmp_path, contents, signature(x, [one, box, numbers, scores])).labelled_output == "scores"
    del contents["output.scores"]
    assert check(tmp_path, contents, signature(x, [one, box, numbers])).labelled_output == "numbers"
    refuse(
        tmp_path,
        contents | {"label": np.full(6, -1)},
        "no class of output 'numbers'$",
        signature(x, [one, box, numbers]),
    )
    del contents["output.numbers"]
    refuse(tmp_path, contents, "no output of the model has one row of class scores", signature(x, [one, box]))


def test_scores_lose_trailing_axes_of_one() -> None:
    assert class_scores(np.zeros((6, 4, 1, 1))).shape == (6, 4)
    assert class_scores(np.zeros(6)).shape == (6,)


def test_an_output_without_values_has_no_scale(tmp_path: Path) -> None:
    declared = signature([spec("x", ("N", 3))], [spec("y", ("N", 0))])
    assert check(tmp_path, arrays(output_y=np.zeros((6, 0), dtype=np.float32)), declared).scales == {"y": 0.0}


def test_the_same_npz_is_kept_as_the_same_bytes(tmp_path: Path) -> None:
    contents = arrays(label=np.zeros(6, dtype=np.int64))
    np.savez(tmp_path / "one.npz", **contents)
    np.savez_compressed(tmp_path / "two.npz", **dict(reversed(contents.items())))
    for name in ("one", "two"):
        with open_tensor_set(tmp_path / f"{name}.npz") as golden:
            write_golden(golden, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with open_tensor_set(tmp_path / "one") as golden:
        assert check_golden(golden, PAIR).samples == 6
        write_golden(golden, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "one").read_bytes()


def test_the_examples_golden_set_fits_its_model() -> None:
    with open_tensor_set(Path(__file__).parents[2] / "examples/lenet/golden-v1.npz") as golden:
        found = check_golden(golden, LENET)
    assert found.labelled_output == "logits"
    assert found.feed.batch == 64
