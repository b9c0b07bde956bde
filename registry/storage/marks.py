"""What a collector has marked, and how a writer takes it back: one compare-and-swap decides between the two.

A blob or release that nothing needs is *marked*. When it has stayed so for the grace period, the collector moves its
mark to *sweeping*, removes the thing, and then the mark; of a release a *swept* mark stays, so that everybody can say
why it is gone. A writer that is about to rely on a thing looks at its mark first: a marked one it moves to *kept*, and
then the collector's own move is refused. A thing that is being swept it waits for, and then stores anew. So it does not
matter whether the store knows a lock, and after its look a writer has the whole grace period to say what it needs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from modelreg.registry.clock import iso, parse_iso
from modelreg.registry.errors import BusyError, IntegrityError, NotFoundError
from modelreg.registry.storage.notes import COLLECTION, Note, Notes
from modelreg.registry.storage.rules import check_digest
from modelreg.registry.words import Json, Word

MARK_FOLDER = f"{COLLECTION}/marks"
_PATIENCE_S = 30.0
_LONGEST_WAIT_S = 0.5


class MarkedKind(Word):
    """What can be marked."""

    BLOB = "blob"
    RELEASE = "release"


class MarkState(Word):
    """How a mark stands."""

    MARKED = "marked"
    KEPT = "kept"
    SWEEPING = "sweeping"
    SWEPT = "swept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One mark; `at` is when it was set, by the store's clock, `size_bytes` what the thing took then."""

    kind: MarkedKind
    digest: str
    state: MarkState
    at: datetime
    reason: str
    size_bytes: int
    actor: str

    @property
    def name(self) -> str:
        """Return the name of its note."""
        return mark_name(self.kind, self.digest)

    def to_bytes(self) -> bytes:
        """Return its note: never the same bytes twice."""
        body: Json = {
            "kind": str(self.kind),
            "digest": self.digest,
            "state": str(self.state),
            "at": iso(self.at),
            "reason": self.reason,
            "size_bytes": self.size_bytes,
            "actor": self.actor,
            "nonce": os.urandom(8).hex(),
        }
        return json.dumps(body).encode()


def mark_name(kind: MarkedKind, digest: str) -> str:
    """Return the name of the note that marks something."""
    return f"{MARK_FOLDER}/{kind}-{check_digest(digest)}.json"


def parse_mark(note: Note) -> Mark:
    """
    Return the mark that a note is.

    Raises:
        IntegrityError: It is none.
    """
    try:
        body = json.loads(note.data)
        mark = Mark(
            kind=MarkedKind(body["kind"]),
            digest=check_digest(body["digest"]),
            state=MarkState(body["state"]),
            at=parse_iso(body["at"]),
            reason=str(body["reason"]),
            size_bytes=int(body["size_bytes"]),
            actor=str(body["actor"]),
        )
        if mark.name == note.name:
            return mark
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    hint = "`modelreg doctor --fix` removes it: what it marked is then kept."
    raise IntegrityError(f"{note.name} of the store is no mark", hint=hint)


class Marks:
    """Looks at marks on behalf of whoever is about to rely on what they mark.

    Args:
        notes: Where marks are.
        is_left: Whether the collector that wrote a *sweeping* mark can no longer be at it.
    """

    def __init__(self, notes: Notes, *, is_left: Callable[[Note], bool]) -> None:
        self._notes = notes
        self._is_left = is_left

    def claim_blob(self, digest: str) -> None:
        """See to it that no collector removes a blob that is about to be stored, or used if it is there; as `claim`."""
        self.claim(MarkedKind.BLOB, digest)

    def claim_new_release(self, release: str) -> None:
        """See to it that no collector removes a release that is about to be published; as `claim`."""
        self.claim(MarkedKind.RELEASE, release)

    def claim(self, kind: MarkedKind, digest: str) -> None:
        """
        See to it that no collector removes something that is about to be stored, or is used if it is there.

        Call it before the look whether it is there: what is being removed at the moment is waited for.

        Raises:
            BusyError: A collector is at it for longer than it takes, or died there and nobody may know yet.
        """
        deadline, wait_s = time.monotonic() + _PATIENCE_S, 0.01
        while True:
            note = self._notes.read_note(mark_name(kind, digest))
            if note is None:
                return
            mark = parse_mark(note)
            if mark.state is MarkState.KEPT:
                return
            if mark.state is not MarkState.SWEEPING or self._is_left(note):
                if self.keep(mark, note):
                    return
                continue
            if time.monotonic() >= deadline:
                raise BusyError(
                    f"{kind} {digest[:12]} is being removed by `modelreg gc` of {mark.actor}",
                    hint="Try again when it is done. If it was killed, that takes a quarter of an hour.",
                )
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    def keep(self, mark: Mark, note: Note) -> bool:
        """Move a mark to *kept*; return False if it is not what it was."""
        return self._notes.write_note(mark.name, replace(mark, state=MarkState.KEPT).to_bytes(), replaces=note)

    def find_swept(self, release: str) -> Mark | None:
        """Return the mark of a release that was removed, or whose removal has begun; else None."""
        note = self._notes.read_note(mark_name(MarkedKind.RELEASE, release))
        mark = None if note is None else parse_mark(note)
        return mark if mark is not None and mark.state in (MarkState.SWEEPING, MarkState.SWEPT) else None

    def claim_release(self, release: str) -> None:
        """
        See to it that no collector removes a release that is there and is about to become active.

        Raises:
            NotFoundError: It was removed, or its removal has begun.
        """
        while True:
            note = self._notes.read_note(mark_name(MarkedKind.RELEASE, release))
            if note is None:
                return
            mark = parse_mark(note)
            if mark.state in (MarkState.SWEEPING, MarkState.SWEPT):
                raise swept_release(mark)
            if mark.state is MarkState.KEPT or self.keep(mark, note):
                return


def swept_release(mark: Mark) -> NotFoundError:
    """Return the error of a release that was removed: it cannot become active again."""
    return NotFoundError(
        f"release {mark.digest[:12]} was removed by `modelreg gc` of {mark.actor}; it was garbage since {iso(mark.at)}:"
        f" {mark.reason}",
        hint="Build its version again and promote it, or choose a later generation with --to-generation.",
    )
