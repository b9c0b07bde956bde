"""How an engine and its gates are written in tables and documents; `build`, `validate` and `show` share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelreg.cli.render import count, limit, number, size
from modelreg.cli.tables import Column, print_table
from modelreg.registry.clock import iso

if TYPE_CHECKING:
    from modelreg.registry.promotion import Candidate
    from modelreg.registry.records import EngineRecord, GateResult, ValidationRecord
    from modelreg.registry.words import Json

_SHOWN_SAMPLES = 5
_SHOWN_NODES = 5
_OUTCOMES = {
    "pass": "passed",
    "fail": "failed",
    "error": "could not run",
    "inconclusive": "inconclusive",
    "skipped": "skipped",
}
_NOT_RUN = ("inconclusive", "skipped")


def say_realised(engine: EngineRecord) -> str:
    """Return what the engine's arithmetic became, for example `FP16 storage, FP32 compute`."""
    if not engine.realised:
        return "-"
    if "unknown" in engine.realised:
        return f"unknown {engine.realised['unknown']}"
    storage = str(engine.realised.get("storage", engine.precision)).upper()
    compute = str(engine.realised.get("compute", storage)).upper()
    return storage if storage == compute else f"{storage} storage, {compute} compute"


def _shorten_realised(said: str) -> str:
    """Return `FP16 storage, FP32 compute` as `FP16/FP32`, for a narrow screen."""
    return said.replace(" storage, ", "/").removesuffix(" compute")


def explain_realised(engine: EngineRecord) -> str:
    """Return how many nodes became what was asked, which stayed, and whether the plan was run; or an empty string."""
    realised = engine.realised
    parts = []
    if realised.get("eligible"):
        parts.append(f"{realised['converted']} of {realised['eligible']} nodes are {engine.precision}")
    is_mixed = realised.get("compute") == "mixed"
    if is_mixed and not realised.get("kept"):
        parts.append("MIXED: some nodes compute in a higher precision")
    if realised.get("kept"):
        kept = realised["kept"]
        more = f" and {len(kept) - _SHOWN_NODES} more" if len(kept) > _SHOWN_NODES else ""
        mixed = "MIXED: " if is_mixed else ""
        parts.append(f"{mixed}kept in a higher precision: {', '.join(kept[:_SHOWN_NODES])}{more}")
    checked = realised.get("checked", {})
    if checked.get("runs") == 0:
        parts.append(f"not run: {checked.get('reason')}")
    return "; ".join(parts)


def explain_import(engine: EngineRecord) -> str:
    """Return where an imported engine comes from and who says so, or an empty string for one that was built here."""
    from modelreg.registry.imported_plans import read_import

    found = read_import(engine.recipe)
    if found is None:
        return ""
    origin = f": {found['origin']}" if found["origin"] else ""
    return f"imported from {found['file']} by {found['by']}{origin}"


def count_outcomes(gates: Sequence[GateResult]) -> str:
    """Return how many gates came to what, for example `5 pass, 2 skipped`."""
    counts = Counter(str(gate.outcome) for gate in gates)
    return ", ".join(f"{number_of} {outcome}" for outcome, number_of in counts.items()) or "-"


def say_outcomes(gates: Sequence[GateResult]) -> str:
    """Return the same as a sentence with the reasons of what did not run: a skipped gate is no failure."""
    parts: list[str] = []
    for outcome, word in _OUTCOMES.items():
        of_this = [gate for gate in gates if gate.outcome == outcome]
        if of_this:
            said = f"{len(of_this)} {word}" if parts else f"{count(len(of_this), 'gate')} {word}"
            reasons = "; ".join(dict.fromkeys(gate.reason for gate in of_this if gate.reason))
            parts.append(f"{said} ({reasons})" if reasons and outcome in _NOT_RUN else said)
    return ", ".join(parts) or "no gate ran"


def engine_document(engine: EngineRecord) -> Json:
    """Return an engine as JSON."""
    return {
        "id": engine.id,
        "target": engine.target.name,
        "gpu": engine.target.gpu,
        "precision": str(engine.precision),
        "realised": engine.realised,
        "backend": str(engine.toolchain.backend),
        "backend_version": engine.toolchain.version,
        "toolchain": engine.toolchain.name,
        "status": str(engine.status),
        "swept": engine.is_swept,
        "error": engine.error,
        "plan": engine.plan_digest,
        "size_bytes": engine.size_bytes,
        "files": [file.to_json() for file in engine.files],
        "recipe": engine.recipe,
        "recipe_digest": engine.recipe_digest,
        "variant": engine.variant_digest,
        "build_s": engine.build_s,
        "log": engine.log_digest,
        "created_at": iso(engine.created_at),
        "created_by": engine.created_by,
    }


def validation_document(validation: ValidationRecord) -> Json:
    """Return a validation as JSON."""
    return {
        "engine": validation.engine_id,
        "verdict": str(validation.verdict),
        "golden_set": validation.golden_digest,
        "policy": validation.policy_digest,
        "report": validation.report_digest,
        "host": validation.host,
        "created_at": iso(validation.created_at),
        "created_by": validation.created_by,
        "gates": [gate.to_json() for gate in validation.gates],
    }


def print_engines(candidates: Sequence[Candidate], validations: dict[int, ValidationRecord], *, no_color: bool) -> None:
    """Print one line for each engine, with its backend where there is TensorRT; `stale` verdicts do not count."""
    is_mixed = any(candidate.engine.toolchain.backend != "onnxruntime" for candidate in candidates)
    columns = [
        Column(header="ENGINE", right=True),
        Column(header="TARGET"),
        *([Column(header="BACKEND", folds=True, least=12)] if is_mixed else []),
        Column(header="PRECISION"),
        Column(header="REALISED", folds=True, least=26, short=_shorten_realised),
        Column(header="SIZE", right=True),
        Column(header="VERDICT"),
        Column(header="GATES", folds=True, least=10, leaves=1),
    ]
    rows = [
        _engine_row(candidate, validations.get(candidate.engine.id), with_backend=is_mixed) for candidate in candidates
    ]
    print_table(columns, rows, no_color=no_color)


def _engine_row(candidate: Candidate, validation: ValidationRecord | None, *, with_backend: bool) -> tuple[str, ...]:
    engine = candidate.engine
    backend = [f"{engine.toolchain.backend} {engine.toolchain.version}"] if with_backend else []
    cell = (str(engine.id), engine.target.name, *backend, str(engine.precision))
    if not engine.files:
        return (*cell, str(engine.status), "-", "-", "-")
    if engine.is_swept:
        return (*cell, say_realised(engine), "removed", "-", "-")
    judged = ("none", "-")
    if validation is not None:
        judged = ("stale" if candidate.is_stale else str(validation.verdict), count_outcomes(validation.gates))
    return (*cell, say_realised(engine), size(engine.size_bytes), *judged)


def print_gates(judged: Sequence[tuple[EngineRecord, Sequence[GateResult]]], *, no_color: bool) -> None:
    """Print one line for each gate of each engine: what was measured, the limit, and what came of it."""
    columns = (
        Column(header="ENGINE"),
        Column(header="GATE", folds=True),
        Column(header="OUTPUT", folds=True),
        Column(header="MEASURED", right=True),
        Column(header="LIMIT", right=True),
        Column(header="OUTCOME"),
    )
    rows = [
        (
            f"{engine.id} {engine.target.name} {engine.precision}",
            gate.gate,
            gate.subject,
            number(gate.measured),
            "-" if gate.limit is None else f"{gate.comparison} {limit(gate.limit)}",
            str(gate.outcome),
        )
        for engine, gates in judged
        for gate in gates
    ]
    print_table(columns, rows, no_color=no_color)


def explain_gate(gate: GateResult) -> str:
    """Return one sentence on a gate that did not pass: the output, the reason, and the worst samples."""
    name, reason = f"{gate.gate} of {gate.subject}", gate.reason or _say_limit(gate)
    text = reason if reason.startswith(name) else f"{name}: {reason}"
    if not gate.worst_samples or "worst samples" in reason:
        return text
    return f"{text}; worst samples {', '.join(str(index) for index in gate.worst_samples[:_SHOWN_SAMPLES])}"


def _say_limit(gate: GateResult) -> str:
    if gate.measured is None or gate.limit is None:
        return str(gate.outcome)
    return f"{number(gate.measured)}, limit {gate.comparison} {limit(gate.limit)}"
