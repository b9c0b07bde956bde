"""Pins: versions whose engines stay, whatever becomes of their releases.

A pin is a note in the store and not a row: a database that was restored from an older backup must not forget it.
Setting and lifting one are events.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime

from modelreg.registry.clock import iso, parse_iso
from modelreg.registry.errors import ConflictError, IntegrityError, ModelregError
from modelreg.registry.records import VersionRecord
from modelreg.registry.references import check_name
from modelreg.registry.storage.notes import PINS, Note, Notes
from modelreg.registry.storage.rules import check_digest
from modelreg.registry.words import Json

PIN_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """That a version is pinned. `source` is the digest of the version's source: a number alone says too little."""

    model: str
    version: int
    source: str
    actor: str
    message: str
    at: datetime

    @property
    def name(self) -> str:
        """Return the name of its note."""
        return _name(self.model, self.version)

    def to_json(self) -> Json:
        """Return the pin as JSON."""
        return {
            "model": self.model,
            "version": self.version,
            "source": self.source,
            "actor": self.actor,
            "message": self.message,
            "at": iso(self.at),
        }

    def to_bytes(self) -> bytes:
        """Return its note."""
        body = {"format": PIN_FORMAT, **self.to_json(), "nonce": os.urandom(8).hex()}
        return (json.dumps(body, ensure_ascii=False) + "\n").encode()


def _name(model: str, version: int) -> str:
    return f"{PINS}/{check_name(model)}/{version}.json"


def parse_pin(note: Note) -> Pin:
    """
    Return the pin that a note is.

    Raises:
        IntegrityError: It is none, or of a format that this program does not know.
    """
    try:
        body = json.loads(note.data)
        pin = Pin(
            model=body["model"],
            version=int(body["version"]),
            source=check_digest(body["source"]),
            actor=str(body["actor"]),
            message=str(body["message"]),
            at=parse_iso(body["at"]),
        )
        if body["format"] == PIN_FORMAT and pin.name == note.name:
            return pin
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ModelregError):
        pass
    raise IntegrityError(f"{note.name} of the store is no pin", hint=_say_how_to_lift(note.name))


def _say_how_to_lift(name: str) -> str:
    _, model, file = name.split("/", 2)
    return f"Restore it from a backup, or lift it: modelreg unpin {model}:{file.removesuffix('.json')}"


def find_pin(notes: Notes, version: VersionRecord) -> Pin | None:
    """Return the pin of a version, or None; raises IntegrityError for one that cannot be read."""
    note = notes.read_note(_name(version.model, version.number))
    return None if note is None else parse_pin(note)


def is_pinned(notes: Notes, model: str, number: int) -> bool:
    """Return whether there is a pin of that name, whether it can be read or not."""
    return notes.read_note(_name(model, number)) is not None


def list_pins(notes: Notes, *, model: str | None = None) -> list[Pin]:
    """Return every pin of a store, or of one model; raises IntegrityError for one that cannot be read."""
    folder = PINS if model is None else f"{PINS}/{check_name(model)}"
    read = (notes.read_note(info.name) for info in notes.list_notes(folder))
    return sorted((parse_pin(note) for note in read if note is not None), key=lambda pin: (pin.model, pin.version))


def set_pin(notes: Notes, version: VersionRecord, *, message: str, actor: str, at: datetime) -> tuple[Pin, bool]:
    """
    Pin a version; return the pin and whether it is new or says something new.

    Raises:
        ConflictError: Somebody else pinned or unpinned it at the same moment.
    """
    note = notes.read_note(_name(version.model, version.number))
    known = None if note is None else parse_pin(note)
    if known is not None and known.source == version.source.digest and message in ("", known.message):
        return known, False
    pin = Pin(
        model=version.model,
        version=version.number,
        source=version.source.digest,
        actor=actor,
        message=message,
        at=at,
    )
    if not notes.write_note(pin.name, pin.to_bytes(), replaces=note):
        raise ConflictError(f"somebody else changes the pin of {version.reference} at this moment")
    return pin, True


def lift_pin(notes: Notes, model: str, number: int) -> bool:
    """Remove a pin; return whether there was one. Neither has it to be readable, nor anybody to know the version."""
    was_pinned = is_pinned(notes, model, number)
    if was_pinned:
        notes.remove_note(_name(model, number))
    return was_pinned
