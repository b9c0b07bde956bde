"""What one night found, as one JSON document: what every other kind of its report is made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from modelreg.registry.clock import iso
from modelreg.registry.words import Json, Word

SCHEMA = 1
SCHEMA_FILE = Path(__file__).with_name("nightly_schema.json")
KIND = "modelreg-nightly"


class Severity(Word):
    """How bad a finding is, the mildest first; the worst one of a night is its exit code."""

    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"
    GATE = "gate"
    DAMAGE = "damage"

    @property
    def exit_code(self) -> int:
        """Return the exit code of a night whose worst finding this is."""
        return {Severity.PROBLEM: 1, Severity.GATE: 3, Severity.DAMAGE: 6}.get(self, 0)


class FindingKind(Word):
    """What a finding is about."""

    GATE = "gate"
    NOT_VALIDATED = "not-validated"
    ACCURACY_DRIFT = "accuracy-drift"
    LATENCY_DRIFT = "latency-drift"
    OUTLIER = "outlier"
    BLOB = "blob"
    ROLLBACK = "rollback"
    EVENTS = "events"
    DOCTOR = "doctor"
    POLICY = "policy"
    LEASE = "lease"
    CHANNEL = "channel"
    HISTORY = "history"
    TIME = "time"


RUNBOOKS = {
    FindingKind.GATE: "failed-gate",
    FindingKind.NOT_VALIDATED: "nightly-drift",
    FindingKind.ACCURACY_DRIFT: "nightly-drift",
    FindingKind.LATENCY_DRIFT: "nightly-drift",
    FindingKind.OUTLIER: "nightly-drift",
    FindingKind.BLOB: "corrupt-blob",
    FindingKind.ROLLBACK: "corrupt-blob",
    FindingKind.EVENTS: "database-restore",
    FindingKind.DOCTOR: "corrupt-blob",
    FindingKind.POLICY: "failed-gate",
    FindingKind.LEASE: "retiring-a-model",
    FindingKind.CHANNEL: "database-restore",
    FindingKind.HISTORY: "nightly-drift",
    FindingKind.TIME: "stuck-build",
}
"""By kind, the page of docs/runbooks that says what to do; a finding can name another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightFinding:
    """One thing that a person should know: what about which subject, how bad, and what to do."""

    kind: FindingKind
    severity: Severity
    subject: str
    message: str
    hint: str = ""
    runbook: str = ""

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {
            "kind": str(self.kind),
            "severity": str(self.severity),
            "subject": self.subject,
            "message": self.message,
            "hint": self.hint,
            "runbook": f"docs/runbooks/{self.runbook or RUNBOOKS[self.kind]}.md",
        }


def worst_of(findings: Iterable[NightFinding]) -> Severity:
    """Return the worst severity, `note` where there is nothing."""
    order = list(Severity)
    return max((finding.severity for finding in findings), key=order.index, default=Severity.NOTE)


def sort_findings(findings: Sequence[NightFinding]) -> list[NightFinding]:
    """Return findings with the worst first, each once, else in the order in which they were made."""
    order = list(Severity)
    return sorted(dict.fromkeys(findings), key=lambda finding: -order.index(finding.severity))


def make_nightly_document(
    *,
    registry: str,
    host: Json,
    started_at: datetime,
    seconds: float,
    channels: Sequence[Json],
    checks: Sequence[Json],
    findings: Sequence[NightFinding],
    nights: int,
    strict: bool,
    tool_version: str,
) -> Json:
    """
    Return the report of a night.

    Args:
        registry: Which one, as people know it.
        host: Where it ran.
        started_at: When.
        seconds: How long it took.
        channels: Each channel with its engines.
        checks: What was looked at for the whole registry: name, outcome (`ok`, `found`, `not done`), and a word on it.
        findings: All of them.
        nights: How many earlier nights were there to compare with.
        strict: Whether warnings fail the night.
        tool_version: Of the program.
    """
    worst = worst_of(findings)
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "tool": {"name": "modelreg", "version": tool_version},
        "registry": registry,
        "host": host,
        "started_at": iso(started_at),
        "seconds": round(seconds, 3),
        "verdict": str(worst) if findings else "ok",
        "exit_code": worst.exit_code or int(strict and worst is Severity.WARNING),
        "nights": nights,
        "channels": list(channels),
        "checks": list(checks),
        "findings": [finding.to_json() for finding in sort_findings(findings)],
    }
