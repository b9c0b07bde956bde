"""Bring intents and the database into agreement with the pointers, which are the truth about what is served.

A command that died left an open operation, a reserved generation, or a moved pointer that no row speaks of. Holding
the channel's lock, the next command settles it: forward if the swap happened, aborted if it never did.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from modelreg.registry import engines, operations, releases, versions
from modelreg.registry.channel_states import compare, read_channel_state
from modelreg.registry.database import Database
from modelreg.registry.errors import ForeignReleaseError, IntegrityError, NotFoundError
from modelreg.registry.manifest import Manifest, parse_manifest
from modelreg.registry.pointers import Pointer
from modelreg.registry.records import OperationRecord, VersionRecord
from modelreg.registry.references import ModelReference
from modelreg.registry.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledChannel:
    """A channel whose pointer the database agrees with, in a writing transaction. `id` is None for a new one."""

    connection: sa.Connection
    id: int | None
    pointer: Pointer | None


@contextmanager
def settled_channel(
    database: Database, storage: Storage, pointer: Pointer | None, *, model: str, channel: str, actor: str
) -> Iterator[SettledChannel]:
    """
    Give a transaction for an intent, in which database and pointer agree; the caller holds the channel's lock.

    Args:
        database: Of the registry.
        storage: Its store; nothing is read from it inside the transaction.
        pointer: The channel's, from `complete_reserved` a moment ago.
        model: Of the channel.
        channel: Its name.
        actor: Who asks.

    Raises:
        IntegrityError: As `settle_channel`.
        ForeignReleaseError: As `settle_channel`.
    """
    with database.write_intent() as connection:
        state = read_channel_state(connection, model=model, channel=channel)
        if compare(state, pointer).is_settled:
            yield SettledChannel(connection=connection, id=state.channel_id, pointer=pointer)
            return
    # Manifests and documents have to be read from the store, which is no work for a transaction.
    settle_with(database, storage, pointer, model=model, channel=channel, actor=actor)
    with database.write_intent() as connection:
        state = read_channel_state(connection, model=model, channel=channel)
        yield SettledChannel(connection=connection, id=state.channel_id, pointer=pointer)


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
    settle_with(database, storage, pointer, model=model, channel=channel, actor=actor)
    return pointer


def settle_with(
    database: Database, storage: Storage, pointer: Pointer | None, *, model: str, channel: str, actor: str
) -> None:
    """Settle a channel as `settle_channel` does, with a pointer that `complete_reserved` gave a moment ago."""
    with database.read() as connection:
        state = read_channel_state(connection, model=model, channel=channel)
    found = compare(state, pointer)
    if found.ahead:
        # Where hosts share no lock, another one may have moved the pointer, and told the database, after we read it.
        pointer = storage.complete_reserved(model, channel)
        found = compare(state, pointer)
    if found.is_settled:
        return
    if found.ahead:
        raise IntegrityError(
            f"{model}@{channel}: the database knows generation {found.known}, the store serves {found.served}",
            hint="One of the two was restored from an older copy; run `modelreg doctor` and decide which is right.",
        )
    wanted = {*found.behind, *(operation.expected_generation + 1 for operation in found.open)}
    documents = _read_documents(storage, model, channel, wanted, served=found.served)
    manifests = {
        generation: parse_manifest(storage.read_manifest(document.release), where=document.release[:12])
        for generation, document in documents.items()
        if generation in found.behind
    }
    _settle_operations(database, found.open, documents, actor=actor)
    _adopt_generations(database, model, channel, documents, manifests, actor=actor)


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
            hint="The database was lost, replaced or restored from an older copy: restore a newer backup, or let"
            " `modelreg doctor` say what can be read back from the store. `which` and `rollback` work meanwhile.",
        )
    return version
