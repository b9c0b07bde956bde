"""Collect arrays batch by batch on disk, so that a captured set may be larger than memory."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.errors import GoldenSetError
from modelreg.registry.tensor_sets import CHUNK_BYTES, write_tensor_set

Array = NDArray[Any]


class Spool:
    """Rows of named arrays, appended in a temporary folder beside the file they will become."""

    def __init__(self, folder: Path) -> None:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix=".capture-", dir=folder)
        except OSError as error:
            raise GoldenSetError(f"{folder} cannot be written: {error.strerror}") from error
        self._files: dict[str, IO[bytes]] = {}
        self._numbers = itertools.count()
        self._rows: dict[str, int] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    @property
    def rows(self) -> Mapping[str, int]:
        """Return the rows so far by name."""
        return self._rows

    def append(self, name: str, array: Array) -> None:
        """Add rows; a scalar is one row.

        Raises:
            GoldenSetError: The rows differ in dtype or shape from earlier ones, or the disk is full.
        """
        array = array.reshape(1) if array.ndim == 0 else array
        shape = self._shapes.setdefault(name, array.shape[1:])
        dtype = self._dtypes.setdefault(name, array.dtype)
        if array.shape[1:] != shape or array.dtype != dtype:
            raise GoldenSetError(
                f"{name!r} changes between batches: rows of {dtype} {list(shape)}, "
                f"then of {array.dtype} {list(array.shape[1:])}",
                hint="A golden set holds one shape per tensor: pad the inputs, or capture several sets.",
            )
        try:
            if name not in self._files:
                path = Path(self._folder.name) / str(next(self._numbers))
                self._files[name] = path.open("wb")
            self._files[name].write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise GoldenSetError(f"{self._folder.name} cannot be written: {error.strerror}") from error
        self._rows[name] = self._rows.get(name, 0) + len(array)

    def drop(self, name: str) -> None:
        """Forget the rows of a name; nothing happens where there are none."""
        if name in self._files:
            file = self._files.pop(name)
            file.close()
            Path(file.name).unlink()
        for known in (self._rows, self._dtypes, self._shapes):
            known.pop(name, None)

    def thin(self, name: str, kept: Sequence[int]) -> None:
        """Keep some rows alone, by their ascending numbers, a few at a time.

        Raises:
            GoldenSetError: The disk is full.
        """
        old, rows, dtype, shape = self._files.pop(name), self._rows.pop(name), self._dtypes[name], self._shapes[name]
        old.flush()
        if math.prod(shape):
            array = np.memmap(old.name, dtype=dtype, mode="r", shape=(rows, *shape))
            step = max(1, CHUNK_BYTES // max(1, array[:1].nbytes))
            for start in range(0, len(kept), step):
                self.append(name, np.asarray(array[list(kept[start : start + step])]))
        old.close()
        Path(old.name).unlink()

    def write(self, destination: Path, metadata: Mapping[str, str]) -> None:
        """Write all rows as one tensor set.

        Raises:
            GoldenSetError: The file cannot be written.
        """
        arrays: dict[str, Array] = {}
        for name, file in self._files.items():
            file.flush()
            shape = (self._rows[name], *self._shapes[name])
            if 0 in shape:
                arrays[name] = np.zeros(shape, dtype=self._dtypes[name])
            else:
                arrays[name] = np.memmap(file.name, dtype=self._dtypes[name], mode="r", shape=shape)
        write_tensor_set(destination, arrays, metadata)

    def close(self) -> None:
        """Remove what was collected."""
        for file in self._files.values():
            file.close()
        self._folder.cleanup()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
