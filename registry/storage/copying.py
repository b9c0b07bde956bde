"""Copying bytes while hashing them: one pass, bounded memory, and as fast as the slower of the two."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from modelreg.registry.storage.interface import Progress

Read = Callable[[memoryview], int]
"""Fill the buffer and return how many bytes; 0 at the end."""
Write = Callable[[memoryview], None]

BUFFER_BYTES = 1 << 20
BUFFERS = 8
_THREAD_PAYS_FROM_BYTES = BUFFERS * BUFFER_BYTES


def copy_hashing(read: Read, write: Write | None, *, expected_bytes: int, progress: Progress) -> tuple[str, int]:
    """
    Read to the end, hash, and hand each piece to `write` (None: only hash).

    Args:
        read: Fills a buffer of at most 1 MiB.
        write: Takes each piece, in order, before the next is read.
        expected_bytes: About how much there is; from 8 MiB on, the hash runs in a thread of its own.
        progress: Told after each piece.

    Returns:
        The SHA-256 in hex, and the number of bytes.
    """
    if expected_bytes < _THREAD_PAYS_FROM_BYTES:
        # No larger than needed, since clean memory costs time, and one more byte to see the end.
        buffer = memoryview(bytearray(min(expected_bytes + 1, BUFFER_BYTES)))
        return _in_turn(read, write, buffer, progress=progress)
    return _side_by_side(read, write, progress=progress)


def _in_turn(read: Read, write: Write | None, buffer: memoryview, *, progress: Progress) -> tuple[str, int]:
    hasher, size_bytes = hashlib.sha256(), 0
    while count := read(buffer):
        piece = buffer[:count]
        hasher.update(piece)
        if write is not None:
            write(piece)
        size_bytes += count
        progress(count)
    return hasher.hexdigest(), size_bytes


def _side_by_side(read: Read, write: Write | None, *, progress: Progress) -> tuple[str, int]:
    from queue import SimpleQueue  # noqa: PLC0415 - only large files need threads
    from threading import Thread  # noqa: PLC0415

    hasher, size_bytes = hashlib.sha256(), 0
    free: SimpleQueue[memoryview] = SimpleQueue()
    filled: SimpleQueue[tuple[memoryview, int] | None] = SimpleQueue()
    for _ in range(BUFFERS):
        free.put(memoryview(bytearray(BUFFER_BYTES)))

    def hash_pieces() -> None:
        while (item := filled.get()) is not None:
            buffer, count = item
            hasher.update(buffer[:count])
            free.put(buffer)

    thread = Thread(target=hash_pieces, name="modelreg-hash", daemon=True)
    thread.start()
    try:
        while count := read(buffer := free.get()):
            filled.put((buffer, count))
            if write is not None:
                # The hasher may free this buffer meanwhile; it is filled again only by this thread, after the write.
                write(buffer[:count])
            size_bytes += count
            progress(count)
    finally:
        filled.put(None)
        thread.join()
    return hasher.hexdigest(), size_bytes
