from __future__ import annotations

from dataclasses import replace

import pytest

from modelreg.registry.database import Database
from modelreg.registry.errors import InvalidReferenceError, NotFoundError, UsageError
from modelreg.registry.events import verify_chain
from modelreg.registry.records import ToolchainRecord
from modelreg.registry.toolchains.catalogue import (
    get_toolchain,
    list_toolchains,
    register_toolchain,
    retire_toolchain,
)
from modelreg.registry.toolchains.probing import Probe
from modelreg.registry.words import Backend
from modelreg_testing.registry import ACTOR, row_counts

PROBE = Probe(backend=Backend.TENSORRT_RTX, version="1.6.1.120", python="/opt/rtx/bin/python", details={"cuda": "13"})
NEWER = replace(PROBE, version="1.7.1.116", details={"cuda": "13", "targets": ["sm_86"]})


def register(database: Database, name: str, probe: Probe) -> tuple[ToolchainRecord, bool]:
    with database.write() as connection:
        return register_toolchain(connection, name=name, probe=probe, actor=ACTOR)


def retire(database: Database, name: str) -> ToolchainRecord:
    with database.write() as connection:
        return retire_toolchain(connection, name=name, actor=ACTOR)


def known(database: Database) -> list[tuple[str, str]]:
    with database.read() as connection:
        return [(each.name, each.version) for each in list_toolchains(connection)]


def test_what_is_added_is_listed_by_name(database: Database) -> None:
    register(database, "rtx", PROBE)
    record, is_new = register(database, "a", NEWER)
    assert is_new
    assert (record.python, record.details) == (NEWER.python, NEWER.details)
    assert known(database) == [("a", "1.7.1.116"), ("rtx", "1.6.1.120")]


def test_adding_the_same_again_changes_nothing(database: Database) -> None:
    first, _ = register(database, "rtx", PROBE)
    before = row_counts(database)
    assert register(database, "rtx", PROBE) == (first, False)
    assert row_counts(database) == before


def test_an_upgrade_and_a_downgrade_under_one_name_mean_the_last(database: Database) -> None:
    old, _ = register(database, "rtx", PROBE)
    new, _ = register(database, "rtx", NEWER)
    assert old.id != new.id
    assert known(database) == [("rtx", "1.7.1.116")]
    again, is_new = register(database, "rtx", PROBE)
    assert is_new
    assert again == old
    assert known(database) == [("rtx", "1.6.1.120")]


def test_new_particulars_of_the_same_version_are_kept(database: Database) -> None:
    old, _ = register(database, "rtx", PROBE)
    new, is_new = register(database, "rtx", replace(PROBE, details={"cuda": "12"}))
    assert (new.id, new.details, is_new) == (old.id, {"cuda": "12"}, True)
    with database.read() as connection:
        assert get_toolchain(connection, "rtx").details == {"cuda": "12"}


def test_a_retired_toolchain_is_gone_until_it_is_added_again(database: Database) -> None:
    register(database, "rtx", PROBE)
    assert retire(database, "rtx").version == "1.6.1.120"
    assert known(database) == []
    with pytest.raises(NotFoundError, match="no toolchain 'rtx'"):
        retire(database, "rtx")
    assert register(database, "rtx", PROBE)[1]
    assert known(database) == [("rtx", "1.6.1.120")]
    assert row_counts(database)["toolchain"] == 1
    assert row_counts(database)["toolchain_state"] == 3


def test_an_odd_answer_of_old_keeps_nothing_from_being_listed_and_can_be_mended(database: Database) -> None:
    register(database, "poison", replace(PROBE, version="5", details={"targets": 7, "cuda": {}}))
    register(database, "rtx", NEWER)
    with database.read() as connection:
        assert [each.details for each in list_toolchains(connection)] == [{}, NEWER.details]
    assert register(database, "poison", replace(NEWER, version="5"))[1]
    with database.read() as connection:
        assert get_toolchain(connection, "poison").details == NEWER.details


def test_every_change_is_an_event(database: Database) -> None:
    register(database, "rtx", PROBE)
    retire(database, "rtx")
    with database.read() as connection:
        report = verify_chain(connection)
    assert (report.events, report.broken_at) == (3, None)  # toolchain.added, .registered, .retired


def test_an_unknown_name_is_told_the_known_ones(database: Database) -> None:
    with database.read() as connection, pytest.raises(NotFoundError) as caught:
        get_toolchain(connection, "rtx")
    assert "modelreg toolchain add" in caught.value.hint()
    register(database, "a", PROBE)
    with database.read() as connection, pytest.raises(NotFoundError) as caught:
        get_toolchain(connection, "rtx")
    assert caught.value.hint() == "There are: a."


def test_the_embedded_name_and_impossible_ones_are_refused(database: Database) -> None:
    with pytest.raises(UsageError, match="'onnxruntime' is the one that modelreg comes with"):
        register(database, "onnxruntime", PROBE)
    with pytest.raises(InvalidReferenceError):
        register(database, "a b", PROBE)
