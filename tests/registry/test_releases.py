import re

import pytest
import sqlalchemy as sa

from modelreg.registry import events, operations, releases, schema
from modelreg.registry.database import Database
from modelreg.registry.errors import BusyError, IntegrityError, InvalidReferenceError, NotFoundError
from modelreg.registry.pointers import Pointer
from modelreg.registry.records import ActivationRecord, EngineRecord, OperationRecord, VersionRecord
from modelreg.registry.words import ActivationKind, OperationState
from modelreg_testing.registry import (
    ACTOR,
    activate,
    add_engine,
    add_release,
    add_version,
    explain,
    make_pointer,
    populate,
    row_counts,
)


class Scene:
    """One version with one engine, its release, and the channel `production`, with nothing active yet."""

    def __init__(self, database: Database) -> None:
        self.database = database
        with database.write() as connection:
            self.version: VersionRecord = add_version(connection)
            self.engine: EngineRecord = add_engine(connection, self.version)
            self.release_id, self.release = add_release(
                connection, self.version, engines_by_target={"cpu": self.engine.id}
            )
            self.channel_id = releases.ensure_channel(connection, model="resnet50", name="production", actor=ACTOR)

    def begin(self, current: Pointer | None = None) -> tuple[Pointer, OperationRecord]:
        pointer = make_pointer(self.version, release=self.release, current=current)
        with self.database.write() as connection:
            return pointer, operations.begin_operation(
                connection,
                channel_id=self.channel_id,
                release_id=self.release_id,
                pointer=pointer,
                owner={"host": "here", "pid": 7},
                actor=ACTOR,
            )

    def commit(self, operation: OperationRecord, pointer: Pointer) -> ActivationRecord:
        with self.database.write() as connection:
            return operations.commit_operation(connection, operation=operation, pointer=pointer, actor=ACTOR)

    def kept(self, *, generation: int) -> Pointer | None:
        with self.database.read() as connection:
            return operations.find_activated_pointer(
                connection, model="resnet50", channel="production", generation=generation
            )

    def open(self) -> list[OperationRecord]:
        with self.database.read() as connection:
            return operations.open_operations(connection, channel_id=self.channel_id)

    def state(self, operation: OperationRecord) -> str:
        with self.database.read() as connection:
            table = schema.operation
            return str(connection.execute(sa.select(table.c.state).where(table.c.id == operation.id)).scalar_one())


@pytest.fixture
def scene(database: Database) -> Scene:
    return Scene(database)


def event_kinds(database: Database) -> list[str]:
    with database.read() as connection:
        assert events.verify_chain(connection).broken_at is None
        return list(connection.execute(sa.select(schema.event.c.kind).order_by(schema.event.c.sequence)).scalars())


def test_an_intent_is_open_until_its_outcome(scene: Scene) -> None:
    pointer, operation = scene.begin()
    assert scene.open() == [operation]
    assert (operation.expected_generation, operation.state) == (0, OperationState.PREPARED)
    activation = scene.commit(operation, pointer)
    assert scene.open() == []
    with scene.database.read() as connection:
        assert releases.newest_activation(connection, channel_id=scene.channel_id) == activation
    assert (activation.generation, activation.version, activation.release_digest) == (1, 1, scene.release)
    assert (activation.txn, activation.created_at) == (pointer.txn, pointer.at)
    assert event_kinds(scene.database)[-1] == "channel.promote"


def test_the_pointer_of_an_intent_is_kept_whole(scene: Scene) -> None:
    pointer, operation = scene.begin()
    assert scene.kept(generation=1) is None  # not before it is activated
    scene.commit(operation, pointer)
    assert scene.kept(generation=1) == pointer
    assert scene.kept(generation=2) is None


def test_a_pointer_that_somebody_edited_is_not_believed(scene: Scene) -> None:
    pointer, operation = scene.begin()
    scene.commit(operation, pointer)
    with scene.database.write() as connection:
        body = connection.execute(sa.select(schema.operation.c.pointer)).scalar_one()
        connection.execute(sa.update(schema.operation).values(pointer={**body, "version": 2}))
    with pytest.raises(IntegrityError, match="does not match its own digest"):
        scene.kept(generation=1)


def test_a_channel_has_one_open_operation(scene: Scene) -> None:
    _, first = scene.begin()
    rows = row_counts(scene.database)
    with pytest.raises(BusyError, match="channel resnet50@production is being moved by another command"):
        scene.begin()
    assert row_counts(scene.database) == rows
    with scene.database.write() as connection:
        operations.mark_unknown(connection, operation=first, error="no answer", actor=ACTOR)
    with pytest.raises(BusyError):
        scene.begin()
    with scene.database.write() as connection:
        operations.abort_operation(connection, operation=first, error="it did not", actor=ACTOR)
    scene.begin()


def test_two_channels_do_not_block_each_other(scene: Scene) -> None:
    scene.begin()
    with scene.database.write() as connection:
        scene.channel_id = releases.ensure_channel(connection, model="resnet50", name="canary", actor=ACTOR)
    _, second = scene.begin()
    assert [operation.id for operation in scene.open()] == [second.id]
    with scene.database.read() as connection:
        assert len(operations.open_operations(connection)) == 2
        assert releases.list_channels(connection) == [("resnet50", "canary"), ("resnet50", "production")]


def test_an_intent_with_a_wrong_release_is_a_bug_and_not_busy(scene: Scene) -> None:
    scene.release_id = 99
    with pytest.raises(sa.exc.IntegrityError, match=r"(?i)foreign key"):
        scene.begin()


def test_a_transaction_id_is_used_once(scene: Scene) -> None:
    pointer, operation = scene.begin()
    scene.commit(operation, pointer)
    with (
        pytest.raises(sa.exc.IntegrityError, match=r"operation\.txn|uq_operation_txn"),
        scene.database.write() as connection,
    ):
        operations.begin_operation(
            connection,
            channel_id=scene.channel_id,
            release_id=scene.release_id,
            pointer=pointer,
            owner={},
            actor=ACTOR,
        )


def test_committing_again_changes_nothing(scene: Scene) -> None:
    pointer, operation = scene.begin()
    first = scene.commit(operation, pointer)
    rows = row_counts(scene.database)
    assert scene.commit(operation, pointer) == first
    assert row_counts(scene.database) == rows


def test_what_was_aborted_is_committed_all_the_same_once_the_pointer_moved(scene: Scene) -> None:
    pointer, operation = scene.begin()
    with scene.database.write() as connection:
        operations.abort_operation(connection, operation=operation, error="thought dead", actor=ACTOR)
    assert scene.commit(operation, pointer).generation == 1
    assert scene.state(operation) == "committed"


def test_what_somebody_who_came_by_has_recorded_is_not_a_damaged_history(scene: Scene) -> None:
    """Where hosts share no lock, another one aborts the intent, then finds the pointer moved and records it."""
    pointer, operation = scene.begin()
    with scene.database.write() as connection:
        operations.abort_operation(connection, operation=operation, error="seen too early", actor="another")
        release = {"channel_id": scene.channel_id, "release_id": scene.release_id}
        adopted = releases.record_activation(connection, **release, pointer=pointer, actor="another")
    assert scene.commit(operation, pointer) == adopted
    assert scene.state(operation) == "committed"


@pytest.mark.parametrize("settle", [operations.abort_operation, operations.mark_unknown])
def test_what_was_committed_stays_so(scene: Scene, settle: object) -> None:
    pointer, operation = scene.begin()
    scene.commit(operation, pointer)
    rows = row_counts(scene.database)
    with scene.database.write() as connection:
        settle(connection, operation=operation, error="late", actor=ACTOR)  # type: ignore[operator]
    assert scene.state(operation) == "committed"
    assert row_counts(scene.database) == rows


def test_failures_are_events_with_their_reason(scene: Scene) -> None:
    _, operation = scene.begin()
    with scene.database.write() as connection:
        operations.mark_unknown(connection, operation=operation, error="fsync failed", actor=ACTOR)
    (unknown,) = scene.open()
    assert (unknown.state, unknown.error) == (OperationState.UNKNOWN, "fsync failed")
    with scene.database.write() as connection:
        operations.abort_operation(connection, operation=unknown, error="read back: not moved", actor=ACTOR)
    assert scene.open() == []
    assert event_kinds(scene.database)[-2:] == ["operation.unknown", "operation.aborted"]


def test_a_pointer_of_another_transaction_does_not_settle(scene: Scene) -> None:
    pointer, operation = scene.begin()
    with pytest.raises(ValueError, match="does not settle"):
        scene.commit(operation, pointer._replace(txn="0" * 32))
    assert scene.open() == [operation]


def test_a_generation_that_is_taken_is_a_damaged_history_and_changes_nothing(scene: Scene) -> None:
    pointer, operation = scene.begin()
    scene.commit(operation, pointer)
    rival, second = scene.begin()  # of generation 1 again: the store and the database differ
    rows = row_counts(scene.database)
    with pytest.raises(IntegrityError, match="generation 1 of resnet50@production is recorded with another") as caught:
        scene.commit(second, rival)
    assert "modelreg doctor" in caught.value.hint()
    assert row_counts(scene.database) == rows
    assert scene.open() == [second]


def test_a_generation_without_an_intent_can_be_adopted(scene: Scene) -> None:
    pointer = make_pointer(scene.version, release=scene.release)._replace(kind=ActivationKind.ROLLBACK, actor="ops")
    with scene.database.write() as connection:
        made = releases.record_activation(
            connection, channel_id=scene.channel_id, release_id=scene.release_id, pointer=pointer, actor="doctor"
        )
        assert releases.newest_activation(connection, channel_id=scene.channel_id) == made
    with pytest.raises(sa.exc.IntegrityError, match=r"(?i)foreign key"), scene.database.write() as connection:
        releases.record_activation(
            connection,
            channel_id=99,
            release_id=scene.release_id,
            pointer=make_pointer(scene.version, release=scene.release),
            actor="doctor",
        )
    assert made.actor == "ops"
    assert event_kinds(scene.database)[-1] == "channel.rollback"


def test_history_goes_newest_first_page_by_page(scene: Scene) -> None:
    current: Pointer | None = None
    made = []
    for _ in range(5):
        current, activation = activate(scene.database, scene.version, engine=scene.engine, current=current)
        made.append(activation)
    with scene.database.read() as connection:
        everything = releases.list_activations(connection, channel_id=scene.channel_id)
        first = releases.list_activations(connection, channel_id=scene.channel_id, limit=2)
        rest = releases.list_activations(connection, channel_id=scene.channel_id, before=first[-1].generation)
        assert releases.newest_activation(connection, channel_id=99) is None
    assert everything == made[::-1] == first + rest
    assert [one.rolls_back_to for one in made] == [None, 1, 2, 3, 4]


def test_a_release_is_made_once_with_an_engine_for_each_target(scene: Scene) -> None:
    rows = row_counts(scene.database)
    with scene.database.write() as connection:
        again, _ = add_release(connection, scene.version, engines_by_target={"cpu": scene.engine.id})
        assert releases.find_release(connection, manifest_digest=scene.release) == again == scene.release_id
        assert releases.find_release(connection, manifest_digest="0" * 64) is None
    assert row_counts(scene.database) == rows
    with scene.database.write() as connection:
        add_release(connection, scene.version, engines_by_target={"cpu": scene.engine.id, "sm_90": scene.engine.id})
        add_release(connection, scene.version, engines_by_target={})
    assert row_counts(scene.database)["release"] == 3
    assert row_counts(scene.database)["release_engine"] == 3


def test_a_channel_is_made_once_for_a_model_that_is_there(scene: Scene) -> None:
    rows = row_counts(scene.database)
    with scene.database.write() as connection:
        again = releases.ensure_channel(connection, model="resnet50", name="production", actor=ACTOR)
        assert again == scene.channel_id == releases.find_channel(connection, model="resnet50", name="production")
        assert releases.find_channel(connection, model="resnet50", name="canary") is None
        with pytest.raises(NotFoundError, match="no model 'vit'"):
            releases.ensure_channel(connection, model="vit", name="production", actor=ACTOR)
        with pytest.raises(InvalidReferenceError, match="channel name"):
            releases.ensure_channel(connection, model="resnet50", name="Prod/1", actor=ACTOR)
    assert row_counts(scene.database) == rows


def test_open_operations_are_found_through_the_partial_index(database: Database) -> None:
    populate(database)
    with database.read() as connection:
        for statement, values in ((operations._OPEN, {}), (operations._OPEN_OF_CHANNEL, {"of_channel": 1})):
            plan = explain(connection, statement, values)
            assert re.search("operation USING INDEX ix_operation_open|Index Scan (using|on) ix_operation_open", plan), (
                plan
            )
