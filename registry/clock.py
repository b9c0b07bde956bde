"""Times are UTC and aware. Nothing is ever ordered by them: clocks jump, counters do not."""

from __future__ import annotations

from datetime import datetime, timezone


def utc_now() -> datetime:
    """Return the current time, aware, in UTC, to the millisecond (so that `iso` loses nothing)."""
    now = datetime.now(timezone.utc)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def iso(moment: datetime) -> str:
    """Return `moment` as ISO 8601 in UTC with a `Z`, to the millisecond."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_iso(text: str) -> datetime:
    """Read back what `iso` wrote."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)
