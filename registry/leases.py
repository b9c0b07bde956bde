"""Leases: which release a serving host holds and since when, written into the store by the host itself.

A serving host has no database, so a lease is a note in the store, one for each host and folder (or instance). It is
renewed while the host serves and expires by the store's clock, so that no host's own clock decides.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from modelreg.registry.clock import iso, parse_iso, utc_now
from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import IntegrityError, ModelregError, StorageError
from modelreg.registry.pointers import Pointer
from modelreg.registry.storage.notes import LEASES, Note, Notes
from modelreg.registry.storage.rules import check_channel, check_digest
from modelreg.registry.words import Json

LEASE_FORMAT = 1
TTL_S = 900.0
"""For so many seconds after it was written last, a lease counts; hosts renew theirs three times as often."""
_TRIES = 5
_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds releases: a host, and what on it (a folder, a server's own name)."""

    host: str
    pid: int
    instance: str

    @property
    def key(self) -> str:
        """Return what its leases are called: the same after a restart, so that it takes its own one over."""
        return sha256_hex(f"{self.host}\n{self.instance}".encode(errors="surrogatepass"))[:24]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """That a host holds a release. `since` and `renewed_at` are times of the store."""

    model: str
    channel: str
    version: int
    generation: int
    release: str
    holder: Holder
    since: datetime
    renewed_at: datetime
    ttl_s: float

    @property
    def name(self) -> str:
        """Return the name of its note."""
        return lease_name(self.model, self.channel, self.holder.key)

    def is_live(self, now: datetime) -> bool:
        """Return whether it counts at `now`, a time of the store."""
        return now - self.renewed_at <= timedelta(seconds=self.ttl_s)

    def to_json(self) -> Json:
        """Return the lease as JSON."""
        return {
            "id": self.holder.key,
            "model": self.model,
            "channel": self.channel,
            "version": self.version,
            "generation": self.generation,
            "release": self.release,
            "host": self.holder.host,
            "pid": self.holder.pid,
            "instance": self.holder.instance,
            "since": iso(self.since),
            "renewed_at": iso(self.renewed_at),
            "ttl_s": self.ttl_s,
        }

    def to_bytes(self) -> bytes:
        """Return its note: never the same bytes twice. When it was written the store knows by itself."""
        body = {"format": LEASE_FORMAT, **self.to_json(), "nonce": os.urandom(8).hex()}
        del body["renewed_at"]
        return (json.dumps(body) + "\n").encode()


def lease_name(model: str, channel: str, key: str) -> str:
    """Return the name of a lease's note; raises InvalidReferenceError for names that no channel has."""
    check_channel(model, channel)
    return f"{LEASES}/{model}/{channel}/{key}.json"


def parse_lease(note: Note) -> Lease:
    """
    Return the lease that a note is.

    Raises:
        IntegrityError: It is none, or of a format that this program does not know.
    """
    try:
        body = json.loads(note.data)
        lease = Lease(
            model=body["model"],
            channel=body["channel"],
            version=int(body["version"]),
            generation=int(body["generation"]),
            release=check_digest(body["release"]),
            holder=Holder(
                host=str(body["host"])[:_LONGEST_TEXT],
                pid=int(body["pid"]),
                instance=str(body["instance"])[:_LONGEST_TEXT],
            ),
            since=parse_iso(body["since"]),
            renewed_at=note.written_at,
            ttl_s=float(body["ttl_s"]),
        )
        if body["format"] == LEASE_FORMAT and note.name == lease.name:
            return lease
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ModelregError):
        pass
    raise IntegrityError(f"{note.name} of the store is no lease", hint="Remove it with `modelreg leases drop`.")


def hold(
    notes: Notes, pointer: Pointer, holder: Holder, *, ttl_s: float = TTL_S, since: datetime | None = None
) -> Lease:
    """
    Write, or renew, the lease of a holder on what a channel serves.

    Args:
        notes: The store.
        pointer: What is held.
        holder: Who holds it.
        ttl_s: How long it counts without being renewed.
        since: When it was first held, by the store's clock; None asks the store, or goes on with what is noted.

    Raises:
        StorageError: It could not be written: the store is read-only for this host, or away.
    """
    name = lease_name(pointer.model, pointer.channel, holder.key)
    for _ in range(_TRIES):
        note = notes.read_note(name)
        known = _find_same(note, pointer)
        now = notes.store_time() if known is None else known.renewed_at
        lease = Lease(
            model=pointer.model,
            channel=pointer.channel,
            version=pointer.version,
            generation=pointer.generation,
            release=pointer.release,
            holder=holder,
            since=since or (now if known is None else known.since),
            renewed_at=now,
            ttl_s=ttl_s,
        )
        if notes.write_note(name, lease.to_bytes(), replaces=note):
            return lease
    raise StorageError(f"{name} of the store is written by somebody else all the time")


def _find_same(note: Note | None, pointer: Pointer) -> Lease | None:
    """Return the lease that is there, if it is on the very release: then it has been held since before."""
    if note is None:
        return None
    try:
        known = parse_lease(note)
    except IntegrityError:
        return None
    return known if known.release == pointer.release else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseList:
    """All leases of a store: those that count, those that are over, and the names of notes that are no leases."""

    live: tuple[Lease, ...]
    expired: tuple[Lease, ...]
    unreadable: tuple[str, ...]
    is_time_known: bool = True


def read_leases(notes: Notes, *, model: str | None = None) -> LeaseList:
    """
    Return the leases of a store, or those on one model's channels, in order of their names.

    Where the store cannot tell its time (it is read-only), this host's clock is asked, and `is_time_known` is False.
    """
    found: list[Lease] = []
    unreadable: list[str] = []
    for note in _read_notes(notes, LEASES if model is None else f"{LEASES}/{model}"):
        try:
            found.append(parse_lease(note))
        except IntegrityError:
            unreadable.append(note.name)
    if not found:
        return LeaseList(live=(), expired=(), unreadable=tuple(unreadable))
    try:
        now, is_known = notes.store_time(), True
    except StorageError:
        now, is_known = utc_now(), False
    return LeaseList(
        live=tuple(lease for lease in found if lease.is_live(now)),
        expired=tuple(lease for lease in found if not lease.is_live(now)),
        unreadable=tuple(unreadable),
        is_time_known=is_known,
    )


def _read_notes(notes: Notes, folder: str) -> Iterator[Note]:
    for info in sorted(notes.list_notes(folder), key=lambda info: info.name):
        note = notes.read_note(info.name)
        if note is not None:
            # A listing is as true as a reading, and of a note that is renewed meanwhile the later time counts.
            yield note._replace(written_at=max(note.written_at, info.written_at))
