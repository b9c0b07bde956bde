"""Memory that a worker shares with its parent, so that large arrays need not pass a pipe. Python 3.8, NumPy.

One arena for requests, one for answers: files without a name that the kernel keeps in memory, and that only grow. A
frame then says where an array lies. Where the system has no such files, all passes the pipe.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

_LEAST_BYTES = 16 << 10
"""A smaller array passes the pipe as quickly."""
_ALIGNMENT = 4096
_GRAIN = 2 << 20
_F_ADD_SEALS, _F_SEAL_SHRINK = 1033, 2
"""Linux's numbers: a map of a file that another process cuts off would end this one by SIGBUS."""


class Arena:
    """One such file, mapped; one side writes arrays, the other reads them."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: Optional[Any] = None
        self._used = 0
        self._places: Dict[int, Tuple[int, Any]] = {}  # by address; the array keeps the address its own

    @classmethod
    def create(cls) -> Arena:
        """
        Make one.

        Raises:
            OSError: The system has none.
        """
        made = cls(os.memfd_create("modelreg", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        try:
            fcntl.fcntl(made.fd, _F_ADD_SEALS, _F_SEAL_SHRINK)
        except OSError:
            made.close()
            raise
        return made

    @property
    def mapping(self) -> Optional[Any]:
        """Return all that is mapped now, as bytes; as long as somebody has it, it stays mapped."""
        return self._map

    def start(self) -> None:
        """Begin a frame: what the frame before had is written over."""
        self._used = 0
        self._places.clear()

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """
        Return an array in the arena, for the frame that is being made.

        Raises:
            OSError: There is no memory for it.
        """
        dtype = np.dtype(dtype)
        count = 1
        for length in shape:
            count *= int(length)
        at, size = self._used, count * dtype.itemsize
        self._used = at + -(-size // _ALIGNMENT) * _ALIGNMENT
        array = self._grow(self._used)[at : at + size].view(dtype).reshape(tuple(shape))
        self._places[array.ctypes.data] = at, array
        return array

    def place(self, array: Any) -> Optional[int]:
        """
        Return where an array lies, after it was copied there if it did not.

        Returns:
            None where the pipe does as well: it is small, or there is no memory.
        """
        found = self._places.get(array.ctypes.data) if array.flags.c_contiguous else None
        if found is not None and found[1].nbytes == array.nbytes:
            return found[0]
        if array.nbytes < _LEAST_BYTES:
            return None
        try:
            copy = self.empty(array.shape, array.dtype)
        except OSError:
            return None
        copy[...] = array
        return self._places[copy.ctypes.data][0]

    def join(self, pieces: Any) -> Any:
        """Return `Pieces` as one array, in the arena where it is large and there is memory."""
        try:
            return pieces.join(self.empty if pieces.nbytes >= _LEAST_BYTES else np.empty)
        except OSError:
            return pieces.join()

    def take_out(self, arrays: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the same arrays, those in the arena copied: the next frame writes over it."""
        return {name: array.copy() if self._has(array) else array for name, array in arrays.items()}

    def _has(self, array: Any) -> bool:
        return self._map is not None and bool(np.may_share_memory(array, self._map))

    def read(self, at: int, size: int) -> Any:
        """
        Return bytes that the other side wrote, as they lie there: the next frame writes over them.

        Raises:
            ValueError: There are none.
        """
        if at % _ALIGNMENT or at + size > os.fstat(self.fd).st_size:
            raise ValueError("%d bytes at %d are not in the arena" % (size, at))
        return self._remap(at + size)[at : at + size]

    def close(self) -> None:
        """Let go of it; arrays that somebody still has keep their memory."""
        self._map = None
        self._places.clear()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _grow(self, size: int) -> Any:
        have = os.fstat(self.fd).st_size
        if have < size:
            want = max(size, have + have // 2)
            want = -(-want // _GRAIN) * _GRAIN
            os.posix_fallocate(self.fd, 0, want)  # an error here, rather than SIGBUS at the first byte
        return self._remap(size)

    def _remap(self, size: int) -> Any:
        if self._map is None or len(self._map) < size:
            self._map = np.frombuffer(mmap.mmap(self.fd, os.fstat(self.fd).st_size), np.uint8)
        return self._map


class Arenas(NamedTuple):
    """What a parent and its child share."""

    requests: Arena
    answers: Arena

    @property
    def fds(self) -> Tuple[int, int]:
        """Return the numbers of both files."""
        return self.requests.fd, self.answers.fd

    def close(self) -> None:
        """Let go of both."""
        for arena in self:
            arena.close()


current: Optional[Arenas] = None
"""In a child: what it shares with its parent."""


def make_arenas() -> Optional[Arenas]:
    """Return new ones, or None where this system has no such files."""
    try:
        requests = Arena.create()
    except (OSError, AttributeError):
        return None
    try:
        return Arenas(requests, Arena.create())
    except OSError:
        requests.close()
        return None


def take_arenas(fds: str) -> Arenas:
    """Return those that this child was started with; they are `current` from now on."""
    global current  # noqa: PLW0603 - one process has one parent
    requests, answers = (int(each) for each in fds.split(","))
    for fd in (requests, answers):
        os.set_inheritable(fd, False)
    current = Arenas(Arena(requests), Arena(answers))
    return current


def empty(shape: Sequence[int], dtype: Any) -> Any:
    """Return an array for an answer: shared with the parent where that is possible."""
    try:
        return np.empty(shape, dtype) if current is None else current.answers.empty(shape, dtype)
    except OSError:
        return np.empty(shape, dtype)
