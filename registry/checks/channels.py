"""One channel: is what it serves whole, is its history, and does the database know of all of it?"""

from __future__ import annotations

from dataclasses import dataclass, field

from modelreg.registry.chains import HISTORY_HINT
from modelreg.registry.channel_states import Disagreement, compare, read_channel_state
from modelreg.registry.checks.findings import FIX_HINT, Finding, Level, failure, found
from modelreg.registry.database import Database
from modelreg.registry.errors import ModelregError, NotFoundError
from modelreg.registry.histories import History, find_faults, read_history
from modelreg.registry.pointers import Pointer
from modelreg.registry.recovering import LostVersion, find_lost_versions
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.rules import follows

_BACKUP_HINT = "Restore what is damaged from a backup: the database with `modelreg db restore FILE`."


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A channel, and what it is looked up in. `registry` is the database's identity, empty where it is gone."""

    model: str
    channel: str
    storage: Storage
    database: Database | None
    registry: str

    @property
    def name(self) -> str:
        """Return `NAME@CHANNEL`."""
        return f"{self.model}@{self.channel}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelExamination:
    """What was found about one channel, each thing read once. `damaged` is a release to lay out anew."""

    place: Place
    findings: list[Finding]
    pointer: Pointer | None = None
    history: History = field(default_factory=History)
    state: Disagreement | None = None
    lost: list[LostVersion] = field(default_factory=list)
    damaged: str = ""

    @property
    def is_fixable(self) -> bool:
        """Return whether there is something to settle."""
        return any(finding.level is Level.FIXABLE for finding in self.findings)


def roll_forward_hint(place: str) -> str:
    """Return what a person may decide about a pointer that is behind."""
    return (
        f"Nothing is moved by itself. `modelreg doctor --fix --roll-forward {place}` moves it on to the newest"
        " generation that is known; a rollback from there is a new one."
    )


def examine_channel(place: Place) -> ChannelExamination:
    """Return every finding about a channel; nothing is written."""
    name, storage = place.name, place.storage
    try:
        pointer = storage.read_pointer(place.model, place.channel)
    except ModelregError as error:
        return ChannelExamination(place=place, findings=[failure("pointer", name, error, hint=roll_forward_hint(name))])
    findings: list[Finding] = []
    state: Disagreement | None = None
    lost: list[LostVersion] = []
    damaged = ""
    try:
        history = read_history(storage, model=place.model, channel=place.channel)
        findings += _beyond_findings(place, pointer, history)
        findings += _history_findings(place, pointer, history)
        findings += _owner_findings(place, history)
        if pointer is not None:
            served = _release_finding(place, pointer)
            findings.append(served)
            damaged = pointer.release if served.level is Level.DAMAGE else ""
        if place.database is not None:
            with place.database.read() as connection:
                state = compare(read_channel_state(connection, model=place.model, channel=place.channel), pointer)
            lost = _find_lost(place, place.database, history, state)
            findings += _agreement_findings(name, state, lost)
    except ModelregError as error:
        met = failure("pointer", name, error, hint=_BACKUP_HINT)
        return ChannelExamination(place=place, findings=[*findings, met], pointer=pointer)
    return ChannelExamination(
        place=place,
        findings=findings,
        pointer=pointer,
        history=history,
        state=state,
        lost=lost,
        damaged=damaged,
    )


def _beyond_findings(place: Place, pointer: Pointer | None, history: History) -> list[Finding]:
    """Judge what the history has beyond the pointer: one reservation of somebody who died, or a pointer put back."""
    served = pointer.generation if pointer else 0
    if history.newest <= served:
        return []
    reserved = history.documents.get(served + 1)
    if history.newest > served + 1 or reserved is None or not follows(reserved, pointer):
        message = f"the pointer is at generation {served} and its history goes to {history.newest}: one was put back"
        return [found(Level.PROBLEM, "pointer", place.name, message, roll_forward_hint(place.name))]
    message = f"generation {reserved.generation} was begun by a command that died"
    try:
        place.storage.read_manifest(reserved.release)
    except NotFoundError as error:
        message += f" and cannot be finished: {error}"
        hint = "Restore that release from a backup of the store; until then the channel serves and cannot move."
        return [found(Level.PROBLEM, "pointer", place.name, message, hint)]
    hint = "The next promote or rollback finishes it, or run `modelreg doctor --fix`."
    return [found(Level.FIXABLE, "pointer", place.name, message, hint)]


def _history_findings(place: Place, pointer: Pointer | None, history: History) -> list[Finding]:
    return [
        found(Level.DAMAGE, "history", place.name, fault.message, HISTORY_HINT)
        if fault.known is None
        else found(
            Level.FIXABLE, "history", place.name, fault.message, "Run `modelreg doctor --fix` to write it again."
        )
        for fault in find_faults(history, pointer, storage=place.storage, database=place.database)
    ]


def _owner_findings(place: Place, history: History) -> list[Finding]:
    """Find generations that another registry's commands made: two of them share the store and a channel."""
    if not place.registry:
        return []
    foreign = [
        document for _, document in sorted(history.documents.items()) if document.registry not in ("", place.registry)
    ]
    if not foreign:
        return []
    newest = foreign[-1]
    message = (
        f"generation {newest.generation} was made by {newest.actor} in another registry ({newest.registry}):"
        " two registries use this store"
    )
    hint = "Give each a store of its own, a folder or a prefix: neither knows what the other needs, nor must clean up."
    return [found(Level.PROBLEM, "owner", place.name, message, hint)]


def _release_finding(place: Place, pointer: Pointer) -> Finding:
    try:
        place.storage.verify_release(pointer.release)
    except ModelregError as error:
        hint = (
            f"Promote {place.model}:{pointer.version} again: the release is laid out anew from the blobs. Where its"
            " manifest is whole, `modelreg doctor --fix` does it."
        )
        return found(Level.DAMAGE, "release", place.name, str(error), hint)
    message = f"generation {pointer.generation}, every file matches"
    return found(Level.OK, "release", place.name, message)


def _find_lost(place: Place, database: Database, history: History, state: Disagreement) -> list[LostVersion]:
    if state.ahead:
        return []
    documents = [history.documents[number] for number in state.behind if number in history.documents]
    return find_lost_versions(database, place.storage, documents, registry=place.registry)


def _agreement_findings(name: str, state: Disagreement, lost: list[LostVersion]) -> list[Finding]:
    findings: list[Finding] = []
    if state.ahead:
        findings.append(found(Level.PROBLEM, "pointer", name, _say_ahead(state), _ahead_hint(name, state)))
    findings += [
        found(
            Level.FIXABLE,
            "operation",
            name,
            f"a {operation.kind} by {operation.owner.get('host', '?')} pid {operation.owner.get('pid', '?')} is open",
            "The next promote or rollback settles it, or run `modelreg doctor --fix`.",
        )
        for operation in state.open
    ]
    findings += [_lost_finding(name, version) for version in lost]
    if state.behind and not state.ahead and not any(version.why for version in lost):
        message = f"the store serves generation {state.served}, the database knows {state.known}"
        hint = "Run `modelreg doctor --fix` to record what the store's history says."
        findings.append(found(Level.FIXABLE, "pointer", name, message, hint))
    if not findings:
        findings.append(found(Level.OK, "pointer", name, f"generation {state.served} in both"))
    return findings


def _say_ahead(state: Disagreement) -> str:
    if state.known == state.served:
        return f"database and store have different generations {state.known}: their histories parted"
    return f"the database knows generation {state.known}, the store serves {state.served}"


def _ahead_hint(name: str, state: Disagreement) -> str:
    one_is_old = "One of the two was restored from an older copy."
    if state.known == state.served:
        return f"{one_is_old} If the store is right, restore the matching database: `modelreg db restore FILE`."
    return f"{one_is_old} {roll_forward_hint(name)} If the store is right, restore the matching database."


def _lost_finding(name: str, version: LostVersion) -> Finding:
    source = version.manifest.source_digest[:12]
    message = f"it served {version.reference} of source {source}, which this database does not have"
    if not version.why:
        message += "; the store has its source"
        hint = f"{FIX_HINT[:-1]} to take the version back. Its golden set, verdicts and other engines are lost."
        return found(Level.FIXABLE, "version", name, message, hint)
    hint = (
        "The database was lost, replaced or restored from an older copy: restore a newer backup. `which`, `pull` and"
        " `rollback` work meanwhile; another channel can be promoted to."
    )
    return found(Level.PROBLEM, "version", name, f"{message}; {version.why}", hint)
