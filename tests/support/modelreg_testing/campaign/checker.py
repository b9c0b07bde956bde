"""The independent checker: reads files, objects and SQLite itself, imports nothing of modelreg, trusts nobody.

I1  every pointer parses, matches its own digest, and its release is there, hash-equal, file by file
I2  what a reader saw is whole and never went backwards (`Reader`)
I3  what was acknowledged is in the history, once
I4  generations go up by one, each has one winner, each names the one before it
I5  after recovery, database and pointers agree, and no operation is open
I6  no blob that is named is missing or damaged; nothing temporary is left after recovery
I7  a rollback works with the database gone (`kills.Trial`)
I8  a second recovery changes nothing (`fingerprint`)
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Objects = Mapping[str, bytes]
"""Path below the store's root (or prefix) to bytes."""


class Broken(AssertionError):  # noqa: N818 - what it says reads as a sentence
    """An invariant that does not hold."""


@dataclass(frozen=True)
class Channel:
    """What a channel's documents say: the active generation, its release, and the transaction of each generation."""

    generation: int
    release: str
    txns: Mapping[int, str]
    reserved: int


@dataclass(frozen=True)
class StoreState:
    """A store whose invariants hold."""

    channels: Mapping[str, Channel]
    blobs: frozenset[str]
    releases: frozenset[str]


@dataclass(frozen=True)
class DatabaseState:
    """What the tables say. `activations` maps a channel to its generations' transactions."""

    revision: str
    versions: Mapping[str, int]
    built: int
    activations: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    open_operations: int = 0
    blobs: frozenset[str] = frozenset()


def require(condition: object, invariant: str, what: str) -> None:
    """Raise `Broken` unless the condition holds."""
    if not condition:
        raise Broken(f"{invariant}: {what}")


# -- the store -----------------------------------------------------------------------------------------------
def read_folder(root: Path) -> dict[str, bytes]:
    """Return every file of a local store that is not temporary, with its shape checked: one name, no link."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() or path.is_dir() or is_temporary(name):
            continue
        if name.startswith(("blobs/", "releases/")):
            require(path.stat().st_nlink == 1, "I1", f"{name} has another name")
        found[name] = path.read_bytes()
    return found


def temporary_names(root: Path) -> list[str]:
    """Return what lies about in a local store that nobody looks at."""
    names = (path.relative_to(root).as_posix() for path in root.rglob("*"))
    return sorted(name for name in names if is_temporary(name) and not name.startswith("locks"))


def is_temporary(name: str) -> bool:
    """Return whether a path below the root is nobody's data: work in progress, or a lock."""
    return name.startswith(("tmp/", "locks/")) or name.endswith(".tmp")


def check_objects(objects: Objects) -> StoreState:
    """Check I1 and I4 on a store's bytes, and return what it says."""
    require("FORMAT" in objects, "I1", "the store has no FORMAT")
    blobs = frozenset(_check_blob(name, data) for name, data in objects.items() if name.startswith("blobs/"))
    manifests = [name for name in objects if name.startswith("releases/") and name.count("/") == 2]
    releases = frozenset(
        _check_release(objects, blobs, name.split("/")[1]) for name in manifests if name.endswith("/manifest.json")
    )
    folders = {tuple(name.split("/")[1:3]) for name in objects if name.startswith("channels/")}
    channels = {f"{model}@{channel}": _check_channel(objects, model, channel, releases) for model, channel in folders}
    return StoreState(channels, blobs, releases)


def _check_blob(name: str, data: bytes) -> str:
    digest = name.rpartition("/")[2]
    require(sha256(data) == digest, "I6", f"{name} is not its digest")
    return digest


def _check_release(objects: Objects, blobs: frozenset[str], release: str) -> str:
    folder = f"releases/{release}"
    manifest = objects[f"{folder}/manifest.json"]
    require(sha256(manifest) == release, "I1", f"the manifest of {release} is not its digest")
    is_laid_out = any(name.startswith(f"{folder}/") and name != f"{folder}/manifest.json" for name in objects)
    for engine in json.loads(manifest)["engines"]:
        for file in engine["files"]:
            path = f"{folder}/{file['path']}"
            if is_laid_out:
                require(path in objects, "I1", f"{path} is missing")
                require(sha256(objects[path]) == file["sha256"], "I1", f"{path} is damaged")
            else:
                require(file["sha256"] in blobs, "I1", f"a blob of {release} is missing")
    return release


def _check_channel(objects: Objects, model: str, channel: str, releases: frozenset[str]) -> Channel:
    folder = f"channels/{model}/{channel}"
    names = [name for name in objects if name.startswith(f"{folder}/history/")]
    history = {int(name.rpartition("/")[2].removesuffix(".json")): objects[name] for name in names}
    require(sorted(history) == list(range(1, len(history) + 1)), "I4", f"{folder} has a gap: {sorted(history)}")
    txns: dict[int, str] = {}
    for number in sorted(history):
        body = parse_document(history[number])
        require(body["generation"] == number, "I4", f"{folder} has {body['generation']} under {number}")
        require(body["previous_txn"] == txns.get(number - 1, ""), "I4", f"{folder} is not chained at {number}")
        require(body["release"] in releases, "I1", f"{folder} names an absent release at {number}")
        txns[number] = body["txn"]
    require(len(set(txns.values())) == len(txns), "I3", f"{folder} has a transaction twice")
    pointer = objects.get(f"{folder}/pointer.json")
    if pointer is None:
        require(len(history) <= 1, "I1", f"{folder} has a history and no pointer")
        return Channel(0, "", txns, len(history))
    body = parse_document(pointer)
    at = int(body["generation"])
    require(history.get(at) == pointer, "I3", f"the pointer of {folder} is not in its history")
    require(len(history) - at in (0, 1), "I4", f"{folder} has {len(history)} generations and serves {at}")
    return Channel(at, str(body["release"]), txns, len(history) - at)


def parse_document(data: bytes) -> dict[str, Any]:
    """Return a pointer or history document; raises `Broken` where its bytes are not those of its own digest."""
    try:
        body: dict[str, Any] = json.loads(data)
        stated = body.pop("sha256")
    except (ValueError, KeyError, AttributeError) as error:
        raise Broken(f"I1: a pointer is torn: {data[:40]!r}") from error
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    require(sha256(text.encode()) == stated, "I1", "a pointer does not match its own digest")
    return body


def sha256(data: bytes) -> str:
    """Return the digest in hex."""
    return hashlib.sha256(data).hexdigest()


# -- what a serving host has -----------------------------------------------------------------------------------
def check_pulled(root: Path, *, target: str = "cpu") -> int:
    """Check what a folder that `pull` fills has for a target; return its generation, 0 where nothing is current."""
    if not (root / "pointer.json").exists():
        return 0
    body = parse_document((root / "pointer.json").read_bytes())
    current = root / "current"
    linked = {current.readlink().name} if current.is_symlink() else set()
    for release in {str(body["release"]), *linked}:
        folder = root / "releases" / release
        manifest = (folder / "manifest.json").read_bytes()
        require(sha256(manifest) == release, "I1", f"the pulled manifest of {release} is not its digest")
        for engine in json.loads(manifest)["engines"]:
            for file in engine["files"] if engine["target"] == target else ():
                data = (folder / file["path"]).read_bytes()
                require(sha256(data) == file["sha256"], "I1", f"pulled {file['path']} is damaged")
    return int(body["generation"])


# -- the database ----------------------------------------------------------------------------------------------
def check_database(path: Path) -> DatabaseState:
    """Check a registry's SQLite file with `sqlite3` alone, and return what it says."""
    with closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=30)) as connection:
        found = [row[0] for row in connection.execute("PRAGMA integrity_check")]
        require(found == ["ok"], "I5", f"the database is damaged: {found}")
        require(not connection.execute("PRAGMA foreign_key_check").fetchall(), "I5", "a row refers to no row")
        return read_tables(connection)


def read_tables(connection: Any) -> DatabaseState:
    """Return what the tables say; the connection is SQLite's own, or any with its `execute`."""
    activations: dict[str, dict[int, str]] = {}
    for model, channel, generation, txn in connection.execute(_ACTIVATIONS):
        activations.setdefault(f"{model}@{channel}", {})[generation] = txn
    return DatabaseState(
        revision=_one(connection, "SELECT version_num FROM alembic_version"),
        versions=dict(
            connection.execute(
                "SELECT m.name, count(v.id) FROM model m LEFT JOIN version v ON v.model_id = m.id GROUP BY m.name"
            ).fetchall()
        ),
        built=_one(connection, "SELECT count(*) FROM engine WHERE status = 'built'"),
        activations=activations,
        open_operations=_one(connection, "SELECT count(*) FROM operation WHERE state NOT IN ('committed', 'aborted')"),
        blobs=frozenset(row[0] for row in connection.execute("SELECT digest FROM blob").fetchall()),
    )


_ACTIVATIONS = """
SELECT m.name, c.name, a.generation, a.txn FROM activation a
JOIN channel c ON c.id = a.channel_id JOIN model m ON m.id = c.model_id ORDER BY a.generation
"""


def _one(connection: Any, query: str) -> Any:
    row = connection.execute(query).fetchone()
    return row[0] if row else ""


def check_settled(store: StoreState, database: DatabaseState) -> None:
    """Check I5 and I6: nothing is open, both halves tell the same history, and all that is named is there."""
    require(database.open_operations == 0, "I5", f"{database.open_operations} operations are open")
    for name, channel in store.channels.items():
        require(channel.reserved == 0, "I5", f"{name} has a reserved generation")
        told = dict(database.activations.get(name, {}))
        require(told == dict(channel.txns), "I5", f"{name}: the database tells {told}, the store {channel.txns}")
    require(set(database.activations) <= set(store.channels), "I5", "the database knows a channel that is not served")
    missing = sorted(set(database.blobs) - store.blobs)
    require(not missing, "I6", f"the database names blobs that are not there: {missing[:3]}")


def fingerprint(marks: Mapping[str, str], database: Path) -> dict[str, str]:
    """Return all that a recovery may not touch a second time: the marks of every object, and every row."""
    marks = dict(marks)
    if database.exists():
        with closing(sqlite3.connect(f"file:{database}?mode=rw", uri=True, timeout=30)) as connection:
            marks["the database"] = sha256("\n".join(connection.iterdump()).encode())
    return marks


def _is_of(manifest: bytes, body: dict[str, Any]) -> bool:
    """Return whether a manifest is of the version that the pointer names."""
    return bool(json.loads(manifest)["version"] == body["version"])


# -- readers ---------------------------------------------------------------------------------------------------
@dataclass
class Reader:
    """A polling reader's memory: counts what it saw, and every kind of thing that it must never see."""

    reads: int = 0
    seen: int = 0
    bad: dict[str, int] = field(default_factory=dict)

    def note(self, pointer: bytes | None, manifest_of: Any) -> None:
        """Judge one read: the pointer's bytes, and what `manifest_of(release)` gives for the release in it."""
        self.reads += 1
        if pointer is None:
            self._count("missing")
            return
        try:
            body = parse_document(pointer)
        except Broken:
            self._count("torn")
            return
        if body["generation"] < self.seen:
            self._count("backwards")
        self.seen = max(self.seen, int(body["generation"]))
        manifest = manifest_of(body["release"])
        if (
            manifest is None
            or sha256(manifest) != body["release"]
            or json.loads(manifest).get("version", body["version"]) != body["version"]
        ):
            self._count("mixed")

    def _count(self, kind: str) -> None:
        self.bad[kind] = self.bad.get(kind, 0) + 1
