"""The real command line in this process, and registries with versions that can be promoted at once."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from modelreg.cli.context import locate_database
from modelreg.cli.main import run
from modelreg.config.settings import Home, create_home
from modelreg.registry import blobs, golden_sets, versions
from modelreg.registry.contents import Signature, StoredFile, TensorSpec
from modelreg.registry.database import Database
from modelreg.registry.records import EngineRecord, SourceInfo
from modelreg.registry.references import parse_reference
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.open import create_storage, open_storage
from modelreg.registry.words import BlobKind, EngineStatus, Precision, Verdict
from modelreg_testing.registry import ACTOR, add_engine, add_validation, add_version, make_database


@dataclass(frozen=True, slots=True, kw_only=True)
class CliResult:
    """What a command left behind: exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Return the one JSON document on stdout."""
        body = json.loads(self.out)
        assert isinstance(body, dict)
        return body


def run_cli(*arguments: object, home: Path | None = None) -> CliResult:
    """Run `modelreg` with these arguments, as a user would."""
    out, err = io.StringIO(), io.StringIO()
    words = [] if home is None else ["--home", str(home)]
    with redirect_stdout(out), redirect_stderr(err):
        code = run([*words, *(str(argument) for argument in arguments)])
    return CliResult(code=code, out=out.getvalue(), err=err.getvalue())


def save_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays by name; `numpy.savez` has no type for names of ours."""
    save: Any = np.savez
    save(path, **arrays)


class Shop:
    """A registry to try commands on; its database is a file, or the one of a server that is named."""

    def __init__(self, folder: Path, *, database_url: str | None = None) -> None:
        self.path = folder / "home"
        self.path.mkdir(parents=True)
        create_storage(str(self.path / "store"))
        if database_url is None:
            make_database(self.path).close()
        self.home: Home = create_home(self.path, database_url=database_url)

    @classmethod
    def at(cls, path: Path) -> Shop:
        """Return the registry that is in a folder already."""
        found = cls.__new__(cls)
        found.path, found.home = path, Home(path)
        return found

    @classmethod
    def copy_of(cls, original: Shop, folder: Path) -> Shop:
        """Return a copy of a registry that nobody has open."""
        made = cls.__new__(cls)
        made.path = folder / "home"
        shutil.copytree(original.path, made.path, symlinks=True)
        made.home = Home(made.path)
        return made

    @property
    def storage(self) -> Storage:
        """Return the store, opened anew."""
        return open_storage(self.home.store_url)

    @property
    def database_path(self) -> Path:
        """Return the database file."""
        return self.path / "registry.db"

    def database(self) -> Database:
        """Return the database, opened anew."""
        return Database.open(locate_database(self.home))

    def cli(self, *arguments: object) -> CliResult:
        """Run a command on this registry."""
        return run_cli(*arguments, home=self.path)

    def add_version(
        self,
        *,
        model: str = "lenet",
        word: object = 1,
        precisions: Sequence[Precision] = (Precision.FP32,),
        verdict: Verdict | None = Verdict.PASS,
    ) -> list[EngineRecord]:
        """Add a version whose bytes are in the store, with engines for the CPU, judged unless `verdict` is None."""
        with self.database() as database, database.write() as connection:
            version = add_version(connection, model=model, word=word, source=self._make_source(f"{model} {word}"))
            golden = self._add_golden(connection, version)
            built = []
            for precision in precisions:
                plan = self.storage.put_bytes(f"plan {model} {word} {precision}".encode())
                file = StoredFile(path="model.onnx", digest=plan.digest, size_bytes=plan.size_bytes)
                engine = add_engine(connection, version, precision=precision, files=[file])
                # `add_engine` and `add_validation` name blobs by the digest of these words.
                self.storage.put_bytes(f"log {version.reference} cpu {precision}".encode())
                if verdict is not None:
                    add_validation(connection, engine, verdict=verdict, golden=golden)
                    report = self.storage.put_bytes(f"report {engine.id} {verdict}".encode())
                    blobs.record_blob(
                        connection, digest=report.digest, size_bytes=report.size_bytes, kind=BlobKind.REPORT
                    )
                built.append(engine)
        return built

    def add_engine(
        self,
        reference: str = "lenet:1",
        *,
        precision: Precision = Precision.FP32,
        target: str = "cpu",
        verdict: Verdict | None = Verdict.PASS,
        status: EngineStatus = EngineStatus.BUILT,
        runs: int | None = None,
        **says: Any,
    ) -> EngineRecord:
        """Add one engine to a version; `says` is what its recipe says beside the usual, and makes it another one."""
        with self.database() as database, database.write() as connection:
            version = versions.get_version(connection, parse_reference(reference))
            golden = golden_sets.newest_golden_set(connection, version_id=version.id)
            plan = self.storage.put_bytes(f"plan {reference} {target} {precision} {says}".encode())
            file = StoredFile(path="model.onnx", digest=plan.digest, size_bytes=plan.size_bytes)
            engine = add_engine(
                connection,
                version,
                precision=precision,
                target=target,
                status=status,
                files=[file],
                says=says,
                runs=runs,
            )
            if verdict is not None and engine.files:
                assert golden is not None
                add_validation(connection, engine, verdict=verdict, golden=golden.digest)
        return engine

    def _make_source(self, word: str) -> SourceInfo:
        blob = self.storage.put_bytes(f"source {word}".encode())
        return SourceInfo(
            digest=blob.digest,
            files=(StoredFile(path="model.onnx", digest=blob.digest, size_bytes=blob.size_bytes),),
            signature=Signature(
                inputs=(TensorSpec(name="image", dtype="float32", shape=("N", 1, 28, 28)),),
                outputs=(TensorSpec(name="logits", dtype="float32", shape=("N", 10)),),
            ),
            opsets={"": 17},
            ir_version=8,
            producer="pytorch 2.13",
            node_counts={"Conv": 2, "Gemm": 3},
            parameter_bytes=246824,
        )

    def _add_golden(self, connection: sa.Connection, version: Any) -> str:
        blob = self.storage.put_bytes(f"golden set of {version.reference}".encode())
        golden_sets.add_golden_set(
            connection,
            version=version,
            digest=blob.digest,
            size_bytes=blob.size_bytes,
            samples=64,
            origin={"torch": "2.13"},
            actor=ACTOR,
        )
        return blob.digest
