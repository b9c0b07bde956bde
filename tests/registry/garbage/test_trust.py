"""A database that was restored from an older copy, or belongs to another store, may not say what is garbage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from modelreg.registry.clock import utc_now
from modelreg.registry.garbage.trust import WITNESS_NAME, CollectionRefusedError
from modelreg.registry.pins import set_pin
from modelreg_testing.registry import ACTOR
from modelreg_testing.stock import ORPHAN, Stock, plan_of


@pytest.fixture
def stock(in_memory: Path) -> Stock:
    made = Stock.local(in_memory)
    made.release(1, 2, 3)
    return made


def keep_copy(stock: Stock) -> Path:
    """Copy the database, which nobody has open."""
    copy = stock.folder / "older.db"
    shutil.copy(stock.folder / "registry.db", copy)
    return copy


def restore(stock: Stock, copy: Path) -> None:
    for path in stock.folder.glob("registry.db*"):
        path.unlink()
    shutil.copy(copy, stock.folder / "registry.db")


def require_untouched(stock: Stock) -> None:
    assert list(stock.storage.list_notes("gc/marks")) == []
    assert stock.has(plan_of(1))


def test_a_database_from_before_a_promotion_is_refused(stock: Stock) -> None:
    copy = keep_copy(stock)
    stock.release(4)
    restore(stock, copy)
    with pytest.raises(CollectionRefusedError, match="serves generation 4, the database knows 3"):
        stock.collect()
    with pytest.raises(CollectionRefusedError):
        stock.preview()
    with pytest.raises(CollectionRefusedError):
        stock.collect(accept_database=True)
    require_untouched(stock)


def test_a_store_from_before_a_promotion_is_refused(stock: Stock) -> None:
    older = stock.folder / "older-store"
    shutil.copytree(stock.folder / "store", older, symlinks=True)
    stock.release(4)
    shutil.rmtree(stock.folder / "store")
    older.rename(stock.folder / "store")
    with pytest.raises(CollectionRefusedError, match="restored from an older copy"):
        stock.collect()
    require_untouched(stock)


def test_a_database_from_before_the_last_collection_is_refused_though_no_channel_moved(stock: Stock) -> None:
    copy = keep_copy(stock)
    stock.register(4)
    stock.build(4)
    stock.collect(keep=5, keep_versions=9)
    restore(stock, copy)
    with pytest.raises(CollectionRefusedError, match="restored from an older copy"):
        stock.collect(keep=5)
    require_untouched(stock)
    assert stock.has(plan_of(4))
    assert stock.collect(keep=5, accept_database=True).swept.things > 0
    assert not stock.has(plan_of(4))  # nothing names it any more, and the user said that this database counts
    assert stock.collect(keep=5).swept.things == 0


def test_the_database_of_another_registry_is_refused(stock: Stock, tmp_path: Path) -> None:
    stock.collect(keep=5)
    other = Stock.create(tmp_path / "other", stock.make_storage)
    with pytest.raises(CollectionRefusedError, match="with another database"):
        other.collect()
    with pytest.raises(CollectionRefusedError, match="the database knows 0"):
        other.collect(accept_database=True)
    require_untouched(stock)


def test_a_pin_on_a_version_that_the_database_lost_is_refused(stock: Stock) -> None:
    copy = keep_copy(stock)
    version = stock.register(4)
    set_pin(stock.storage, version, message="", actor=ACTOR, at=utc_now())
    restore(stock, copy)
    with pytest.raises(CollectionRefusedError, match="lenet:4 is pinned"):
        stock.collect()
    require_untouched(stock)


def test_a_witness_that_cannot_be_read_is_refused_until_the_user_accepts_the_database(stock: Stock) -> None:
    assert stock.storage.write_note(WITNESS_NAME, b"odd", replaces=None)
    stock.storage.put_bytes(ORPHAN)
    with pytest.raises(CollectionRefusedError, match="cannot be read"):
        stock.collect()
    assert stock.has(ORPHAN)
    stock.collect(accept_database=True)
    assert not stock.has(ORPHAN)
    stock.collect()
