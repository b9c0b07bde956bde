"""The pointer document: the truth about what a channel serves. Pure; stores move it, nobody edits it.

The same document is kept per generation as history, so a rollback needs no database.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple

from modelreg.registry.clock import iso, parse_iso
from modelreg.registry.digests import json_digest
from modelreg.registry.errors import IntegrityError
from modelreg.registry.words import ActivationKind, Json

POINTER_FORMAT = 1
_FLAT = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",\n ", ": "))


class Pointer(NamedTuple):
    """One generation of a channel.

    `release` is the digest of the manifest. `txn` is random, so two pointers never have equal bytes and a lost
    answer can be settled by reading back. `rolls_back_to` is the generation that `rollback` would return to.
    `overridden` lists the gates that `--override-gates` went over. `registry` says whose database knows of it
    (`events.registry_id`); empty where none was told, as in a rollback without one.
    """

    model: str
    channel: str
    generation: int
    release: str
    version: int
    kind: ActivationKind
    rolls_back_to: int | None
    txn: str
    previous_txn: str
    actor: str
    message: str
    at: datetime
    overridden: tuple[str, ...] = ()
    registry: str = ""

    def to_bytes(self) -> bytes:
        """Return the document, as it lies in a store."""
        body = self.to_json()
        if not self.overridden:  # nothing is nested: the same text, from the encoder that is written in C
            return f"{{\n {_FLAT.encode(body)[1:-1]}\n}}\n".encode()
        return (json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()

    def to_json(self) -> Json:
        """Return the document as JSON, with a digest of its own body inside."""
        body: Json = {
            "format": POINTER_FORMAT,
            "model": self.model,
            "channel": self.channel,
            "generation": self.generation,
            "release": self.release,
            "version": self.version,
            "kind": str(self.kind),
            "rolls_back_to": self.rolls_back_to,
            "txn": self.txn,
            "previous_txn": self.previous_txn,
            "actor": self.actor,
            "message": self.message,
            "at": iso(self.at),
            "overridden": list(self.overridden),
        }
        if self.registry:
            body["registry"] = self.registry  # left out where there is none: earlier documents keep their bytes
        body["sha256"] = json_digest(body)
        return body


def parse_pointer(data: bytes, *, where: str) -> Pointer:
    """
    Return the pointer in `data`, its own digest checked.

    Raises:
        IntegrityError: The bytes are cut, changed, or of a format this program does not know; `where` is named.
    """
    try:
        body: dict[str, Any] = json.loads(data)
        stated = body.pop("sha256")
        known = body["format"] == POINTER_FORMAT
        intact = json_digest(body) == stated
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"pointer {where} cannot be read: {_say_unreadable(error)}") from None
    if not intact:
        raise IntegrityError(f"pointer {where} does not match its own digest")
    if not known:
        raise IntegrityError(
            f"pointer {where} has format {body['format']!r}, this modelreg knows {POINTER_FORMAT}",
            hint="It was written by a newer modelreg; upgrade this one.",
        )
    return Pointer(
        model=body["model"],
        channel=body["channel"],
        generation=body["generation"],
        release=body["release"],
        version=body["version"],
        kind=ActivationKind(body["kind"]),
        rolls_back_to=body["rolls_back_to"],
        txn=body["txn"],
        previous_txn=body["previous_txn"],
        actor=body["actor"],
        message=body["message"],
        at=parse_iso(body["at"]),
        overridden=tuple(body["overridden"]),
        registry=body.get("registry", ""),
    )


def _say_unreadable(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return "it is no JSON document" if isinstance(error, ValueError) else "it is no document of a pointer"


def next_pointer(
    current: Pointer | None,
    *,
    model: str,
    channel: str,
    release: str,
    version: int,
    kind: ActivationKind,
    rolls_back_to: int | None,
    txn: str,
    actor: str,
    message: str,
    at: datetime,
    overridden: tuple[str, ...] = (),
    registry: str = "",
) -> Pointer:
    """Return the pointer that follows `current`: one generation on, chained to it by its transaction."""
    return Pointer(
        model=model,
        channel=channel,
        generation=1 if current is None else current.generation + 1,
        release=release,
        version=version,
        kind=kind,
        rolls_back_to=rolls_back_to,
        txn=txn,
        previous_txn="" if current is None else current.txn,
        actor=actor,
        message=message,
        at=at,
        overridden=overridden,
        registry=registry,
    )
