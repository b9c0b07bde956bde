"""The release protocol: intent, immutable data, one compare-and-swap of the pointer, outcome.

    1  database: the gates are read, the choice made and the intent written, in one transaction
    2  store:    plans re-hashed, the release laid out whole
    3  store:    history, then the pointer moves (the commit point)
    4  database: the activation is recorded and the intent closed

A crash anywhere leaves the old or the new release active; `settling` finishes the books. A rollback goes through
even when the database is gone, since the store's history documents hold all it needs.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

import sqlalchemy as sa

from modelreg.registry import engines, releases, validations, versions
from modelreg.registry.clock import utc_now
from modelreg.registry.database import Database
from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import (
    ActivationConflictError,
    ActivationUnknownError,
    BusyError,
    DatabaseError,
    ModelregError,
    NotFoundError,
)
from modelreg.registry.manifest import Manifest, make_manifest, parse_manifest
from modelreg.registry.pointers import Pointer, next_pointer
from modelreg.registry.promotion import (
    EngineStanding,
    Preference,
    PromotionPlan,
    choose_rollback_generation,
    override_gates,
    plan_promotion,
    require_complete,
    required_targets,
)
from modelreg.registry.records import OperationRecord
from modelreg.registry.references import ModelReference, check_name
from modelreg.registry.settling import settle_channel
from modelreg.registry.storage.interface import Progress, Storage, no_progress
from modelreg.registry.words import ActivationKind, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRequest:
    """What a user asks of a promotion; `expect_current=0` means that nothing may be active yet."""

    preference: Preference
    targets: tuple[str, ...] = ()
    configured_targets: tuple[str, ...] = ()
    precision: Precision | None = None
    expect_current: int | None = None
    override_gates: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """What a user asks of a rollback."""

    to_generation: int | None = None
    expect_current: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """What came of it. `changed` is False when the release was active already; `recorded` is False when the store
    moved but the database could not be told (the next command records it)."""

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
        _check_expected(channel, current, request.expect_current)
        return self._plan(reference, current, request)

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
        with self._storage.exclusive(model, channel, timeout_s=self._lock_timeout_s):
            current = settle_channel(
                self._require_database(), self._storage, model=model, channel=channel, actor=self._actor
            )
            _check_expected(channel, current, request.expect_current)
            intent = self._begin_promotion(reference, channel, current, request)
            try:
                self._lay_out(intent)
            except ModelregError as error:
                self._abort(intent.operation, error)
                raise
            if intent.operation is None:
                assert current is not None
                return Activation(pointer=current, previous=current, plan=intent.plan, changed=False)
            self._swap(intent.pointer, current, intent.operation)
            recorded = self._commit(intent.operation, intent.pointer)
            return Activation(pointer=intent.pointer, previous=current, plan=intent.plan, recorded=recorded)

    def _plan(self, reference: ModelReference, current: Pointer | None, request: PromotionRequest) -> PromotionPlan:
        active = self._active_targets(current)
        with self._require_database().read() as connection:
            version = versions.get_version(connection, reference)
            cells = engines.current_engines(connection, version_id=version.id)
            newest = validations.newest_validations(connection, engine_ids=[engine.id for engine in cells])
            golden = versions.newest_golden_set(connection, version_id=version.id)
        built = [engine.target.name for engine in cells if engine.files]
        plan = plan_promotion(
            version,
            [EngineStanding(engine=engine, validation=newest.get(engine.id)) for engine in cells],
            targets=required_targets(
                explicit=request.targets, configured=request.configured_targets, active=active, built=built
            ),
            golden_digest=golden.digest if golden else None,
            preference=request.preference,
            precision=request.precision,
        )
        return override_gates(plan) if request.override_gates and plan.missing else plan

    def _active_targets(self, current: Pointer | None) -> tuple[str, ...]:
        if current is None:
            return ()
        return parse_manifest(self._storage.read_manifest(current.release), where=current.release[:12]).targets

    def _begin_promotion(
        self, reference: ModelReference, channel: str, current: Pointer | None, request: PromotionRequest
    ) -> _Intent:
        plan = self._plan(reference, current, request)
        require_complete(plan)
        manifest = make_manifest(plan.version, plan.engines)
        document = manifest.to_bytes()
        pointer = next_pointer(
            current,
            model=plan.version.model,
            channel=channel,
            release=sha256_hex(document),
            version=plan.version.number,
            kind=ActivationKind.PROMOTE,
            rolls_back_to=current.generation if current else None,
            txn=_new_txn(),
            actor=self._actor,
            message=request.message,
            at=utc_now(),
            overridden=plan.overridden,
        )
        operation = None
        if current is None or current.release != pointer.release:
            with self._require_database().write() as connection:
                channel_id = releases.ensure_channel(connection, model=pointer.model, name=channel, actor=self._actor)
                release_id = releases.ensure_release(
                    connection,
                    version=plan.version,
                    manifest_digest=pointer.release,
                    engines={target: engine.id for target, engine in plan.engines.items()},
                    actor=self._actor,
                )
                operation = self._begin_operation(connection, channel_id, release_id, pointer)
        return _Intent(pointer=pointer, manifest=manifest, document=document, plan=plan, operation=operation)

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
        verified = self._storage.verify_release(target.release, progress=self._progress)
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
            self._storage.verify_release(target.release, progress=self._progress)
            pointer = next_pointer(
                current,
                model=model,
                channel=channel,
                release=target.release,
                version=target.version,
                kind=ActivationKind.ROLLBACK,
                rolls_back_to=target.rolls_back_to,
                txn=_new_txn(),
                actor=self._actor,
                message=request.message,
                at=utc_now(),
                overridden=target.overridden,
            )
            operation = self._begin_rollback(pointer)
            self._swap(pointer, current, operation)
            recorded = self._commit(operation, pointer)
            return Activation(pointer=pointer, previous=current, recorded=recorded)

    def _rollback_target(self, model: str, channel: str, current: Pointer | None, request: RollbackRequest) -> Pointer:
        _check_expected(channel, current, request.expect_current)
        generation = choose_rollback_generation(current, to_generation=request.to_generation, channel=channel)
        target = self._storage.read_history(model, channel, generation)
        if current is not None and target.release == current.release:
            raise NotFoundError(
                f"generation {generation} is the release that {model}@{channel} serves already",
                hint="Choose another one from `modelreg history`.",
            )
        return target

    def _settle_or_complete(self, model: str, channel: str) -> Pointer | None:
        if self._database is not None:
            try:
                return settle_channel(self._database, self._storage, model=model, channel=channel, actor=self._actor)
            except (DatabaseError, BusyError):
                self._database = None
        return self._storage.complete_reserved(model, channel)

    def _begin_rollback(self, pointer: Pointer) -> OperationRecord | None:
        if self._database is None:
            return None
        try:
            with self._database.write() as connection:
                channel_id = releases.find_channel(connection, model=pointer.model, name=pointer.channel)
                release_id = releases.find_release(connection, manifest_digest=pointer.release)
                if channel_id is None or release_id is None:
                    return None
                return self._begin_operation(connection, channel_id, release_id, pointer)
        except (DatabaseError, BusyError):
            return None

    # -- steps both share ----------------------------------------------------------------------------------
    def _begin_operation(
        self, connection: sa.Connection, channel_id: int, release_id: int, pointer: Pointer
    ) -> OperationRecord:
        return releases.begin_operation(
            connection,
            channel_id=channel_id,
            release_id=release_id,
            pointer=pointer,
            owner={"host": socket.gethostname(), "pid": os.getpid()},
            actor=self._actor,
        )

    def _swap(self, pointer: Pointer, current: Pointer | None, operation: OperationRecord | None) -> None:
        try:
            self._storage.swap_pointer(pointer, expected=current)
        except ActivationUnknownError as error:
            self._close(operation, error, unknown=True)
            raise
        except ModelregError as error:
            self._abort(operation, error)
            raise

    def _abort(self, operation: OperationRecord | None, error: ModelregError) -> None:
        self._close(operation, error, unknown=False)

    def _close(self, operation: OperationRecord | None, error: ModelregError, *, unknown: bool) -> None:
        """Note how an operation failed; if the database cannot be told, the next command settles it."""
        if operation is None or self._database is None:
            return
        note = releases.mark_unknown if unknown else releases.abort_operation
        try:
            with self._database.write() as connection:
                note(connection, operation=operation, error=str(error), actor=self._actor)
        except (DatabaseError, BusyError):
            return

    def _commit(self, operation: OperationRecord | None, pointer: Pointer) -> bool:
        if operation is None or self._database is None:
            return False
        try:
            with self._database.write() as connection:
                releases.commit_operation(connection, operation=operation, pointer=pointer, actor=self._actor)
        except (DatabaseError, BusyError):
            return False
        return True

    def _require_database(self) -> Database:
        if self._database is None:
            raise DatabaseError(
                "the registry has no database", hint="Restore its backup, or start a new one: modelreg init."
            )
        return self._database


def _check_expected(channel: str, current: Pointer | None, expected: int | None) -> None:
    found = current.generation if current else 0
    if expected is not None and expected != found:
        raise ActivationConflictError(channel, expected=expected, found=found, holder=current.actor if current else "")


def _new_txn() -> str:
    return os.urandom(16).hex()
