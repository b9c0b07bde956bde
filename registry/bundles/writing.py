"""A bundle becomes a file: whole or not at all, and the same bytes for the same content."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from modelreg.registry.bundles.archive import ArchiveWriter, is_compressed_name
from modelreg.registry.bundles.collecting import BundleContents
from modelreg.registry.bundles.listing import LISTING_NAME, RECORDS_NAME, blob_name
from modelreg.registry.digests import file_digest
from modelreg.registry.errors import UsageError
from modelreg.registry.regular_files import fault_of
from modelreg.registry.storage.failures import storage_error
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.interface import Progress, Storage, no_progress
from modelreg.registry.storage.writing import nonce


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBundle:
    """A bundle's file: its place, digest and size."""

    path: Path
    digest: str
    size_bytes: int


def check_destination(path: Path, *, replace: bool) -> None:
    """
    Check that a bundle may be written to `path`.

    Raises:
        UsageError: Its name is no bundle's, its folder is not there, or something is there already.
    """
    is_compressed_name(path)
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is no folder")
    if os.path.lexists(path):
        fault = fault_of(path)
        if fault:
            raise UsageError(f"{path} is {fault}")
        if not replace:
            raise UsageError(f"{path} is there already", hint="Name another file, or replace it with --force.")


def write_bundle(
    contents: BundleContents, storage: Storage, path: Path, *, replace: bool, progress: Progress = no_progress
) -> WrittenBundle:
    """
    Write a bundle, every blob verified on the way.

    Raises:
        IntegrityError: A blob is damaged; no file has the name then.
        StorageError: The file cannot be written, or the store cannot be read.
    """
    check_destination(path, replace=replace)
    ops = FileOps()
    temporary = path.with_name(f".{nonce()}.tmp")
    try:
        with temporary.open("xb") as file:
            _write(contents, storage, file, compressed=is_compressed_name(path), progress=progress)
            file.flush()
            os.fsync(file.fileno())
        digest, size_bytes = file_digest(temporary), temporary.stat().st_size
        ops.replace(temporary, path)
        ops.fsync_dir(path.parent)
    except OSError as error:
        raise storage_error(error, path, what="bundle") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return WrittenBundle(path=path, digest=digest, size_bytes=size_bytes)


def _write(contents: BundleContents, storage: Storage, file: BinaryIO, *, compressed: bool, progress: Progress) -> None:
    release = contents.slice.release
    with ArchiveWriter.on(file, compressed=compressed) as archive:
        archive.add_bytes(LISTING_NAME, contents.listing.to_bytes())
        archive.add_bytes(RECORDS_NAME, contents.records)
        for blob in contents.listing.blobs:
            name = blob_name(blob.digest)
            is_manifest = release is not None and blob.digest == release.digest and contents.manifest is not None
            source = io.BytesIO(contents.manifest or b"") if is_manifest else storage.open_blob(blob.digest)
            with source:
                archive.add(name, blob.digest, blob.size_bytes, source, progress=progress)
