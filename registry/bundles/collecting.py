"""What a reference's bundle holds, read from the database and the store; nothing is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import sqlalchemy as sa

from modelreg.registry import engines, golden_sets, validations
from modelreg.registry.blobs import BlobRecord
from modelreg.registry.bundles.listing import Listing, make_listing
from modelreg.registry.bundles.slices import ReleaseOrigin, Slice, Variant
from modelreg.registry.contents import StoredFile
from modelreg.registry.database import Database
from modelreg.registry.digests import json_digest
from modelreg.registry.errors import ForeignReleaseError, IntegrityError, NotFoundError
from modelreg.registry.manifest import Manifest, parse_manifest
from modelreg.registry.pointers import Pointer
from modelreg.registry.records import EngineRecord, VersionRecord
from modelreg.registry.references import ModelReference
from modelreg.registry.rows import decoding
from modelreg.registry.schema import blob, variant
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.rules import no_pointer
from modelreg.registry.versions import get_version
from modelreg.registry.words import BlobKind, EngineStatus

_BLOBS = sa.select(blob.c.digest, blob.c.size_bytes, blob.c.kind)
_VARIANTS = (
    sa.select(variant).where(variant.c.source_digest == sa.bindparam("of_source")).order_by(variant.c.recipe_digest)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleContents:
    """A bundle before it is written: its records, its list, and the manifest of the release that it is of."""

    slice: Slice
    records: bytes
    listing: Listing
    manifest: bytes | None


def collect(database: Database, storage: Storage, reference: ModelReference) -> BundleContents:
    """
    Return what the bundle of a reference holds.

    A channel means the release that it serves, with its engines alone; anything else means a version, with all engines
    that count there and whose plans are kept.

    Raises:
        NotFoundError: There is no such version or channel.
        IntegrityError: A record names a blob that the registry does not know.
    """
    pointer, document = None, None
    if reference.channel is not None:
        pointer = storage.read_pointer(reference.model, reference.channel)
        if pointer is None:
            raise no_pointer(reference.model, reference.channel)
        document = storage.read_manifest(pointer.release)
        reference = ModelReference(model=pointer.model, version=pointer.version)
    with database.read() as connection:
        version = get_version(connection, reference)
        if pointer is None or document is None:
            chosen = [each for each in engines.current_engines(connection, version_id=version.id) if _is_kept(each)]
        else:
            manifest = parse_manifest(document, where=pointer.release)
            chosen = _released(connection, version, pointer, manifest)
        found = _slice(connection, version, chosen, pointer)
        blobs = _blobs(connection, found, document)
    records = found.to_bytes()
    return BundleContents(slice=found, records=records, listing=make_listing(records, blobs), manifest=document)


def _is_kept(engine: EngineRecord) -> bool:
    return engine.status is EngineStatus.BUILT and not engine.is_swept


def _released(
    connection: sa.Connection, version: VersionRecord, pointer: Pointer, manifest: Manifest
) -> list[EngineRecord]:
    attempts = engines.list_engines(connection, version_id=version.id)
    found = []
    for released in manifest.engines:
        key = (released.target, released.recipe_digest, released.plan.digest)
        same = [each for each in attempts if (each.target.name, each.recipe_digest, each.plan_digest) == key]
        if not same or version.source.digest != manifest.source_digest:
            raise ForeignReleaseError(
                f"{pointer.model}@{pointer.channel} serves an engine for {released.target} that the database has not",
                hint="Run `modelreg doctor --fix`: it reads back what the store knows.",
            )
        found.append(same[-1])
    return found


def _slice(
    connection: sa.Connection, version: VersionRecord, chosen: list[EngineRecord], pointer: Pointer | None
) -> Slice:
    newest = validations.newest_validations(connection, version_id=version.id)
    recipes = {json_digest(engine.recipe["variant"]) for engine in chosen if engine.recipe.get("variant")}
    judged = [(index, newest[engine.id]) for index, engine in enumerate(chosen) if engine.id in newest]
    return Slice(
        version=version,
        golden=golden_sets.newest_golden_set(connection, version_id=version.id),
        variants=tuple(each for each in _variants(connection, version) if each.recipe_digest in recipes),
        engines=tuple(chosen),
        validations=tuple(replace(validation, engine_id=index) for index, validation in judged),
        release=None
        if pointer is None
        else ReleaseOrigin(digest=pointer.release, channel=pointer.channel, generation=pointer.generation),
    )


@decoding("variant")
def _variants(connection: sa.Connection, version: VersionRecord) -> list[Variant]:
    return [
        Variant(
            recipe_digest=row.recipe_digest,
            files=tuple(StoredFile.from_json(file) for file in row.files),
            details=row.details,
            created_at=row.created_at,
            created_by=row.created_by,
        )
        for row in connection.execute(_VARIANTS, {"of_source": version.source.digest})
    ]


@decoding("blob")
def _blobs(connection: sa.Connection, found: Slice, manifest: bytes | None) -> list[BlobRecord]:
    wanted = sorted(found.digests())
    rows = connection.execute(_BLOBS.where(blob.c.digest.in_(wanted)))
    known = {
        row.digest: BlobRecord(digest=row.digest, size_bytes=row.size_bytes, kind=BlobKind(row.kind)) for row in rows
    }
    if found.release is not None and manifest is not None:
        digest = found.release.digest
        known[digest] = BlobRecord(digest=digest, size_bytes=len(manifest), kind=BlobKind.MANIFEST)
    lost = [digest for digest in wanted if digest not in known]
    if lost:
        raise IntegrityError(
            f"{found.version.reference} names blob {lost[0]}, which the registry does not keep",
            hint="Run `modelreg verify`; what was collected can be built again.",
        )
    return list(known.values())


def require_present(contents: BundleContents, storage: Storage) -> None:
    """
    Check that the store has every blob, before long work; their bytes are verified when they are read.

    Raises:
        NotFoundError: One is gone.
    """
    manifest = contents.slice.release and contents.slice.release.digest
    for each in contents.listing.blobs:
        if each.digest != manifest and not storage.has_blob(each.digest):
            raise NotFoundError(f"blob {each.digest} is not in the store", hint="Run `modelreg verify`.")
