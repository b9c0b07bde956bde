"""What a whole promotion costs in process: gates, intent, re-hash, history, pointer, outcome; 10 to 100,000 versions.

    python benchmarks/promote.py [--versions 10 100000] [--rounds 200] [--folder DIR]

The peer is an alias in MLflow's registry on SQLite (measured elsewhere: 3.8 ms at 10 versions, 1,652 ms at 100,000;
it keeps no history and has no compare-and-swap). The floor does the same durable writes with bare sqlite3 and os calls:
two committed transactions, one history file, one replaced pointer. Floor and ours take turns. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from modelreg.migrations.runner import create_database
from modelreg.registry import engines, golden_sets, validations, versions
from modelreg.registry.clock import utc_now
from modelreg.registry.contents import Signature, StoredFile, TensorSpec
from modelreg.registry.database import Database, sqlite_url
from modelreg.registry.promotion import PromotionRequest
from modelreg.registry.records import GateResult, SourceInfo
from modelreg.registry.references import ModelReference
from modelreg.registry.releasing import Releases
from modelreg.registry.schema import model, version
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.words import Backend, EngineStatus, GateOutcome, Precision, Verdict

PEER_MS = {10: 3.8, 100_000: 1652.0}
TENSOR = TensorSpec(name="x", dtype="float32", shape=("N", 3, 224, 224))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, nargs="+", default=[10, 1000, 100_000])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="where to work; a disk, not tmpfs")
    options = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}, SQLAlchemy {sa.__version__}")
    print(f"{'versions':>9}{'peer ms':>10}{'floor ms':>10}{'ours ms':>9}{'p99 ms':>9}{'ours/floor':>12}")
    for count in options.versions:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix=".bench-") as folder:
            measure(Path(folder), count=count, rounds=options.rounds)


def measure(folder: Path, *, count: int, rounds: int) -> None:
    create_database(sqlite_url(folder / "registry.db"))
    storage = LocalStorage.create(folder / "store")
    with Database.open(sqlite_url(folder / "registry.db")) as database:
        populate(database, storage, count=count)
        releases = Releases(database=database, storage=storage, actor="bench")
        floor = Floor(folder / "floor")
        ours: list[float] = []
        bare: list[float] = []
        request = PromotionRequest(preference=lambda _target: (Precision.FP32,))
        for turn in range(rounds):
            reference = ModelReference(model="resnet50", version=count + 1 + turn % 2)
            ours.append(timed(lambda reference=reference: releases.promote(reference, channel="p", request=request)))
            bare.append(timed(lambda turn=turn: floor.promote(turn)))
    middle, least = statistics.median(ours), statistics.median(bare)
    peer = PEER_MS.get(count)
    tail = sorted(ours)[int(len(ours) * 0.99)]
    print(f"{count:>9}{peer or '':>10}{least:>10.2f}{middle:>9.2f}{tail:>9.2f}{middle / least:>12.2f}")


def timed(work: object) -> float:
    started = time.perf_counter()
    work()  # type: ignore[operator]
    return (time.perf_counter() - started) * 1e3


def populate(database: Database, storage: LocalStorage, *, count: int) -> None:
    """Fill the model with `count` versions, and add two that can be promoted in turn."""
    make_version(database, storage, word="first")
    with database.write() as connection:
        model_id = connection.execute(sa.select(model.c.id)).scalar_one()
        row = connection.execute(sa.select(version)).mappings().one()
        rows = [
            {**row, "id": None, "number": number, "source_digest": f"{number:064x}", "model_id": model_id}
            for number in range(2, count + 1)
        ]
        for entry in rows:
            del entry["id"]
        connection.execute(sa.insert(version), rows)
        connection.execute(sa.update(model).values(next_version=count + 1))
    for word in ("left", "right"):
        make_version(database, storage, word=word)


def make_version(database: Database, storage: LocalStorage, *, word: str) -> None:
    source, plan = storage.put_bytes(f"source {word}".encode()), storage.put_bytes(f"plan {word}".encode() * 1000)
    file = StoredFile(path="model.onnx", digest=source.digest, size_bytes=source.size_bytes)
    info = SourceInfo(
        digest=source.digest,
        files=(file,),
        signature=Signature(inputs=(TENSOR,), outputs=(TENSOR,)),
        opsets={"": 17},
        ir_version=8,
        producer="bench",
        node_counts={"Conv": 53},
        parameter_bytes=1,
    )
    with database.write() as connection:
        made, _ = versions.register_version(
            connection, model="resnet50", source=info, message="", tags={}, actor="bench"
        )
        golden = golden_sets.add_golden_set(
            connection, version=made, digest=source.digest, size_bytes=file.size_bytes, samples=1, origin={}, actor="b"
        )
        toolchain = engines.ensure_toolchain(
            connection, name="t", backend=Backend.ONNXRUNTIME, version="1", python="p", details={}, actor="b"
        )
        built = engines.record_engine(
            connection,
            version=made,
            target=engines.ensure_target(connection, name="cpu"),
            toolchain=toolchain,
            precision=Precision.FP32,
            recipe={},
            recipe_digest=source.digest,
            variant_digest=source.digest,
            status=EngineStatus.BUILT,
            files=[StoredFile(path="model.onnx", digest=plan.digest, size_bytes=plan.size_bytes)],
            realised={},
            build_s=1.0,
            log_digest="",
            error="",
            actor="b",
        )
        validations.record_validation(
            connection,
            engine=built,
            golden_digest=golden.digest,
            policy_digest=source.digest,
            policy={},
            verdict=Verdict.PASS,
            gates=[GateResult(gate="cosine", subject="y", outcome=GateOutcome.PASS, measured=1.0, limit=0.9)],
            report_digest=source.digest,
            host={},
            actor="b",
        )


class Floor:
    """The same durable writes with nothing around them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.fd = os.open(folder, os.O_RDONLY)
        self.raw = sqlite3.connect(folder / "floor.db", isolation_level=None)
        self.raw.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t (a, b, c)")

    def promote(self, turn: int) -> None:
        self.transaction(turn)
        body = (f'{{"generation": {turn}, "at": "{utc_now()}"}}' * 8).encode()
        self.write(self.folder / f"{turn:012d}.json", body)
        os.fsync(self.fd)
        self.write(self.folder / "pointer.new", body)
        os.replace(self.folder / "pointer.new", self.folder / "pointer.json")  # noqa: PTH105 - the bare call
        os.fsync(self.fd)
        self.transaction(turn)

    def transaction(self, turn: int) -> None:
        self.raw.execute("BEGIN IMMEDIATE")
        self.raw.executemany("INSERT INTO t VALUES (?, ?, ?)", [(turn, "x" * 300, "y")] * 2)
        self.raw.execute("COMMIT")

    @staticmethod
    def write(path: Path, body: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(fd, body)
        os.fsync(fd)
        os.close(fd)


if __name__ == "__main__":
    main()
