"""What the database costs: the two transactions of a promotion, and listing, from 10 to 100,000 versions.

    python benchmarks/database.py [--versions 10 100000] [--rounds 300] [--folder DIR]

The peer is what people use instead, MLflow's alias (measured elsewhere: 3.8 ms at 10 versions, 1,652 ms at 100,000);
the floor is raw sqlite3 doing two durable transactions of the same rows. Both are measured in one run, interleaved.
Nothing is asserted: read the ratios.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from modelreg.migrations.runner import create_database
from modelreg.registry import engines, operations, releases, versions
from modelreg.registry.clock import utc_now
from modelreg.registry.contents import Signature, StoredFile, TensorSpec
from modelreg.registry.database import Database, insert_row, sqlite_url
from modelreg.registry.pointers import Pointer, next_pointer
from modelreg.registry.records import SourceInfo, VersionRecord
from modelreg.registry.references import ModelReference
from modelreg.registry.schema import engine, version, version_file
from modelreg.registry.words import ActivationKind, Backend

PEER_MS = {10: 3.8, 100_000: 1652.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, nargs="+", default=[10, 1000, 100_000])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=None, help="where to work; a disk, not tmpfs")
    options = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}, SQLAlchemy {sa.__version__}")
    print(f"{'what':<34}{'versions':>9}{'peer ms':>10}{'floor ms':>10}{'ours ms':>9}{'p99 ms':>9}{'ours/floor':>12}")
    for count in options.versions:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            measure(Path(folder), count=count, rounds=options.rounds)


def measure(folder: Path, *, count: int, rounds: int) -> None:
    url = sqlite_url(folder / "registry.db")
    create_database(url)
    with Database.open(url) as database:
        fill(database, count)
        floor = sqlite3.connect(folder / "floor.db", isolation_level=None)
        prepare_floor(floor)
        promote = make_promote(database)
        ours, raw = interleave(promote, lambda: promote_floor(floor), rounds=rounds)
        report("promote: both transactions", count, ours, raw, peer=PEER_MS.get(count))
        source = f"file:{folder / 'registry.db'}?mode=ro"
        reader = sqlite3.connect(source, uri=True)
        ours, raw = interleave(lambda: list_newest(database), lambda: list_floor(reader), rounds=rounds // 3)
        report("list the newest 100 versions", count, ours, raw, peer=80.0 if count == 100_000 else None)
        ours, raw = interleave(lambda: list_models(database), lambda: list_models_floor(reader), rounds=rounds // 3)
        report("list models", count, ours, raw)
        ours, raw = interleave(lambda: resolve(database), lambda: resolve_floor(reader), rounds=rounds // 3)
        report("resolve NAME@CHANNEL", count, ours, raw)
        number = iter(range(10**9))
        ours, raw = interleave(
            lambda: register(database, next(number)), lambda: promote_floor(floor), rounds=rounds // 3
        )
        report("register a version", count, ours, raw)
        ours, _ = interleave(lambda: list_all(database), lambda: None, rounds=2)
        report("list all versions", count, ours, None)
        reader.close()
        floor.close()


def interleave(
    ours: Callable[[], object], floor: Callable[[], object], *, rounds: int
) -> tuple[list[float], list[float]]:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for action, kept in ((ours, times[0]), (floor, times[1])):
            started = time.perf_counter()
            action()
            kept.append((time.perf_counter() - started) * 1000)
    return times


def report(what: str, count: int, ours: list[float], floor: list[float] | None, *, peer: float | None = None) -> None:
    median = statistics.median(ours)
    p99 = sorted(ours)[int(len(ours) * 0.99)]
    base = statistics.median(floor) if floor else None
    columns = [f"{peer:.1f}" if peer else "", f"{base:.3f}" if base else "", f"{median:.3f}", f"{p99:.2f}"]
    widths = (10, 10, 9, 9)
    line = "".join(column.rjust(width) for column, width in zip(columns, widths, strict=True))
    print(f"{what:<34}{count:>9}{line}{f'{median / base:.1f} x' if base else '':>12}", flush=True)


def make_source(digest: str) -> SourceInfo:
    spec = TensorSpec(name="x", dtype="float32", shape=("N", 3, 224, 224))
    return SourceInfo(
        digest=digest,
        files=(StoredFile(path="model.onnx", digest=digest, size_bytes=4096),),
        signature=Signature(inputs=(spec,), outputs=(spec,)),
        opsets={"": 18},
        ir_version=9,
        producer="pytorch",
        node_counts={"Conv": 53, "Relu": 49, "Add": 16},
        parameter_bytes=102_228_128,
    )


def fill(database: Database, count: int) -> None:
    """Register one version for real, then copy its rows."""
    with database.write() as connection:
        first = register_in(connection, "0" * 64)
        row = dict(connection.execute(sa.select(version)).mappings().one())
        del row["id"]
        rows = [{**row, "number": number, "source_digest": f"{number:064x}"} for number in range(2, count + 1)]
        if rows:
            connection.execute(sa.insert(version), rows)
        numbers = connection.execute(sa.select(version.c.id).where(version.c.id != first.id)).scalars()
        files = [{"version_id": key, "position": 0, "path": "model.onnx", "blob_digest": "0" * 64} for key in numbers]
        if files:
            connection.execute(sa.insert(version_file), files)
        connection.exec_driver_sql(f"UPDATE model SET next_version = {count + 1}")


def register_in(connection: sa.Connection, digest: str) -> VersionRecord:
    record, _ = versions.register_version(
        connection, model="resnet50", source=make_source(digest), message="", tags={"run": "1"}, actor="bench"
    )
    return record


def register(database: Database, number: int) -> None:
    with database.write() as connection:
        register_in(connection, f"f{number:063x}")


def make_promote(database: Database) -> Callable[[], None]:
    with database.write() as connection:
        newest = versions.get_version(connection, ModelReference(model="resnet50"))
        built = add_engine(connection, newest)
        channel_id = releases.ensure_channel(connection, model="resnet50", name="production", actor="bench")
        release_id = releases.ensure_release(
            connection, version=newest, manifest_digest="a" * 64, engines={"cpu": built}, actor="bench"
        )
    current: Pointer | None = None

    def promote() -> None:
        nonlocal current
        pointer = next_pointer(
            current,
            model="resnet50",
            channel="production",
            release="a" * 64,
            version=newest.number,
            kind=ActivationKind.PROMOTE,
            rolls_back_to=current.generation if current else None,
            txn=str(uuid.uuid4()),
            actor="bench",
            message="",
            at=utc_now(),
        )
        with database.write() as connection:
            operation = operations.begin_operation(
                connection,
                channel_id=channel_id,
                release_id=release_id,
                pointer=pointer,
                owner={"host": "bench", "pid": 1},
                actor="bench",
            )
        with database.write() as connection:
            operations.commit_operation(connection, operation=operation, pointer=pointer, actor="bench")
        current = pointer

    return promote


def add_engine(connection: sa.Connection, newest: VersionRecord) -> int:
    target = engines.ensure_target(connection, name="cpu")
    toolchain = engines.ensure_toolchain(
        connection,
        name="default",
        backend=Backend.ONNXRUNTIME,
        version="1",
        python="python",
        details={},
        actor="bench",
    )
    row = {
        "version_id": newest.id,
        "target_id": target.id,
        "toolchain_id": toolchain.id,
        "precision": "fp32",
        "recipe": {},
        "recipe_digest": "b" * 64,
        "variant_digest": "",
        "status": "built",
        "files": [],
        "plan_digest": "c" * 64,
        "realised": {},
        "build_s": 1.0,
        "log_digest": "",
        "error": "",
        "created_at": utc_now(),
        "created_by": "bench",
    }
    return insert_row(connection, sa.insert(engine), row)


def list_newest(database: Database) -> None:
    with database.read() as connection:
        versions.list_versions(connection, model="resnet50", limit=100)


def list_models(database: Database) -> None:
    with database.read() as connection:
        versions.list_models(connection)


def resolve(database: Database) -> None:
    with database.read() as connection:
        versions.get_version(connection, ModelReference(model="resnet50", channel="production"))


def list_all(database: Database) -> None:
    with database.read() as connection:
        before: int | None = None
        while page := versions.list_versions(connection, model="resnet50", limit=1000, before=before):
            before = page[-1].number


def prepare_floor(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE operation (id INTEGER PRIMARY KEY, txn TEXT UNIQUE, pointer TEXT, state TEXT)")
    connection.execute("CREATE TABLE activation (generation INTEGER PRIMARY KEY, txn TEXT UNIQUE, release TEXT)")
    connection.execute("CREATE TABLE event (sequence INTEGER PRIMARY KEY, details TEXT, hash TEXT)")


def promote_floor(connection: sqlite3.Connection) -> None:
    txn = str(uuid.uuid4())
    connection.execute("BEGIN IMMEDIATE")
    cursor = connection.execute(
        "INSERT INTO operation (txn, pointer, state) VALUES (?, ?, 'prepared')", (txn, "x" * 400)
    )
    connection.execute("COMMIT")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE operation SET state = 'committed' WHERE id = ?", (cursor.lastrowid,))
    connection.execute("INSERT INTO activation (txn, release) VALUES (?, ?)", (txn, "a" * 64))
    connection.execute("SELECT hash FROM event ORDER BY sequence DESC LIMIT 1").fetchone()
    connection.execute("INSERT INTO event (details, hash) VALUES (?, ?)", ("x" * 300, "h" * 64))
    connection.execute("COMMIT")


def list_floor(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT * FROM version WHERE model_id = 1 ORDER BY number DESC LIMIT 100").fetchall()


def list_models_floor(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT name, next_version FROM model").fetchall()


def resolve_floor(connection: sqlite3.Connection) -> None:
    connection.execute(
        "SELECT v.* FROM activation a JOIN release r ON r.id = a.release_id JOIN version v ON v.id = r.version_id"
        " WHERE a.channel_id = 1 ORDER BY a.generation DESC LIMIT 1"
    ).fetchall()


if __name__ == "__main__":
    main()
