"""What a collection leaves and what it takes, on a folder and in S3, with a database file and on PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from modelreg.registry import events, operations, releases
from modelreg.registry.clock import utc_now
from modelreg.registry.errors import BusyError, IntegrityError, NotFoundError
from modelreg.registry.garbage.needs import Need, Reason
from modelreg.registry.leases import Holder, hold
from modelreg.registry.pins import lift_pin, set_pin
from modelreg.registry.pointers import next_pointer
from modelreg.registry.schema import blob, version_file
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.storage.marks import MARK_FOLDER, MarkedKind, MarkState, parse_mark
from modelreg.registry.storage.s3 import S3Storage
from modelreg.registry.swapping import new_txn
from modelreg.registry.words import ActivationKind, Precision
from modelreg_testing.postgresql import PostgresServer
from modelreg_testing.registry import ACTOR, url_of
from modelreg_testing.s3_server import LIMITS, S3Server
from modelreg_testing.stock import CHANNEL, ORPHAN, Stock, digest, plan_of

WEEK = timedelta(days=7)


@pytest.fixture(params=["local", "s3", "postgresql"])
def stock(request: pytest.FixtureRequest, in_memory: Path) -> Iterator[Stock]:
    """Give a registry on a folder, in S3, and on a folder with its database on PostgreSQL."""
    if request.param == "local":
        yield Stock.local(in_memory)
    elif request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        location = server.make_store().location
        yield Stock.create(in_memory, lambda: S3Storage(location, limits=LIMITS))
    else:
        postgres: PostgresServer = request.getfixturevalue("postgres")
        with postgres.registry() as database:
            yield Stock.local(in_memory, database_url=url_of(database))


# Servers take their time: what only the database or only the store makes different is not tried on the other one's.
ON_EITHER_STORE = pytest.mark.parametrize("stock", ["local", "s3"], indirect=True)
ON_EITHER_DATABASE = pytest.mark.parametrize("stock", ["local", "postgresql"], indirect=True)


@pytest.fixture
def local(in_memory: Path) -> Stock:
    return Stock.local(in_memory)


def swept_reasons(stock: Stock) -> list[Reason]:
    return sorted(each.reason for each in stock.collect().garbage if each.is_due)


def marks_of(stock: Stock) -> dict[str, MarkState]:
    storage = stock.storage
    notes = (storage.read_note(info.name) for info in storage.list_notes(MARK_FOLDER))
    marks = [parse_mark(note) for note in notes if note is not None]
    return {f"{mark.kind} {mark.digest}": mark.state for mark in marks}


def test_what_no_channel_goes_back_to_is_removed_and_the_rest_stays_whole(stock: Stock) -> None:
    stock.release(1, 2, 3, 4)
    old = {number: stock.storage.read_history("lenet", CHANNEL, number).release for number in (1, 2, 3, 4)}
    stock.storage.put_bytes(ORPHAN)
    found = stock.collect(keep=2)
    assert (found.swept.things, found.passed_over) == (5, 0)
    assert not any(stock.has(each) for each in (plan_of(1), plan_of(2), ORPHAN))
    assert stock.has(plan_of(3))
    assert stock.has(plan_of(4))
    stock.check()
    assert [engine.is_swept for number in (1, 2, 3, 4) for engine in stock.engines_of(number)] == [
        True,
        True,
        False,
        False,
    ]
    for number in (1, 2):
        mark = stock.storage.find_swept(old[number])
        assert mark is not None
        assert mark.state is MarkState.SWEPT
        with pytest.raises(NotFoundError, match="removed by `modelreg gc`"):
            stock.rollback(number)
    assert stock.rollback().pointer.version == 3
    assert stock.collect(keep=2).swept.things == 0


@ON_EITHER_STORE
def test_nothing_is_removed_before_its_grace_is_over(stock: Stock) -> None:
    stock.release(1, 2)
    stock.storage.put_bytes(ORPHAN)
    first = stock.collect(keep=1, grace=WEEK)
    assert (first.marked.things, first.swept.things) == (1, 0)  # the release before is what a rollback goes to
    second = stock.collect(keep=1, grace=WEEK)
    assert (second.marked.things, second.swept.things) == (0, 0)
    assert second.tally(due=False).things == 1
    assert stock.has(ORPHAN)
    assert stock.collect(keep=1).swept.things == 1
    assert not stock.has(ORPHAN)


def test_a_preview_says_what_would_go_and_does_nothing(stock: Stock) -> None:
    stock.release(1, 2, 3)
    stock.storage.put_bytes(ORPHAN)
    before = sorted(each.digest for each in stock.storage.iterate_blobs())
    found = stock.preview()
    due = {(each.reason, each.thing.digest) for each in found.garbage}
    release = stock.storage.read_history("lenet", CHANNEL, 1).release
    assert due == {(Reason.RELEASE, release), (Reason.PLAN, digest(plan_of(1))), (Reason.ORPHAN, digest(ORPHAN))}
    assert found.dry_run
    assert marks_of(stock) == {}
    assert sorted(each.digest for each in stock.storage.iterate_blobs()) == before
    assert found.kept[Need.CHANNEL][MarkedKind.BLOB].things == 2
    assert found.kept[Need.RECORD][MarkedKind.BLOB].size_bytes > 0


@ON_EITHER_STORE
def test_a_lease_keeps_what_its_host_serves_until_it_runs_out(stock: Stock) -> None:
    stock.release(1, 2, 3)
    held = stock.storage.read_history("lenet", CHANNEL, 1)
    hold(stock.storage, held, Holder(host="gpu-7", pid=1, instance="a"))
    found = stock.collect()
    assert found.kept[Need.LEASE][MarkedKind.RELEASE].things == 1
    assert stock.has(plan_of(1))
    stock.storage.verify_release(held.release)
    hold(stock.storage, held, Holder(host="gpu-7", pid=1, instance="a"), ttl_s=-1.0)
    after = stock.collect()
    assert (after.leases_expired, after.swept.things) == (1, 2)
    assert list(stock.storage.list_notes("leases")) == []


@ON_EITHER_DATABASE
def test_a_pin_keeps_a_version_until_it_is_lifted(stock: Stock) -> None:
    stock.release(1, 2, 3)
    record = stock.register(1)
    pin, changed = set_pin(stock.storage, record, message="why", actor=ACTOR, at=utc_now())
    assert (pin.message, changed) == ("why", True)
    assert stock.collect().swept.things == 0
    assert lift_pin(stock.storage, record.model, record.number)
    assert stock.collect().swept.things == 2


@ON_EITHER_DATABASE
def test_an_operation_that_is_not_settled_keeps_its_engines(stock: Stock) -> None:
    stock.release(1, 2, 3)
    current = stock.served()
    wanted = stock.storage.read_history("lenet", CHANNEL, 1)
    pointer = next_pointer(
        current,
        model="lenet",
        channel=CHANNEL,
        release=wanted.release,
        version=1,
        kind=ActivationKind.PROMOTE,
        rolls_back_to=3,
        txn=new_txn(),
        actor=ACTOR,
        message="",
        at=utc_now(),
    )
    with stock.database() as database, database.write() as connection:
        channel_id = releases.find_channel(connection, model="lenet", name=CHANNEL)
        release_id = releases.find_release(connection, manifest_digest=wanted.release)
        assert channel_id is not None
        assert release_id is not None
        operation = operations.begin_operation(
            connection, channel_id=channel_id, release_id=release_id, pointer=pointer, owner={}, actor=ACTOR
        )
    assert stock.collect().swept.things == 0
    with stock.database() as database, database.write() as connection:
        operations.abort_operation(connection, operation=operation, error="died", actor=ACTOR)
    assert stock.collect().swept.things == 2


@ON_EITHER_DATABASE
def test_engines_of_the_newest_versions_stay_though_nothing_released_them(stock: Stock) -> None:
    for number in (1, 2, 3):
        stock.register(number)
        stock.build(number)
    assert stock.collect(keep_versions=2).swept.things == 1
    assert [stock.has(plan_of(number)) for number in (1, 2, 3)] == [False, True, True]


def test_a_swept_engine_is_refused_at_a_promotion_and_can_be_built_again(stock: Stock) -> None:
    stock.release(1, 2, 3)
    stock.collect()
    assert not stock.has(plan_of(1))
    with pytest.raises(Exception, match="its plan was removed by gc"):
        stock.promote(1)
    stock.build(1)
    assert stock.promote(1).pointer.version == 1
    assert stock.storage.find_swept(stock.served().release) is None
    stock.check()


@ON_EITHER_STORE
def test_a_release_that_is_active_again_loses_its_mark(stock: Stock) -> None:
    stock.release(1, 2, 3)
    assert stock.collect(grace=WEEK).marked.things == 2
    assert set(marks_of(stock).values()) == {MarkState.MARKED}
    stock.rollback(1)
    assert set(marks_of(stock).values()) == {MarkState.KEPT}
    assert stock.collect(keep=3).swept.things == 0
    assert marks_of(stock) == {}
    stock.check()


@ON_EITHER_STORE
def test_marks_of_what_a_lease_needs_again_are_taken_away(stock: Stock) -> None:
    stock.release(1, 2, 3)
    stock.collect(grace=WEEK)
    hold(stock.storage, stock.storage.read_history("lenet", CHANNEL, 1), Holder(host="gpu-7", pid=1, instance="a"))
    assert stock.collect().revived == 2
    assert stock.has(plan_of(1))


@ON_EITHER_STORE
def test_what_was_taken_back_has_its_whole_grace_again(stock: Stock) -> None:
    stock.storage.put_bytes(ORPHAN)
    stock.collect(grace=WEEK)
    stock.storage.put_bytes(ORPHAN)
    assert marks_of(stock) == {f"blob {digest(ORPHAN)}": MarkState.KEPT}
    again = stock.collect(grace=WEEK)
    assert (again.marked.things, again.swept.things) == (1, 0)


@ON_EITHER_DATABASE
def test_every_removal_is_an_event_with_the_digests(stock: Stock) -> None:
    stock.release(1, 2, 3)
    stock.collect()
    with stock.database() as database, database.read() as connection:
        told = [row for row in events._rows(connection) if row.kind == "gc.swept"]
        assert events.verify_chain(connection).broken_at is None
    assert digest(plan_of(1)) in told[1].details
    assert stock.storage.read_history("lenet", CHANNEL, 1).release in told[0].details


@ON_EITHER_DATABASE
def test_two_channels_keep_what_either_needs(stock: Stock) -> None:
    stock.release(1, 2, 3)
    stock.promote(1, channel="canary")
    assert stock.collect().swept.things == 0
    assert stock.has(plan_of(1))


@ON_EITHER_DATABASE
def test_releases_that_take_turns_count_once(stock: Stock) -> None:
    stock.release(1, 2, 3)
    for _ in range(3):
        stock.promote(2)
        stock.promote(3)
    stock.collect(keep=3)
    assert stock.has(plan_of(1))
    stock.collect(keep=2)
    assert not stock.has(plan_of(1))


def test_a_reserved_generation_is_needed_before_its_pointer_moves(local: Stock) -> None:
    local.release(1, 2, 3)
    current = local.served()
    wanted = local.storage.read_history("lenet", CHANNEL, 1)
    reserved = next_pointer(
        current,
        model="lenet",
        channel=CHANNEL,
        release=wanted.release,
        version=1,
        kind=ActivationKind.PROMOTE,
        rolls_back_to=3,
        txn=new_txn(),
        actor=ACTOR,
        message="",
        at=utc_now(),
    )
    root = local.folder / "store"
    (root / f"channels/lenet/{CHANNEL}/history/000000000004.json").write_bytes(reserved.to_bytes())
    assert local.collect().swept.things == 0
    assert local.storage.complete_reserved("lenet", CHANNEL) == reserved


@pytest.mark.parametrize("what", ["pointer.json", "history/000000000002.json"])
def test_where_nobody_can_read_what_is_needed_nothing_is_marked(local: Stock, what: str) -> None:
    local.release(1, 2, 3)
    path = local.folder / "store" / "channels" / "lenet" / CHANNEL / what
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(IntegrityError):
        local.collect(keep=5)
    assert marks_of(local) == {}


@pytest.mark.parametrize("name", ["leases/lenet/production/0.json", "pins/lenet/1.json"])
def test_a_note_of_another_format_may_need_anything_so_nothing_is_marked(local: Stock, name: str) -> None:
    local.release(1, 2, 3)
    assert local.storage.write_note(name, b'{"format": 99}', replaces=None)
    with pytest.raises(IntegrityError, match=name):
        local.collect()
    assert marks_of(local) == {}


def test_a_blob_waits_for_a_release_that_names_it(local: Stock) -> None:
    """In S3 a release is its blobs: it must be known as swept before the first of them goes."""
    local.release(1, 2, 3)
    local.collect(grace=WEEK)
    (release,) = [name for name in marks_of(local) if name.startswith("release")]
    # As if the release had been wanted, and given up, after its blob was marked.
    note = local.storage.read_note(f"{MARK_FOLDER}/{release.replace(' ', '-')}.json")
    assert note is not None
    late = parse_mark(note)
    fresh = late.to_bytes().replace(b'"at": "20', b'"at": "21')
    assert local.storage.write_note(late.name, fresh, replaces=note)
    found = local.collect()
    assert (found.swept.things, found.passed_over) == (0, 1)
    assert local.has(plan_of(1))


def test_one_collector_waits_for_another(local: Stock) -> None:
    local.release(1)
    with local.storage.collecting(timeout_s=1), local.database() as database:
        collector = local.collector(database)
        collector._lock_timeout_s = 0.05
        with pytest.raises(BusyError, match="collection"):
            collector.collect()


def test_leftovers_of_the_dead_go_too(local: Stock) -> None:
    storage = local.storage
    assert isinstance(storage, LocalStorage)
    (storage.root / "tmp" / "dead.1.abc").mkdir()
    (storage.root / "tmp" / "dead.1.abc" / "blob").write_bytes(b"half")
    assert local.preview().leftovers == storage.count_leftovers()
    local.collect()
    assert storage.count_leftovers() == 0


@ON_EITHER_DATABASE
def test_two_precisions_of_one_version_go_and_stay_by_themselves(stock: Stock) -> None:
    stock.register(1)
    stock.build(1)
    stock.build(1, precision=Precision.FP16)
    stock.promote(1)
    stock.release(2)
    stock.collect(keep=2)
    assert stock.has(plan_of(1))
    assert not stock.has(plan_of(1, Precision.FP16))


@ON_EITHER_DATABASE
def test_a_release_that_was_swept_is_not_counted_among_what_is_kept(stock: Stock) -> None:
    stock.release(1, 2, 3)
    stock.collect(keep=1)
    found = stock.collect(keep=20)
    assert found.kept[Need.CHANNEL][MarkedKind.RELEASE].things == 2


@ON_EITHER_DATABASE
def test_the_list_of_a_source_of_several_files_stays_though_an_older_registry_did_not_note_it(stock: Stock) -> None:
    """It alone tells, without a database, of which files a source is."""
    version = stock.register(1)
    with stock.database() as database, database.write() as connection:
        connection.execute(sa.delete(version_file))
        connection.execute(sa.delete(blob).where(blob.c.digest == version.source.digest))
    stock.collect()
    assert stock.storage.has_blob(version.source.digest)


def lose_the_sweep(stock: Stock) -> set[str]:
    """Collect, and put the rows back as an older copy of the database has them; return the plans that are gone."""
    stock.release(1, 2, 3)
    with stock.database() as database, database.read() as connection:
        before = [dict(row._mapping) for row in connection.execute(sa.select(blob))]
    stock.collect()
    with stock.database() as database, database.write() as connection:
        known = set(connection.execute(sa.select(blob.c.digest)).scalars())
        lost = [row for row in before if row["digest"] not in known]
        connection.execute(sa.insert(blob), lost)
    assert lost
    return {row["digest"] for row in lost}


@pytest.mark.slow
def test_an_older_database_forgets_what_was_swept_since_unless_something_needs_it(stock: Stock) -> None:
    lost = lose_the_sweep(stock)
    assert stock.preview(keep=20).forgotten == len(lost)
    assert stock.collect(keep=20).forgotten == len(lost)
    stock.check()
    assert [engine.is_swept for engine in stock.engines_of(1)] == [True]
    assert stock.collect(keep=20).forgotten == 0
    with stock.database() as database, database.read() as connection:
        told = [row for row in events._rows(connection) if row.kind == "gc.forgotten"]
    assert [json.loads(row.details)["blobs"] for row in told] == [sorted(lost)]
    stock.build(1)
    stock.promote(1)
    stock.check()


def test_plans_of_the_newest_versions_are_forgotten_only_where_the_database_is_accepted(local: Stock) -> None:
    lost = lose_the_sweep(local)
    assert local.collect(keep_versions=3).forgotten == 0
    assert local.collect(keep_versions=3, accept_database=True).forgotten == len(lost)


def test_a_plan_that_is_served_and_missing_is_not_forgotten(local: Stock) -> None:
    local.release(1)
    local.storage.delete_blob(digest(plan_of(1)))
    assert local.collect(accept_database=True, keep_versions=0).forgotten == 0


def test_a_plan_that_came_back_meanwhile_is_not_forgotten(local: Stock) -> None:
    lost = lose_the_sweep(local)

    class Building(LocalStorage):
        """In which the plan is built between the look and the transaction."""

        def has_blob(self, wanted: str) -> bool:
            if wanted in lost:
                local.storage.put_bytes(plan_of(1))
            return super().has_blob(wanted)

    assert local.collect(storage=Building(local.folder / "store")).forgotten == 0
    local.check()
