"""Records out of nothing, for tests of pure decisions (no database, no files)."""

from __future__ import annotations

from datetime import datetime, timezone

from modelreg.registry.contents import Signature, StoredFile, TensorSpec
from modelreg.registry.records import (
    EngineRecord,
    GateResult,
    SourceInfo,
    TargetRecord,
    ToolchainRecord,
    ValidationRecord,
    VersionRecord,
)
from modelreg.registry.words import Backend, EngineStatus, GateOutcome, Precision, Verdict

AT = datetime(2026, 11, 30, 12, 0, tzinfo=timezone.utc)
GOLDEN = "9" * 64
ORT = ToolchainRecord(
    id=1, name="onnxruntime", backend=Backend.ONNXRUNTIME, version="1.20.0", python="/usr/bin/python3", details={}
)
TRT = ToolchainRecord(id=2, name="trt", backend=Backend.TENSORRT, version="8.6.0.12", python="/opt/py", details={})


def digest_of(number: int) -> str:
    """Return a digest that is easy to recognise."""
    return f"{number:064x}"


def make_source(**changes: object) -> SourceInfo:
    """Return a LeNet-like source."""
    fields: dict[str, object] = {
        "digest": digest_of(1),
        "files": (StoredFile(path="model.onnx", digest=digest_of(1), size_bytes=1000),),
        "signature": Signature(
            inputs=(TensorSpec(name="image", dtype="float32", shape=("N", 1, 28, 28)),),
            outputs=(TensorSpec(name="logits", dtype="float32", shape=("N", 10)),),
        ),
        "opsets": {"": 17},
        "ir_version": 8,
        "producer": "pytorch 2.13",
        "node_counts": {"Conv": 3, "Gemm": 2},
        "parameter_bytes": 800,
    }
    return SourceInfo(**(fields | changes))  # type: ignore[arg-type]


def make_version(number: int = 1, *, model: str = "lenet", source: SourceInfo | None = None) -> VersionRecord:
    """Return a version."""
    return VersionRecord(
        id=number,
        model=model,
        number=number,
        source=source or make_source(),
        message="",
        created_at=AT,
        created_by="ada@host",
        tags={},
    )


def make_engine(
    engine_id: int,
    precision: Precision = Precision.FP32,
    *,
    target: str = "cpu",
    toolchain: ToolchainRecord = ORT,
    status: EngineStatus = EngineStatus.BUILT,
    error: str = "",
) -> EngineRecord:
    """Return an engine whose plan's digest is its id."""
    plan = StoredFile(path="model.onnx", digest=digest_of(engine_id), size_bytes=100 * engine_id)
    return EngineRecord(
        id=engine_id,
        version_id=1,
        model="lenet",
        version=1,
        target=TargetRecord(id=1, name=target),
        precision=precision,
        toolchain=toolchain,
        recipe={"precision": str(precision)},
        recipe_digest=digest_of(1000 + engine_id),
        variant_digest=digest_of(2000 + engine_id),
        status=status,
        files=(plan,) if status is EngineStatus.BUILT else (),
        realised={},
        build_s=0.1,
        log_digest=digest_of(3000 + engine_id),
        error=error,
        created_at=AT,
        created_by="ada@host",
    )


def make_gate(outcome: GateOutcome = GateOutcome.PASS, *, gate: str = "cosine", subject: str = "logits") -> GateResult:
    """Return one gate's result."""
    return GateResult(gate=gate, subject=subject, outcome=outcome, measured=0.9, comparison=">=", limit=0.99)


def make_validation(
    engine: EngineRecord,
    verdict: Verdict = Verdict.PASS,
    *,
    golden: str = GOLDEN,
    gates: tuple[GateResult, ...] | None = None,
) -> ValidationRecord:
    """Return a validation of `engine`."""
    outcome = GateOutcome.PASS if verdict is Verdict.PASS else GateOutcome.FAIL
    return ValidationRecord(
        id=engine.id,
        engine_id=engine.id,
        golden_digest=golden,
        policy_digest=digest_of(7),
        policy={},
        verdict=verdict,
        gates=(make_gate(outcome),) if gates is None else gates,
        report_digest=digest_of(8),
        host={},
        created_at=AT,
        created_by="ada@host",
    )
