"""Pointers, histories and the database, after one of them was put back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from modelreg.registry.checks.findings import Level
from modelreg.registry.doctor import Doctor
from modelreg.registry.errors import ForeignReleaseError, IntegrityError
from modelreg.registry.promotion import RollbackRequest
from modelreg.registry.releasing import Releases
from modelreg.registry.storage.local import LocalStorage
from modelreg_testing.cli import Shop
from modelreg_testing.doctors import (
    CHANNEL,
    MODEL,
    PLACE,
    bad,
    channel_file,
    doctor,
    overwrite,
    promote,
    served,
    told,
)
from modelreg_testing.storage_faults import check_store


def promote_in_turn(shop: Shop, *versions: int) -> list[bytes]:
    """Promote, and return the pointer's bytes after each."""
    pointers = []
    for version in versions:
        promote(shop, version)
        pointers.append(channel_file(shop, "pointer.json").read_bytes())
    return pointers


def test_a_pointer_older_than_its_history_is_nothing_that_is_moved_by_itself(shop: Shop) -> None:
    pointers = promote_in_turn(shop, 1, 2, 1)
    channel_file(shop, "pointer.json").write_bytes(pointers[0])
    found = bad(doctor(shop).examine())
    assert [finding.level for finding in found] == [Level.PROBLEM, Level.PROBLEM]
    assert "the pointer is at generation 1 and its history goes to 3" in found[0].message
    assert f"--roll-forward {PLACE}" in found[0].hint
    assert bad(doctor(shop).repair()) == found
    assert channel_file(shop, "pointer.json").read_bytes() == pointers[0]


@pytest.mark.parametrize("behind", [0, 1])
def test_a_pointer_that_is_behind_moves_on_when_a_person_says_so(shop: Shop, behind: int) -> None:
    pointers = promote_in_turn(shop, 1, 2, 1)
    channel_file(shop, "pointer.json").write_bytes(pointers[behind])
    fixed = bad(doctor(shop, forward=(PLACE,)).repair())
    assert {finding.level for finding in fixed} == {Level.FIXED}
    assert channel_file(shop, "pointer.json").read_bytes() == pointers[2]
    assert bad(doctor(shop, forward=(PLACE,)).repair()) == []
    check_store(shop.path / "store")
    promote(shop, 2)
    assert served(shop.storage).generation == 4


@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_a_pointer_that_is_lost_comes_back_from_its_history(shop: Shop, how: str) -> None:
    pointers = promote_in_turn(shop, 1, 2)
    if how == "damaged":
        overwrite(channel_file(shop, "pointer.json"), b"{}")
    else:
        channel_file(shop, "pointer.json").unlink()
    found = bad(doctor(shop).repair())
    assert [finding.level for finding in found] == [Level.DAMAGE]
    assert "--roll-forward" in found[0].hint
    assert {finding.level for finding in bad(doctor(shop, forward=(PLACE,)).repair())} == {Level.FIXED}
    assert channel_file(shop, "pointer.json").read_bytes() == pointers[1]
    assert bad(doctor(shop).examine()) == []


def test_a_store_behind_the_database_is_brought_on_by_what_the_database_has_asked_for(
    shop: Shop, tmp_path: Path
) -> None:
    promote(shop, 1)
    store = shop.path / "store"
    shutil.copytree(store / "channels", tmp_path / "older")
    pointers = promote_in_turn(shop, 2, 1)
    shutil.rmtree(store / "channels")
    shutil.copytree(tmp_path / "older", store / "channels")
    found = bad(doctor(shop).repair())
    assert [(finding.level, finding.message) for finding in found] == [
        (Level.PROBLEM, "the database knows generation 3, the store serves 1")
    ]
    assert {finding.level for finding in bad(doctor(shop, forward=(PLACE,)).repair())} == {Level.FIXED}
    assert channel_file(shop, "pointer.json").read_bytes() == pointers[1]
    assert check_store(store).generations[MODEL, CHANNEL] == 3


def test_a_channel_whose_folder_is_gone_comes_back_from_the_database(shop: Shop) -> None:
    pointers = promote_in_turn(shop, 1, 2)
    shutil.rmtree(shop.path / "store" / "channels" / MODEL)
    assert told(doctor(shop).examine()) == [(Level.PROBLEM, "pointer")]
    doctor(shop, forward=(PLACE,)).repair()
    assert channel_file(shop, "pointer.json").read_bytes() == pointers[1]


def test_nothing_goes_on_over_a_gap_or_to_a_release_that_is_damaged(shop: Shop) -> None:
    pointers = promote_in_turn(shop, 1, 2, 1)
    channel_file(shop, "pointer.json").write_bytes(pointers[0])
    lost = channel_file(shop, "history/000000000002.json")
    kept = lost.read_bytes()
    lost.unlink()
    assert any(f.level is Level.PROBLEM for f in doctor(shop, forward=(PLACE,)).repair())
    lost.write_bytes(kept)
    plan = shop.path / "store" / "releases" / served(shop.storage).release / "cpu" / "model.onnx"
    whole = overwrite(plan, b"damaged")
    assert any(f.level is Level.PROBLEM for f in doctor(shop, forward=(PLACE,)).repair())
    assert channel_file(shop, "pointer.json").read_bytes() == pointers[0]
    plan.write_bytes(whole)
    doctor(shop, forward=(PLACE,)).repair()
    assert channel_file(shop, "pointer.json").read_bytes() == pointers[2]


def test_a_lost_pointer_does_not_come_back_as_an_older_one(shop: Shop) -> None:
    """The history lost its newest document too, and the database knows that there was one."""
    promote_in_turn(shop, 1, 2)
    Releases(database=None, storage=shop.storage, actor="night").rollback(
        MODEL, channel=CHANNEL, request=RollbackRequest()
    )
    doctor(shop).repair()  # generation 3 is recorded, without a document of its own
    for name in ("pointer.json", "history/000000000003.json"):
        channel_file(shop, name).unlink()
    assert Level.DAMAGE in [f.level for f in doctor(shop, forward=(PLACE,)).repair()]
    assert not channel_file(shop, "pointer.json").exists()


def test_a_reservation_whose_release_is_gone_is_no_work_for_fix(shop: Shop) -> None:
    promote(shop, 1)
    promote(shop, 2)
    pointer = served(shop.storage)
    channel_file(shop, "pointer.json").write_bytes(channel_file(shop, "history/000000000001.json").read_bytes())
    shutil.rmtree(shop.path / "store" / "releases" / pointer.release)
    found = bad(doctor(shop).examine())
    assert "cannot be finished" in found[0].message
    assert found[0].level is Level.PROBLEM


def test_a_pointer_at_its_history_is_not_moved(shop: Shop) -> None:
    promote_in_turn(shop, 1, 2)
    assert bad(doctor(shop, forward=(PLACE,)).repair()) == []
    for generation in (1, 2, 3):
        with pytest.raises(IntegrityError, match="cannot be moved on"):
            LocalStorage(shop.path / "store").advance_pointer(MODEL, CHANNEL, generation)


def test_each_thing_of_a_channel_is_read_once(shop: Shop) -> None:
    promote_in_turn(shop, 1, 2, 1)
    calls: list[str] = []

    class Counting(LocalStorage):
        def read_pointer(self, model: str, channel: str):  # type: ignore[no-untyped-def]
            calls.append("pointer")
            return super().read_pointer(model, channel)

        def list_generations(self, model: str, channel: str) -> list[int]:
            calls.append("generations")
            return super().list_generations(model, channel)

    assert bad(doctor(shop, storage=Counting(shop.path / "store")).examine()) == []
    assert sorted(calls) == ["generations", "pointer"]


# -- two registries ----------------------------------------------------------------------------------------
def test_a_generation_says_which_registry_made_it(shop: Shop) -> None:
    promote(shop, 1)
    first = served(shop.storage)
    assert len(first.registry) == 16
    promote(shop, 2)
    with shop.database() as database:
        back = Releases(database=database, storage=shop.storage, actor="a").rollback(
            MODEL, channel=CHANNEL, request=RollbackRequest()
        )
    assert back.pointer.registry == first.registry
    without = Releases(database=None, storage=shop.storage, actor="a").rollback(
        MODEL, channel=CHANNEL, request=RollbackRequest(to_generation=2)
    )
    assert without.pointer.registry == ""
    assert "registry" not in json.loads(without.pointer.to_bytes())


def test_two_registries_on_one_store_are_found_by_both(shop: Shop, in_memory: Path) -> None:
    other = Shop(in_memory / "other")
    for word in (1, 2):
        other.add_version(word=word)
    shared = shop.storage
    promote(shop, 1)
    promote(other, 2, storage=shared)
    for registry in (shop, other):
        found = [f for f in doctor(registry, storage=shared).examine() if f.check == "owner"]
        assert [(f.level, f.subject) for f in found] == [(Level.PROBLEM, PLACE)]
        assert "two registries use this store" in found[0].message


def test_what_another_registry_released_is_not_taken_in(shop: Shop, in_memory: Path) -> None:
    other = Shop(in_memory / "other")
    other.add_version(word="other")
    _copy_blobs(other, shop)
    promote(other, 1, storage=shop.storage)
    found = [f for f in bad(doctor(shop).repair()) if f.check in ("version", "owner")]
    assert {f.level for f in found} == {Level.PROBLEM}
    assert any("released by another registry" in f.message for f in found)
    with pytest.raises(ForeignReleaseError):
        promote(shop, 1)


def _copy_blobs(source: Shop, target: Shop) -> None:
    for info in source.storage.iterate_blobs():
        target.storage.put_bytes(source.storage.read_blob(info.digest))


def test_without_a_database_nobody_is_called_a_stranger(shop: Shop) -> None:
    promote(shop, 1)
    found = Doctor(database=None, storage=shop.storage, actor="d", why="gone").examine()
    assert [f.check for f in bad(found)] == ["database"]


def test_documents_of_earlier_programs_belong_to_nobody(shop: Shop) -> None:
    promote(shop, 1)
    pointer = served(shop.storage)._replace(registry="")
    for name in ("pointer.json", "history/000000000001.json"):
        overwrite(channel_file(shop, name), pointer.to_bytes())
    assert [f.check for f in bad(doctor(shop).examine())] == []
