from __future__ import annotations

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from modelreg.registry.errors import GoldenSetError
from modelreg.registry.tensor_sets import open_tensor_set
from modelreg.validators.spool import Spool


def test_rows_come_back_in_order_and_scalars_are_rows(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        for i in range(3):
            spool.append("x", np.full((2, 3), i, dtype=np.float32))
            spool.append("s", np.array(i))
            spool.append("b", np.full((1,), i, dtype=ml_dtypes.bfloat16))
            spool.append("empty", np.zeros((2, 0)))
        assert spool.rows == {"x": 6, "s": 3, "b": 3, "empty": 6}
        spool.write(tmp_path / "set", {"batch": "2"})
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    with open_tensor_set(tmp_path / "set") as tensors:
        assert tensors.metadata == {"batch": "2"}
        assert tensors.read("x")[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
        assert tensors.read("s").tolist() == [0, 1, 2]
        assert tensors.read("b").astype(float).tolist() == [0, 1, 2]
        assert tensors.tensors["empty"].shape == (6, 0)


def test_rows_that_change_their_shape_or_dtype_are_refused(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.append("x", np.zeros((2, 3), dtype=np.float32))
        with pytest.raises(GoldenSetError, match=r"'x' changes between batches: .*\[3\], then of float32 \[4\]"):
            spool.append("x", np.zeros((2, 4), dtype=np.float32))
        with pytest.raises(GoldenSetError, match="then of float64"):
            spool.append("x", np.zeros((2, 3)))


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GoldenSetError, match="cannot be written"):
        Spool(tmp_path / "none")


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    with Spool(tmp_path) as spool:
        monkeypatch.setattr(Path, "open", full)
        with pytest.raises(GoldenSetError, match="No space left"):
            spool.append("x", np.zeros(3))
        monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_memory_does_not_grow_with_the_set(tmp_path: Path) -> None:
    rows = np.ones((100, 10_000), dtype=np.float32)
    tracemalloc.start()
    with Spool(tmp_path) as spool:
        for _ in range(20):
            spool.append("x", rows)
        spool.write(tmp_path / "set", {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10e6
