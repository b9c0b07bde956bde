"""Named arrays in one file (`.safetensors` or `.npz`), read row by row: golden sets and calibration sets.

The content decides what a file is, not its name: a blob has no suffix. Pickles are never loaded. An open set
is not for two threads at once.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from modelreg.registry.errors import GoldenSetError
from modelreg.registry.regular_files import irregularity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]

CHUNK_BYTES = 4 << 20
_FORMS = "Give a .safetensors file, or an .npz of plain numeric arrays."
_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
_NAMES = {code: name for name, code in _CODES.items()}
_WIDE = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """What a file says about one tensor; `dtype` is the name that NumPy or `ml_dtypes` gives it."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Return the size along axis 0; a scalar has one row."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row."""
        return math.prod(self.shape[1:]) * numpy_dtype(self.dtype).itemsize

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the whole tensor."""
        return self.rows * self.row_bytes


class TensorSet(AbstractContextManager["TensorSet"], Protocol):
    """An open file of named tensors; close it, or use it in `with`."""

    path: Path
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """
        Return rows `start` to `stop` along axis 0 as a new array; the whole of a scalar.

        Raises:
            GoldenSetError: The file is damaged.
            ValueError: There is no such tensor, or the range is not inside it.
        """
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def numpy_dtype(name: str) -> np.dtype[Any]:
    """
    Return the NumPy dtype of a name that `TensorInfo` uses.

    Raises:
        GoldenSetError: The name is unknown, or needs `ml_dtypes`, which is not installed.
    """
    import numpy as np  # noqa: PLC0415 - list, show and promote must start without NumPy

    if name not in _CODES:
        raise GoldenSetError(f"dtype {name} cannot be kept in a tensor set", hint=_FORMS)
    if name not in _WIDE:
        return np.dtype(name)
    try:
        import ml_dtypes  # noqa: PLC0415 - only these three types need it
    except ImportError as error:
        hint = "Install it with: pip install ml_dtypes"
        raise GoldenSetError(f"reading {name} needs ml_dtypes, which is not installed", hint=hint) from error
    wide: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return wide


def row_range(info: TensorInfo, name: str, start: int, stop: int | None) -> tuple[int, int]:
    """Return the checked row range; `ValueError` when it is not inside the tensor."""
    end = info.rows if stop is None else stop
    if not 0 <= start <= end <= info.rows:
        raise ValueError(f"rows {start}:{end} are outside {name!r} with {info.rows} rows")
    return start, end


def open_tensor_set(path: Path) -> TensorSet:
    """
    Open a `.safetensors` or `.npz` file; nothing but its header is read.

    Raises:
        GoldenSetError: It is missing, not such a file, damaged, a pickle, or larger than it should be.
    """
    try:
        if kind := irregularity(path.stat().st_mode):
            raise GoldenSetError(f"{path} is {kind}, not a file", hint=_FORMS)
        with path.open("rb") as file:
            head = file.read(9)
    except OSError as error:
        raise GoldenSetError(f"{path} cannot be read: {error.strerror}") from error
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        from modelreg.registry.npz_sets import NpzSet  # noqa: PLC0415 - imports NumPy

        return NpzSet(path)
    if len(head) == 9 and head[8:] == b"{":
        return _SafetensorsSet(path)
    what = "a pickle, which is never loaded" if head.startswith(b"\x80") else "neither safetensors nor npz"
    raise GoldenSetError(f"{path} is {what}", hint=_FORMS)


def write_tensor_set(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """
    Write a new safetensors file; equal arrays and metadata give equal bytes.

    Raises:
        GoldenSetError: A dtype cannot be kept, or the file cannot be written; nothing is left behind.
    """
    infos = {name: TensorInfo(dtype=array.dtype.name, shape=array.shape) for name, array in arrays.items()}

    def chunks(name: str) -> Iterator[Array]:
        for start, stop in row_chunks(infos[name]):
            yield arrays[name][start:stop] if arrays[name].ndim else arrays[name]

    _write(path, infos, chunks, metadata)


def copy_tensor_set(source: TensorSet, path: Path, metadata: Mapping[str, str]) -> None:
    """
    Write `source` as a new safetensors file, a few megabytes at a time; equal contents give equal bytes.

    Raises:
        GoldenSetError: The source is damaged, or the file cannot be written; nothing is left behind.
    """

    def chunks(name: str) -> Iterator[Array]:
        for start, stop in row_chunks(source.tensors[name]):
            yield source.read(name, start, stop)

    _write(path, source.tensors, chunks, metadata)


def row_chunks(info: TensorInfo, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """Yield row ranges of about `chunk_bytes` each, at least one row."""
    step = max(1, chunk_bytes // max(1, info.row_bytes))
    for start in range(0, info.rows, step):
        yield start, min(info.rows, start + step)


class _SafetensorsSet:
    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - imports NumPy

        self.path = path
        self.tensors: dict[str, TensorInfo] = {}
        self.metadata: dict[str, str] = {}
        self._offsets: dict[str, int] = {}
        try:
            with safe_open(path, framework="np"):  # its parser has checked every offset and size
                pass
        except (SafetensorError, OSError, ValueError) as error:
            raise GoldenSetError(f"{path} is not a whole safetensors file: {error}", hint=_FORMS) from error
        self._file = path.open("rb")
        try:
            self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> None:
        (length,) = struct.unpack("<Q", self._file.read(8))
        header = json.loads(self._file.read(length))
        self.metadata = dict(header.pop("__metadata__", None) or {})
        for name in sorted(header):
            entry = header[name]
            if entry["dtype"] not in _NAMES:
                raise GoldenSetError(
                    f"tensor {name!r} in {self.path} has dtype {entry['dtype']}, which is not supported"
                )
            info = TensorInfo(dtype=_NAMES[entry["dtype"]], shape=tuple(entry["shape"]))
            self.tensors[name] = info
            self._offsets[name] = 8 + length + entry["data_offsets"][0]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        import numpy as np  # noqa: PLC0415 - see numpy_dtype

        if name not in self.tensors:
            raise ValueError(f"there is no tensor {name!r} in {self.path}")
        info = self.tensors[name]
        start, end = row_range(info, name, start, stop)
        raw = np.empty((end - start) * info.row_bytes, dtype=np.uint8)
        self._file.seek(self._offsets[name] + start * info.row_bytes)
        if self._file.readinto(raw.data) != raw.size:
            raise GoldenSetError(f"{self.path} ends inside tensor {name!r}")
        shape = (end - start, *info.shape[1:]) if info.shape else ()
        return raw.view(numpy_dtype(info.dtype)).reshape(shape)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> TensorSet:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _write(
    path: Path,
    infos: Mapping[str, TensorInfo],
    chunks: Callable[[str], Iterator[Array]],
    metadata: Mapping[str, str],
) -> None:
    import numpy as np  # noqa: PLC0415 - see numpy_dtype

    # Widest types first, as the safetensors library writes them: every tensor stays aligned.
    order = sorted(infos, key=lambda name: (-numpy_dtype(infos[name].dtype).itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    offset = 0
    for name in order:
        end = offset + infos[name].size_bytes
        shape = list(infos[name].shape)
        header[name] = {"dtype": _CODES[infos[name].dtype], "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    try:
        with path.open("xb") as file:
            try:
                file.write(struct.pack("<Q", len(text)) + text)
                for name in order:
                    dtype = numpy_dtype(infos[name].dtype)
                    for chunk in chunks(name):
                        file.write(np.ascontiguousarray(chunk, dtype=dtype).reshape(-1).view(np.uint8).data)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise GoldenSetError(f"{path} cannot be written: {error.strerror}") from error
