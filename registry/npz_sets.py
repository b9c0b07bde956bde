"""Read `.npz` files member by member, with limits: a zip can claim to be much larger than it is."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.errors import GoldenSetError
from modelreg.registry.tensor_sets import TensorInfo, TensorSet, numpy_dtype, row_range

MAX_MEMBERS = 10_000
MAX_TOTAL_BYTES = 64 << 30
MAX_RATIO = 200
FREE_BYTES = 64 << 20  # below this no ratio is suspicious: zeros compress a thousandfold
_SKIP_BYTES = 1 << 20
_DAMAGE = (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError)


class NpzSet:
    """An open `.npz`; rows are cheap to read in ascending order, and only then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._members: dict[str, _Member] = {}
        try:
            self._zip = zipfile.ZipFile(path)
        except _DAMAGE as error:
            raise GoldenSetError(f"{path} is not a whole npz file: {error}") from error
        try:
            self._read_directory()
        except BaseException:
            self.close()
            raise

    def _read_directory(self) -> None:
        entries = self._zip.infolist()
        _check_limits(self.path, entries)
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            if name in self._members:
                raise GoldenSetError(f"{self.path} holds {name!r} twice")
            member = _Member(self.path, self._zip, entry, name)
            self._members[name] = member
            self.tensors[name] = member.info
        self.tensors = dict(sorted(self.tensors.items()))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return rows `start` to `stop`; see `TensorSet.read`."""
        if name not in self._members:
            raise ValueError(f"there is no tensor {name!r} in {self.path}")
        start, end = row_range(self.tensors[name], name, start, stop)
        try:
            return self._members[name].read(start, end)
        except _DAMAGE as error:
            raise GoldenSetError(f"array {name!r} in {self.path} is damaged: {error}") from error

    def close(self) -> None:
        """Close the file."""
        for member in self._members.values():
            member.close()
        self._zip.close()

    def __enter__(self) -> TensorSet:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _say_dtype(name: str, dtype: np.dtype[Any]) -> str:
    if dtype.kind in "US":
        what = "Slices are" if name == "slice" else "Labels are" if name.startswith("label") else "Names are written as"
        return f"{what} whole numbers, one for each sample, as in numpy.unique(names, return_inverse=True)[1]."
    return "Object arrays are pickles and never loaded; bfloat16 needs a .safetensors file."


class _Member:
    """One array; the stream stays open between reads so that ascending reads inflate every byte once."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str) -> None:
        self._archive = archive
        self._entry = entry
        self._stream: IO[bytes] | None = None
        try:
            with archive.open(entry) as stream:
                shape, self._fortran, self._dtype = _read_header(stream)
                self._data_start = stream.tell()
        except _DAMAGE as error:
            raise GoldenSetError(f"array {name!r} in {path} cannot be read: {error}") from error
        if self._dtype.kind not in "biuf" or self._dtype.itemsize > 8:
            raise GoldenSetError(
                f"array {name!r} in {path} has dtype {self._dtype}, which is not supported",
                hint=_say_dtype(name, self._dtype),
            )
        self.info = TensorInfo(dtype=self._dtype.newbyteorder("=").name, shape=shape)
        if entry.file_size != self._data_start + math.prod(shape) * self._dtype.itemsize:
            raise GoldenSetError(f"array {name!r} in {path} has other bytes than its shape {shape} needs")

    def read(self, start: int, end: int) -> NDArray[Any]:
        if self._fortran:
            return self._read_whole()[start:end]
        self._seek(self._data_start + start * self.info.row_bytes)
        assert self._stream is not None
        raw = bytearray((end - start) * self.info.row_bytes)
        view = memoryview(raw)
        filled = 0
        while filled < len(raw):
            part = self._stream.read(min(_SKIP_BYTES, len(raw) - filled))
            if not part:
                raise EOFError("it ends early")
            view[filled : filled + len(part)] = part
            filled += len(part)
        shape = (end - start, *self.info.shape[1:]) if self.info.shape else ()
        array = np.frombuffer(raw, dtype=self._dtype).reshape(shape)
        return array.astype(numpy_dtype(self.info.dtype), copy=False)

    def _read_whole(self) -> NDArray[Any]:
        with self._archive.open(self._entry) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
        return np.ascontiguousarray(array, dtype=numpy_dtype(self.info.dtype))

    def _seek(self, position: int) -> None:
        if self._stream is None or self._stream.tell() > position:
            self.close()
            self._stream = self._archive.open(self._entry)
        while (left := position - self._stream.tell()) > 0:
            if not self._stream.read(min(_SKIP_BYTES, left)):
                raise EOFError("it ends early")

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _check_limits(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    if len(entries) > MAX_MEMBERS:
        raise GoldenSetError(f"{path} has {len(entries)} members, more than {MAX_MEMBERS}")
    total = sum(entry.file_size for entry in entries)
    if total > MAX_TOTAL_BYTES:
        raise GoldenSetError(f"{path} would unpack to {total} bytes, more than {MAX_TOTAL_BYTES}")
    for entry in entries:
        if entry.file_size > max(FREE_BYTES, MAX_RATIO * entry.compress_size):
            raise GoldenSetError(
                f"array {entry.filename!r} in {path} would unpack to {entry.file_size} bytes "
                f"from {entry.compress_size}",
                hint="Write it with numpy.savez, uncompressed, or as .safetensors.",
            )


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"its format version is {version[0]}.{version[1]}")
