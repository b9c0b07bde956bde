import shutil
from pathlib import Path

import pytest

from modelreg.registry.blobs import list_blobs
from modelreg.registry.doctor import Doctor, Finding, Level
from modelreg.registry.errors import ActivationUnknownError
from modelreg.registry.promotion import PromotionRequest, RollbackRequest
from modelreg.registry.references import ModelReference
from modelreg.registry.releasing import Releases
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.words import BlobKind, Precision
from modelreg_testing.cli import Shop
from modelreg_testing.storage_faults import Stopped, check_store


@pytest.fixture
def shop(in_memory: Path) -> Shop:
    made = Shop(in_memory)
    for word in (1, 2):
        made.add_version(word=word)
    return made


def promote(shop: Shop, version: int, *, ops: FileOps | None = None) -> None:
    Releases(database=shop.database(), storage=LocalStorage(shop.path / "store", ops=ops), actor="ada@host").promote(
        ModelReference(model="lenet", version=version),
        channel="production",
        request=PromotionRequest(preference=lambda _target: (Precision.FP32,)),
    )


def doctor(shop: Shop) -> Doctor:
    return Doctor(database=shop.database(), storage=shop.storage, actor="doctor@host")


def bad(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is not Level.OK]


def test_a_sound_registry_is_found_sound(shop: Shop) -> None:
    promote(shop, 1)
    findings = doctor(shop).examine()
    assert bad(findings) == []
    assert {finding.check for finding in findings} == {
        "database", "events", "blobs", "leftovers", "release", "pointer",
    }  # fmt: skip


def test_an_empty_registry_is_sound(shop: Shop) -> None:
    assert bad(doctor(shop).examine()) == []


def test_a_missing_database_is_a_problem_and_not_more(shop: Shop) -> None:
    promote(shop, 1)
    found = bad(Doctor(database=None, storage=shop.storage, actor="d", why="registry.db is missing").examine())
    assert [(finding.level, finding.message) for finding in found] == [(Level.PROBLEM, "registry.db is missing")]
    assert "rollback" in found[0].hint


def test_what_mends_a_missing_blob_depends_on_what_it_was(shop: Shop) -> None:
    promote(shop, 1)
    with shop.database() as database, database.read() as connection:
        kinds = {record.kind: record.digest for record in list_blobs(connection)}
    advice = {
        BlobKind.SOURCE: "Register the same file again",
        BlobKind.GOLDEN: "Register the same file again",
        BlobKind.REPORT: "a record that nothing makes again",
        BlobKind.LOG: "a record that nothing makes again",
    }
    for kind in advice:
        (shop.path / "store" / "blobs" / "sha256" / kinds[kind][:2] / kinds[kind]).unlink()
    found = {finding.subject: finding for finding in bad(doctor(shop).repair())}
    for kind, words in advice.items():
        assert f"({kind})" in found[kinds[kind][:12]].message
        assert words in found[kinds[kind][:12]].hint


def test_a_missing_blob_is_named(shop: Shop) -> None:
    with shop.database() as database, database.read() as connection:
        from modelreg.registry import blobs

        digest = blobs.list_blobs(connection)[0].digest
    (shop.path / "store" / "blobs" / "sha256" / digest[:2] / digest).unlink()
    found = bad(doctor(shop).examine())
    assert [(finding.level, finding.check, finding.subject) for finding in found] == [
        (Level.DAMAGE, "blobs", digest[:12])
    ]


def test_a_damaged_release_that_is_served_is_damage(shop: Shop) -> None:
    promote(shop, 1)
    pointer = shop.storage.read_pointer("lenet", "production")
    assert pointer is not None
    plan = shop.path / "store" / "releases" / pointer.release / "cpu" / "model.onnx"
    plan.chmod(0o644)
    plan.write_bytes(b"other")
    found = bad(doctor(shop).examine())
    assert [(finding.level, finding.check) for finding in found] == [(Level.DAMAGE, "release")]


def test_a_damaged_pointer_is_damage(shop: Shop) -> None:
    promote(shop, 1)
    path = shop.path / "store" / "channels" / "lenet" / "production" / "pointer.json"
    path.write_bytes(path.read_bytes().replace(b'"version": 1', b'"version": 2'))
    found = bad(doctor(shop).examine())
    assert [(finding.level, finding.check, finding.subject) for finding in found] == [
        (Level.DAMAGE, "pointer", "lenet@production")
    ]


def test_a_changed_event_is_damage(shop: Shop) -> None:
    import sqlite3

    raw = sqlite3.connect(shop.database_path)
    raw.execute("UPDATE event SET actor = 'somebody else' WHERE sequence = 2")
    raw.commit()
    raw.close()
    found = bad(doctor(shop).examine())
    assert [(finding.level, finding.check, finding.subject) for finding in found] == [
        (Level.DAMAGE, "events", "event 2")
    ]


def test_a_reserved_generation_and_its_open_operation_are_fixed(shop: Shop) -> None:
    promote(shop, 1)

    def stop(_number: int, name: str, path: Path) -> None:
        if name == "replace" and path.name == "pointer.json":
            raise Stopped

    with pytest.raises(Stopped):
        promote(shop, 2, ops=FileOps(stop))
    found = bad(doctor(shop).examine())
    assert {(finding.level, finding.check) for finding in found} == {
        (Level.FIXABLE, "pointer"),
        (Level.FIXABLE, "operation"),
    }
    fixed = doctor(shop).repair()
    assert {finding.level for finding in fixed} == {Level.FIXED, Level.OK}
    assert bad(doctor(shop).examine()) == []
    pointer = shop.storage.read_pointer("lenet", "production")
    assert pointer is not None
    assert (pointer.generation, pointer.version) == (2, 2)


def test_an_unknown_outcome_is_settled_by_reading_the_pointer(shop: Shop) -> None:
    promote(shop, 1)
    replaced = False

    def fail(_number: int, name: str, path: Path) -> None:
        nonlocal replaced
        if replaced and name == "fsync_dir" and path.name == "production":
            raise OSError(5, "Input/output error")
        replaced = replaced or (name == "replace" and path.name == "pointer.json")

    with pytest.raises(ActivationUnknownError):
        promote(shop, 2, ops=FileOps(fail))
    assert [finding.check for finding in bad(doctor(shop).examine())] == ["operation", "pointer"]
    doctor(shop).repair()
    assert bad(doctor(shop).examine()) == []


def test_a_rollback_made_without_the_database_is_recorded(shop: Shop) -> None:
    promote(shop, 1)
    promote(shop, 2)
    Releases(database=None, storage=shop.storage, actor="night").rollback(
        "lenet", channel="production", request=RollbackRequest()
    )
    found = bad(doctor(shop).examine())
    assert [(finding.level, finding.message) for finding in found] == [
        (Level.FIXABLE, "the store serves generation 3, the database knows 2")
    ]
    doctor(shop).repair()
    assert bad(doctor(shop).examine()) == []


def history_path(shop: Shop, generation: int) -> Path:
    return shop.path / "store" / "channels" / "lenet" / "production" / "history" / f"{generation:012d}.json"


def lose(shop: Shop, *generations: int) -> dict[int, bytes]:
    """Remove history documents and return what they were."""
    lost = {generation: history_path(shop, generation).read_bytes() for generation in generations}
    for generation in generations:
        history_path(shop, generation).unlink()
    return lost


def test_lost_history_documents_are_written_again_from_the_database_and_the_pointer(shop: Shop) -> None:
    for version in (1, 2, 1, 2):
        promote(shop, version)
    lost = lose(shop, 1, 2, 4)
    found = bad(doctor(shop).examine())
    assert [(finding.level, finding.check, finding.message) for finding in found] == [
        (Level.FIXABLE, "history", f"generation {generation}: its history document is missing")
        for generation in (1, 2, 4)
    ]
    assert "doctor --fix" in found[0].hint
    assert [finding.message for finding in bad(doctor(shop).repair())] == [finding.message for finding in found]
    assert {generation: history_path(shop, generation).read_bytes() for generation in lost} == lost
    assert bad(doctor(shop).examine()) == []
    assert check_store(shop.path / "store").generations["lenet", "production"] == 4


def test_a_history_that_was_lost_whole_is_written_again(shop: Shop) -> None:
    for version in (1, 2):
        promote(shop, version)
    shutil.rmtree(history_path(shop, 1).parent)
    doctor(shop).repair()
    assert bad(doctor(shop).examine()) == []


def test_a_document_that_nobody_knows_stays_lost(shop: Shop) -> None:
    """The database was told of that generation later, from the document that is lost now."""
    promote(shop, 1)
    promote(shop, 2)
    Releases(database=None, storage=shop.storage, actor="night").rollback(
        "lenet", channel="production", request=RollbackRequest()
    )
    promote(shop, 2)
    lose(shop, 2, 3)
    found = bad(doctor(shop).repair())
    assert [(finding.level, finding.check, finding.message) for finding in found] == [
        (Level.FIXED, "history", "generation 2: its history document is missing"),
        (Level.DAMAGE, "history", "generation 3: its history document is missing"),
    ]
    assert "--to-generation" in found[1].hint


def test_without_the_database_the_pointer_still_knows_the_newest_document(shop: Shop) -> None:
    promote(shop, 1)
    promote(shop, 2)
    lose(shop, 1, 2)
    found = bad(Doctor(database=None, storage=shop.storage, actor="d").repair())
    assert [(finding.level, finding.message) for finding in found if finding.check == "history"] == [
        (Level.FIXED, "generation 2: its history document is missing"),
        (Level.DAMAGE, "generation 1: its history document is missing"),
    ]


def test_a_reserved_generation_is_completed_without_the_database_too(shop: Shop) -> None:
    promote(shop, 1)

    def stop(_number: int, name: str, path: Path) -> None:
        if name == "replace" and path.name == "pointer.json":
            raise Stopped

    with pytest.raises(Stopped):
        promote(shop, 2, ops=FileOps(stop))
    Doctor(database=None, storage=shop.storage, actor="d").repair()
    pointer = shop.storage.read_pointer("lenet", "production")
    assert pointer is not None
    assert pointer.generation == 2


def test_a_stored_intent_that_was_changed_restores_nothing(shop: Shop) -> None:
    import sqlite3

    promote(shop, 1)
    promote(shop, 2)
    lose(shop, 1)
    raw = sqlite3.connect(shop.database_path)
    raw.execute("UPDATE operation SET pointer = json_set(pointer, '$.version', 2) WHERE id = 1")
    raw.commit()
    raw.close()
    found = bad(doctor(shop).repair())
    assert [(finding.level, finding.check, finding.message) for finding in found] == [
        (Level.DAMAGE, "pointer", "pointer of operation 1 does not match its own digest")
    ]
    assert not history_path(shop, 1).exists()


def damage(path: Path, data: bytes = b"{}") -> bytes:
    """Write other bytes to a file that is read-only, and return what it held."""
    before = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data)
    return before


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff"])
@pytest.mark.parametrize("generation", [1, 2])
def test_a_damaged_history_document_is_written_again_by_who_knows_it(shop: Shop, generation: int, data: bytes) -> None:
    for version in (1, 2):
        promote(shop, version)
    before = damage(history_path(shop, generation), data)
    assert [(f.level, f.check) for f in bad(doctor(shop).examine())] == [(Level.FIXABLE, "history")]
    assert {f.level for f in bad(doctor(shop).repair())} == {Level.FIXED}
    assert history_path(shop, generation).read_bytes() == before
    assert history_path(shop, generation).stat().st_mode & 0o777 == 0o444
    assert bad(doctor(shop).repair()) == []


def test_a_damaged_history_document_that_nobody_knows_is_damage(shop: Shop) -> None:
    for version in (1, 2):
        promote(shop, version)
    damage(history_path(shop, 1))
    without = Doctor(database=None, storage=shop.storage, actor="d")
    for findings in (without.examine(), without.repair()):
        assert (Level.DAMAGE, "history") in [(finding.level, finding.check) for finding in findings]
    assert history_path(shop, 1).read_bytes() == b"{}"


def test_a_document_that_can_be_read_is_never_replaced(shop: Shop) -> None:
    """Another one is another history, not damage: a person decides."""
    for version in (1, 2):
        promote(shop, version)
    known = shop.storage.read_history("lenet", "production", 1)
    damage(history_path(shop, 1), known._replace(txn="other").to_bytes())
    found = bad(doctor(shop).repair())
    assert [(finding.level, finding.check) for finding in found] == [(Level.DAMAGE, "history")]
    assert shop.storage.read_history("lenet", "production", 1).txn == "other"


def test_why_a_channel_could_not_be_settled_is_said(shop: Shop) -> None:
    promote(shop, 1)
    promote(shop, 2)
    Releases(database=None, storage=shop.storage, actor="night").rollback(
        "lenet", channel="production", request=RollbackRequest()
    )
    with shop.storage.exclusive("lenet", "production", timeout_s=1):
        other = Doctor(database=shop.database(), storage=shop.storage, actor="d", lock_timeout_s=0.1)
        messages = [finding.message for finding in other.repair() if finding.level is Level.PROBLEM]
    assert len(messages) == 1
    assert messages[0].startswith("cannot be settled: ")


@pytest.mark.parametrize("what", ["manifest.json", "cpu/model.onnx", "."])
def test_promoting_the_version_again_mends_the_release_that_is_served(shop: Shop, what: str) -> None:
    promote(shop, 1)
    pointer = shop.storage.read_pointer("lenet", "production")
    assert pointer is not None
    path = shop.path / "store" / "releases" / pointer.release / what
    if what == ".":
        shutil.rmtree(path)
    else:
        path.chmod(0o644)
        path.write_bytes(b"damaged")
    found = bad(doctor(shop).examine())
    assert [(finding.level, finding.check) for finding in found] == [(Level.DAMAGE, "release")]
    assert "Promote lenet:1 again" in found[0].hint
    promote(shop, 1)
    assert bad(doctor(shop).examine()) == []
    assert shop.storage.read_pointer("lenet", "production") == pointer
