"""Versions that the database has lost and the store still has: read back from the blobs that releases name.

After an older database was restored, the store's history tells of releases whose versions it never heard of. The
manifest has model, number and the digest of the source; the blob of that digest is the ONNX itself or, of a source with
external data, the list of its files. What only the database knew (golden sets, verdicts, engines that were not
released, tags) is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from modelreg.registry import versions
from modelreg.registry.database import Database
from modelreg.registry.errors import ForeignReleaseError
from modelreg.registry.manifest import Manifest, parse_manifest
from modelreg.registry.pointers import Pointer
from modelreg.registry.records import SourceInfo
from modelreg.registry.scratch import scratch_folder
from modelreg.registry.settling import require_known_version
from modelreg.registry.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class LostVersion:
    """A version that a release names and the database does not have; `why` says what keeps it from coming back."""

    manifest: Manifest
    why: str = ""

    @property
    def reference(self) -> str:
        """Return `NAME:VERSION`."""
        return f"{self.manifest.model}:{self.manifest.version}"


def find_lost_versions(
    database: Database, storage: Storage, documents: list[Pointer], *, registry: str
) -> list[LostVersion]:
    """
    Return the versions of some generations that the database does not have, each once.

    Args:
        database: Which has lost them.
        storage: Which may have them.
        documents: The generations that it does not know either.
        registry: Its identity: what another registry released is not ours to take in.

    Raises:
        ModelregError: A manifest cannot be read.
    """
    lost: dict[tuple[str, int, str], LostVersion] = {}
    for document in documents:
        manifest = parse_manifest(storage.read_manifest(document.release), where=document.release[:12])
        with database.read() as connection:
            if _is_known(connection, document, manifest):
                continue
        key = (manifest.model, manifest.version, manifest.source_digest)
        lost.setdefault(key, LostVersion(manifest=manifest, why=_obstacle(storage, document, manifest, registry)))
    return list(lost.values())


def recover_version(database: Database, storage: Storage, lost: LostVersion, *, actor: str) -> None:
    """
    Read a lost version's source back and record it.

    Raises:
        SourceError: Its files are no valid source any more.
        IntegrityError: They are damaged, or its number is taken.
    """
    source = _read_source(storage, lost.manifest.source_digest)
    with database.write() as connection:
        versions.readopt_version(
            connection, model=lost.manifest.model, number=lost.manifest.version, source=source, actor=actor
        )


def _is_known(connection: sa.Connection, document: Pointer, manifest: Manifest) -> bool:
    try:
        require_known_version(connection, document, manifest)
    except ForeignReleaseError:
        return False
    return True


def _obstacle(storage: Storage, document: Pointer, manifest: Manifest, registry: str) -> str:
    if not document.registry:
        return "its release does not say which registry made it"
    if document.registry != registry:
        return f"it was released by another registry ({document.registry})"
    if not storage.has_blob(manifest.source_digest):
        return f"the store has no blob {manifest.source_digest[:12]}"
    return ""


def _read_source(storage: Storage, digest: str) -> SourceInfo:
    from modelreg.registry.sources.ingest import (  # noqa: PLC0415 - imports onnx
        describe_source,
        list_source,
        materialise_files,
    )
    from modelreg.registry.sources.inspect import inspect_source  # noqa: PLC0415

    with scratch_folder("recover") as folder:
        files = list_source(storage, digest)
        path = materialise_files(files, storage, folder)
        if len(files) == 1:
            files = (files[0]._replace(size_bytes=path.stat().st_size),)
        return describe_source(inspect_source(path), files)
