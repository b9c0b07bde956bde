"""What is kept and what is garbage, as a table: no store, no database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from modelreg.registry.contents import StoredFile
from modelreg.registry.garbage.needs import DatabaseFacts, EngineFact, Need, Reason, StoreFacts, Thing, explain_garbage
from modelreg.registry.garbage.needs import judge as judge_facts
from modelreg.registry.storage.marks import MarkedKind
from modelreg.registry.words import BlobKind


def file(name: str) -> StoredFile:
    return StoredFile(path=name, digest=name, size_bytes=1)


def engine(
    number: int, *, files: str = "", version: int = 1, model: str = "lenet", cell: str = "", is_imported: bool = False
) -> EngineFact:
    named = files.split() or [f"plan{number}"]
    return EngineFact(
        id=number,
        model=model,
        version=version,
        files=tuple(file(name) for name in named),
        is_imported=is_imported,
        cell=(cell or f"cell{number}",),
    )


def database(*engines: EngineFact, **changes: Any) -> DatabaseFacts:
    plans = {each.digest: BlobKind.PLAN for made in engines for each in made.files}
    facts = DatabaseFacts(
        blobs={"source": BlobKind.SOURCE, **plans},
        records=set(),
        engines=engines,
        releases={},
        operations={},
        newest={"lenet": 10},
    )
    return replace(facts, **changes)


def store(**changes: Any) -> StoreFacts:
    return replace(StoreFacts(releases={}, manifests={}, pinned=set()), **changes)


def judge(store_facts: StoreFacts, database_facts: DatabaseFacts, *, keep_versions: int = 0) -> dict[str, Need]:
    needs = judge_facts(store_facts, database_facts, keep_versions=keep_versions)
    return needs.blobs | needs.releases


def test_nothing_of_a_plan_is_needed_for_itself_and_every_record_is() -> None:
    assert judge(store(), database(engine(1))) == {"source": Need.RECORD}


@pytest.mark.parametrize("need", [Need.CHANNEL, Need.LEASE])
def test_a_release_that_is_needed_keeps_its_files(need: Need) -> None:
    facts = store(releases={"release": need}, manifests={"release": (file("plan1"),)})
    assert judge(facts, database(engine(1), engine(2))) == {"source": Need.RECORD, "release": need, "plan1": need}


def test_what_a_channel_needs_is_said_before_what_a_lease_needs() -> None:
    manifests = {"old": (file("plan1"),), "new": (file("plan1"),)}
    facts = store(releases={"old": Need.LEASE, "new": Need.CHANNEL}, manifests=manifests)
    assert judge(facts, database(engine(1)))["plan1"] is Need.CHANNEL


def test_an_unsettled_operation_keeps_its_release_and_its_engines_before_there_is_a_manifest() -> None:
    needs = judge(store(), database(engine(1), engine(2), operations={"release": (2,)}))
    assert needs == {"source": Need.RECORD, "release": Need.OPERATION, "plan2": Need.OPERATION}


def test_a_pin_keeps_every_engine_of_its_version_and_its_releases() -> None:
    facts = database(
        engine(1, cell="same"),
        engine(2, cell="same"),
        engine(3, version=2),
        releases={"one": ("lenet", 1), "two": ("lenet", 2)},
    )
    needs = judge(store(pinned={("lenet", 1)}), facts)
    assert needs == {"source": Need.RECORD, "one": Need.PIN, "plan1": Need.PIN, "plan2": Need.PIN}


def test_the_engines_of_the_newest_versions_stay_but_those_that_were_built_again() -> None:
    facts = database(
        engine(1, version=8),
        engine(2, version=9, cell="same"),
        engine(3, version=9, cell="same"),
        engine(4, version=10),
    )
    assert judge(store(), facts, keep_versions=2).keys() == {"source", "plan3", "plan4"}


def test_the_same_cell_of_another_version_is_another_one() -> None:
    facts = database(engine(1, version=9, cell="same"), engine(2, version=10, cell="same"))
    assert judge(store(), facts, keep_versions=2).keys() == {"source", "plan1", "plan2"}


def test_a_plan_that_was_built_elsewhere_stays_since_nobody_here_can_make_it() -> None:
    assert judge(store(), database(engine(1, is_imported=True)))["plan1"] is Need.IMPORTED


def test_a_plan_that_is_also_a_record_stays() -> None:
    assert judge(store(), database(engine(1), records={"plan1"}))["plan1"] is Need.RECORD


def test_engines_that_share_a_plan_stay_whole_together() -> None:
    facts = database(engine(1, files="plan old-data"), engine(2, files="plan new-data", version=10))
    assert judge(store(), facts, keep_versions=1).keys() == {"source", "plan", "old-data", "new-data"}


def test_garbage_is_a_release_a_plan_or_what_nothing_names() -> None:
    facts = database(engine(1))
    assert explain_garbage(Thing(kind=MarkedKind.RELEASE, digest="r"), facts) is Reason.RELEASE
    assert explain_garbage(Thing(kind=MarkedKind.BLOB, digest="plan1"), facts) is Reason.PLAN
    assert explain_garbage(Thing(kind=MarkedKind.BLOB, digest="lost"), facts) is Reason.ORPHAN
