"""What every store refuses, whatever it is made of. Pure: no input or output.

Digests and paths end up in file names and keys, so they are checked before any is built.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from modelreg.registry.contents import StoredFile
from modelreg.registry.errors import ActivationConflictError, IntegrityError, NotFoundError
from modelreg.registry.pointers import Pointer, parse_pointer
from modelreg.registry.references import check_name

MANIFEST_NAME = "manifest.json"
_HEX = frozenset("0123456789abcdef")
_UNSAFE = frozenset(map(chr, range(32))) | {"\x7f", "\\"}
_MAX_PART_BYTES = 255


def check_digest(digest: str) -> str:
    """
    Return `digest` unchanged if it is a SHA-256 as we write it.

    Raises:
        IntegrityError: It is not 64 lower-case hex digits.
    """
    if len(digest) != 64 or not _HEX.issuperset(digest):
        raise IntegrityError(f"{digest[:80]!r} is no SHA-256 digest of 64 hex digits")
    return digest


def check_channel(model: str, channel: str) -> None:
    """
    Check both names of a channel.

    Raises:
        InvalidReferenceError: One is not allowed.
    """
    check_name(model)
    check_name(channel, what="channel")


def no_pointer(model: str, channel: str) -> NotFoundError:
    """Return the error of a channel that never had a pointer, or lost it with its history."""
    return NotFoundError(f"{model}@{channel} has no active release")


def check_release_files(files: Sequence[StoredFile]) -> None:
    """
    Check that `files` can lie side by side below one folder, next to the manifest.

    Raises:
        IntegrityError: A path is empty, absolute, leaves the folder or meets another; a digest or size is none.
    """
    taken: set[str] = {MANIFEST_NAME}
    folders: set[str] = set()
    for file in files:
        _check_path(file.path)
        check_digest(file.digest)
        if file.size_bytes < 0:
            raise IntegrityError(f"release file {file.path!r} has size {file.size_bytes}")
        parts = file.path.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
        if file.path in taken:
            raise IntegrityError(f"release file {file.path!r} is named twice")
        taken.add(file.path)
    if both := taken & folders:
        raise IntegrityError(f"release file {min(both)!r} is a folder too")


def _check_path(path: str) -> None:
    parts = path.split("/")
    if any(part in ("", ".", "..") or len(part.encode()) > _MAX_PART_BYTES for part in parts):
        raise IntegrityError(f"release file {path[:300]!r} is no relative path inside the release")
    if not _UNSAFE.isdisjoint(path):
        raise IntegrityError(f"release file {path[:300]!r} has a control character or a backslash")


def manifest_files(manifest: bytes, *, where: str) -> tuple[StoredFile, ...]:
    """
    Return the files that a manifest names, `engines[].files[]`, in its order.

    Raises:
        IntegrityError: It is not a manifest, or names a file that a release cannot hold; `where` is named.
    """
    try:
        engines = json.loads(manifest)["engines"]
        files = tuple(StoredFile.from_json(file) for engine in engines for file in engine["files"])
        check_release_files(files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"manifest {where} cannot be read: {error!r}") from None
    return files


def check_release(manifest: bytes, files: Sequence[StoredFile]) -> None:
    """
    Check that `files` are those the manifest names, and can be laid out.

    Raises:
        IntegrityError: They cannot be laid out, or the manifest is none.
        ValueError: They are not the manifest's.
    """
    check_release_files(files)
    named = manifest_files(manifest, where="to publish")
    if sorted(named, key=_path_of) != sorted(files, key=_path_of):
        raise ValueError("the files to publish are not those that the manifest names")


def _path_of(file: StoredFile) -> str:
    return file.path


def parse_channel_pointer(
    data: bytes, *, model: str, channel: str, where: str, generation: int | None = None
) -> Pointer:
    """
    Return the pointer in `data`, which must be one of this channel (and of `generation`, where given).

    Raises:
        IntegrityError: It is damaged, or was copied from elsewhere; `where` is named.
    """
    try:
        return _parse_channel_pointer(data, model=model, channel=channel, where=where, generation=generation)
    except IntegrityError as error:
        if generation is None and error.hint() == error.default_hint:
            raise IntegrityError(str(error), hint=lost_pointer_hint(f"{model}@{channel}")) from None
        raise


def lost_pointer_hint(place: str) -> str:
    """Return what brings the pointer of `place`, `NAME@CHANNEL`, back where it is gone or damaged."""
    return f"`modelreg doctor --fix --roll-forward {place}` puts the newest of its history there."


def _parse_channel_pointer(data: bytes, *, model: str, channel: str, where: str, generation: int | None) -> Pointer:
    try:
        pointer = parse_pointer(data, where=where)
        check_digest(pointer.release)
        is_numbered = pointer.generation >= 1 and pointer.version >= 1
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"pointer {where} lacks a field or has a wrong one: {error!r}") from None
    if (pointer.model, pointer.channel) != (model, channel):
        raise IntegrityError(f"pointer {where} belongs to {pointer.model}@{pointer.channel}")
    wanted = pointer.generation if generation is None else generation
    if pointer.generation != wanted or not is_numbered:
        raise IntegrityError(f"pointer {where} has generation {pointer.generation}")
    return pointer


def check_swap(new: Pointer, *, expected: Pointer | None) -> None:
    """
    Check that `new` follows `expected`, before anything is touched.

    Raises:
        InvalidReferenceError: The model or channel name is not allowed.
        IntegrityError: The release is no digest.
        ValueError: `new` does not follow `expected` (see `next_pointer`).
    """
    check_channel(new.model, new.channel)
    check_digest(new.release)
    if not follows(new, expected):
        raise ValueError(f"generation {new.generation} does not follow what is expected")


def follows(new: Pointer, current: Pointer | None) -> bool:
    """Return whether `new` is one generation after `current` of the same channel, and chained to it."""
    if current is None:
        return (new.generation, new.previous_txn) == (1, "")
    same = (new.model, new.channel) == (current.model, current.channel)
    return same and (new.generation, new.previous_txn) == (current.generation + 1, current.txn)


def check_part_of_history(
    document: Pointer, *, current: Pointer | None, before: Pointer | None, after: Pointer | None
) -> None:
    """
    Check that a document that was lost is one of its channel's history.

    Args:
        document: What would be written again.
        current: The channel's pointer.
        before: The document of the generation before, where it is there.
        after: The document of the generation after, where it is there.

    Raises:
        IntegrityError: It lies beyond the pointer, is not what the pointer says, or is not chained to its neighbours.
    """
    served = 0 if current is None else current.generation
    is_known = document == current if document.generation == served else document.generation < served
    is_chained = (before is None or follows(document, before)) and (after is None or follows(after, document))
    if not is_known or not is_chained:
        place = f"{document.model}@{document.channel}"
        raise IntegrityError(f"generation {document.generation} is no part of the history of {place}")


def check_advance(document: Pointer | None, *, generation: int, newest: int, current: Pointer | None) -> None:
    """
    Check that a pointer may be put forward to a generation of its own history.

    Args:
        document: The history document of `generation`, None where there is none.
        generation: Where to.
        newest: The newest generation that the history has, 0 for none.
        current: The pointer, None where it is gone or cannot be read.

    Raises:
        IntegrityError: It is not the newest, or the pointer is at it or beyond.
    """
    at = 0 if current is None else current.generation
    if document is None or generation != newest or generation <= at:
        raise IntegrityError(
            f"the pointer at generation {at} cannot be moved on to {generation}: the history goes to {newest}"
        )


def require_expected(current: Pointer | None, *, new: Pointer, expected: Pointer | None) -> None:
    """
    Compare what a channel is at with what the caller expected, by transaction and generation.

    Raises:
        ActivationConflictError: They differ.
    """
    found = (0, "") if current is None else (current.generation, current.txn)
    wanted = (0, "") if expected is None else (expected.generation, expected.txn)
    if found != wanted:
        raise ActivationConflictError(
            f"{new.model}@{new.channel}",
            expected=wanted[0],
            found=found[0],
            holder="" if current is None else current.actor,
        )
