"""The report of a version as one JSON document: what every other kind of report is made from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from modelreg.registry.clock import iso
from modelreg.registry.errors import IntegrityError
from modelreg.registry.records import EngineRecord, ValidationRecord, VersionRecord
from modelreg.registry.validation_history import PastVerdict
from modelreg.registry.words import Json

SCHEMA = 1
SCHEMA_FILE = Path(__file__).with_name("schema.json")
"""JSON Schema of the document, shipped beside this module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One validation with its stored report; `objection` says why promote would not go by it, empty where it would."""

    validation: ValidationRecord
    report: Json
    objection: str = ""


def make_document(
    *,
    version: VersionRecord,
    golden_digest: str | None,
    channel: str | None,
    judged: Sequence[Judged],
    skipped: Iterable[tuple[EngineRecord, str]],
    history: Iterable[PastVerdict],
    tool_version: str,
    created_at: datetime,
) -> Json:
    """Return the report of a version's validations.

    Args:
        version: The version.
        golden_digest: Its newest golden set, None where it has none.
        channel: By whose policies the verdicts are held, or whose engines these are.
        judged: The validations, in the order to be shown.
        skipped: The engines that got no verdict, and why.
        history: Earlier and present verdicts of the model's versions.
        tool_version: Of the program.
        created_at: When the report was made.
    """
    left_out = [{"engine": _engine(engine), "reason": reason} for engine, reason in skipped]
    return {
        "schema": SCHEMA,
        "kind": "modelreg-report",
        "tool": {"name": "modelreg", "version": tool_version},
        "created_at": iso(created_at),
        "model": version.model,
        "version": version.number,
        "source": {"sha256": version.source.digest, "path": version.source.files[0].path},
        "golden_set": golden_digest,
        "channel": channel,
        "verdict": _verdict(
            [each.report for each in judged], is_complete=not left_out and not any(each.objection for each in judged)
        ),
        "validations": [_validation(each) for each in judged],
        "skipped": left_out,
        "history": [_past(each) for each in history],
    }


def parse_stored_report(content: bytes, *, validation: ValidationRecord) -> Json:
    """
    Return the report that was stored with a validation.

    Raises:
        IntegrityError: It is no report that this program understands.
    """
    name = f"the report of validation {validation.id}"
    try:
        body = json.loads(content)
    except ValueError:
        raise IntegrityError(f"{name} is no JSON") from None
    known = {"schema", "engine", "policy", "gates", "passes", "verdict"}
    if not isinstance(body, dict) or not known <= set(body):
        raise IntegrityError(f"{name} is none that this program understands")
    if body["schema"] != SCHEMA:
        raise IntegrityError(
            f"{name} has schema {body['schema']!r:.40}, this program knows {SCHEMA}",
            hint="A newer modelreg wrote it; use that one.",
        )
    return body


def _verdict(reports: Sequence[Json], *, is_complete: bool) -> str:
    """
    Return `fail` or `error` if an engine has it, `pass` if all engines have one that counts, else `incomplete`.

    A pass under an older policy, or against an older golden set, shows nothing about now.
    """
    verdicts = {report["verdict"] for report in reports}
    for bad in ("fail", "error"):
        if bad in verdicts:
            return bad
    return "pass" if verdicts and is_complete else "incomplete"


def _validation(judged: Judged) -> Json:
    validation = judged.validation
    return {
        "id": validation.id,
        "created_at": iso(validation.created_at),
        "created_by": validation.created_by,
        "report_digest": validation.report_digest,
        "objection": judged.objection,
        "report": judged.report,
    }


def _engine(engine: EngineRecord) -> Json:
    return {
        "id": engine.id,
        "target": engine.target.name,
        "gpu": engine.target.gpu,
        "precision": str(engine.precision),
        "backend": str(engine.toolchain.backend),
        "backend_version": engine.toolchain.version,
    }


def _past(verdict: PastVerdict) -> Json:
    return {
        "version": verdict.version,
        "engine": verdict.engine_id,
        "target": verdict.target,
        "precision": str(verdict.precision),
        "backend": str(verdict.backend),
        "verdict": str(verdict.verdict),
        "at": iso(verdict.at),
        "gates": [
            {key: value for key, value in gate.to_json().items() if key not in ("reason", "worst_samples")}
            for gate in verdict.gates
        ],
    }
