"""Part 4: many processes promote and roll back one channel, others read it; every outcome is held to history."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from modelreg.config.settings import Home
from modelreg.registry.database import Database
from modelreg.registry.errors import (
    ActivationConflictError,
    ActivationUnknownError,
    BusyError,
    ModelregError,
    NotFoundError,
)
from modelreg.registry.promotion import PromotionRequest, RollbackRequest
from modelreg.registry.references import ModelReference
from modelreg.registry.releasing import Releases
from modelreg.registry.storage.open import open_storage
from modelreg.registry.words import Precision
from modelreg_testing.campaign.checker import (
    Broken,
    Reader,
    check_database,
    check_objects,
    check_settled,
    parse_document,
    require,
)
from modelreg_testing.campaign.homes import CHANNEL, MODEL, VERSIONS, Place, Template, must
from modelreg_testing.campaign.results import Tally
from modelreg_testing.s3_server import BUCKET, plain_client
from modelreg_testing.storage_faults import exit_code, start_child

FOLDER = f"channels/{MODEL}/{CHANNEL}"
PATIENCE_S = 30.0
_LEAST_READS = 10


@dataclass(frozen=True)
class Crowd:
    """How many write, how many read, for how long; `apart`: writers share no lock folder, as on hosts of their own."""

    writers: int
    readers: int
    seconds: float
    apart: bool = False


@dataclass(frozen=True)
class CrowdDatabase:
    """What a crowd writes to: its URL, and what gives it as a file of SQLite for the checker."""

    url: str
    as_file: Callable[[], Path]


@contextmanager
def sqlite(place: Place) -> Iterator[CrowdDatabase]:
    """Give the registry's own file."""
    yield CrowdDatabase(f"sqlite:///{place.database}", lambda: place.database)


@contextmanager
def postgresql(place: Place) -> Iterator[CrowdDatabase]:
    """Give a server of its own with a copy of the registry, which its `config.toml` names."""
    from modelreg_testing import postgresql as servers

    def as_file() -> Path:
        must(place, "db", "copy", "--to", place.folder / "copied.db")
        return place.folder / "copied.db"

    with (
        tempfile.TemporaryDirectory(prefix="modelreg-crowd-") as folder,
        servers.postgresql(Path(folder)) as server,
        server.new_database() as database,
    ):
        must(place, "db", "copy", "--to", database.url)
        with (place.home / "config.toml").open("a", encoding="utf-8") as config:
            config.write(f'\n[database]\nurl = "{database.url}"\n')
        yield CrowdDatabase(database.url, as_file)


DATABASES: dict[str, Callable[[Place], AbstractContextManager[CrowdDatabase]]] = {
    "SQLite": sqlite,
    "PostgreSQL": postgresql,
}


def run_crowd(template: Template, crowd: Crowd, *, database: str = "SQLite") -> Tally:
    """Let a crowd loose on one channel; return what it came to, every broken promise a violation."""
    started = time.monotonic()
    how = ", a lock folder each" if crowd.apart else ""
    what = f"{crowd.writers} writers, {crowd.readers} readers, {crowd.seconds:g} s, {database}{how}"
    tally = Tally("crowd", what, template.store)
    with template.copy(f"crowd-{os.getpid()}") as place, DATABASES[database](place) as written:
        reports = place.folder / "reports"
        reports.mkdir()
        end = time.monotonic() + crowd.seconds
        url = written.url
        readers = [
            start_child(partial(_read, place, reports / f"reader-{number}.json", end))
            for number in range(crowd.readers)
        ]
        writers = [
            start_child(partial(_write, place, reports, number, end=end, apart=crowd.apart, url=url))
            for number in range(crowd.writers)
        ]
        codes = [exit_code(child) for child in (*readers, *writers)]
        try:
            require(set(codes) == {0}, "crowd", f"processes ended with {codes}")
            _judge(place, reports, tally, as_file=written.as_file)
        except (Broken, AssertionError, OSError, ValueError) as error:
            tally.count("VIOLATION")
            tally.violations.append(f"[{template.store}] {what}: {str(error)[:600]}")
    tally.seconds = time.monotonic() - started
    return tally


# -- writers ---------------------------------------------------------------------------------------------------
def _write(place: Place, reports: Path, number: int, *, end: float, apart: bool, url: str) -> None:
    if apart:
        tempfile.tempdir = tempfile.mkdtemp(dir=place.folder)
    actor = f"writer-{number:02}"
    told: list[list[object]] = []
    chance = random.Random(number)
    storage = open_storage(Home(place.home).store_url)
    with Database.open(url, timeout_s=PATIENCE_S) as database:
        releases = Releases(database=database, storage=storage, actor=actor, lock_timeout_s=PATIENCE_S)
        while time.monotonic() < end or not told:
            told.append(_move(releases, storage, chance))
    (reports / f"{actor}.json").write_text(json.dumps(told))


def _move(releases: Releases, storage, chance: random.Random) -> list[object]:  # type: ignore[no-untyped-def]
    """Try one promotion or rollback from what is served now; return the outcome as [kind, generation, words]."""
    current = storage.read_pointer(MODEL, CHANNEL)
    assert current is not None
    expected = current.generation
    try:
        if chance.random() < 0.5:
            version = current.version % VERSIONS + 1
            request = PromotionRequest(preference=lambda _target: (Precision.FP32,), expect_current=expected)
            done = releases.promote(ModelReference(model=MODEL, version=version), channel=CHANNEL, request=request)
        else:
            done = releases.rollback(MODEL, channel=CHANNEL, request=RollbackRequest(expect_current=expected))
    except ActivationConflictError as error:
        return ["lost", error.found, str(error)]
    except BusyError as error:
        return ["busy", expected, str(error)]
    except ActivationUnknownError as error:
        return ["unknown", expected + 1, str(error)]
    except NotFoundError as error:  # nothing further back
        return ["refused", expected, str(error)]
    except ModelregError as error:
        return ["failed", expected, f"{type(error).__name__}: {error}"]
    return ["won" if done.changed else "kept", done.pointer.generation, done.pointer.txn]


# -- readers ---------------------------------------------------------------------------------------------------
def _read(place: Place, report: Path, end: float) -> None:
    reader = Reader()
    read_pointer, read_manifest = raw_reads(place)
    while time.monotonic() < end or reader.reads < _LEAST_READS:
        reader.note(read_pointer(), read_manifest)
    report.write_text(json.dumps({"reads": reader.reads, "bad": reader.bad}))


def raw_reads(place: Place) -> tuple[Callable[[], bytes | None], Callable[[str], bytes | None]]:
    """Return what reads a pointer and a manifest as a stranger would: one open or one GET each."""
    if place.server is None:
        root = place.home / "store"
        return (
            lambda: _bytes(root / FOLDER / "pointer.json"),
            lambda release: _bytes(root / "releases" / release / "manifest.json"),
        )
    client = plain_client(place.server.endpoint_url)  # of its own: a forked process must not share connections

    def get(key: str) -> bytes | None:
        try:
            data: bytes = client.get_object(Bucket=BUCKET, Key=place.prefix + key)["Body"].read()
        except client.exceptions.NoSuchKey:
            return None
        return data

    return (lambda: get(f"{FOLDER}/pointer.json"), lambda release: get(f"releases/{release}/manifest.json"))


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


# -- the verdict -----------------------------------------------------------------------------------------------
def _judge(place: Place, reports: Path, tally: Tally, *, as_file: Callable[[], Path]) -> None:
    raw = place.objects()
    store = check_objects(raw)
    channel = store.channels[f"{MODEL}@{CHANNEL}"]
    history = {n: parse_document(raw[f"{FOLDER}/history/{n:012d}.json"]) for n in channel.txns}
    started_at = 3
    files = sorted(reports.glob("writer-*.json"))
    told = [(path.stem, *each) for path in files for each in json.loads(path.read_text())]
    for _writer, kind, _generation, _words in told:
        tally.count(str(kind))
    require(tally.outcomes["failed"] == 0, "told", next((str(t) for t in told if t[1] == "failed"), ""))
    wins = {int(generation): str(txn) for _writer, kind, generation, txn in told if kind == "won"}
    unsure = [int(generation) for _writer, kind, generation, _words in told if kind == "unknown"]
    require(len(wins) == tally.outcomes["won"], "I4", "two writers won the same generation")
    for generation, txn in wins.items():
        require(channel.txns.get(generation) == txn, "I3", f"generation {generation} was acknowledged and is not there")
    lost = set(range(started_at + 1, max(history) + 1)) - set(wins)
    require(len(lost) <= len(unsure), "I3", f"nobody was told of generations {sorted(lost)[:5]}")
    for writer, kind, generation, words in told:
        if kind == "lost":
            holder = history[int(generation)]["actor"]
            require(f"moved by {holder}" in words, "told", f"{writer} lost to {holder} and was told: {words}")
        if kind == "busy":
            require("by " in words, "told", f"{writer} was told: {words}")
    _judge_readers(reports, tally)
    must(place, "doctor", "--fix")
    must(place, "doctor")
    settled = check_objects(place.objects())
    database = check_database(as_file())
    check_settled(settled, database)
    tally.notes.append(f"generations {started_at + 1} to {max(history)}, each with one winner")


def _judge_readers(reports: Path, tally: Tally) -> None:
    found = [json.loads(path.read_text()) for path in reports.glob("reader-*.json")]
    reads = sum(each["reads"] for each in found)
    bad: dict[str, int] = {}
    for each in found:
        for kind, count in each["bad"].items():
            bad[kind] = bad.get(kind, 0) + count
    tally.notes.append(f"{reads:,} reads, {sum(bad.values())} torn, mixed, missing or backwards")
    require(not bad, "I2", f"readers saw {bad} in {reads:,} reads")
    require(reads >= _LEAST_READS * len(found), "I2", f"only {reads} reads")


# -- the negative control --------------------------------------------------------------------------------------
def run_control(template: Template, *, seconds: float) -> Tally:
    """Let a writer copy pointers over the live file, as a script might: the same reader has to catch it."""
    tally = Tally("crowd", f"control: a writer that copies in place, {seconds:g} s", "local")
    started = time.monotonic()
    with template.copy(f"control-{os.getpid()}") as place:
        end = time.monotonic() + seconds
        report = place.folder / "reader.json"
        writer = start_child(lambda: _copy_in_place(place, end))
        reader = start_child(lambda: _read(place, report, end))
        codes = exit_code(writer), exit_code(reader)
        found = json.loads(report.read_text())
        for kind, count in found["bad"].items():
            tally.outcomes[kind] += count
        tally.trials = found["reads"]
        if codes != (0, 0) or not found["bad"]:
            tally.violations.append(f"the control was not caught: {codes}, {found}")
    tally.notes.append("has to be caught")
    tally.seconds = time.monotonic() - started
    return tally


def _copy_in_place(place: Place, end: float) -> None:
    folder = place.home / "store" / FOLDER
    documents = sorted((folder / "history").glob("*.json"))
    while time.monotonic() < end:
        for document in documents:
            shutil.copyfile(document, folder / "pointer.json")
