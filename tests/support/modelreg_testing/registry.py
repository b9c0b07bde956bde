"""Databases and records for tests: real rows through the real functions, with small defaults."""

from __future__ import annotations

import functools
import hashlib
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from modelreg.config.policy import Policy, load_policy
from modelreg.registry import (
    benchmarks,
    blobs,
    engines,
    golden_sets,
    operations,
    releases,
    schema,
    validations,
    versions,
)
from modelreg.registry.clock import utc_now
from modelreg.registry.contents import Signature, StoredFile, TensorSpec
from modelreg.registry.database import Database, sqlite_url
from modelreg.registry.pointers import Pointer, next_pointer
from modelreg.registry.records import (
    ActivationRecord,
    BenchmarkRecord,
    EngineRecord,
    GateResult,
    SourceInfo,
    TargetRecord,
    ToolchainRecord,
    ValidationRecord,
    VersionRecord,
)
from modelreg.registry.toolchains import catalogue
from modelreg.registry.toolchains.probing import Probe
from modelreg.registry.words import (
    ActivationKind,
    Backend,
    BlobKind,
    EngineStatus,
    GateOutcome,
    Json,
    Precision,
    Verdict,
)

ACTOR = "tester"
MODEL = "resnet50"


def digest_of(word: object) -> str:
    """Return a stable SHA-256 for any word."""
    return hashlib.sha256(str(word).encode()).hexdigest()


def make_database(folder: Path, *, name: str = "registry.db") -> Database:
    """Return an open, empty database of the newest schema; migrated once a process, then copied."""
    path = folder / name
    path.write_bytes(_template())
    return Database.open(sqlite_url(path))


def url_of(database: Database) -> str:
    """Return the URL of a database, with its password."""
    return (
        database._engine.url.render_as_string(hide_password=False)
        if database.path is None
        else str(sqlite_url(database.path))
    )


def make_source(word: object = 0, *, files: Sequence[StoredFile] | None = None) -> SourceInfo:
    """Return a source whose digest depends on `word` alone: one float32 input and output with a free batch."""
    digest = digest_of(f"source {word}")
    return SourceInfo(
        digest=digest,
        files=tuple(files or [StoredFile(path="model.onnx", digest=digest, size_bytes=4096)]),
        signature=Signature(
            inputs=(TensorSpec(name="x", dtype="float32", shape=("N", 3, 224, 224)),),
            outputs=(TensorSpec(name="y", dtype="float32", shape=("N", None)),),
        ),
        opsets={"": 18, "com.microsoft": 1},
        ir_version=9,
        producer="pytorch 2.13",
        node_counts={"Conv": 53, "Relu": 49},
        parameter_bytes=102_228_128,
        warnings=("node names are not unique",),
    )


def add_version(
    connection: sa.Connection, *, model: str = MODEL, word: object = 0, source: SourceInfo | None = None
) -> VersionRecord:
    """Register a source and return its version."""
    record, _ = versions.register_version(
        connection,
        model=model,
        source=source or make_source(word),
        message=f"source {word}",
        tags={"run": str(word)},
        actor=ACTOR,
    )
    return record


def add_golden_set(connection: sa.Connection, version: VersionRecord, *, word: object = 0, message: str = "") -> str:
    """Add a golden set of 64 samples and return its digest."""
    digest = digest_of(f"golden {word}")
    golden_sets.add_golden_set(
        connection,
        version=version,
        digest=digest,
        size_bytes=2048,
        samples=64,
        origin={"torch": "2.13", "seed": 0},
        actor=ACTOR,
        message=message,
    )
    return digest


def add_toolchain(
    connection: sa.Connection, *, name: str = "default", backend: Backend = Backend.ONNXRUNTIME, version: str = "1.23.2"
) -> ToolchainRecord:
    """Add a toolchain."""
    return engines.ensure_toolchain(
        connection, name=name, backend=backend, version=version, python="/usr/bin/python3", details={}, actor=ACTOR
    )


def add_engine(
    connection: sa.Connection,
    version: VersionRecord,
    *,
    precision: Precision = Precision.FP32,
    target: str = "cpu",
    status: EngineStatus = EngineStatus.BUILT,
    toolchain: ToolchainRecord | None = None,
    files: Sequence[StoredFile] | None = None,
    says: Json | None = None,
    runs: int | None = None,
) -> EngineRecord:
    """Add an engine, built unless told otherwise; its files depend on version, target and precision.

    Args:
        connection: A writing transaction.
        version: Whose engine it is.
        precision: Asked for.
        target: What it is for.
        status: Whether it was built.
        toolchain: What built it.
        files: Its plan and what lies beside it.
        says: What its recipe says beside the usual.
        runs: How often the build tried it out; 0 where its GPU was not there.
    """
    recipe: Json = {"precision": str(precision), "flags": [], **(says or {})}
    plan = StoredFile(
        path="model.onnx", digest=digest_of(f"plan {version.reference} {target} {precision}"), size_bytes=8192
    )
    words = f"log {version.reference} {target} {precision}"
    log = digest_of(words)
    blobs.record_blob(connection, digest=log, size_bytes=len(words), kind=BlobKind.LOG)
    is_built = status is EngineStatus.BUILT
    return engines.record_engine(
        connection,
        version=version,
        target=add_target(connection, name=target),
        toolchain=toolchain or add_toolchain(connection),
        precision=precision,
        recipe=recipe,
        recipe_digest=digest_of(recipe),
        variant_digest=version.source.digest,
        status=status,
        files=(files or [plan]) if is_built else [],
        realised={
            "precision": str(precision),
            "layers": {"float32": 3},
            **({} if runs is None else {"checked": {"runs": runs}}),
        }
        if is_built
        else {},
        build_s=1.5,
        log_digest=log,
        error="" if is_built else "the worker crashed",
        actor=ACTOR,
    )


def add_target(connection: sa.Connection, *, name: str = "cpu") -> TargetRecord:
    """Add a target; a GPU has particulars, a CPU has none."""
    if name == "cpu":
        return engines.ensure_target(connection, name=name)
    return engines.ensure_target(connection, name=name, gpu="NVIDIA H200", sm_count=132, driver="570.86", cuda="12.8")


def make_gate(outcome: GateOutcome = GateOutcome.PASS) -> GateResult:
    """Return a gate on the output `y` with a limit of 0.001."""
    measured = 0.0002 if outcome is GateOutcome.PASS else 0.2
    return GateResult(gate="max_relative_error", subject="y", outcome=outcome, measured=measured, limit=0.001)


def add_validation(
    connection: sa.Connection,
    engine: EngineRecord,
    *,
    verdict: Verdict = Verdict.PASS,
    golden: str | None = None,
    policy: Policy | None = None,
) -> ValidationRecord:
    """Add a validation, passing and by the shipped policy unless told otherwise."""
    judged_by = policy or load_policy(engine.precision)
    return validations.record_validation(
        connection,
        engine=engine,
        golden_digest=golden or digest_of("golden 0"),
        policy_digest=judged_by.digest,
        policy=judged_by.to_json(),
        verdict=verdict,
        gates=[make_gate(GateOutcome.PASS if verdict is Verdict.PASS else GateOutcome.FAIL)],
        report_digest=digest_of(f"report {engine.id} {verdict}"),
        host={"cpu": "x86_64"},
        actor=ACTOR,
    )


def add_benchmark(
    connection: sa.Connection,
    engine: EngineRecord,
    *,
    batch: int = 1,
    median_ms: float = 0.5,
    word: object = 0,
    host: str = "worker",
) -> BenchmarkRecord:
    """Add a benchmark of one batch size, by the host's clock."""
    names = ("min_ms", "median_ms", "mean_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")
    figures: Json = {"boundaries": {"host": dict.fromkeys(names, median_ms)}, "queries": 10, "wall_s": 0.01}
    figures |= {"queries_per_s": 1000.0, "throughput": 1000.0 * batch}
    measured = benchmarks.Measured(
        batch=batch,
        boundary="host",
        figures=figures,
        samples_digest=digest_of(f"samples {engine.id} {batch} {word}"),
        samples_bytes=80,
    )
    (made,) = benchmarks.record_benchmarks(
        connection,
        engine=engine,
        measured=[measured],
        settings={"warmup_ms": 200.0, "streams": 1},
        clocks={"before": {"gpus": []}, "after": {"gpus": []}},
        host={"name": host, "gpus": []},
        actor=ACTOR,
    )
    return made


def add_release(
    connection: sa.Connection, version: VersionRecord, *, engines_by_target: Mapping[str, int]
) -> tuple[int, str]:
    """Add the release of some engines; return its id and manifest digest."""
    digest = digest_of(f"manifest {version.reference} {sorted(engines_by_target.items())}")
    release_id = releases.ensure_release(
        connection, version=version, manifest_digest=digest, engines=engines_by_target, actor=ACTOR
    )
    return release_id, digest


def make_pointer(
    version: VersionRecord,
    *,
    release: str,
    current: Pointer | None = None,
    channel: str = "production",
    kind: ActivationKind = ActivationKind.PROMOTE,
    rolls_back_to: int | None = None,
    message: str = "",
) -> Pointer:
    """Return the pointer after `current` that serves `release`."""
    return next_pointer(
        current,
        model=version.model,
        channel=channel,
        release=release,
        version=version.number,
        kind=kind,
        rolls_back_to=rolls_back_to,
        txn=str(uuid.uuid4()),
        actor=ACTOR,
        message=message,
        at=utc_now(),
    )


def activate(
    database: Database, version: VersionRecord, *, engine: EngineRecord, current: Pointer | None = None
) -> tuple[Pointer, ActivationRecord]:
    """Take `production` through both transactions of a promotion, without a store; return pointer and activation."""
    with database.write() as connection:
        release_id, digest = add_release(connection, version, engines_by_target={engine.target.name: engine.id})
        channel_id = releases.ensure_channel(connection, model=version.model, name="production", actor=ACTOR)
        rolls_back_to = None if current is None else current.generation
        pointer = make_pointer(version, release=digest, current=current, rolls_back_to=rolls_back_to)
        operation = operations.begin_operation(
            connection, channel_id=channel_id, release_id=release_id, pointer=pointer, owner={"pid": 1}, actor=ACTOR
        )
    with database.write() as connection:
        return pointer, operations.commit_operation(connection, operation=operation, pointer=pointer, actor=ACTOR)


def populate(database: Database) -> None:
    """Fill every table: two models, four versions, engines of three kinds, two activations, one open operation."""
    with database.write() as connection:
        made = [add_version(connection, word=word) for word in range(3)]
        add_version(connection, model="lenet", word="lenet")
        engines.record_variant(
            connection,
            source_digest=made[0].source.digest,
            recipe_digest=digest_of("fp16"),
            files=[StoredFile(path="model.onnx", digest=digest_of("variant"), size_bytes=512)],
            details={"casts": 12},
            actor=ACTOR,
        )
        probe = Probe(backend=Backend.TENSORRT_RTX, version="1.7.1.116", python="/opt/rtx/bin/python", details={})
        catalogue.register_toolchain(connection, name="rtx", probe=probe, actor=ACTOR)
        built = []
        for version in made[:2]:
            add_golden_set(connection, version)
            engine = add_engine(connection, version)
            built.append(engine)
            add_validation(connection, engine)
            add_benchmark(connection, engine)
            add_validation(connection, add_engine(connection, version, precision=Precision.FP16), verdict=Verdict.FAIL)
            add_engine(connection, version, precision=Precision.INT8, target="sm_90", status=EngineStatus.FAILED)
    first, _ = activate(database, made[0], engine=built[0])
    second, _ = activate(database, made[1], engine=built[1], current=first)
    with database.write() as connection:
        pointer = make_pointer(made[0], release=first.release, current=second, kind=ActivationKind.ROLLBACK)
        channel_id = releases.find_channel(connection, model=MODEL, name="production")
        release_id = releases.find_release(connection, manifest_digest=first.release)
        assert channel_id is not None
        assert release_id is not None
        operations.begin_operation(
            connection, channel_id=channel_id, release_id=release_id, pointer=pointer, owner={"pid": 1}, actor=ACTOR
        )


def row_counts(database: Database) -> dict[str, int]:
    """Return the number of rows of every table of the schema."""
    with database.read() as connection:
        return {
            table.name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in schema.metadata.sorted_tables
        }


def explain(connection: sa.Connection, statement: sa.Select[Any], parameters: Mapping[str, Any]) -> str:
    """Return how the database would find what a query wants, were its tables large; one step a line."""
    if connection.dialect.name == "sqlite":
        compiled = statement.compile(dialect=connection.dialect)
        values = tuple({**compiled.params, **parameters}[name] for name in compiled.positiontup or ())
        return "\n".join(row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", values))
    connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # small tables are read whole otherwise
    compiled = statement.compile(dialect=connection.dialect, compile_kwargs={"render_postcompile": True})
    rows = connection.exec_driver_sql(f"EXPLAIN {compiled}", {**compiled.params, **parameters})
    return "\n".join(row[0] for row in rows)


@functools.cache
def _template() -> bytes:
    from modelreg.migrations.runner import create_database  # Alembic takes long to import

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "registry.db"
        create_database(sqlite_url(path))
        return path.read_bytes()
