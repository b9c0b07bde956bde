"""Reports for tests: documents of every outcome, and the schemas that they must satisfy."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import jsonschema

from modelreg.registry.records import GateResult
from modelreg.registry.words import GateOutcome, Json
from modelreg.validators.reports import nightly
from modelreg.validators.reports.document import SCHEMA_FILE

SARIF_SCHEMA = Path(__file__).with_name("schemas") / "sarif-2.1.0-rtm.5.json"
DIGEST = "ab" * 32
TIME = "2026-11-30T12:00:00.000Z"
HOSTILE = "</script><img src=x onerror=alert(1)>|`@team` #1 \"'&\x07\x1b[31m\n\u202e]]>"


@functools.cache
def report_validator() -> jsonschema.Draft202012Validator:
    """Return what checks a document against the published schema."""
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@functools.cache
def nightly_validator() -> jsonschema.Draft202012Validator:
    """Return what checks the report of a night against its published schema."""
    schema = json.loads(nightly.SCHEMA_FILE.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@functools.cache
def sarif_validator() -> jsonschema.Draft4Validator:
    """Return what checks SARIF against its schema."""
    schema = json.loads(SARIF_SCHEMA.read_text(encoding="utf-8"))
    checker = jsonschema.FormatChecker()
    return jsonschema.Draft4Validator(schema, format_checker=checker)


def gate(
    name: str = "cosine",
    outcome: GateOutcome = GateOutcome.PASS,
    *,
    subject: str = "logits",
    measured: float | None = 0.9999,
    limit: float | None = 0.99,
    comparison: str = ">=",
    reason: str = "",
    worst: tuple[int, ...] = (),
) -> Json:
    """Return a gate as reports hold it."""
    return GateResult(
        gate=name,
        subject=subject,
        outcome=outcome,
        measured=measured,
        comparison=comparison,
        limit=limit,
        reason=reason,
        worst_samples=worst,
    ).to_json()


PASSED = gate()
FAILED = gate(
    "sqnr_db",
    GateOutcome.FAIL,
    measured=12.25,
    limit=15.0,
    reason="sqnr_db of logits is 12.25, the limit is >= 15; worst samples 51, 7",
    worst=(51, 7),
)
BROKEN = gate("run", GateOutcome.ERROR, measured=None, limit=None, reason="the worker crashed")
SKIPPED = gate("top5_agreement", GateOutcome.SKIPPED, measured=None, limit=None, reason="the golden set has no labels")
UNSURE = gate("gain", GateOutcome.INCONCLUSIVE, measured=1.01, limit=1.0, reason="between 0.98 and 1.04")


def measured_output(**more: Any) -> Json:
    """Return what was measured of one output."""
    return {
        "values": 640,
        "rows": 64,
        "nan": 0,
        "inf": 0,
        "cosine": 0.9999,
        "sqnr_db": "inf",
        "worst": [{"row": 51, "max_abs": 3.25, "expected": 6, "got": 8, "label": 6}, {"row": 7, "max_abs": "inf"}],
        "histogram": {
            "first_exponent": -20,
            "counts": [1, 4, 90, 300, 200, 4, 1],
            "zeros": 40,
            "not_finite": 0,
            "sampled": False,
        },
        **more,
    }


def stored_report(*gates: Json, verdict: str = "pass", engine: int = 3, precision: str = "int8", **more: Any) -> Json:
    """Return a report as it is stored with a verdict."""
    runs = {"runs": 10, "mean_ms": 2.0, "min_ms": 1.0, "p50_ms": 1.5, "p90_ms": 2.5, "p99_ms": 4.0, "max_ms": 4.5}
    body: Json = {
        "schema": 1,
        "started_at": TIME,
        "seconds": 1.25,
        "engine": {
            "id": engine,
            "model": "lenet",
            "version": 2,
            "target": "cpu",
            "gpu": "",
            "precision": precision,
            "backend": "onnxruntime",
            "backend_version": "1.23.2",
            "plan": DIGEST,
            "recipe": DIGEST,
            "realised": {"stayed": []},
        },
        "golden": {"digest": DIGEST, "samples": 64, "runs": 10, "batch": 64, "labelled_output": "logits"},
        "policy": {
            "schema": 1,
            "precision": precision,
            "digest": DIGEST,
            "origins": [f"{precision}.toml"],
            "rules": [{"metric": "cosine", "applies_to": "floating", "comparison": ">=", "limit": 0.99}],
        },
        "host": {"name": "lab", "targets": ["cpu"], "gpus": []},
        "passes": [
            {
                "name": "plan",
                "seconds": 1.0,
                "error": "",
                "overflows": None,
                "runs": runs,
                "outputs": {"logits": measured_output()},
                "task": None,
            }
        ],
        "gates": [*gates],
        "verdict": verdict,
    }
    return {**body, **more}


def layers(*rows: tuple[str, float | str, str], limit: float = 15.0) -> Json:
    """Return a comparison by layer: name, decibels and state of each."""
    return {
        "limit_db": limit,
        "rows": [
            {"name": name, "op": "Conv", "cosine": 0.99, "sqnr_db": sqnr, "max_abs": 0.1, "state": state}
            for name, sqnr, state in rows
        ],
    }


def paired(ratio: float, low: float, high: float, *, standing: str = "better") -> Json:
    """Return two engines timed in turns."""
    times = {"first_ms": 2.0 * ratio, "second_ms": 2.0, "rounds": 24, "samples": 64, "confidence": 0.95}
    return {"ratio": ratio, "low": low, "high": high, **times, "standing": standing}


def past(version: int, measured: float, *, outcome: GateOutcome = GateOutcome.PASS, precision: str = "int8") -> Json:
    """Return an earlier verdict with one gate."""
    kept = {k: v for k, v in gate(measured=measured, outcome=outcome).items() if k not in ("reason", "worst_samples")}
    return {
        "version": version,
        "engine": version,
        "target": "cpu",
        "precision": precision,
        "backend": "onnxruntime",
        "verdict": "pass" if outcome is GateOutcome.PASS else "fail",
        "at": TIME,
        "gates": [kept],
    }


def document(*reports: Json, verdict: str | None = None, objection: str = "", **more: Any) -> Json:
    """Return a whole document around stored reports."""
    verdicts = {report["verdict"] for report in reports}
    found = verdict or next((bad for bad in ("fail", "error") if bad in verdicts), "pass" if verdicts else "incomplete")
    body: Json = {
        "schema": 1,
        "kind": "modelreg-report",
        "tool": {"name": "modelreg", "version": "1.0"},
        "created_at": TIME,
        "model": "lenet",
        "version": 2,
        "source": {"sha256": DIGEST, "path": "model.onnx"},
        "golden_set": DIGEST,
        "channel": None,
        "verdict": found,
        "validations": [
            {
                "id": number,
                "created_at": TIME,
                "created_by": "ada@lab",
                "report_digest": DIGEST,
                "objection": objection,
                "report": copy.deepcopy(report),
            }
            for number, report in enumerate(reports, start=1)
        ],
        "skipped": [],
        "history": [],
    }
    return {**body, **more}


def not_validated(reason: str = "this host has no sm_90") -> Json:
    """Return an engine that got no verdict."""
    engine = {"id": 9, "target": "sm_90", "gpu": "NVIDIA H200", "precision": "fp8"}
    return {"engine": {**engine, "backend": "tensorrt", "backend_version": "10.16"}, "reason": reason}


def every_outcome() -> Json:
    """Return a document with everything in it that a report can have."""
    bad = stored_report(
        *(PASSED, FAILED, BROKEN, SKIPPED, UNSURE),
        verdict="fail",
        layers=layers(("conv1", 60.0, "ok"), ("pool1", "inf", "ok"), ("conv2", 9.0, "born"), ("fc", 12.0, "carried")),
    )
    bad["value"] = {"sibling": 2, "size_ratio": 0.55, "latency": paired(0.81, 0.78, 0.86), "not_timed": ""}
    bad["active"] = {"latency": paired(1.01, 0.97, 1.06, standing="inconclusive")}
    good = stored_report(PASSED, SKIPPED, engine=4, precision="fp32")
    history = [past(1, 0.9999), past(2, 0.98, outcome=GateOutcome.FAIL)]
    return document(bad, good, skipped=[not_validated()], history=history, objection="validated 3 days ago")


def hostile() -> Json:
    """Return a document in which every text that comes from elsewhere tries to break out of where it is put."""
    bad = gate(HOSTILE, GateOutcome.FAIL, subject=HOSTILE, measured=float("nan"), reason=HOSTILE)
    report = stored_report(bad, verdict="fail", layers=layers((HOSTILE, 1.0, "born")))
    for name in ("model", "target", "gpu", "precision", "backend", "backend_version"):
        report["engine"][name] = HOSTILE
    report["host"] = {"name": HOSTILE, "gpus": [{"name": HOSTILE, "driver": HOSTILE}]}
    report["policy"]["origins"] = [HOSTILE]
    report["passes"][0] |= {"name": HOSTILE, "outputs": {HOSTILE: measured_output()}}
    history = [past(1, 0.9), past(2, 0.8)]
    for each in history:
        each["gates"][0] |= {"gate": HOSTILE, "subject": HOSTILE}
        each["target"] = each["precision"] = HOSTILE
    left_out = not_validated(HOSTILE)
    left_out["engine"] |= {"target": HOSTILE, "precision": HOSTILE, "backend": HOSTILE}
    body = document(report, skipped=[left_out], history=history, objection=HOSTILE, channel=HOSTILE, model=HOSTILE)
    body["source"]["path"] = HOSTILE
    body["validations"][0]["created_by"] = HOSTILE
    return body
