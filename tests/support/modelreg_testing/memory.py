"""Peak memory of this process. `ru_maxrss` will not do: on Linux a child's starts at its parent's peak."""

from __future__ import annotations

from pathlib import Path


def peak_bytes() -> int:
    """Return the most memory this process ever had resident, since it was started."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")
