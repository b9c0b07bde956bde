"""A registry on any store with versions, engines and releases to collect, and a look at what lies there."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from modelreg.registry import blobs, engines, golden_sets, versions
from modelreg.registry.contents import Signature, StoredFile, TensorSpec
from modelreg.registry.database import Database, sqlite_url
from modelreg.registry.garbage.collecting import Collector
from modelreg.registry.garbage.report import Collection, CollectionRequest
from modelreg.registry.pointers import Pointer
from modelreg.registry.promotion import PromotionRequest, RollbackRequest
from modelreg.registry.records import EngineRecord, SourceInfo, VersionRecord
from modelreg.registry.references import ModelReference
from modelreg.registry.releasing import Activation, Releases
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.storage.notes import Note
from modelreg.registry.storage.s3 import S3Storage
from modelreg.registry.words import BlobKind, Precision
from modelreg_testing.registry import ACTOR, add_engine, add_validation, make_database
from modelreg_testing.s3_server import LIMITS

CHANNEL = "production"
NO_GRACE = timedelta()
ORPHAN = b"what an interrupted command stored"


def plan_of(number: int, precision: Precision = Precision.FP32) -> bytes:
    """Return the bytes of a version's plan."""
    return f"plan {number} {precision} ".encode() * 9


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes, by nobody's code but Python's."""
    return hashlib.sha256(data).hexdigest()


class Stock:
    """A database, in a folder unless a server's is named, and a store: `make_storage` opens it as others would."""

    def __init__(self, folder: Path, make_storage: Callable[[], Storage], *, database_url: str | None = None) -> None:
        self.folder = folder
        self.make_storage = make_storage
        self.database_url = database_url

    @classmethod
    def create(cls, folder: Path, make_storage: Callable[[], Storage]) -> Stock:
        """Return a new registry; the store must be there."""
        folder.mkdir(parents=True, exist_ok=True)
        make_database(folder).close()
        return cls(folder, make_storage)

    @classmethod
    def local(cls, folder: Path, *, database_url: str | None = None) -> Stock:
        """Return a new registry with its store in a folder, and its database there or, empty, on a server."""
        LocalStorage.create(folder / "store")
        if database_url is not None:
            return cls(folder, lambda: LocalStorage(folder / "store"), database_url=database_url)
        return cls.create(folder, lambda: LocalStorage(folder / "store"))

    def copy_to(self, folder: Path) -> Stock:
        """Return a copy of a local one that nobody has open."""
        if folder.exists():
            shutil.rmtree(folder)
        shutil.copytree(self.folder, folder, symlinks=True)
        return Stock(folder, lambda: LocalStorage(folder / "store"))

    @property
    def storage(self) -> Storage:
        """Return the store, opened anew."""
        return self.make_storage()

    def database(self) -> Database:
        """Return the database, opened anew."""
        return Database.open(self.database_url or sqlite_url(self.folder / "registry.db"), timeout_s=20.0)

    # -- what users do -------------------------------------------------------------------------------------
    def register(self, number: int, *, model: str = "lenet") -> VersionRecord:
        """Register a source and a golden set, as `register` does."""
        storage = self.storage
        source = storage.put_bytes(f"source {model} {number} ".encode() * 9)
        golden = storage.put_bytes(f"golden {model} {number} ".encode() * 9)
        info = SourceInfo(
            digest=source.digest,
            files=(StoredFile(path="model.onnx", digest=source.digest, size_bytes=source.size_bytes),),
            signature=Signature(
                inputs=(TensorSpec(name="x", dtype="float32", shape=("N", 4)),),
                outputs=(TensorSpec(name="y", dtype="float32", shape=("N", 2)),),
            ),
            opsets={"": 17},
            ir_version=8,
            producer="test",
            node_counts={"Gemm": 1},
            parameter_bytes=64,
        )
        with self.database() as database, database.write() as connection:
            version, _ = versions.register_version(
                connection, model=model, source=info, message="", tags={}, actor=ACTOR
            )
            golden_sets.add_golden_set(
                connection,
                version=version,
                digest=golden.digest,
                size_bytes=golden.size_bytes,
                samples=4,
                origin={},
                actor=ACTOR,
            )
        return version

    def build(self, number: int, *, model: str = "lenet", precision: Precision = Precision.FP32) -> EngineRecord:
        """Store a plan and a log and record the engine with a passing verdict, as `build` and `validate` do."""
        storage = self.storage
        plan = storage.put_bytes(plan_of(number, precision))
        with self.database() as database, database.read() as connection:
            version = versions.get_version(connection, ModelReference(model=model, version=number))
            golden = golden_sets.newest_golden_set(connection, version_id=version.id)
        assert golden is not None
        # `add_engine` and `add_validation` name these by the digest of these words.
        storage.put_bytes(f"log {version.reference} cpu {precision}".encode())
        with self.database() as database, database.write() as connection:
            file = StoredFile(path="model.onnx", digest=plan.digest, size_bytes=plan.size_bytes)
            engine = add_engine(connection, version, precision=precision, files=[file])
            validation = add_validation(connection, engine, golden=golden.digest)
            report = f"report {engine.id} {validation.verdict}".encode()
            blobs.record_blob(connection, digest=digest(report), size_bytes=len(report), kind=BlobKind.REPORT)
        storage.put_bytes(report)
        return engine

    def promote(
        self, number: int, *, model: str = "lenet", channel: str = CHANNEL, storage: Storage | None = None
    ) -> Activation:
        """Promote a version."""
        with self.database() as database:
            return Releases(database=database, storage=storage or self.storage, actor=ACTOR).promote(
                ModelReference(model=model, version=number),
                channel=channel,
                request=PromotionRequest(preference=lambda _target: (Precision.FP32, Precision.FP16)),
            )

    def rollback(self, to_generation: int | None = None, *, channel: str = CHANNEL) -> Activation:
        """Roll a channel back."""
        with self.database() as database:
            return Releases(database=database, storage=self.storage, actor=ACTOR).rollback(
                "lenet", channel=channel, request=RollbackRequest(to_generation=to_generation)
            )

    def release(self, *numbers: int) -> None:
        """Register, build and promote versions, one after the other."""
        for number in numbers:
            self.register(number)
            self.build(number)
            self.promote(number)

    def collect(self, *, storage: Storage | None = None, **changes: Any) -> Collection:
        """Collect garbage: by default without grace, keeping the last release and the newest version's engines."""
        with self.database() as database:
            return self.collector(database, storage=storage, **changes).collect()

    def preview(self, **changes: Any) -> Collection:
        """Return what would be collected."""
        with self.database() as database:
            return self.collector(database, **changes).preview()

    def collector(self, database: Database, *, storage: Storage | None = None, **changes: Any) -> Collector:
        """Return a collector."""
        request = CollectionRequest(**{"keep": 1, "keep_versions": 1, "grace": NO_GRACE, **changes})
        # One worker: who stops it somewhere stops it nowhere else, with a lock in its hand.
        return Collector(database=database, storage=storage or self.storage, actor=ACTOR, request=request, workers=1)

    # -- looking -------------------------------------------------------------------------------------------
    def served(self, *, channel: str = CHANNEL) -> Pointer:
        """Return what a channel serves."""
        pointer = self.storage.read_pointer("lenet", channel)
        assert pointer is not None
        return pointer

    def engines_of(self, number: int) -> list[EngineRecord]:
        """Return the engines of a version that count."""
        with self.database() as database, database.read() as connection:
            version = versions.get_version(connection, ModelReference(model="lenet", version=number))
            return engines.current_engines(connection, version_id=version.id)

    def has(self, data: bytes) -> bool:
        """Return whether these bytes are in the store, whole."""
        storage = self.storage
        return storage.has_blob(digest(data)) and storage.read_blob(digest(data)) == data

    def check(self) -> None:
        """Check that all that the registry says it has is there, and that what is served can be served."""
        storage = self.storage
        with self.database() as database, database.read() as connection:
            named = [blob.digest for blob in blobs.list_blobs(connection)]
        for each in named:
            storage.verify_blob(each)
        for model, channel in storage.list_channels():
            pointer = storage.read_pointer(model, channel)
            if pointer is not None:
                storage.verify_release(pointer.release)
        if isinstance(storage, LocalStorage):
            check_served_files(storage.root)


def check_served_files(root: Path) -> None:
    """Read, without modelreg, what each channel of a local store serves, and the blobs of the same digests."""
    for path in root.glob("channels/*/*/pointer.json"):
        release = root / "releases" / json.loads(path.read_bytes())["release"]
        manifest = (release / "manifest.json").read_bytes()
        assert digest(manifest) == release.name
        for engine in json.loads(manifest)["engines"]:
            for file in engine["files"]:
                assert digest((release / file["path"]).read_bytes()) == file["sha256"]
                blob = root / "blobs" / "sha256" / file["sha256"][:2] / file["sha256"]
                assert digest(blob.read_bytes()) == file["sha256"]


# -- a process that is stopped where it does something ------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Stop:
    """Stops this process (SIGSTOP) when a point is reached that concerns one of some digests."""

    point: str
    digests: Sequence[str]

    def at(self, point: str, digest_or_name: str) -> None:
        if point == self.point and any(each in digest_or_name for each in self.digests):
            # To this very thread: else it runs on until another one has taken the signal.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


class _Stopping:
    stop: Stop

    def write_note(self, name: str, data: bytes, *, replaces: Note | None) -> bool:
        is_taking = b'"sweeping"' in data
        if is_taking:
            self.stop.at("before the mark is taken", name)
        written: bool = super().write_note(name, data, replaces=replaces)  # type: ignore[misc]
        if is_taking:
            self.stop.at("after the mark is taken", name)
        return written

    def delete_blob(self, digest: str) -> None:
        self.stop.at("before the blob is removed", digest)
        super().delete_blob(digest)  # type: ignore[misc]
        self.stop.at("after the blob is removed", digest)

    def delete_release(self, release: str) -> None:
        self.stop.at("before the release is removed", release)
        super().delete_release(release)  # type: ignore[misc]

    def swap_pointer(self, new: Pointer, *, expected: Pointer | None) -> None:
        self.stop.at("before the pointer is moved", new.release)
        super().swap_pointer(new, expected=expected)  # type: ignore[misc]


class StoppingLocal(_Stopping, LocalStorage):
    """A local store for a collector that is to be stopped."""


class StoppingS3(_Stopping, S3Storage):
    """A store in S3 for a collector that is to be stopped."""


def stopping(storage: Storage, stop: Stop) -> Storage:
    """Return the same store, for a collector that is stopped at a point."""
    made: StoppingLocal | StoppingS3
    if isinstance(storage, LocalStorage):
        made = StoppingLocal(storage.root)
    else:
        assert isinstance(storage, S3Storage)
        made = StoppingS3(storage.location, limits=LIMITS)
    made.stop = stop
    return made
