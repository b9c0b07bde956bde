"""Bring intents and the database into agreement with the pointers, which are the truth about what is served.

A command that died left an open operation, a reserved generation, or a moved pointer that no row speaks of. Holding
the channel's lock, the next command settles it: forward if the swap happened, aborted if it never did.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from modelreg.registry import engines, operations, releases, versions
from modelreg.registry.database import Database
from modelreg.registry.errors import ForeignReleaseError, IntegrityError, NotFoundError
from modelreg.registry.manifest import Manifest, parse_manifest
from modelreg.registry.pointers import Pointer
from modelreg.registry.records import ActivationRecord, OperationRecord, VersionRecord
from modelreg.registry.references import ModelReference
from modelreg.registry.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelState:
    """What the database knows of a channel."""

    channel_id: int | None
    newest: ActivationRecord | None
    open: tuple[OperationRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """How far the database is from the pointer. `behind` lists generations without a row."""

    state: ChannelState
    pointer: Pointer | None
    behind: tuple[int, ...]
    ahead: bool

    @property
    def known(self) -> int:
        """Return the newest generation of the database, 0 for none."""
        return self.state.newest.generation if self.state.newest else 0

    @property
    def served(self) -> int:
        """Return the generation of the pointer, 0 for none."""
        return self.pointer.generation if self.pointer else 0

    @property
    def is_settled(self) -> bool:
        """Return whether nothing is left to do."""
        return not self.state.open and not self.behind and not self.ahead


def read_channel_state(database: Database, *, model: str, channel: str) -> ChannelState:
    """Return the channel's row, newest activation and open operations, in one read transaction."""
    with database.read() as connection:
        channel_id = releases.find_channel(connection, model=model, name=channel)
        if channel_id is None:
            return ChannelState(channel_id=None, newest=None, open=())
        return ChannelState(
            channel_id=channel_id,
            newest=releases.newest_activation(connection, channel_id=channel_id),
            open=tuple(operations.open_operations(connection, channel_id=channel_id)),
        )


def compare(state: ChannelState, pointer: Pointer | None) -> Disagreement:
    """Return how the database and the pointer differ. Pure."""
    known = state.newest.generation if state.newest else 0
    served = pointer.generation if pointer else 0
    forked = state.newest is not None and pointer is not None and known == served and state.newest.txn != pointer.txn
    return Disagreement(
        state=state,
        pointer=pointer,
        behind=tuple(range(known + 1, served + 1)),
        ahead=known > served or forked,
    )


def settle_channel(database: Database, storage: Storage, *, model: str, channel: str, actor: str) -> Pointer | None:
    """
    Settle open operations and record missing generations; the caller holds the channel's lock.

    Returns:
        The pointer, which the database agrees with afterwards.

    Raises:
        IntegrityError: The database knows a later generation than the store: one was restored from a backup.
        ForeignReleaseError: The store serves a release of a version that the database does not have.
    """
    pointer = storage.complete_reserved(model, channel)
    found = compare(read_channel_state(database, model=model, channel=channel), pointer)
    if found.is_settled:
        return pointer
    if found.ahead:
        raise IntegrityError(
            f"{model}@{channel}: the database knows generation {found.known}, the store serves {found.served}",
            hint="One of the two was restored from an older copy; run `modelreg doctor` and decide which is right.",
        )
    wanted = {*found.behind, *(operation.expected_generation + 1 for operation in found.state.open)}
    documents = _read_documents(storage, model, channel, wanted, served=found.served)
    manifests = {
        generation: parse_manifest(storage.read_manifest(document.release), where=document.release[:12])
        for generation, document in documents.items()
        if generation in found.behind
    }
    _settle_operations(database, found.state.open, documents, actor=actor)
    _adopt_generations(database, model, channel, documents, manifests, actor=actor)
    return pointer


def _read_documents(
    storage: Storage, model: str, channel: str, generations: set[int], *, served: int
) -> dict[int, Pointer]:
    """Return the history documents among `generations` that were committed (are not beyond the pointer)."""
    return {
        generation: storage.read_history(model, channel, generation)
        for generation in sorted(generations)
        if generation <= served
    }


def _settle_operations(
    database: Database,
    pending: tuple[OperationRecord, ...],
    documents: dict[int, Pointer],
    *,
    actor: str,
) -> None:
    for operation in pending:
        document = documents.get(operation.expected_generation + 1)
        with database.write() as connection:
            if document is not None and document.txn == operation.txn:
                operations.commit_operation(connection, operation=operation, pointer=document, actor=actor)
            else:
                operations.abort_operation(
                    connection, operation=operation, error="interrupted before the pointer moved", actor=actor
                )


def _adopt_generations(
    database: Database,
    model: str,
    channel: str,
    documents: dict[int, Pointer],
    manifests: dict[int, Manifest],
    *,
    actor: str,
) -> None:
    """Record generations that were activated without the database (a rollback while it was away)."""
    with database.write() as connection:
        for generation in sorted(manifests):
            document, manifest = documents[generation], manifests[generation]
            version = require_known_version(connection, document, manifest)
            channel_id = releases.ensure_channel(connection, model=model, name=channel, actor=actor)
            newest = releases.newest_activation(connection, channel_id=channel_id)
            if newest is not None and newest.generation >= generation:
                continue  # an open operation has just recorded it
            plans = {
                engine.plan_digest: engine.id for engine in engines.list_engines(connection, version_id=version.id)
            }
            release_id = releases.ensure_release(
                connection,
                version=version,
                manifest_digest=document.release,
                engines={e.target: plans[e.plan.digest] for e in manifest.engines if e.plan.digest in plans},
                actor=actor,
            )
            releases.record_activation(
                connection, channel_id=channel_id, release_id=release_id, pointer=document, actor=actor
            )


def require_known_version(connection: sa.Connection, document: Pointer, manifest: Manifest) -> VersionRecord:
    """
    Return the version that a generation serves, as this database has it.

    Raises:
        ForeignReleaseError: It has no such version, or one of another source under that number.
    """
    try:
        version = versions.get_version(connection, ModelReference(model=document.model, version=document.version))
    except NotFoundError:
        version = None
    if version is None or version.source.digest != manifest.source_digest:
        raise ForeignReleaseError(
            f"{document.model}@{document.channel} serves {document.model}:{document.version} of source"
            f" {manifest.source_digest[:12]}, which this database does not have",
            hint="The database was lost or replaced: restore its backup. `which` and `rollback` work without.",
        )
    return version
