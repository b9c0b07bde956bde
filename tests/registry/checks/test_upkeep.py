from __future__ import annotations

from datetime import timedelta

from modelreg.registry.checks.findings import Level
from modelreg.registry.checks.upkeep import examine_clocks, examine_server
from modelreg.registry.clock import utc_now
from modelreg.registry.storage.s3 import Quirks, S3Storage
from modelreg_testing.cli import Shop
from modelreg_testing.s3_server import S3Server


def test_a_clock_behind_the_newest_event_is_told(shop: Shop) -> None:
    with shop.database() as database:
        assert list(examine_clocks(database, shop.storage)) == []
        [told] = examine_clocks(database, shop.storage, now=utc_now() - timedelta(hours=30))
    assert told.level is Level.WARNING
    assert "the clock here is 30 h behind it" in told.message


def test_a_clock_that_is_not_the_server_s_is_told(s3_server: S3Server) -> None:
    store = S3Storage.create(s3_server.location(), quirks=Quirks())
    assert [finding.level for finding in examine_clocks(None, store)] == [Level.OK]
    for now, words in (
        (utc_now() + timedelta(minutes=20), "20 min ahead of the store's server"),
        (utc_now() - timedelta(seconds=90), "behind the store's server"),
    ):
        [told] = examine_clocks(None, store, now=now)
        assert told.level is Level.WARNING
        assert words in told.message


def test_the_date_of_a_server_s_check_is_told_and_grows_old(s3_server: S3Server) -> None:
    store = S3Storage.create(s3_server.location(), quirks=Quirks())
    [young] = examine_server(store)
    assert young.level is Level.OK
    later = utc_now() + timedelta(days=200)
    [old] = examine_server(store, now=later)
    assert (old.level, "modelreg store check" in old.hint) == (Level.WARNING, True)
    before = store.checked_at
    assert before is not None
    store.note_check(Quirks())
    assert store.checked_at is not None
    assert store.checked_at >= before
    assert S3Storage(store.location).checked_at == store.checked_at
    store.require_writable()


def test_a_folder_has_no_server(shop: Shop) -> None:
    assert list(examine_server(shop.storage)) == []
