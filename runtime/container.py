"""What the container that this process is in may take of the memory, and how much of that is used."""

from __future__ import annotations

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_OLD_CGROUP = Path("/sys/fs/cgroup/memory")


def read_limit(folder: Path = _CGROUP) -> tuple[int, int] | None:
    """Return (limit, used) of cgroup v2 in bytes, or None."""
    return _read(folder / "memory.max", folder / "memory.current", folder / "memory.stat", cache="inactive_file")


def read_old_limit(folder: Path = _OLD_CGROUP) -> tuple[int, int] | None:
    """Return (limit, used) of cgroup v1 in bytes, or None."""
    limit, used = folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes"
    return _read(limit, used, folder / "memory.stat", cache="total_inactive_file")


def _read(limit: Path, used: Path, stat: Path, *, cache: str) -> tuple[int, int] | None:
    try:
        allowed, taken = int(limit.read_text()), int(used.read_text())  # "max" is no number: there is no limit
        lines = (line.split() for line in stat.read_text().splitlines())
        dropped = next((int(words[1]) for words in lines if words[0] == cache), 0)
    except (OSError, ValueError, IndexError):
        return None
    return allowed, max(0, taken - dropped)
