from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from modelreg.registry import npz_sets
from modelreg.registry.errors import GoldenSetError
from modelreg.registry.tensor_sets import (
    TensorInfo,
    copy_tensor_set,
    numpy_dtype,
    open_tensor_set,
    row_chunks,
    write_tensor_set,
)

ARRAYS: dict[str, Any] = {
    "input.x": np.arange(30, dtype=np.float32).reshape(10, 3),
    "scalar": np.array(3.5),
    "nothing": np.zeros((0, 4), dtype=np.int64),
    "flags": np.array([True, False]),
    "half": np.array([1.5, -2.0], dtype=np.float16),
    "bytes": np.array([[1], [255]], dtype=np.uint8),
    "unicode.é": np.arange(4, dtype=np.int32),
}


def write(path: Path, arrays: dict[str, Any]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".npzc":
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)
    else:
        write_tensor_set(path, arrays, {"batch": "5"})
    return path


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npzc"])
def test_what_was_written_is_read_back(tmp_path: Path, suffix: str) -> None:
    with open_tensor_set(write(tmp_path / f"set{suffix}", ARRAYS)) as tensors:
        assert list(tensors.tensors) == sorted(ARRAYS)
        for name, array in ARRAYS.items():
            assert tensors.tensors[name] == TensorInfo(dtype=array.dtype.name, shape=array.shape)
            found = tensors.read(name)
            assert found.dtype == array.dtype
            assert found.shape == array.shape
            np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npzc"])
def test_rows_can_be_read_in_any_order(tmp_path: Path, suffix: str) -> None:
    with open_tensor_set(write(tmp_path / f"set{suffix}", ARRAYS)) as tensors:
        for start, stop in [(0, 2), (4, 9), (1, 3), (9, 10), (5, 5)]:
            np.testing.assert_array_equal(tensors.read("input.x", start, stop), ARRAYS["input.x"][start:stop])


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 11)])
def test_a_row_range_outside_the_tensor_is_the_callers_bug(tmp_path: Path, suffix: str, start: int, stop: int) -> None:
    with open_tensor_set(write(tmp_path / f"set{suffix}", ARRAYS)) as tensors:
        with pytest.raises(ValueError, match="outside"):
            tensors.read("input.x", start, stop)
        with pytest.raises(ValueError, match="no tensor"):
            tensors.read("missing")


def test_the_safetensors_library_reads_what_we_write_and_we_read_what_it_writes(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    write_tensor_set(ours, ARRAYS, {"batch": "5"})
    for name, array in safetensors.numpy.load_file(ours).items():
        np.testing.assert_array_equal(array, ARRAYS[name])
    safetensors.numpy.save_file(ARRAYS, theirs, {"batch": "7"})
    with open_tensor_set(theirs) as tensors:
        assert tensors.metadata == {"batch": "7"}
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(tensors.read(name), array)


def test_equal_contents_give_equal_bytes_whatever_their_order_and_container(tmp_path: Path) -> None:
    write_tensor_set(tmp_path / "a", ARRAYS, {"b": "1", "a": "2"})
    write_tensor_set(tmp_path / "b", dict(reversed(ARRAYS.items())), {"a": "2", "b": "1"})
    with open_tensor_set(write(tmp_path / "set.npz", ARRAYS)) as tensors:
        copy_tensor_set(tensors, tmp_path / "c", {"a": "2", "b": "1"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_lacks_are_kept_in_safetensors(tmp_path: Path, dtype: str) -> None:
    array = np.array([1.0, -2.5, 0.25]).astype(getattr(ml_dtypes, dtype))
    write_tensor_set(tmp_path / "set", {"x": array}, {})
    with open_tensor_set(tmp_path / "set") as tensors:
        assert tensors.tensors["x"].dtype == dtype
        np.testing.assert_array_equal(tensors.read("x").astype(np.float32), array.astype(np.float32))


def test_a_type_whose_library_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(GoldenSetError, match="needs ml_dtypes") as caught:
        numpy_dtype("bfloat16")
    assert "pip install" in caught.value.hint()


def test_big_endian_and_column_major_arrays_come_back_native_and_by_rows(tmp_path: Path) -> None:
    swapped = np.arange(12, dtype=">i4")
    columns = np.asfortranarray(np.arange(12.0).reshape(4, 3))
    np.savez(tmp_path / "set.npz", swapped=swapped, columns=columns)
    with open_tensor_set(tmp_path / "set.npz") as tensors:
        assert tensors.read("swapped").dtype == np.dtype("int32")
        np.testing.assert_array_equal(tensors.read("swapped", 3, 5), [3, 4])
        np.testing.assert_array_equal(tensors.read("columns", 1, 3), columns[1:3])


def test_reading_rows_takes_no_more_memory_than_the_rows(tmp_path: Path) -> None:
    big = np.zeros((1000, 10_000), dtype=np.float32)
    write_tensor_set(tmp_path / "set", {"x": big}, {})
    np.savez(tmp_path / "set.npz", x=big)
    del big
    for name in ("set", "set.npz"):
        tracemalloc.start()
        with open_tensor_set(tmp_path / name) as tensors:
            copy_tensor_set(tensors, tmp_path / f"copy-of-{name}", {})
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 16e6, name


def test_row_chunks_cover_every_row_once() -> None:
    info = TensorInfo(dtype="float32", shape=(10, 5))
    assert list(row_chunks(info, chunk_bytes=60)) == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert list(row_chunks(info, chunk_bytes=1)) == [(i, i + 1) for i in range(10)]
    assert list(row_chunks(TensorInfo(dtype="float32", shape=()))) == [(0, 1)]


def refused(path: Path, match: str) -> GoldenSetError:
    with pytest.raises(GoldenSetError, match=match) as caught:
        open_tensor_set(path)
    assert "\n" not in str(caught.value)
    return caught.value


def test_what_is_no_tensor_set_is_refused_with_one_line(tmp_path: Path) -> None:
    refused(tmp_path / "missing", "No such file")
    refused(tmp_path, "is a folder, not a file")
    os.mkfifo(tmp_path / "fifo")
    refused(tmp_path / "fifo", "is a named pipe, not a file")
    (tmp_path / "empty").write_bytes(b"")
    refused(tmp_path / "empty", "neither safetensors nor npz")
    (tmp_path / "text").write_text("hello, this is text")
    assert "safetensors" in refused(tmp_path / "text", "neither safetensors nor npz").hint()
    (tmp_path / "pickle").write_bytes(pickle.dumps([1, 2, 3]))
    refused(tmp_path / "pickle", "a pickle, which is never loaded")
    (tmp_path / "zip").write_bytes(b"PK\x03\x04" + b"\0" * 100)
    refused(tmp_path / "zip", "not a whole npz")


def test_a_truncated_or_lying_safetensors_is_refused(tmp_path: Path) -> None:
    write_tensor_set(tmp_path / "set", ARRAYS, {})
    whole = (tmp_path / "set").read_bytes()
    for size in (9, 100, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:size])
        refused(tmp_path / "cut", "not a whole safetensors")
    header = b'{"x":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}'
    (tmp_path / "lie").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    refused(tmp_path / "lie", "not a whole safetensors")


def test_a_safetensors_dtype_we_do_not_know_is_named(tmp_path: Path) -> None:
    header = b'{"x":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}'
    (tmp_path / "set").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    refused(tmp_path / "set", "'x' .* dtype C64")


def test_a_safetensors_that_shrinks_after_it_was_opened_is_damage(tmp_path: Path) -> None:
    write_tensor_set(tmp_path / "set", {"input.x": np.zeros(100_000)}, {})
    with open_tensor_set(tmp_path / "set") as tensors:
        os.truncate(tmp_path / "set", 1000)
        with pytest.raises(GoldenSetError, match="ends inside tensor"):
            tensors.read("input.x")


@pytest.mark.parametrize(
    "array", [np.array([{}], dtype=object), np.array(["text"]), np.zeros(1, dtype="i4,f4"), np.zeros(1, "c8")]
)
def test_arrays_that_are_not_plain_numbers_are_refused(tmp_path: Path, array: Any) -> None:
    np.savez(tmp_path / "set.npz", x=array)
    refused(tmp_path / "set.npz", "'x' .*(not supported|cannot be read)")


def npz(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return path


def npy(array: Any, version: tuple[int, int] = (1, 0)) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=version)
    return buffer.getvalue()


def test_a_member_that_is_no_array_or_has_other_bytes_than_it_claims_is_refused(tmp_path: Path) -> None:
    refused(npz(tmp_path / "text", {"x.npy": b"hello"}), "'x' .* cannot be read")
    refused(npz(tmp_path / "short", {"x.npy": npy(np.arange(9))[:-8]}), "other bytes than its shape")
    refused(npz(tmp_path / "long", {"x.npy": npy(np.arange(9)) + b"\0"}), "other bytes than its shape")
    refused(npz(tmp_path / "twice", {"x.npy": npy(np.arange(9)), "x": npy(np.arange(9))}), "'x' twice")


def test_npy_format_2_is_read_and_3_is_refused(tmp_path: Path) -> None:
    path = npz(tmp_path / "two", {"x.npy": npy(np.arange(9), version=(2, 0))})
    with open_tensor_set(path) as tensors:
        np.testing.assert_array_equal(tensors.read("x"), np.arange(9))
    refused(npz(tmp_path / "three", {"x.npy": npy(np.arange(9), version=(3, 0))}), "version is 3.0")


def test_zip_bombs_are_refused_before_they_unpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = npz(tmp_path / "bomb", {"x.npy": npy(np.zeros(1 << 20))}, zipfile.ZIP_DEFLATED)
    with open_tensor_set(bomb) as tensors:
        assert tensors.read("x").size == 1 << 20
    monkeypatch.setattr(npz_sets, "FREE_BYTES", 1 << 20)
    assert "savez" in refused(bomb, "would unpack").hint()
    monkeypatch.setattr(npz_sets, "MAX_TOTAL_BYTES", 1 << 20)
    refused(bomb, "would unpack to")
    monkeypatch.setattr(npz_sets, "MAX_MEMBERS", 1)
    refused(npz(tmp_path / "many", {"a.npy": b"", "b.npy": b""}), "2 members")


@pytest.mark.parametrize("columns", [False, True])
def test_a_flipped_byte_in_a_member_is_damage(tmp_path: Path, columns: bool) -> None:
    array = np.arange(10_000.0).reshape(100, 100)
    path = tmp_path / "set.npz"
    np.savez(path, x=np.asfortranarray(array) if columns else array)
    body = bytearray(path.read_bytes())
    body[5000] ^= 1
    path.write_bytes(body)
    with open_tensor_set(path) as tensors, pytest.raises(GoldenSetError, match=r"'x' .* damaged"):
        tensors.read("x")


def test_a_failed_write_leaves_nothing_and_an_existing_file_alone(tmp_path: Path) -> None:
    with pytest.raises(GoldenSetError, match="complex64 cannot be kept"):
        write_tensor_set(tmp_path / "set", {"x": np.zeros(2, dtype=np.complex64)}, {})
    write_tensor_set(tmp_path / "set", {"x": np.zeros(2)}, {})
    with pytest.raises(GoldenSetError, match="cannot be written"):
        write_tensor_set(tmp_path / "set", {"x": np.ones(2)}, {})
    with open_tensor_set(tmp_path / "set") as tensors:
        np.testing.assert_array_equal(tensors.read("x"), [0, 0])
        (tmp_path / "damaged").mkdir()
        os.truncate(tmp_path / "set", 70)
        with pytest.raises(GoldenSetError):
            copy_tensor_set(tensors, tmp_path / "copy", {})
    assert not (tmp_path / "copy").exists()


def test_importing_the_module_imports_no_numpy() -> None:
    import subprocess

    code = "import sys, modelreg.registry.tensor_sets; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
