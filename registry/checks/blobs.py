"""Blobs: what the database names and what the store has, by one listing; all of their bytes where that is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from modelreg.registry import blobs
from modelreg.registry.blobs import BlobRecord
from modelreg.registry.checks.findings import Finding, Level, found
from modelreg.registry.contents import StoredFile
from modelreg.registry.damaged_releases import advise_damaged_release
from modelreg.registry.database import Database
from modelreg.registry.digests import file_digest
from modelreg.registry.errors import IntegrityError, ModelregError, NotFoundError
from modelreg.registry.storage.interface import KeepsFiles, Progress, Storage
from modelreg.registry.storage.rules import manifest_files
from modelreg.registry.words import BlobKind

_BLOB_HINT = (
    "Run `modelreg doctor --deep --fix`, which copies it from a release that has it; else build it again, or restore"
    " the store's backup."
)
_LOST_PLAN_HINT = (
    "Run `modelreg doctor --fix`, which copies it from a release that has it; else build it again. After an older"
    " database was restored, `modelreg gc --accept-database` notes as removed what gc has removed since."
)
_SOURCE_HINT = "Register the same file again, which stores and so heals it, or restore the store's backup."
_RECORD_HINT = (
    "Restore it from a backup of the store: it is a record that nothing makes again. Nothing that is served needs it."
)
_HINTS = {
    BlobKind.SOURCE: _SOURCE_HINT,
    BlobKind.EXTERNAL_DATA: _SOURCE_HINT,
    BlobKind.MANIFEST: _SOURCE_HINT,
    BlobKind.GOLDEN: _SOURCE_HINT,
    BlobKind.LOG: _RECORD_HINT,
    BlobKind.REPORT: _RECORD_HINT,
    BlobKind.SAMPLES: _RECORD_HINT,
}
_GUARD_HINT = "A blob is one read-only file: take the write permission away, and remove its other name."
_ORPHAN_HINT = "`modelreg gc` removes what nothing needs, after a time of grace."
_TOLD = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobExamination:
    """What was found; `broken` are the digests that are missing or damaged."""

    findings: list[Finding] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def examine_blobs(database: Database | None, storage: Storage, *, deep: bool, progress: Progress) -> BlobExamination:
    """
    Compare the database's blobs with those in the store.

    Args:
        database: None where it is gone: then only what is in the store can be read.
        storage: The store.
        deep: Whether every blob and every release is read and hashed too.
        progress: Told of the bytes read.
    """
    known: dict[str, BlobRecord] = {}
    if database is not None:
        with database.read() as connection:
            known = {record.digest: record for record in blobs.list_blobs(connection)}
    there = {info.digest: info.size_bytes for info in storage.iterate_blobs()}
    made = BlobExamination()
    for digest, record in known.items():
        problem = _problem(there.get(digest), record)
        if not problem and deep:
            problem = _damage(storage, digest, progress)
        is_lost_plan = record.kind is BlobKind.PLAN and digest not in there
        _note(made, digest, problem, hint=_LOST_PLAN_HINT if is_lost_plan else _HINTS.get(record.kind, _BLOB_HINT))
    strangers = [digest for digest in there if digest not in known]
    if deep:
        for digest in strangers:
            _note(made, digest, _damage(storage, digest, progress), hint=_BLOB_HINT)
    if not made.broken:
        said = "are there and match their digests" if deep else "are there (`--deep` re-hashes them)"
        made.findings.append(found(Level.OK, "blobs", "store", f"{len(known)} blobs {said}"))
    if database is not None and strangers:
        made.findings.extend(_orphan_findings(storage, {digest: there[digest] for digest in strangers}))
    made.findings.extend(_guard_findings(storage))
    if deep:
        made.findings.extend(_release_findings(storage, progress))
    return made


def heal_blob(storage: Storage, digest: str) -> bool:
    """Store a blob again from a release that has the same bytes beside it; return whether there was one."""
    for release, file in _released_files(storage):
        if file.digest != digest:
            continue
        folder = storage.release_path(release)
        path = None if folder is None else folder / file.path
        if path is not None and path.is_file() and file_digest(path) == digest:
            storage.put_file(path)
            return True
    return False


def _note(made: BlobExamination, digest: str, problem: str, *, hint: str = _BLOB_HINT) -> None:
    if problem:
        made.findings.append(found(Level.DAMAGE, "blobs", digest[:12], problem, hint))
        made.broken.append(digest)


def _problem(found_bytes: int | None, known: BlobRecord) -> str:
    if found_bytes is None:
        return f"the database names this blob ({known.kind}), the store does not have it"
    if found_bytes != known.size_bytes:
        return f"the blob has {found_bytes} bytes, {known.size_bytes} were stored"
    return ""


def _damage(storage: Storage, digest: str, progress: Progress) -> str:
    try:
        storage.verify_blob(digest, progress=progress)
    except (IntegrityError, NotFoundError) as error:
        return str(error)
    return ""


def _orphan_findings(storage: Storage, strangers: dict[str, int]) -> Iterator[Finding]:
    """Tell of blobs that neither the database nor a release names: of commands that died, or of another registry."""
    released = {file.digest for _, file in _released_files(storage)}
    orphans = {digest: size_bytes for digest, size_bytes in strangers.items() if digest not in released}
    if orphans:
        count = "1 blob" if len(orphans) == 1 else f"{len(orphans)} blobs"
        message = f"{count} ({sum(orphans.values())} bytes) that the database does not name"
        yield found(Level.WARNING, "orphans", "store", message, _ORPHAN_HINT)


def _guard_findings(storage: Storage) -> Iterator[Finding]:
    """Tell of blobs that another program could change in place: their digests would be found wrong only when read."""
    if not isinstance(storage, KeepsFiles):
        return
    found_so = list(storage.unguarded_blobs())
    for digest, how in found_so[:_TOLD]:
        yield found(Level.WARNING, "blobs", digest[:12], f"the blob {how}", _GUARD_HINT)
    if len(found_so) > _TOLD:
        yield found(Level.WARNING, "blobs", "store", f"{len(found_so) - _TOLD} more blobs like that", _GUARD_HINT)


def _release_findings(storage: Storage, progress: Progress) -> Iterator[Finding]:
    damaged = 0
    total = 0
    for release in storage.iterate_releases():
        try:
            if storage.find_swept(release) is not None:
                continue  # of one that `gc` removed only the manifest is there, for the history
            total += 1
            storage.verify_release(release, progress=progress)
        except ModelregError as error:
            damaged += 1
            if damaged <= _TOLD:
                hint = advise_damaged_release(storage, release)
                yield found(Level.DAMAGE, "release", release[:12], str(error), hint)
    if not damaged:
        yield found(Level.OK, "releases", "store", f"{total} releases, every file matches")


def _released_files(storage: Storage) -> Iterator[tuple[str, StoredFile]]:
    for release in storage.iterate_releases():
        try:
            files = manifest_files(storage.read_manifest(release), where=release[:12])
        except ModelregError:
            continue  # reported where releases are examined
        for file in files:
            yield release, file
