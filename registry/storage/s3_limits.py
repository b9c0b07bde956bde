"""How long an S3 store waits, how often it asks again, and in which pieces it moves large things."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20
_MOST_PARTS = 9_000


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Limits:
    """The defaults suit a network; tests use smaller ones.

    Args:
        connect_timeout_s: For reaching the server.
        read_timeout_s: For each answer, and each gap in one.
        tries: How often a request that may be repeated is sent.
        first_wait_s: About how long the first wait before a repeat is; it doubles each time.
        longest_wait_s: The longest of them.
        swap_patience_s: After how long a swap whose answers are lost is given up as unknown.
        look_first_bytes: From this size on, a blob is asked for before it is sent.
        single_bytes: Up to this size, a blob is sent in one request.
        part_bytes: The size of a part of a larger one, and of the pieces of a download.
        workers: How many parts are under way at once.
        abandoned_after_s: From this age on, an unfinished upload is a leftover.
    """

    connect_timeout_s: float = 5.0
    read_timeout_s: float = 20.0
    tries: int = 5
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0
    swap_patience_s: float = 60.0
    look_first_bytes: int = 256 << 10
    single_bytes: int = 64 * _MIB
    part_bytes: int = 16 * _MIB
    workers: int = 8
    abandoned_after_s: float = 24 * 3600.0

    def part_size(self, size_bytes: int) -> int:
        """Return the part size of an upload of so many bytes: the same for everyone, so that it can be resumed."""
        smallest = -(-size_bytes // _MOST_PARTS)
        return max(self.part_bytes, -(-smallest // _MIB) * _MIB)
