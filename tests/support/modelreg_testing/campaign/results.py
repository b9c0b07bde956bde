"""What a part of the campaign found: counts, broken invariants, and the rows of its table."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class Tally:
    """One row: what was done to what, how often, what came of it, and every violation in words."""

    part: str
    what: str
    store: str
    trials: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def count(self, outcome: str) -> None:
        self.trials += 1
        self.outcomes[outcome] += 1

    def merge(self, other: Tally) -> None:
        self.trials += other.trials
        self.outcomes += other.outcomes
        self.violations += other.violations
        self.notes += [note for note in other.notes if note not in self.notes]
        self.seconds += other.seconds

    def require_clean(self) -> None:
        """Raise AssertionError with the violations, if there are any."""
        assert not self.violations, f"{len(self.violations)} of {self.trials}: " + "\n".join(self.violations[:10])

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "outcomes": dict(self.outcomes)}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Tally:
        return cls(**{**body, "outcomes": Counter(body["outcomes"])})

    def outcome_text(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in sorted(self.outcomes.items()))


def save(folder: Path, part: str, tallies: list[Tally], about: dict[str, Any]) -> None:
    """Keep what a part found, so that the page is written from all parts that were run."""
    folder.mkdir(parents=True, exist_ok=True)
    body = {"about": about, "rows": [tally.to_json() for tally in tallies]}
    (folder / f"{part}.json").write_text(json.dumps(body, indent=1) + "\n")


def load(folder: Path, part: str) -> tuple[list[Tally], dict[str, Any]] | None:
    """Return what a part found when it was last run, or None."""
    path = folder / f"{part}.json"
    if not path.exists():
        return None
    body = json.loads(path.read_text())
    return [Tally.from_json(row) for row in body["rows"]], body["about"]


def spread(points: list[T], limit: int) -> list[T]:
    """Return at most `limit` of the points, evenly spread, the first and the last among them; 0 means all."""
    if limit <= 0 or len(points) <= limit:
        return points
    if limit == 1:
        return points[:1]
    step = (len(points) - 1) / (limit - 1)
    return [points[round(index * step)] for index in range(limit)]
