"""The release protocol on a real database and a real local store, stopped and killed at every step."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from modelreg.registry import operations, releases, schema
from modelreg.registry.database import Database
from modelreg.registry.doctor import Doctor, Level
from modelreg.registry.errors import (
    ActivationConflictError,
    ActivationUnknownError,
    DatabaseError,
    GateFailedError,
    IntegrityError,
    ModelregError,
    NotFoundError,
)
from modelreg.registry.pointers import Pointer
from modelreg.registry.promotion import PromotionRequest, RollbackRequest
from modelreg.registry.references import ModelReference
from modelreg.registry.releasing import Activation, Releases
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.words import ActivationKind, OperationState, Precision, Verdict
from modelreg_testing.cli import Shop
from modelreg_testing.contention import contend
from modelreg_testing.storage_faults import Stopped, check_store, counting_ops, failing_ops, in_child, killing_ops

CHANNEL = "production"


@pytest.fixture
def shop(tmp_path: Path, database_url: str | None) -> Shop:
    return stocked(Shop(tmp_path, database_url=database_url))


@pytest.fixture
def file_shop(tmp_path: Path) -> Shop:
    return stocked(Shop(tmp_path))


def stocked(made: Shop) -> Shop:
    for word in (1, 2, 3):
        made.add_version(word=word, precisions=(Precision.FP32, Precision.INT8))
    return made


def releasing(shop: Shop, *, ops: FileOps | None = None, database: Database | None = None) -> Releases:
    return Releases(
        database=database or shop.database(),
        storage=LocalStorage(shop.path / "store", ops=ops),
        actor="ada@host",
        lock_timeout_s=5.0,
    )


def request(**changes: object) -> PromotionRequest:
    return PromotionRequest(preference=lambda _target: (Precision.INT8, Precision.FP32), **changes)  # type: ignore[arg-type]


def promote(shop: Shop, version: int, *, ops: FileOps | None = None, **changes: object) -> Activation:
    return releasing(shop, ops=ops).promote(
        ModelReference(model="lenet", version=version), channel=CHANNEL, request=request(**changes)
    )


def rollback(shop: Shop, *, ops: FileOps | None = None, **changes: object) -> Activation:
    return releasing(shop, ops=ops).rollback("lenet", channel=CHANNEL, request=RollbackRequest(**changes))  # type: ignore[arg-type]


def served(shop: Shop) -> Pointer | None:
    return shop.storage.read_pointer("lenet", CHANNEL)


def recorded(shop: Shop) -> list[tuple[int, int, ActivationKind]]:
    """Return (generation, version, kind) of every activation in the database, oldest first."""
    with shop.database() as database, database.read() as connection:
        channel_id = releases.find_channel(connection, model="lenet", name=CHANNEL)
        if channel_id is None:
            return []
        rows = releases.list_activations(connection, channel_id=channel_id)
    return [(row.generation, row.version, row.kind) for row in reversed(rows)]


def open_operations(shop: Shop) -> int:
    with shop.database() as database, database.read() as connection:
        return len(operations.open_operations(connection))


def assert_books_agree(shop: Shop) -> None:
    """The pointer equals the newest activation, nothing is open, and the files hold by an independent reading."""
    found = check_store(shop.path / "store")
    pointer = served(shop)
    rows = recorded(shop)
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    assert found.generations.get(("lenet", CHANNEL), 0) == len(rows)
    assert open_operations(shop) == 0
    if pointer is not None:
        assert (pointer.generation, pointer.version, pointer.kind) == rows[-1]


def test_a_promotion_serves_the_preferred_engine_and_is_recorded(shop: Shop) -> None:
    activation = promote(shop, 1, message="first")
    pointer = served(shop)
    assert pointer == activation.pointer
    assert (pointer.generation, pointer.version, pointer.message, pointer.actor) == (1, 1, "first", "ada@host")
    assert activation.plan is not None
    assert activation.plan.engines["cpu"].precision is Precision.INT8
    assert recorded(shop) == [(1, 1, ActivationKind.PROMOTE)]
    folder = shop.storage.release_path(pointer.release)
    assert folder is not None
    assert (folder / "cpu" / "model.onnx").read_bytes() == b"plan lenet 1 int8"
    assert_books_agree(shop)


def test_promote_promote_rollback_refused_promote(shop: Shop) -> None:
    promote(shop, 1)
    promote(shop, 2)
    assert rollback(shop).pointer.version == 1
    with pytest.raises(NotFoundError, match="no earlier release"):
        rollback(shop)
    assert recorded(shop)[-1] == (3, 1, ActivationKind.ROLLBACK)
    promote(shop, 2)
    assert recorded(shop) == [
        (1, 1, ActivationKind.PROMOTE),
        (2, 2, ActivationKind.PROMOTE),
        (3, 1, ActivationKind.ROLLBACK),
        (4, 2, ActivationKind.PROMOTE),
    ]
    assert_books_agree(shop)


def test_two_rollbacks_go_two_releases_back_and_a_generation_may_be_named(shop: Shop) -> None:
    for version in (1, 2, 3):
        promote(shop, version)
    rollback(shop)
    assert rollback(shop).pointer.version == 1
    again = rollback(shop, to_generation=3)
    assert (again.pointer.generation, again.pointer.version) == (6, 3)
    assert rollback(shop).pointer.version == 2  # as from generation 3
    assert_books_agree(shop)


def test_promoting_what_is_active_changes_nothing(shop: Shop) -> None:
    first = promote(shop, 1)
    again = promote(shop, 1)
    assert (again.changed, again.pointer) == (False, first.pointer)
    assert recorded(shop) == [(1, 1, ActivationKind.PROMOTE)]
    assert_books_agree(shop)


def test_rolling_back_to_what_is_active_is_refused(shop: Shop) -> None:
    for version in (1, 2):
        promote(shop, version)
    rollback(shop)
    with pytest.raises(NotFoundError, match="serves already"):
        rollback(shop, to_generation=1)


def test_a_version_without_passing_engines_is_refused_and_leaves_nothing(shop: Shop) -> None:
    shop.add_version(word=4, verdict=Verdict.FAIL)
    shop.add_version(word=5, verdict=None)
    for version in (4, 5):
        with pytest.raises(GateFailedError):
            promote(shop, version)
    assert served(shop) is None
    assert recorded(shop) == []
    assert list(shop.storage.iterate_releases()) == []


def test_an_override_is_kept_with_the_pointer(shop: Shop) -> None:
    shop.add_version(word=4, verdict=Verdict.FAIL)
    promote(shop, 4, override_gates=True, message="known and accepted")
    pointer = served(shop)
    assert pointer is not None
    assert pointer.overridden == ("cpu fp32: validation fail: max_relative_error of y",)
    promote(shop, 1)
    rollback(shop)
    back = served(shop)
    assert back is not None
    assert back.overridden == pointer.overridden


def test_a_required_target_without_an_engine_stops_all_targets(shop: Shop) -> None:
    with pytest.raises(GateFailedError, match="sm_90 has no engine"):
        promote(shop, 1, configured_targets=("cpu", "sm_90"))
    assert served(shop) is None


@pytest.mark.parametrize("expected", [0, 2, 7])
def test_an_expectation_that_does_not_hold_changes_nothing(shop: Shop, expected: int) -> None:
    promote(shop, 1)
    with pytest.raises(ActivationConflictError, match=f"is at generation 1, expected {expected}, moved by ada@host"):
        promote(shop, 2, expect_current=expected)
    with pytest.raises(ActivationConflictError):
        rollback(shop, expect_current=expected)
    assert recorded(shop) == [(1, 1, ActivationKind.PROMOTE)]
    assert promote(shop, 2, expect_current=1).pointer.generation == 2


def test_a_first_promotion_may_expect_an_empty_channel(shop: Shop) -> None:
    assert promote(shop, 1, expect_current=0).pointer.generation == 1


def test_a_preview_writes_nothing(shop: Shop) -> None:
    promote(shop, 1)
    promote(shop, 2)
    before = sorted(path.name for path in shop.path.rglob("*"))
    plan = releasing(shop).preview_promotion(
        ModelReference(model="lenet", version=3), channel=CHANNEL, request=request()
    )
    assert plan.engines["cpu"].version == 3
    target = releasing(shop).preview_rollback("lenet", channel=CHANNEL, request=RollbackRequest())
    assert target.version == 1
    drill = releasing(shop).drill_rollback("lenet", channel=CHANNEL, request=RollbackRequest())
    assert (drill.target.version, drill.current.version) == (1, 2)
    assert drill.verified_bytes > 0
    assert sorted(path.name for path in shop.path.rglob("*")) == before


def plan_blob(shop: Shop, word: int) -> Path:
    with shop.database() as database, database.read() as connection:
        rows = connection.execute(sa.select(schema.engine.c.plan_digest).order_by(schema.engine.c.id)).scalars().all()
    digest: str = rows[2 * word - 1]  # two engines a version, INT8 second
    return shop.path / "store" / "blobs" / "sha256" / digest[:2] / digest


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))


def test_a_flipped_bit_in_a_plan_stops_its_promotion(shop: Shop) -> None:
    promote(shop, 1)
    flip_a_bit(plan_blob(shop, 2))
    with pytest.raises(IntegrityError) as raised:
        promote(shop, 2)
    assert raised.value.exit_code == 6
    assert recorded(shop) == [(1, 1, ActivationKind.PROMOTE)]
    assert promote(shop, 3).pointer.generation == 2


def test_a_damaged_release_is_not_rolled_back_to(shop: Shop) -> None:
    promote(shop, 1)
    promote(shop, 2)
    folder = shop.storage.release_path(shop.storage.read_history("lenet", CHANNEL, 1).release)
    assert folder is not None
    flip_a_bit(folder / "cpu" / "model.onnx")
    with pytest.raises(IntegrityError):
        rollback(shop)
    assert served(shop) == shop.storage.read_history("lenet", CHANNEL, 2)


# -- without the database ----------------------------------------------------------------------------------
def test_a_rollback_works_with_the_database_gone_and_is_recorded_later(shop: Shop) -> None:
    promote(shop, 1)
    promote(shop, 2)
    store_only = Releases(database=None, storage=shop.storage, actor="night@host")
    activation = store_only.rollback("lenet", channel=CHANNEL, request=RollbackRequest(message="3 a.m."))
    assert (activation.recorded, activation.pointer.version) == (False, 1)
    with pytest.raises(DatabaseError, match="no database"):
        store_only.promote(ModelReference(model="lenet", version=3), channel=CHANNEL, request=request())
    promote(shop, 3)
    assert recorded(shop) == [
        (1, 1, ActivationKind.PROMOTE),
        (2, 2, ActivationKind.PROMOTE),
        (3, 1, ActivationKind.ROLLBACK),
        (4, 3, ActivationKind.PROMOTE),
    ]
    assert_books_agree(shop)


def test_a_rollback_works_with_the_database_damaged(file_shop: Shop) -> None:
    shop = file_shop
    promote(shop, 1)
    promote(shop, 2)
    database = shop.database()
    database.close()
    data = bytearray(shop.database_path.read_bytes())
    data[100:] = b"\x00" * (len(data) - 100)
    shop.database_path.write_bytes(bytes(data))
    activation = Releases(database=database, storage=shop.storage, actor="n").rollback(
        "lenet", channel=CHANNEL, request=RollbackRequest()
    )
    assert (activation.recorded, activation.pointer.version) == (False, 1)


def test_an_older_database_beside_a_newer_store_is_caught_up(file_shop: Shop) -> None:
    shop = file_shop
    promote(shop, 1)
    saved = shop.path / "saved.db"
    with shop.database() as database:
        database.backup(saved)
    promote(shop, 2)
    shop.database_path.unlink()
    saved.replace(shop.database_path)
    promote(shop, 3)
    assert [row[1] for row in recorded(shop)] == [1, 2, 3]
    assert_books_agree(shop)


def test_a_database_ahead_of_the_store_is_never_followed(shop: Shop) -> None:
    promote(shop, 1)
    folder = shop.path / "store" / "channels" / "lenet" / CHANNEL
    saved = (folder / "pointer.json").read_bytes()
    promote(shop, 2)
    (folder / "pointer.json").write_bytes(saved)
    (folder / "history" / "000000000002.json").unlink()
    with pytest.raises(IntegrityError, match="the database knows generation 2, the store serves 1"):
        promote(shop, 3)
    findings = Doctor(database=shop.database(), storage=shop.storage, actor="a").repair()
    assert any(finding.level is Level.PROBLEM for finding in findings)
    assert len(recorded(shop)) == 2


def test_promoting_a_channel_activates_the_engines_that_it_serves(shop: Shop) -> None:
    staging = releasing(shop).promote(
        ModelReference(model="lenet", version=2), channel="staging", request=request(precision=Precision.FP32)
    )
    releasing(shop).promote(ModelReference(model="lenet", channel="staging"), channel=CHANNEL, request=request())
    pointer = served(shop)
    assert pointer is not None
    assert pointer.release == staging.pointer.release  # FP32, though INT8 is preferred


def test_promoting_a_channel_takes_what_it_serves_now_even_if_the_database_was_not_told(shop: Shop) -> None:
    for version in (1, 2):
        releasing(shop).promote(ModelReference(model="lenet", version=version), channel="staging", request=request())
    Releases(database=None, storage=shop.storage, actor="night").rollback(
        "lenet", channel="staging", request=RollbackRequest()
    )
    releasing(shop).promote(ModelReference(model="lenet", channel="staging"), channel=CHANNEL, request=request())
    pointer = served(shop)
    assert pointer is not None
    assert pointer.version == 1


def test_a_rollback_works_beside_a_new_and_empty_database(file_shop: Shop, tmp_path: Path) -> None:
    shop = file_shop
    promote(shop, 1)
    promote(shop, 2)
    empty = Shop(tmp_path / "other")
    shop.database_path.unlink()
    empty.database_path.replace(shop.database_path)
    assert rollback(shop).pointer.version == 1
    findings = Doctor(database=shop.database(), storage=shop.storage, actor="d").repair()
    assert any(
        finding.level is Level.PROBLEM and "does not have" in finding.message and "backup" in finding.hint
        for finding in findings
    )
    assert all(finding.level is not Level.FIXABLE for finding in findings)


def test_a_store_of_versions_the_database_does_not_have_is_refused(file_shop: Shop, tmp_path: Path) -> None:
    shop = file_shop
    promote(shop, 1)
    other = Shop(tmp_path / "other")
    other.add_version(word="stranger")
    shop.database_path.unlink()
    other.database_path.replace(shop.database_path)
    with pytest.raises(IntegrityError, match="which this database does not have"):
        promote(shop, 1)


# -- faults ------------------------------------------------------------------------------------------------
def do_promote(shop: Shop, ops: FileOps | None) -> Activation:
    return promote(shop, 3, ops=ops)


def do_rollback(shop: Shop, ops: FileOps | None) -> Activation:
    return rollback(shop, ops=ops)


Command = Callable[[Shop, FileOps | None], Activation]
COMMANDS = [pytest.param(do_promote, id="promote"), pytest.param(do_rollback, id="rollback")]


@pytest.fixture
def fresh(in_memory: Path) -> Callable[[], Shop]:
    """Return copies of a registry that serves version 2, made once."""
    made = Shop(in_memory / "template")
    for word in (1, 2, 3):
        made.add_version(word=word)
    promote(made, 1)
    promote(made, 2)
    numbers = itertools.count()

    def copy() -> Shop:
        return Shop.copy_of(made, in_memory / f"copy-{next(numbers)}")

    return copy


def count_steps(shop: Shop, command: Command) -> int:
    ops, steps = counting_ops()
    command(shop, ops)
    assert len(steps) > 5
    return len(steps)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_any_step_the_old_or_the_new_release_is_served_and_the_books_settle(
    fresh: Callable[[], Shop], command: Command
) -> None:
    outcomes = set()
    for step in range(count_steps(fresh(), command) + 1):
        shop = fresh()
        code = in_child(lambda shop=shop, step=step: command(shop, killing_ops(step)))  # type: ignore[misc]
        assert code in (0, -9)
        before = served(shop)
        assert before is not None
        outcomes.add(before.generation)
        assert before.generation in (2, 3)
        Doctor(database=shop.database(), storage=shop.storage, actor="doctor").repair()
        assert_books_agree(shop)
        settled = served(shop)
        findings = Doctor(database=shop.database(), storage=shop.storage, actor="doctor").examine()
        assert {finding.level for finding in findings} == {Level.OK}
        assert served(shop) == settled  # a second look changes nothing
        promote(shop, 1 if settled is not None and settled.version != 1 else 2)
        assert_books_agree(shop)
    assert outcomes == {2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("lasting", [False, True])
def test_an_error_at_any_step_is_reported_as_what_it_is(
    fresh: Callable[[], Shop], command: Command, lasting: bool
) -> None:
    """Failed means that the old release stays for good; unknown means either; done means the new one."""
    for step in range(count_steps(fresh(), command) + 1):
        shop = fresh()
        error: ModelregError | None = None
        try:
            command(shop, failing_ops(step, 28, lasting=lasting))
        except ModelregError as raised:
            error = raised
        assert_books_settle(shop)
        pointer = served(shop)
        assert pointer is not None
        if error is None:
            assert pointer.generation == 3
        elif not isinstance(error, ActivationUnknownError):
            assert pointer.generation == 2, f"step {step} said {error!r} and moved all the same"
        else:
            assert error.exit_code == 5


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_at_any_step_never_says_that_nothing_happened_where_it_did(
    fresh: Callable[[], Shop], command: Command
) -> None:
    said = set()
    for step in range(count_steps(fresh(), command)):
        shop = fresh()

        def interrupt(number: int, _name: str, _path: Path, *, at: int = step) -> None:
            if number == at:
                raise KeyboardInterrupt

        try:
            command(shop, FileOps(interrupt))
        except KeyboardInterrupt:
            said.add("interrupted")
            pointer = served(shop)
            assert pointer is not None
            assert pointer.generation == 2
        except ActivationUnknownError as error:
            said.add(f"{error}; {error.hint()}")
        assert_books_settle(shop)
    assert said == {
        "interrupted",
        "interrupted while lenet@production was moved to generation 3: it may have happened; "
        "Run `modelreg show lenet@production` to see what is active.",
    }


def assert_books_settle(shop: Shop) -> None:
    Doctor(database=shop.database(), storage=shop.storage, actor="doctor").repair()
    assert_books_agree(shop)


def test_a_command_stopped_in_the_middle_of_the_swap_is_settled_by_the_next(shop: Shop) -> None:
    promote(shop, 1)

    def stop(_number: int, name: str, path: Path) -> None:
        if name == "replace" and path.name == "pointer.json":
            raise Stopped

    with pytest.raises(Stopped):
        promote(shop, 2, ops=FileOps(stop))
    assert open_operations(shop) == 1
    assert served(shop).generation == 1  # type: ignore[union-attr]
    # The generation was reserved: whoever comes next completes it, then goes on.
    activation = promote(shop, 3)
    assert activation.pointer.generation == 3
    assert [row[1] for row in recorded(shop)] == [1, 2, 3]
    assert_books_agree(shop)


def test_a_command_stopped_before_the_reservation_is_aborted_by_the_next(shop: Shop) -> None:
    promote(shop, 1)

    def stop(_number: int, name: str, _path: Path) -> None:
        if name == "link":
            raise Stopped

    with pytest.raises(Stopped):
        promote(shop, 2, ops=FileOps(stop))
    promote(shop, 3)
    assert [row[1] for row in recorded(shop)] == [1, 3]
    with shop.database() as database, database.read() as connection:
        states = connection.execute(sa.select(schema.operation.c.state).order_by(schema.operation.c.id)).scalars().all()
    assert states == [OperationState.COMMITTED, OperationState.ABORTED, OperationState.COMMITTED]


def test_a_promotion_that_has_to_settle_first_holds_to_what_it_expects(shop: Shop) -> None:
    promote(shop, 1)
    with shop.database() as database, database.write() as connection:  # as if it had not been told
        connection.execute(sa.delete(schema.activation))
    with pytest.raises(ActivationConflictError, match="at generation 1"):
        promote(shop, 2, expect_current=0)
    assert_books_agree(shop)
    assert promote(shop, 2, expect_current=1).pointer.generation == 2


@pytest.mark.slow
def test_many_processes_on_one_channel_lose_nothing(shop: Shop) -> None:
    """Each of 8 processes makes 10 conditional promotions; every win is one generation, and nothing is lost."""
    promote(shop, 1)
    work = functools.partial(contend, shop.path, model="lenet", channel=CHANNEL, attempts=10)
    with ProcessPoolExecutor(8, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = [future.result(timeout=120) for future in [pool.submit(work) for _ in range(8)]]
    wins = sum(won for won, _lost in results)
    assert sum(won + lost for won, lost in results) == 80
    assert wins >= 10
    assert len(recorded(shop)) == wins + 1
    assert_books_agree(shop)


def remember(shop: Shop) -> Callable[[], None]:
    """Return what makes the database what it is now: its file as it was, or on a server its rows."""
    with shop.database() as database:
        if database.path is None:
            with database.read() as connection:
                tables = schema.metadata.sorted_tables
                found = ((table, connection.execute(sa.select(*table.primary_key)).all()) for table in tables)
                known: dict[sa.Table, set[Any]] = {table: set(rows) for table, rows in found}
            return functools.partial(_take_rows_back, shop, known)
    before = shop.database_path.read_bytes()
    assert not shop.database_path.with_name("registry.db-wal").exists()

    def put_back() -> None:
        for suffix in ("-wal", "-shm"):
            shop.database_path.with_name(f"registry.db{suffix}").unlink(missing_ok=True)
        shop.database_path.write_bytes(before)

    return put_back


def _take_rows_back(shop: Shop, known: dict[sa.Table, set[Any]]) -> None:
    """Remove the rows that were not there; an intent changes none of the others."""
    with shop.database() as database, database.write() as connection:
        for table in reversed(schema.metadata.sorted_tables):
            for key in set(connection.execute(sa.select(*table.primary_key)).all()) - known[table]:
                columns = zip(table.primary_key, key, strict=True)
                connection.execute(sa.delete(table).where(*(column == value for column, value in columns)))


@pytest.mark.parametrize("step", ["link", "replace", "fsync_dir"])
def test_an_intent_that_a_power_cut_took_back_is_made_up_for_from_the_history(shop: Shop, step: str) -> None:
    """The store has what it synced, and the database is as it was before the promotion began."""
    promote(shop, 1)
    put_back = remember(shop)
    seen = []

    def stop(_number: int, name: str, path: Path) -> None:
        seen.append(name)
        if name == step and seen.count(name) == (2 if step == "fsync_dir" else 1):
            raise Stopped

    with shop.database() as database, pytest.raises(Stopped):
        Releases(database=database, storage=LocalStorage(shop.path / "store", ops=FileOps(stop)), actor="ada").promote(
            ModelReference(model="lenet", version=2), channel=CHANNEL, request=request()
        )
    put_back()
    promote(shop, 1)
    served_by = served(shop)
    assert served_by is not None
    findings = Doctor(database=shop.database(), storage=shop.storage, actor="d").examine()
    assert {finding.level for finding in findings} == {Level.OK}
    assert check_store(shop.path / "store").generations["lenet", CHANNEL] == served_by.generation
