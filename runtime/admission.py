"""Whether a new engine fits beside the old one. Pure, but for the readings of this host's memory."""

from __future__ import annotations

from pathlib import Path

from modelreg.registry.words import Word
from modelreg.runtime.container import read_limit
from modelreg.runtime.serving import SwapMode

_FILES_FACTOR = 3.0
"""An engine of ONNX Runtime takes its file while that is read, its weights, packed copies of some, and room to run."""
_RESERVE = 0.05
"""This part of what is free is left to others."""
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


class Overlap(Word):
    """The policy of a swap: `auto` overlaps if both fit; `never` drains first; `always` does not look."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def choose_mode(policy: Overlap, *, need_bytes: int, free_bytes: int | None) -> SwapMode:
    """
    Return how to swap. Pure.

    Args:
        policy: What is wanted.
        need_bytes: What the new engine takes.
        free_bytes: What is free while the old one is there; None where nobody can tell.
    """
    if policy is Overlap.NEVER:
        return SwapMode.DRAIN_FIRST
    if policy is Overlap.ALWAYS or free_bytes is None:
        return SwapMode.OVERLAP
    return SwapMode.OVERLAP if need_bytes <= free_bytes * (1 - _RESERVE) else SwapMode.DRAIN_FIRST


def estimate_need(files_bytes: int, *, instances: int = 1, old_files_bytes: int = 0, old_used_bytes: int = 0) -> int:
    """
    Return about how many bytes an engine takes. Pure.

    Args:
        files_bytes: Its files.
        instances: How many there will be on a device; what was measured had as many.
        old_files_bytes: The files of an engine of the same backend whose use was measured; 0 where there is none.
        old_used_bytes: What that one took.
    """
    if old_files_bytes and old_used_bytes:
        return round(max(files_bytes / old_files_bytes, 1.0) * old_used_bytes)
    return round(_FILES_FACTOR * files_bytes * instances)


def read_free_memory(*, meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Return how many bytes this process can still take: of the host, and of its container's limit; None: unknown."""
    found = [free for free in (_read_meminfo(meminfo), _read_cgroup(cgroup)) if free is not None]
    return min(found, default=None)


def _read_meminfo(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _read_cgroup(folder: Path) -> int | None:
    """Return what a limit of cgroup v2 leaves; pages of files that can be dropped count as free."""
    limit = read_limit(folder)
    return None if limit is None else max(0, limit[0] - limit[1])
