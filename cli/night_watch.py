"""The work of a night, step by step: what fails becomes a finding, what comes too late is left out."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modelreg.registry.errors import ForeignReleaseError, IntegrityError, ModelregError
from modelreg.validators.reports.nightly import FindingKind, NightFinding, Severity

if TYPE_CHECKING:
    from types import FrameType

    from modelreg.registry.words import Json


class OutOfTimeError(BaseException):
    """The night's time is over. Like an interrupt it is no `Exception`: nothing takes it for an engine's crash."""


@dataclass(slots=True, kw_only=True)
class Watch:
    """
    What a night found so far, and how much time is left.

    Attributes:
        limit_s: How many seconds the night may take.
        verbose: Called with the traceback of what was not foreseen.
    """

    limit_s: float
    verbose: Callable[[str], None] = lambda _text: None
    findings: list[NightFinding] = field(default_factory=list)
    checks: list[Json] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Return the seconds that are left."""
        return self._began + self.limit_s - time.monotonic()

    def add(
        self,
        kind: FindingKind,
        severity: Severity,
        subject: str,
        message: str,
        *,
        hint: str = "",
        runbook: str = "",
    ) -> None:
        """Note a finding."""
        self.findings.append(
            NightFinding(kind=kind, severity=severity, subject=subject, message=message, hint=hint, runbook=runbook)
        )

    def attempt(self, kind: FindingKind, what: str, subject: str, work: Callable[[], None]) -> bool:
        """Do one step of the night and return whether it was done; whatever stops it does not stop the night."""
        try:
            with self._limited():
                work()
        except OutOfTimeError:
            self.left_out.append(f"{what} of {subject}")
        except ModelregError as error:
            is_damage = isinstance(error, IntegrityError) and not isinstance(error, ForeignReleaseError)
            severity = Severity.DAMAGE if is_damage else Severity.PROBLEM
            runbook = "corrupt-blob" if is_damage else ""
            self.add(kind, severity, subject, f"{what}: {error}", hint=error.hint(), runbook=runbook)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            self.add(kind, Severity.PROBLEM, subject, f"{what}: {place}{error.strerror or error}")
        except Exception as error:
            self.verbose(traceback.format_exc())
            message = f"{what}: internal error: {type(error).__name__}: {error}"
            hint = "This is a fault of modelreg: run again with -v and report what it prints."
            self.add(kind, Severity.PROBLEM, subject, message, hint=hint)
        else:
            return True
        return False

    def check(self, kind: FindingKind, name: str, work: Callable[[], str]) -> None:
        """Do one check of the whole registry, and keep a row of it; `work` returns what was looked at, in words."""
        before, said = len(self.findings), [""]

        def look() -> None:
            said[0] = work()

        is_done = self.attempt(kind, name, "registry", look)
        found = self.findings[before:]
        outcome = ("found" if found else "ok") if is_done else "not done"
        detail = said[0] if is_done else found[-1].message if found else "there was no time left"
        self.checks.append({"name": name, "outcome": outcome, "detail": detail})

    def close(self) -> None:
        """Note what there was no time for."""
        if self.left_out:
            self.add(
                FindingKind.TIME,
                Severity.PROBLEM,
                "registry",
                f"after {self.limit_s:g} s this was left out: {', '.join(self.left_out)}",
                hint="Allow more with --timeout, or divide the work with --channel.",
            )

    @contextmanager
    def _limited(self) -> Iterator[None]:
        if self.left_s <= 0:
            raise OutOfTimeError
        before = signal.signal(signal.SIGALRM, _ring)
        signal.setitimer(signal.ITIMER_REAL, max(self.left_s, 1e-3))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _ring(_number: int, _frame: FrameType | None) -> None:
    raise OutOfTimeError
