"""Do database, store and pointers agree? Says what is wrong and what to do; `repair` does what is safe.

Nothing is ever moved back, and nothing forward without a person's word: where one of the two knows a later generation
than the other's pointer, something was restored from an older copy.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from modelreg.registry import events, releases
from modelreg.registry.checks.blobs import BlobExamination, examine_blobs, heal_blob
from modelreg.registry.checks.channels import ChannelExamination, Place, examine_channel
from modelreg.registry.checks.database import examine_database
from modelreg.registry.checks.findings import Finding, Level, found
from modelreg.registry.checks.notes import examine_notes, unreadable_marks
from modelreg.registry.checks.upkeep import (
    examine_clocks,
    examine_leftovers,
    examine_server,
    examine_toolchains,
)
from modelreg.registry.database import Database
from modelreg.registry.errors import BusyError, DatabaseError, ModelregError, StorageError
from modelreg.registry.histories import restore_documents
from modelreg.registry.manifest import parse_manifest
from modelreg.registry.recovering import recover_version
from modelreg.registry.rolling_forward import roll_forward
from modelreg.registry.scratch import sweep_scratch
from modelreg.registry.settling import settle_channel
from modelreg.registry.storage.interface import Progress, Storage, no_progress

__all__ = ["Doctor", "Finding", "Level"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """
    Examines one registry.

    Attributes:
        database: None when it could not be opened; `why` then says why.
        storage: The store.
        actor: Who asks.
        why: See `database`.
        lock_timeout_s: How long a repair waits for a command at work.
        deep: Whether every blob and release is read.
        forward: The channels, `NAME@CHANNEL`, whose pointers a person lets go on (see `rolling_forward`).
        progress: Told of the bytes that `deep` reads.
    """

    database: Database | None
    storage: Storage
    actor: str
    why: str = ""
    lock_timeout_s: float = 30.0
    deep: bool = False
    forward: Collection[str] = ()
    progress: Progress = no_progress

    def examine(self) -> list[Finding]:
        """Return every finding; nothing is written."""
        findings = list(examine_database(self.database, why=self.why))
        is_sound = all(finding.level is Level.OK for finding in findings if finding.check == "database")
        findings += self._examine_blobs(is_sound=is_sound).findings
        findings += examine_notes(self.database if is_sound else None, self.storage)
        findings.append(examine_leftovers(self.storage))
        findings += examine_server(self.storage)
        findings += examine_clocks(self.database if is_sound else None, self.storage)
        if self.database is not None and is_sound:
            findings += examine_toolchains(self.database)
        for place in self._places():
            findings += examine_channel(place).findings
        return findings

    def repair(self) -> list[Finding]:
        """Settle what can be settled and return the findings as they are then; a second time changes nothing."""
        fixed = [*self._remove_marks(), *self._heal_blobs()]
        for place in self._places():
            fixed += self._settle(place)
        swept = self.storage.sweep_leftovers()
        if swept:
            fixed.append(found(Level.FIXED, "leftovers", "store", f"removed {swept} temporary files"))
        abandoned = sweep_scratch()
        if abandoned:
            message = f"removed {abandoned} folders of commands that died, from the temporary place"
            fixed.append(found(Level.FIXED, "leftovers", "host", message))
        return fixed + self.examine()

    def _examine_blobs(self, *, is_sound: bool) -> BlobExamination:
        if self.database is None and not self.deep:
            return BlobExamination()
        database = self.database if is_sound else None
        return examine_blobs(database, self.storage, deep=self.deep, progress=self.progress)

    # -- channels ------------------------------------------------------------------------------------------
    def _places(self) -> list[Place]:
        names = set(self.storage.list_channels())
        registry = ""
        if self.database is not None:
            try:
                with self.database.read() as connection:
                    names |= set(releases.list_channels(connection))
                    registry = events.registry_id(connection)
            except ModelregError:
                pass  # reported by the database's own check
        return [
            Place(model=model, channel=channel, storage=self.storage, database=self.database, registry=registry)
            for model, channel in sorted(names)
        ]

    # -- repairs -------------------------------------------------------------------------------------------
    def _remove_marks(self) -> list[Finding]:
        fixed = []
        try:
            for note in unreadable_marks(self.storage):
                self.storage.remove_note(note.name)
                fixed.append(found(Level.FIXED, "mark", note.name, "removed: what it was of is kept"))
        except ModelregError:
            pass  # the examination that follows reports it
        return fixed

    def _heal_blobs(self) -> list[Finding]:
        try:
            broken = self._examine_blobs(is_sound=self.database is not None).broken
            healed = [digest for digest in broken if heal_blob(self.storage, digest)]
        except ModelregError:
            return []  # the examination that follows reports it
        return [
            found(Level.FIXED, "blobs", digest[:12], "copied from a release that has the same bytes")
            for digest in healed
        ]

    def _settle(self, place: Place) -> list[Finding]:
        """Settle one channel, in the order in which one thing needs another."""
        fixed: list[Finding] = []
        try:
            with self.storage.exclusive(place.model, place.channel, timeout_s=self.lock_timeout_s):
                if place.name in self.forward:
                    fixed += [found(Level.FIXED, "pointer", place.name, did) for did in roll_forward(place)]
                before = examine_channel(place)
                fixed += self._lay_out_anew(before)
                if before.is_fixable:
                    self._finish(before)
                    fixed += [
                        found(Level.FIXED, finding.check, place.name, finding.message)
                        for finding in before.findings
                        if finding.level is Level.FIXABLE
                    ]
        except (BusyError, DatabaseError, StorageError) as error:
            return [*fixed, found(Level.PROBLEM, "pointer", place.name, f"cannot be settled: {error}", error.hint())]
        except ModelregError:
            return fixed  # the examination that follows reports it
        return fixed

    def _finish(self, before: ChannelExamination) -> None:
        place = before.place
        restore_documents(self.storage, self.database, model=place.model, channel=place.channel)
        if self.database is None:
            self.storage.complete_reserved(place.model, place.channel)
            return
        for version in before.lost:
            if not version.why:
                recover_version(self.database, self.storage, version, actor=self.actor)
        settle_channel(self.database, self.storage, model=place.model, channel=place.channel, actor=self.actor)

    def _lay_out_anew(self, before: ChannelExamination) -> list[Finding]:
        """Put a damaged release that is served right from the blobs, if its manifest is whole and they are."""
        if not before.damaged:
            return []
        try:
            document = self.storage.read_manifest(before.damaged)
            manifest = parse_manifest(document, where=before.damaged[:12])
            self.storage.publish_release(document, manifest.files)
            self.storage.verify_release(before.damaged)
        except ModelregError:
            return []  # the examination that follows reports it
        message = f"release {before.damaged[:12]} is laid out anew from the blobs"
        return [found(Level.FIXED, "release", before.place.name, message)]
