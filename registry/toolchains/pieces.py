"""Arrays that are to be one: joined where the result ends up, and nowhere before. A batch of images is some 20 MB."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Pieces:
    """
    Arrays of one type and equal trailing shapes, one below the other along the first axis. What goes to a worker, or
    to an engine, may be such.

    Attributes:
        shape: Of all of them together.
        dtype: Theirs, in the byte order of this host.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays
        self.shape = (sum(len(array) for array in arrays), *arrays[0].shape[1:])
        self.dtype: np.dtype[Any] = arrays[0].dtype.newbyteorder("=")

    @property
    def nbytes(self) -> int:
        """Return the bytes of all of them."""
        return sum(array.nbytes for array in self._arrays)

    def join(self, empty: Callable[[tuple[int, ...], np.dtype[Any]], Array] = np.empty) -> Array:
        """Return them as one new array, which `empty` makes."""
        joined = empty(self.shape, self.dtype)
        np.concatenate(self._arrays, out=joined)
        return joined


Feed = Mapping[str, Array | Pieces]
"""Arrays by name, or the pieces of them."""


def whole(array: Array | Pieces) -> Array:
    """Return an array as it is, and pieces as one."""
    return array.join() if isinstance(array, Pieces) else array
