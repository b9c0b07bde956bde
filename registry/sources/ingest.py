"""Moving a source between the user's files and the store."""

from __future__ import annotations

import json
from pathlib import Path

from modelreg.registry.contents import StoredFile, list_files
from modelreg.registry.digests import file_digest, sha256_hex
from modelreg.registry.errors import ModelregError, SourceError
from modelreg.registry.records import SourceInfo
from modelreg.registry.sources.external import MODEL_NAME, check_location
from modelreg.registry.sources.inspect import InspectedSource, read_stripped
from modelreg.registry.sources.local_files import LocalFile, require_unchanged, shown
from modelreg.registry.storage.interface import Progress, Storage, no_progress

_LIST_BEGINS = b"[{"


def ingest_source(inspected: InspectedSource, storage: Storage, *, progress: Progress = no_progress) -> SourceInfo:
    """
    Store every file of an inspected source, hashed in the same pass, and return its record.

    Blobs that are already there are not stored twice. A failure leaves at most whole blobs that nothing refers to. Of
    several files the list is stored too, so that the source can be found again by its digest without the database.

    Raises:
        SourceError: A file changed since it was inspected.
        StorageError: The store could not be written.
    """
    for file in inspected.files:
        require_unchanged(file)
    stored = tuple(_store(file, storage, progress) for file in inspected.files)
    _require_same_graph(inspected)
    if len(stored) > 1:
        storage.put_bytes(list_files(stored))
    return describe_source(inspected, stored)


def describe_source(inspected: InspectedSource, stored: tuple[StoredFile, ...]) -> SourceInfo:
    """Return the record of an inspected source whose files are in the store."""
    return SourceInfo(
        digest=source_digest(stored),
        files=stored,
        signature=inspected.signature,
        opsets=inspected.opsets,
        ir_version=inspected.ir_version,
        producer=inspected.producer,
        node_counts=inspected.node_counts,
        parameter_bytes=inspected.parameter_bytes,
        unbuildable=inspected.unbuildable,
        warnings=inspected.warnings,
    )


def hash_source(inspected: InspectedSource) -> str:
    """Return the digest that an inspected source has once it is stored; every file is read, nothing is stored."""
    files = tuple(
        StoredFile(path=file.name, digest=file_digest(file.path), size_bytes=file.size_bytes)
        for file in inspected.files
    )
    return source_digest(files)


def source_digest(files: tuple[StoredFile, ...]) -> str:
    """Return the identity of a source: of the ONNX file when it stands alone, else of the list of its files."""
    if len(files) == 1:
        return files[0].digest
    return sha256_hex(list_files(files))


def list_source(storage: Storage, digest: str) -> tuple[StoredFile, ...]:
    """
    Return the files of a source by its digest alone: those that a blob lists, or the blob that is the ONNX itself,
    whose size is not known before it is read and is 0 here.

    Raises:
        NotFoundError: There is no such blob.
        ModelregError: It is no list, though it begins as one.
    """
    with storage.open_blob(digest) as file:
        head = file.read(len(_LIST_BEGINS))
    if not head.startswith(_LIST_BEGINS):
        return (StoredFile(path=MODEL_NAME, digest=digest, size_bytes=0),)
    try:
        return tuple(StoredFile.from_json(each) for each in json.loads(storage.read_blob(digest)))
    except (ValueError, KeyError, TypeError) as error:
        raise ModelregError(f"blob {digest} is no list of files: {error!r}") from None


def materialise_source(source: SourceInfo, storage: Storage, folder: Path, *, progress: Progress = no_progress) -> Path:
    """
    Lay a stored source out in `folder`, every file verified on the way, and return the path of the ONNX.

    External data lies where the model expects it, as real files: onnx refuses links and hard links.

    Raises:
        IntegrityError: A stored file does not match its digest.
        NotFoundError: A stored file is gone.
        SourceError: A file of the record would lie outside `folder`.
    """
    return materialise_files(source.files, storage, folder, progress=progress)


def materialise_files(
    files: tuple[StoredFile, ...], storage: Storage, folder: Path, *, progress: Progress = no_progress
) -> Path:
    """Lay the files of a source out as `materialise_source` does."""
    for position, file in enumerate(files):
        name = MODEL_NAME if position == 0 else check_location(file.path, tensor="a stored source")
        destination = folder / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        storage.fetch_blob(file.digest, destination, progress=progress)
    return folder / MODEL_NAME


def _store(file: LocalFile, storage: Storage, progress: Progress) -> StoredFile:
    blob = storage.put_file(file.path, progress=progress)
    require_unchanged(file)
    return StoredFile(path=file.name, digest=blob.digest, size_bytes=blob.size_bytes)


def _require_same_graph(inspected: InspectedSource) -> None:
    # A clock that ticks in milliseconds can hide a quick edit; the graph itself cannot.
    path = inspected.files[0].path
    _, stripped = read_stripped(path, shown_as=shown(path))
    if sha256_hex(stripped.data) != inspected.graph_digest:
        raise SourceError(f"{shown(path)} changed while it was being registered")
