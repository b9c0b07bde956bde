"""The release protocol: intent, immutable data, one compare-and-swap of the pointer, outcome.

    1  database: the gates are read, the choice made and the intent written, in one transaction
    2  store:    plans re-hashed, the release laid out whole
    3  store:    history, then the pointer moves (the commit point)
    4  database: the activation is recorded and the intent closed

A crash anywhere leaves the old or the new release active; `settling` finishes the books. A rollback goes through
even when the database is gone, since the store's history documents hold all it needs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sa

from modelreg.registry import events, releases
from modelreg.registry.clock import utc_now
from modelreg.registry.damaged_releases import advise_damaged_release
from modelreg.registry.database import Database
from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import (
    BusyError,
    DatabaseError,
    ForeignReleaseError,
    IntegrityError,
    ModelregError,
    NotFoundError,
)
from modelreg.registry.manifest import Manifest, make_manifest, parse_manifest
from modelreg.registry.pointers import Pointer, next_pointer
from modelreg.registry.promotion import (
    PromotionPlan,
    PromotionRequest,
    RollbackRequest,
    choose_rollback_generation,
    require_complete,
)
from modelreg.registry.records import OperationRecord
from modelreg.registry.references import ModelReference, check_name
from modelreg.registry.settling import settle_channel, settled_channel
from modelreg.registry.standings import read_plan
from modelreg.registry.storage.interface import Progress, Storage, no_progress
from modelreg.registry.storage.marks import swept_release
from modelreg.registry.suggestions import no_active_release
from modelreg.registry.swapping import Swapper, check_expected, new_txn
from modelreg.registry.words import ActivationKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """What came of it. `changed` is False when the release was active already; `recorded` is False when the store
    moved but the database could not be told (the next promote or rollback records it)."""

    pointer: Pointer
    previous: Pointer | None
    plan: PromotionPlan | None = None
    changed: bool = True
    recorded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    """A rollback that stopped short of the swap: what it would bring back, and how long that took."""

    target: Pointer
    current: Pointer
    verified_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Intent:
    current: Pointer | None
    pointer: Pointer
    manifest: Manifest
    document: bytes
    plan: PromotionPlan
    operation: OperationRecord | None


class Releases:
    """Promotes and rolls back the channels of one registry."""

    def __init__(
        self,
        *,
        database: Database | None,
        storage: Storage,
        actor: str,
        lock_timeout_s: float = 30.0,
        progress: Progress = no_progress,
    ) -> None:
        self._database = database
        self._storage = storage
        self._actor = actor
        self._lock_timeout_s = lock_timeout_s
        self._progress = progress

    # -- promote -------------------------------------------------------------------------------------------
    def preview_promotion(self, reference: ModelReference, *, channel: str, request: PromotionRequest) -> PromotionPlan:
        """Return what `promote` would do now; nothing is written."""
        check_name(channel, what="channel")
        current = self._storage.read_pointer(reference.model, channel)
        check_expected(f"{reference.model}@{channel}", current, request.expect_current)
        served = self._served_targets(current)
        with self._require_database().read() as connection:
            return read_plan(connection, reference, _active_targets(connection, current, served), request)

    def promote(self, reference: ModelReference, *, channel: str, request: PromotionRequest) -> Activation:
        """
        Activate a version on a channel, for all its targets or for none.

        Raises:
            GateFailedError: A target has no engine that passes.
            ActivationConflictError: The channel is not at `expect_current`, or somebody else was first.
            ActivationUnknownError: It may have happened; the next command settles it.
            IntegrityError: A plan or a release does not match its digest.
        """
        check_name(channel, what="channel")
        model = reference.model
        if reference.channel not in (None, channel):
            self._settle(model, reference.channel)  # what it serves is read from the database below
        with self._storage.exclusive(model, channel, timeout_s=self._lock_timeout_s):
            intent = self._begin_promotion(reference, channel, request)
            current = intent.current
            try:
                self._lay_out(intent)
            except ModelregError as error:
                self._swapper.abort(intent.operation, error)
                raise
            if intent.operation is None:
                assert current is not None
                return Activation(pointer=current, previous=current, plan=intent.plan, changed=False)
            recorded = self._swapper.swap(intent.pointer, current=current, operation=intent.operation)
            return Activation(pointer=intent.pointer, previous=current, plan=intent.plan, recorded=recorded)

    def _settle(self, model: str, channel: str) -> None:
        with self._storage.exclusive(model, channel, timeout_s=self._lock_timeout_s):
            settle_channel(self._require_database(), self._storage, model=model, channel=channel, actor=self._actor)

    def _served_targets(self, current: Pointer | None) -> tuple[str, ...] | None:
        """Return the targets that a channel serves by its manifest, None where that is gone; asks the store."""
        if current is None:
            return ()
        try:
            document = self._storage.read_manifest(current.release)
        except (IntegrityError, NotFoundError):  # a promotion is how a damaged release is mended
            return None
        return parse_manifest(document, where=current.release[:12]).targets

    def _begin_promotion(self, reference: ModelReference, channel: str, request: PromotionRequest) -> _Intent:
        """Read the gates, choose, and write the intent, in one transaction: no verdict can change in between."""
        database, storage, model = self._require_database(), self._storage, reference.model
        # The store may be far away: what is read there is read before the transaction, which others wait for.
        current = storage.complete_reserved(model, channel)
        served = self._served_targets(current)
        with settled_channel(database, storage, current, model=model, channel=channel, actor=self._actor) as place:
            connection = place.connection
            check_expected(f"{model}@{channel}", current, request.expect_current)
            plan = read_plan(connection, reference, _active_targets(connection, current, served), request)
            require_complete(plan)
            manifest = make_manifest(plan.version, plan.engines)
            document = manifest.to_bytes()
            pointer = self._promoted(
                plan,
                channel,
                current,
                release=sha256_hex(document),
                message=request.message,
                registry=events.registry_id(connection),
            )
            operation = None
            if current is None or current.release != pointer.release:
                release_id = releases.ensure_release(
                    connection,
                    version=plan.version,
                    manifest_digest=pointer.release,
                    engines={target: engine.id for target, engine in plan.engines.items()},
                    actor=self._actor,
                )
                channel_id = place.id or releases.ensure_channel(
                    connection, model=model, name=channel, actor=self._actor
                )
                operation = self._swapper.begin(
                    connection, channel_id=channel_id, release_id=release_id, pointer=pointer
                )
        return _Intent(
            current=current, pointer=pointer, manifest=manifest, document=document, plan=plan, operation=operation
        )

    def _promoted(
        self,
        plan: PromotionPlan,
        channel: str,
        current: Pointer | None,
        *,
        release: str,
        message: str,
        registry: str,
    ) -> Pointer:
        return next_pointer(
            current,
            model=plan.version.model,
            channel=channel,
            release=release,
            version=plan.version.number,
            kind=ActivationKind.PROMOTE,
            rolls_back_to=current.generation if current else None,
            txn=new_txn(),
            actor=self._actor,
            message=message,
            at=utc_now(),
            overridden=plan.overridden,
            registry=registry,
        )

    def _lay_out(self, intent: _Intent) -> None:
        for file in intent.manifest.files:
            self._storage.verify_blob(file.digest, progress=self._progress)
        self._storage.publish_release(intent.document, intent.manifest.files)

    # -- rollback ------------------------------------------------------------------------------------------
    def preview_rollback(self, model: str, *, channel: str, request: RollbackRequest) -> Pointer:
        """Return the history document that `rollback` would bring back; nothing is written."""
        return self._rollback_target(model, channel, self._storage.read_pointer(model, channel), request)

    def drill_rollback(self, model: str, *, channel: str, request: RollbackRequest) -> DrillReport:
        """Do all of a rollback but the swap, and time it."""
        started = time.monotonic()
        current = self._storage.read_pointer(model, channel)
        target = self._rollback_target(model, channel, current, request)
        verified = self._verify_target(target)
        assert current is not None
        return DrillReport(target=target, current=current, verified_bytes=verified, seconds=time.monotonic() - started)

    def rollback(self, model: str, *, channel: str, request: RollbackRequest) -> Activation:
        """
        Activate an earlier release as a new generation, after re-hashing all of it. Needs no database.

        Raises:
            NotFoundError: There is nothing to roll back to.
            ActivationConflictError: The channel is not at `expect_current`, or somebody else was first.
            ActivationUnknownError: It may have happened; the next command settles it.
            IntegrityError: The earlier release is damaged.
        """
        with self._storage.exclusive(model, channel, timeout_s=self._lock_timeout_s):
            current = self._settle_or_complete(model, channel)
            target = self._rollback_target(model, channel, current, request)
            self._storage.keep_release(target.release)
            self._verify_target(target)
            pointer = next_pointer(
                current,
                model=model,
                channel=channel,
                release=target.release,
                version=target.version,
                kind=ActivationKind.ROLLBACK,
                rolls_back_to=target.rolls_back_to,
                txn=new_txn(),
                actor=self._actor,
                message=request.message,
                at=utc_now(),
                overridden=target.overridden,
                registry=self._registry_id(),
            )
            swapper = self._swapper
            recorded = swapper.swap(pointer, current=current, operation=swapper.begin_known(pointer))
            return Activation(pointer=pointer, previous=current, recorded=recorded)

    def _rollback_target(self, model: str, channel: str, current: Pointer | None, request: RollbackRequest) -> Pointer:
        check_expected(f"{model}@{channel}", current, request.expect_current)
        if current is None:
            raise no_active_release(model, channel, served=self._storage.list_channels())
        generation = choose_rollback_generation(
            current, to_generation=request.to_generation, place=f"{model}@{channel}"
        )
        target = self._storage.read_history(model, channel, generation)
        if target.release == current.release:
            raise NotFoundError(
                f"generation {generation} is the release that {model}@{channel} serves already",
                hint=f"Choose another one from `modelreg history {model}@{channel}` with --to-generation.",
            )
        if (mark := self._storage.find_swept(target.release)) is not None:
            raise swept_release(mark)
        return target

    def _verify_target(self, target: Pointer) -> int:
        try:
            return self._storage.verify_release(target.release, progress=self._progress)
        except IntegrityError as error:
            hint = f"{advise_damaged_release(self._storage, target.release)} Or choose another with --to-generation."
            raise IntegrityError(str(error), hint=hint) from error

    def _registry_id(self) -> str:
        if self._database is None:
            return ""
        try:
            with self._database.read() as connection:
                return events.registry_id(connection)
        except (DatabaseError, BusyError):
            return ""

    def _settle_or_complete(self, model: str, channel: str) -> Pointer | None:
        if self._database is not None:
            try:
                return settle_channel(self._database, self._storage, model=model, channel=channel, actor=self._actor)
            except (DatabaseError, BusyError, ForeignReleaseError):
                self._database = None  # a rollback must work without; the pointer is the truth
        return self._storage.complete_reserved(model, channel)

    @property
    def _swapper(self) -> Swapper:
        return Swapper(database=self._database, storage=self._storage, actor=self._actor)

    def _require_database(self) -> Database:
        if self._database is None:
            raise DatabaseError(
                "the registry has no database", hint="Restore its backup, or start a new one: modelreg init."
            )
        return self._database


def _active_targets(
    connection: sa.Connection, current: Pointer | None, served: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Return the targets that a channel serves: as its manifest says or, where that is gone, as the database knows."""
    if served is not None or current is None:
        return served or ()
    channel_id = releases.find_channel(connection, model=current.model, name=current.channel)
    return () if channel_id is None else tuple(releases.active_engines(connection, channel_id=channel_id))
