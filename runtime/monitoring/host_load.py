"""How busy this host is: processors and memory, of the container where it is one, and of this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from modelreg.registry.errors import MissingDependencyError
from modelreg.registry.words import Json
from modelreg.runtime.container import read_limit, read_old_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """
    One look at the host; None is not known.

    Attributes:
        cpu_utilization: Part of all processors that was busy since the last look, 0 to 1.
        memory_total_bytes: What the host has, or its container may take, whichever is less.
        memory_used_bytes: What is used of that, caches that can be dropped not counted.
        process_cpu_s: Seconds of a processor that this process has taken by now.
        process_memory_bytes: What this process has in memory.
        problem: Why nothing is known.
    """

    cpu_utilization: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    process_cpu_s: float | None = None
    process_memory_bytes: int | None = None
    problem: str = ""

    @property
    def memory_share(self) -> float | None:
        """Return the part of the memory that is used."""
        if self.memory_used_bytes is None or not self.memory_total_bytes:
            return None
        return self.memory_used_bytes / self.memory_total_bytes

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {name: getattr(self, name) for name in HostLoad.__slots__}


class HostReader:
    """Reads the load of this host; the first look has no utilisation, since that is between two looks."""

    def __init__(self) -> None:
        self._psutil: Any = None
        self._process: Any = None
        self._busy: tuple[float, float] | None = None

    def read(self) -> HostLoad:
        """Return the load now. Never raises."""
        try:
            if self._psutil is None:
                self._psutil = _import_psutil()
                self._process = self._psutil.Process()
            memory = self._psutil.virtual_memory()
            before, self._busy = self._busy, _busy_of(self._psutil.cpu_times())
            with self._process.oneshot():
                times, own = self._process.cpu_times(), self._process.memory_info()
        except MissingDependencyError as error:
            return HostLoad(problem=f"{error}: {error.hint()}")
        except Exception as error:  # psutil's own classes, and whatever a strange /proc does
            return HostLoad(problem=f"this host's load cannot be read: {error}")
        total, used = within_limit(
            int(memory.total), int(memory.total - memory.available), read_limit() or read_old_limit()
        )
        return HostLoad(
            cpu_utilization=share_busy(before, self._busy),
            memory_total_bytes=total,
            memory_used_bytes=used,
            process_cpu_s=float(times.user + times.system),
            process_memory_bytes=int(own.rss),
        )


def _busy_of(times: Any) -> tuple[float, float]:
    """Return the seconds that processors were busy, and all seconds; guests' are in the user's already."""
    total = sum(times) - getattr(times, "guest", 0) - getattr(times, "guest_nice", 0)
    return total - times.idle - getattr(times, "iowait", 0), total


def share_busy(before: tuple[float, float] | None, now: tuple[float, float]) -> float | None:
    """Return the busy part between two looks; None where no time went by. Pure."""
    if before is None or now[1] <= before[1]:
        return None
    return min(1.0, max(0.0, (now[0] - before[0]) / (now[1] - before[1])))


def within_limit(total: int, used: int, limit: tuple[int, int] | None) -> tuple[int, int]:
    """Return (total, used) of the host, or of its container's limit where that is less. Pure."""
    return limit if limit is not None and limit[0] < total else (total, used)


def _import_psutil() -> Any:
    try:
        import psutil  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingDependencyError("psutil", extra="serve") from None
    return psutil
