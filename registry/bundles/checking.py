"""A bundle from elsewhere is read to its end and held to all that it claims, before anything is taken from it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from modelreg.registry.bundles.archive import ArchiveReader
from modelreg.registry.bundles.listing import (
    LISTING_LIMIT_BYTES,
    LISTING_NAME,
    RECORDS_NAME,
    Listing,
    blob_name,
    parse_canonical,
    parse_listing,
)
from modelreg.registry.bundles.slices import Slice, parse_slice
from modelreg.registry.contents import StoredFile, list_files
from modelreg.registry.digests import file_digest, sha256_hex
from modelreg.registry.errors import IntegrityError, SourceError, UsageError
from modelreg.registry.manifest import Manifest, parse_manifest
from modelreg.registry.regular_files import fault_of, open_without_waiting
from modelreg.registry.sources.external import MODEL_NAME, check_location
from modelreg.registry.storage.failures import storage_error
from modelreg.registry.storage.interface import Progress, no_progress
from modelreg.registry.words import BlobKind

_MOST_UNPACKED_FROM_BYTES = 256 << 20
_MOST_RATIO = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedBundle:
    """A bundle whose every byte was read and is what its list says; `digest` is the SHA-256 of the file."""

    path: Path
    digest: str
    size_bytes: int
    listing: Listing
    slice: Slice


def check_bundle(
    path: Path, *, scratch: Path, expected_digest: str = "", progress: Progress = no_progress
) -> CheckedBundle:
    """
    Return what is in a bundle, after all of it was verified; only its source is laid out, in `scratch`, and looked at.

    Args:
        path: The file; a regular one.
        scratch: An empty folder, for the source.
        expected_digest: The SHA-256 that the file must have; empty for any.
        progress: Told of the bytes of blobs.

    Raises:
        UsageError: It is no file.
        IntegrityError: It is damaged, hostile, or contradicts itself; says where.
    """
    if fault := fault_of(path):
        raise UsageError(f"{path} is {fault}")
    try:
        digest = file_digest(path)
        if expected_digest and digest != expected_digest:
            raise IntegrityError(f"{path.name} has SHA-256 {digest}, expected is {expected_digest}")
        with opened_bundle(path, progress=progress) as (archive, listing, found):
            _require_complete(listing, found)
            kept = {file.digest: scratch / file.digest for file in found.version.source.files}
            documents = _verify_blobs(archive, listing, kept)
    except OSError as error:
        raise storage_error(error, path, what="bundle") from error
    _check_release(found, documents)
    _check_source(found, kept, scratch)
    return CheckedBundle(path=path, digest=digest, size_bytes=path.stat().st_size, listing=listing, slice=found)


@contextmanager
def opened_bundle(path: Path, *, progress: Progress = no_progress) -> Iterator[tuple[ArchiveReader, Listing, Slice]]:
    """Open a bundle and read its list and records; the blobs follow in the order of the list."""
    with open_without_waiting(path) as opened, ArchiveReader.on(path, opened, progress=progress) as archive:
        listing = parse_listing(archive.read_first(LISTING_NAME, limit_bytes=LISTING_LIMIT_BYTES))
        _refuse_bomb(opened, listing, path.name)
        records = archive.read(RECORDS_NAME, listing.records_bytes)
        if sha256_hex(records) != listing.records_digest:
            raise IntegrityError(f"{path.name} is damaged: its records do not match their digest")
        yield archive, listing, parse_slice(parse_canonical(records, what=RECORDS_NAME))


def _refuse_bomb(opened: BinaryIO, listing: Listing, name: str) -> None:
    packed = os.fstat(opened.fileno()).st_size
    unpacked = listing.size_bytes
    if unpacked > _MOST_UNPACKED_FROM_BYTES and unpacked > packed * _MOST_RATIO:
        raise IntegrityError(
            f"{name} is refused: {packed:,} bytes would become {unpacked:,}",
            hint="If that is right, export it as .tar, without compression.",
        )


def _require_complete(listing: Listing, found: Slice) -> None:
    """Hold the list to the records: every blob that is named, with its size, and no other."""
    sizes = {blob.digest: blob.size_bytes for blob in listing.blobs}
    named = found.digests()
    if lost := sorted(named - sizes.keys()):
        raise IntegrityError(f"the bundle lacks blob {lost[0]}, which its records name")
    if strange := sorted(sizes.keys() - named):
        raise IntegrityError(f"the bundle has blob {strange[0]}, which none of its records names")
    for file in _all_files(found):
        if sizes[file.digest] != file.size_bytes:
            raise IntegrityError(f"the bundle's {file.path!r} has another size than its blob")


def _all_files(found: Slice) -> Iterator[StoredFile]:
    yield from found.version.source.files
    for variant in found.variants:
        yield from variant.files
    for engine in found.engines:
        yield from engine.files


def _verify_blobs(archive: ArchiveReader, listing: Listing, kept: Mapping[str, Path]) -> dict[str, bytes]:
    """Read every blob; return the manifests, which are small, and write those to keep."""
    documents: dict[str, bytes] = {}
    for blob in listing.blobs:
        pieces: list[bytes] = []
        if blob.digest in kept:
            with kept[blob.digest].open("xb") as file:
                found = archive.copy(blob_name(blob.digest), blob.size_bytes, file.write)
        else:
            is_small = blob.kind is BlobKind.MANIFEST and blob.size_bytes <= LISTING_LIMIT_BYTES
            write = pieces.append if is_small else _drop
            found = archive.copy(blob_name(blob.digest), blob.size_bytes, write)
        if found != blob.digest:
            raise IntegrityError(f"the bundle is damaged: blob {blob.digest} has SHA-256 {found}")
        if pieces:
            documents[blob.digest] = b"".join(pieces)
    archive.require_end()
    return documents


def _drop(_piece: bytes) -> None:
    """Keep nothing."""


def _check_release(found: Slice, documents: Mapping[str, bytes]) -> None:
    """Hold the release's manifest to the records: this version, these engines."""
    source = found.version.source
    if len(source.files) > 1 and documents.get(source.digest) != list_files(source.files):
        raise IntegrityError("the bundle's list of the source's files is not that of its records")
    if found.release is None:
        return
    manifest: Manifest = parse_manifest(documents.get(found.release.digest, b""), where=found.release.digest)
    known = {(each.target.name, each.recipe_digest, each.plan_digest) for each in found.engines}
    released = {(each.target, each.recipe_digest, each.plan.digest) for each in manifest.engines}
    is_same = (manifest.model, manifest.version, manifest.source_digest) == (
        found.version.model,
        found.version.number,
        source.digest,
    )
    if not is_same or released != known:
        raise IntegrityError("the bundle's release is not of the version and the engines in its records")


def _check_source(found: Slice, kept: Mapping[str, Path], scratch: Path) -> None:
    """Inspect the source as `register` does: a digest tells that it arrived whole, not that it is harmless."""
    from modelreg.registry.sources.inspect import inspect_source  # noqa: PLC0415 - imports onnx

    folder = scratch / "source"
    folder.mkdir()
    try:
        for position, file in enumerate(found.version.source.files):
            name = MODEL_NAME if position == 0 else check_location(file.path, tensor="the bundle's source")
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            kept[file.digest].rename(place)
        inspected = inspect_source(folder / MODEL_NAME)
    except SourceError as error:
        raise IntegrityError(f"the bundle's source is refused: {error}", hint=error.hint()) from error
    except FileNotFoundError:
        raise IntegrityError("the bundle's source has one blob under two names") from None
    if inspected.signature != found.version.source.signature:
        raise IntegrityError("the bundle's source does not take or give what its record says")
