"""Channels of a local store: `pointer.json`, moved by one replace, beside a history that is only added to.

A swap under the channel's lock: both documents are written to temporary files and made durable; then the history
document gets its name (the generation is *reserved*), then the pointer is replaced (the *commit point*). A writer
that dies before the reservation changed nothing; one that dies between the two is completed by whoever comes next.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from modelreg.registry.errors import (
    ActivationConflictError,
    ActivationUnknownError,
    IntegrityError,
    InvalidReferenceError,
    ModelregError,
    NotFoundError,
)
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.failures import storage_errors
from modelreg.registry.storage.layout import ChannelPlace, Layout
from modelreg.registry.storage.releases import LocalReleases
from modelreg.registry.storage.rules import (
    check_advance,
    check_channel,
    check_part_of_history,
    check_swap,
    follows,
    lost_pointer_hint,
    parse_channel_pointer,
    require_expected,
)
from modelreg.registry.storage.writing import (
    READ_ONLY_MODE,
    TEMPORARY_SUFFIX,
    discard,
    nonce,
    temporary_file,
    temporary_files,
)

_SWAP_PATIENCE_S = 30.0
_READ_BYTES = 1 << 16


class LocalChannels:
    """Channels below a `Layout`, pointing to its releases."""

    def __init__(self, layout: Layout, releases: LocalReleases) -> None:
        self._layout = layout
        self._ops = layout.ops
        self._releases = releases

    # -- reading -------------------------------------------------------------------------------------------
    def read_pointer(self, model: str, channel: str) -> Pointer | None:
        """Return the verified pointer, read once, or None where the channel never had one."""
        place = self._layout.channel(model, channel)
        with storage_errors(place.pointer):
            return self._read_pointer(place)

    def _read_pointer(self, place: ChannelPlace) -> Pointer | None:
        data = _read_file(place.pointer)
        has_history = data is None and place.generation(2).exists()
        if has_history:
            data = _read_file(place.pointer)  # the first two swaps may have come in between
        if data is not None:
            return parse_channel_pointer(data, model=place.model, channel=place.channel, where=str(place.pointer))
        self._layout.require_mounted()
        if has_history:
            raise IntegrityError(
                f"pointer {place.pointer} is missing, though the channel has a history",
                hint=lost_pointer_hint(place.name),
            )
        return None

    def read_history(self, model: str, channel: str, generation: int) -> Pointer:
        """Return one generation's pointer document, verified."""
        place = self._layout.channel(model, channel)
        with storage_errors(place.history):
            found = self._read_generation(place, generation)
            if found is None:
                self._layout.require_mounted()
                raise NotFoundError(
                    f"channel {place.name} has no generation {generation} in its history",
                    hint="Choose one that is there with --to-generation; `modelreg history` lists them.",
                )
            return found

    def _read_generation(self, place: ChannelPlace, generation: int) -> Pointer | None:
        path = place.generation(generation)
        data = _read_file(path)
        if data is None:
            return None
        return parse_channel_pointer(
            data, model=place.model, channel=place.channel, where=str(path), generation=generation
        )

    def list_generations(self, model: str, channel: str) -> list[int]:
        """Return the generations with a history document, ascending."""
        place = self._layout.channel(model, channel)
        with storage_errors(place.history):
            try:
                names = os.listdir(place.history)  # noqa: PTH208 - names alone, for histories of any length
            except FileNotFoundError:
                self._layout.require_mounted()
                return []
        return sorted(int(name[:12]) for name in names if _is_generation(name))

    def list_channels(self) -> list[tuple[str, str]]:
        """Return (model, channel) of every channel that has a folder, sorted."""
        with storage_errors(self._layout.channels):
            return sorted(self._channels())

    def _channels(self) -> Iterator[tuple[str, str]]:
        for model in _folders(self._layout.channels):
            for channel in _folders(self._layout.channels / model):
                with suppress(InvalidReferenceError):
                    check_channel(model, channel)
                    yield model, channel

    # -- moving --------------------------------------------------------------------------------------------
    @contextmanager
    def exclusive(self, model: str, channel: str, *, timeout_s: float) -> Iterator[None]:
        """Hold the channel against other commands of this host."""
        place = self._layout.channel(model, channel)
        with ExitStack() as stack:
            with storage_errors(place.locks):
                stack.enter_context(self._layout.command_lock(place, timeout_s=timeout_s))
            yield

    def complete_reserved(self, model: str, channel: str) -> Pointer | None:
        """Finish a swap whose writer died between history and pointer; return the pointer as it is then."""
        place = self._layout.channel(model, channel)
        with storage_errors(place.folder):
            current = self._read_pointer(place)
            if not place.generation(_number(current) + 1).exists():
                return current  # nothing to finish, so nothing to lock: this works on a read-only store
            with self._layout.swap_lock(place, timeout_s=_SWAP_PATIENCE_S):
                return self._complete(place)

    def swap_pointer(self, new: Pointer, *, expected: Pointer | None) -> None:
        """Move the pointer from `expected` to `new`: history first, then one replace."""
        check_swap(new, expected=expected)
        place = self._layout.channel(new.model, new.channel)
        with storage_errors(place.folder):
            self._releases.read_manifest(new.release)
            with self._layout.swap_lock(place, timeout_s=_SWAP_PATIENCE_S):
                current = self._complete(place)
                if current is not None and current.txn == new.txn:
                    self._make_durable(place, new)  # ours already: an earlier try that did not know its outcome
                else:
                    require_expected(current, new=new, expected=expected)
                    if current is None:
                        # Where a pointer is, its writer made the folders durable before it.
                        self._layout.make_folder(place.history)
                    self._write(place, new)

    def restore_history(self, document: Pointer) -> None:
        """Write a generation's document again that was lost or damaged; nothing happens if it is there."""
        place = self._layout.channel(document.model, document.channel)
        path = place.generation(document.generation)
        with storage_errors(place.history), self._layout.swap_lock(place, timeout_s=_SWAP_PATIENCE_S):
            self._require_part_of_history(place, document)
            self._layout.make_folder(place.history)
            is_damaged = path.exists() and self._read_if_sound(place, document.generation) is None
            with temporary_files(self._ops, place.folder, document.to_bytes(), modes=(READ_ONLY_MODE,)) as (temporary,):
                if is_damaged:
                    self._ops.replace(temporary, path)
                else:
                    with suppress(FileExistsError):
                        self._ops.link(temporary, path)
                self._ops.fsync_dir(place.history)

    def _require_part_of_history(self, place: ChannelPlace, document: Pointer) -> None:
        check_part_of_history(
            document,
            current=self._read_pointer(place),
            before=self._read_if_sound(place, document.generation - 1),
            after=self._read_if_sound(place, document.generation + 1),
        )

    def _read_if_sound(self, place: ChannelPlace, generation: int) -> Pointer | None:
        with suppress(IntegrityError):
            return self._read_generation(place, generation)
        return None

    def advance_pointer(self, model: str, channel: str, generation: int) -> None:
        """Put the newest document of the history in the place of a pointer that is lost, damaged or older."""
        place = self._layout.channel(model, channel)
        with storage_errors(place.folder), self._layout.swap_lock(place, timeout_s=_SWAP_PATIENCE_S):
            current = None
            with suppress(IntegrityError):
                current = self._read_pointer(place)
            document = self._read_generation(place, generation)
            newest = max(self.list_generations(model, channel), default=0)
            check_advance(document, generation=generation, newest=newest, current=current)
            assert document is not None
            self._releases.read_manifest(document.release)
            self._put_pointer(place, document, place.generation(generation).read_bytes())

    def _complete(self, place: ChannelPlace) -> Pointer | None:
        current = self._read_pointer(place)
        path = place.generation(_number(current) + 1)
        data = _read_file(path)
        if data is None:
            return current
        reserved = parse_channel_pointer(data, model=place.model, channel=place.channel, where=str(path))
        self._require_completable(place, reserved, current)
        self._put_pointer(place, reserved, data)
        return reserved

    def _put_pointer(self, place: ChannelPlace, document: Pointer, data: bytes) -> None:
        """Move the pointer to a document of the history, which is made durable before."""
        self._ops.fsync_dir(place.history)
        with temporary_file(self._ops, place.folder, data) as temporary:
            self._ops.replace(temporary, place.pointer)
        self._make_durable(place, document)
        self._point_current(place, document.release)

    def _require_completable(self, place: ChannelPlace, reserved: Pointer, current: Pointer | None) -> None:
        """Only the very next generation, chained to the pointer, can be a swap that was cut short."""
        at = _number(current)
        if not follows(reserved, current) or place.generation(at + 2).exists():
            raise IntegrityError(
                f"pointer {place.pointer} is at generation {at}, which is not what its history goes on from",
                hint="One of the two was restored from a backup: run `modelreg doctor` and decide which is right.",
            )
        try:
            self._releases.read_manifest(reserved.release)
        except NotFoundError as error:
            raise IntegrityError(
                f"generation {reserved.generation} of {place.name} was reserved and cannot be completed: {error}"
            ) from None

    def _write(self, place: ChannelPlace, new: Pointer) -> None:
        data = new.to_bytes()
        with temporary_files(self._ops, place.folder, data, modes=(READ_ONLY_MODE, None)) as (document, pointer):
            self._reserve(place, new, document)
            self._commit(place, new, pointer)
        self._point_current(place, new.release)

    def _reserve(self, place: ChannelPlace, new: Pointer, document: Path) -> None:
        try:
            self._ops.link(document, place.generation(new.generation))
        except FileExistsError:
            # We hold the lock, so this is another host on a file system whose locks do not reach it.
            raise ActivationConflictError(place.name, expected=new.generation - 1, found=new.generation) from None
        try:
            discard(self._ops, document)
            self._ops.fsync_dir(place.history)
        except OSError as error:
            self._withdraw(place, new, error)

    def _commit(self, place: ChannelPlace, new: Pointer, temporary: Path) -> None:
        try:
            self._ops.replace(temporary, place.pointer)
        except OSError as error:
            # A network file system may report a failure for what it did.
            if not self._is_at(place, new, error):
                self._withdraw(place, new, error)
        self._make_durable(place, new)

    def _make_durable(self, place: ChannelPlace, new: Pointer) -> None:
        try:
            self._ops.fsync_dir(place.folder)
        except OSError as error:
            raise _unknown(place, new, error) from error

    def _is_at(self, place: ChannelPlace, new: Pointer, error: OSError) -> bool:
        try:
            found = self._read_pointer(place)
        except (OSError, ModelregError):
            raise _unknown(place, new, error) from error
        return found is not None and found.txn == new.txn

    def _withdraw(self, place: ChannelPlace, new: Pointer, error: OSError) -> NoReturn:
        """Take a reservation back after `error`, while we still hold the lock and the pointer has not moved."""
        try:
            self._ops.unlink(place.generation(new.generation))
            self._ops.fsync_dir(place.history)
        except OSError:
            # It may survive, and then the next command completes it.
            raise _unknown(place, new, error) from error
        raise error

    def _point_current(self, place: ChannelPlace, release: str) -> None:
        """Move the convenience link `current`; nothing of ours reads it, so a failure does not matter."""
        temporary = place.folder / f".{nonce()}{TEMPORARY_SUFFIX}"
        try:
            self._ops.symlink(f"../../../releases/{release}", temporary)
            self._ops.replace(temporary, place.folder / "current")
        except OSError:
            discard(self._ops, temporary)


def _is_generation(name: str) -> bool:
    return len(name) == 17 and name.endswith(".json") and name[:12].isascii() and name[:12].isdigit()


def _number(pointer: Pointer | None) -> int:
    return 0 if pointer is None else pointer.generation


def _unknown(place: ChannelPlace, new: Pointer, error: OSError) -> ActivationUnknownError:
    return ActivationUnknownError(
        f"channel {place.name} may have moved to generation {new.generation}, or may yet: {error.strerror or error}"
    )


def _read_file(path: Path) -> bytes | None:
    """Return a small file's bytes from one open, or None if it is not there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        data = piece = os.read(fd, _READ_BYTES)
        while len(piece) == _READ_BYTES:
            piece = os.read(fd, _READ_BYTES)
            data += piece
        return data
    finally:
        os.close(fd)


def _folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
