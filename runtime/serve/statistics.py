"""Counts for Triton's statistics extension, of each version that answered.

The document: extension_statistics.md in docs/protocol of Triton's server repository. Durations are in nanoseconds.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from modelreg.registry.words import Json
from modelreg.runtime.requests import RequestOutcome, RequestRecord

_KEPT_VERSIONS = 16
_KEPT_BATCHES = 64


@dataclass(slots=True)
class Duration:
    """How often something was, and how long it took together."""

    count: int = 0
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.total_s += seconds

    def to_json(self) -> Json:
        """Return it in the extension's words."""
        return {"count": self.count, "ns": round(self.total_s * 1e9)}


@dataclass(slots=True)
class VersionCounts:
    """What one version did."""

    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute: Duration = field(default_factory=Duration)
    rows: int = 0
    executions: int = 0
    last_ms: int = 0
    batches: dict[int, Duration] = field(default_factory=dict)

    def add(self, record: RequestRecord) -> None:
        """Count a request."""
        if record.outcome is not RequestOutcome.OK:
            self.fail.add(record.total_s)
            return
        self.success.add(record.total_s)
        self.queue.add(record.queue_s)
        self.compute.add(record.compute_s)
        self.rows += record.rows or 1
        self.executions += record.executions
        self.last_ms = time.time_ns() // 1_000_000
        size = record.batch_rows or record.rows or 1
        if record.executions and (size in self.batches or len(self.batches) < _KEPT_BATCHES):
            self.batches.setdefault(size, Duration()).add(record.compute_s)

    def to_json(self, name: str, version: int) -> Json:
        """Return Triton's object of one model and version; what it tells apart and we do not is zero."""
        none = Duration().to_json()
        others = ("compute_input", "compute_output", "cache_hit", "cache_miss")
        return {
            "name": name,
            "version": str(version),
            "last_inference": self.last_ms,
            "inference_count": self.rows,
            "execution_count": self.executions,
            "inference_stats": {
                "success": self.success.to_json(),
                "fail": self.fail.to_json(),
                "queue": self.queue.to_json(),
                "compute_infer": self.compute.to_json(),
                **dict.fromkeys(others, none),
            },
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_infer": found.to_json(),
                    "compute_input": none,
                    "compute_output": none,
                }
                for rows, found in sorted(self.batches.items())
            ],
        }


class Statistics:
    """Counts of one served model; an observer of requests. The last versions are kept."""

    def __init__(self) -> None:
        self._versions: OrderedDict[int, VersionCounts] = OrderedDict()

    def add(self, record: RequestRecord, *, version: int) -> None:
        """Count a request for a version."""
        self.of(version).add(record)

    def of(self, version: int) -> VersionCounts:
        """Return the counts of a version, new ones where it is new."""
        if version not in self._versions:
            self._versions[version] = VersionCounts()
            if len(self._versions) > _KEPT_VERSIONS:
                self._versions.popitem(last=False)
        return self._versions[version]

    @property
    def versions(self) -> tuple[int, ...]:
        """Return the versions that are kept."""
        return tuple(self._versions)
