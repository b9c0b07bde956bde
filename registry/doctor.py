"""Do database, store and pointers agree? Says what is wrong and what to do; `repair` does what is safe.

Nothing is ever moved back: where the database is ahead of a pointer one of them was restored from an older copy, and
a person decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from modelreg.registry import blobs, events, releases
from modelreg.registry.chains import HISTORY_HINT
from modelreg.registry.channel_states import Disagreement, compare, read_channel_state
from modelreg.registry.database import Database
from modelreg.registry.errors import (
    BusyError,
    DatabaseError,
    ForeignReleaseError,
    IntegrityError,
    ModelregError,
    StorageError,
)
from modelreg.registry.histories import find_faults, restore_documents
from modelreg.registry.manifest import parse_manifest
from modelreg.registry.pointers import Pointer
from modelreg.registry.settling import require_known_version, settle_channel
from modelreg.registry.storage.interface import Storage
from modelreg.registry.words import Word


class Level(Word):
    """How a finding stands."""

    OK = "ok"
    FIXABLE = "fixable"
    FIXED = "fixed"
    PROBLEM = "problem"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's outcome; `damage` means that digests do not match."""

    level: Level
    check: str
    subject: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """Examines one registry. `database` is None when it could not be opened; `why` then says why."""

    database: Database | None
    storage: Storage
    actor: str
    why: str = ""
    lock_timeout_s: float = 30.0

    def examine(self) -> list[Finding]:
        """Return every finding; nothing is written."""
        findings = list(self._database_findings())
        findings += self._store_findings()
        for model, channel in self._channels():
            findings += self._channel_findings(model, channel)
        return findings

    def repair(self) -> list[Finding]:
        """Settle what can be settled and return the findings as they are then."""
        fixed: list[Finding] = []
        for model, channel in self._channels():
            fixed += self._settle(model, channel)
        swept = self.storage.sweep_leftovers()
        if swept:
            fixed.append(_finding(Level.FIXED, "leftovers", "store", f"removed {swept} temporary files"))
        return fixed + self.examine()

    # -- database ------------------------------------------------------------------------------------------
    def _database_findings(self) -> Iterator[Finding]:
        if self.database is None:
            yield _finding(
                Level.PROBLEM,
                "database",
                "registry",
                self.why or "the database is missing",
                "Restore its backup. `which` and `rollback` work from the store meanwhile.",
            )
            return
        try:
            damage = self.database.check()
        except ModelregError as error:
            yield _finding(Level.PROBLEM, "database", "registry", str(error), error.hint())
            return
        for problem in damage:
            yield _finding(Level.DAMAGE, "database", "registry", problem, "Restore the database from a backup.")
        if not damage:
            yield _finding(Level.OK, "database", "registry", "consistent")
            yield from self._row_findings(self.database)

    def _row_findings(self, database: Database) -> Iterator[Finding]:
        with database.read() as connection:
            chain = events.verify_chain(connection)
            rows = list(blobs.list_blobs(connection))
        if chain.broken_at is None:
            yield _finding(Level.OK, "events", "chain", f"{chain.events} events, unbroken")
        else:
            yield _finding(
                Level.DAMAGE,
                "events",
                f"event {chain.broken_at}",
                chain.reason,
                events.CHAIN_HINT,
            )
        missing = [row.digest for row in rows if not self.storage.has_blob(row.digest)]
        for digest in missing:
            yield _finding(
                Level.DAMAGE,
                "blobs",
                digest[:12],
                "the database names this blob, the store does not have it",
                "Register or build it again, or restore the store's backup.",
            )
        if not missing:
            yield _finding(Level.OK, "blobs", "store", f"{len(rows)} blobs are there (`verify` re-hashes them)")

    # -- store ---------------------------------------------------------------------------------------------
    def _store_findings(self) -> Iterator[Finding]:
        leftovers = self.storage.count_leftovers()
        if leftovers:
            yield _finding(
                Level.FIXABLE,
                "leftovers",
                "store",
                f"{leftovers} temporary files of commands that died",
                "Run `modelreg doctor --fix` to remove them.",
            )
        else:
            yield _finding(Level.OK, "leftovers", "store", "none")

    # -- channels ------------------------------------------------------------------------------------------
    def _channels(self) -> list[tuple[str, str]]:
        names = set(self.storage.list_channels())
        if self.database is not None:
            try:
                with self.database.read() as connection:
                    names |= set(releases.list_channels(connection))
            except ModelregError:
                pass  # reported by the database's own check
        return sorted(names)

    def _channel_findings(self, model: str, channel: str) -> list[Finding]:
        subject = f"{model}@{channel}"
        try:
            pointer = self.storage.read_pointer(model, channel)
            findings = self._served_findings(subject, pointer, model, channel)
            if self.database is None:
                return findings
            with self.database.read() as connection:
                found = compare(read_channel_state(connection, model=model, channel=channel), pointer)
            if found.behind and pointer is not None:
                self._require_known(self.database, pointer)
        except ModelregError as error:
            return [_failure("pointer", subject, error)]
        return findings + _agreement_findings(subject, found)

    def _require_known(self, database: Database, pointer: Pointer) -> None:
        manifest = parse_manifest(self.storage.read_manifest(pointer.release), where=pointer.release[:12])
        with database.read() as connection:
            require_known_version(connection, pointer, manifest)

    def _served_findings(self, subject: str, pointer: Pointer | None, model: str, channel: str) -> list[Finding]:
        served = pointer.generation if pointer else 0
        reserved = [g for g in self.storage.list_generations(model, channel) if g > served]
        findings = [
            _finding(
                Level.FIXABLE,
                "pointer",
                subject,
                f"generation {generation} was begun by a command that died",
                "The next promote or rollback finishes it, or run `modelreg doctor --fix`.",
            )
            for generation in reserved
        ]
        findings += self._history_findings(subject, pointer, model, channel)
        if pointer is None:
            return findings
        try:
            self.storage.verify_release(pointer.release)
        except ModelregError as error:
            advice = f"Promote {model}:{pointer.version} again: the release is laid out anew from the blobs."
            return [*findings, _finding(Level.DAMAGE, "release", subject, str(error), advice)]
        return [*findings, _finding(Level.OK, "release", subject, f"generation {served}, every file matches")]

    def _history_findings(self, subject: str, pointer: Pointer | None, model: str, channel: str) -> list[Finding]:
        found = find_faults(self.storage, self.database, pointer, model=model, channel=channel)
        return [
            _finding(Level.DAMAGE, "history", subject, fault.message, HISTORY_HINT)
            if fault.known is None
            else _finding(
                Level.FIXABLE, "history", subject, fault.message, "Run `modelreg doctor --fix` to write it again."
            )
            for fault in found
        ]

    def _settle(self, model: str, channel: str) -> list[Finding]:
        subject = f"{model}@{channel}"
        try:
            before = self._channel_findings(model, channel)
            if not any(finding.level is Level.FIXABLE for finding in before):
                return []
            with self.storage.exclusive(model, channel, timeout_s=self.lock_timeout_s):
                restore_documents(self.storage, self.database, model=model, channel=channel)
                if self.database is None:
                    self.storage.complete_reserved(model, channel)
                else:
                    settle_channel(self.database, self.storage, model=model, channel=channel, actor=self.actor)
        except (BusyError, DatabaseError, StorageError) as error:
            return [_finding(Level.PROBLEM, "pointer", subject, f"cannot be settled: {error}", error.hint())]
        except ModelregError:
            return []  # the examination that follows reports it
        return [
            _finding(Level.FIXED, finding.check, subject, finding.message)
            for finding in before
            if finding.level is Level.FIXABLE
        ]


def _agreement_findings(subject: str, found: Disagreement) -> list[Finding]:
    findings: list[Finding] = []
    if found.ahead:
        findings.append(
            _finding(
                Level.PROBLEM,
                "pointer",
                subject,
                f"the database knows generation {found.known}, the store serves {found.served}",
                "One of the two was restored from an older copy. If the store is right, restore the matching database;"
                " nothing is moved back by itself.",
            )
        )
    findings += [
        _finding(
            Level.FIXABLE,
            "operation",
            subject,
            f"a {operation.kind} by {operation.owner.get('host', '?')} pid {operation.owner.get('pid', '?')} is open",
            "The next promote or rollback settles it, or run `modelreg doctor --fix`.",
        )
        for operation in found.open
    ]
    if found.behind and not found.ahead:
        findings.append(
            _finding(
                Level.FIXABLE,
                "pointer",
                subject,
                f"the store serves generation {found.served}, the database knows {found.known}",
                "Run `modelreg doctor --fix` to record what the store's history says.",
            )
        )
    if not findings:
        findings.append(_finding(Level.OK, "pointer", subject, f"generation {found.served} in both"))
    return findings


def _failure(check: str, subject: str, error: ModelregError) -> Finding:
    is_damage = isinstance(error, IntegrityError) and not isinstance(error, ForeignReleaseError)
    level = Level.DAMAGE if is_damage else Level.PROBLEM
    return _finding(level, check, subject, str(error), error.hint())


def _finding(level: Level, check: str, subject: str, message: str, hint: str = "") -> Finding:
    return Finding(level=level, check=check, subject=subject, message=message, hint=hint)
