"""What an examination says: one finding for each thing that was looked at, and how it stands."""

from __future__ import annotations

from dataclasses import dataclass

from modelreg.registry.errors import ForeignReleaseError, IntegrityError, ModelregError
from modelreg.registry.words import Word


class Level(Word):
    """How a finding stands. `warning` is worth knowing and stops nobody; `damage` means that digests do not match."""

    OK = "ok"
    WARNING = "warning"
    FIXABLE = "fixable"
    FIXED = "fixed"
    PROBLEM = "problem"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's outcome: what was found about `subject`, and what to do (`hint`)."""

    level: Level
    check: str
    subject: str
    message: str
    hint: str = ""


FIX_HINT = "Run `modelreg doctor --fix`."
"""What to do about whatever `--fix` settles."""


def found(level: Level, check: str, subject: str, message: str, hint: str = "") -> Finding:
    """Return a finding; the words in the order in which they are printed."""
    return Finding(level=level, check=check, subject=subject, message=message, hint=hint)


def failure(check: str, subject: str, error: ModelregError, *, hint: str | None = None) -> Finding:
    """Return what an error means that a check met; `hint` stands in for advice that would lead back here."""
    is_damage = isinstance(error, IntegrityError) and not isinstance(error, ForeignReleaseError)
    advice = hint if hint is not None and error.hint() == error.default_hint else error.hint()
    return found(Level.DAMAGE if is_damage else Level.PROBLEM, check, subject, str(error), advice)
