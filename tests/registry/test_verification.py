import os
from pathlib import Path

import pytest

from modelreg.registry import blobs
from modelreg.registry.promotion import PromotionRequest
from modelreg.registry.references import ModelReference, parse_reference
from modelreg.registry.releasing import Releases
from modelreg.registry.verification import VerificationReport, verify_registry, verify_version
from modelreg.registry.words import Precision
from modelreg_testing.cli import Shop


@pytest.fixture
def shop(in_memory: Path) -> Shop:
    made = Shop(in_memory)
    for word in (1, 2):
        made.add_version(word=word)
        Releases(database=made.database(), storage=made.storage, actor="ada").promote(
            ModelReference(model="lenet", version=word),
            channel="production",
            request=PromotionRequest(preference=lambda _target: (Precision.FP32,)),
        )
    return made


def blob_paths(shop: Shop) -> list[Path]:
    return sorted(path for path in (shop.path / "store" / "blobs").rglob("*") if path.is_file())


def flip_a_bit(path: Path, *, position: int = 0, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bit
    path.chmod(0o644)
    path.write_bytes(bytes(data))


def verify(shop: Shop) -> VerificationReport:
    return verify_registry(shop.database(), shop.storage, with_events=True)


def test_a_sound_registry_verifies_and_counts_what_it_read(shop: Shop) -> None:
    report = verify(shop)
    assert report.damages == []
    assert (report.releases, report.pointers) == (2, 1)
    assert report.blobs == 10  # two sources, golden sets, plans, logs and reports
    assert report.events is not None
    assert report.events > 5
    assert report.size_bytes > 0


def test_a_flipped_bit_in_any_blob_is_found(shop: Shop) -> None:
    with shop.database() as database, database.read() as connection:
        named = {blob.digest for blob in blobs.list_blobs(connection)}
    for path in blob_paths(shop):
        if path.name not in named:
            continue
        flip_a_bit(path, position=-1, bit=0x80)
        damages = verify(shop).damages
        assert [(damage.kind, damage.subject) for damage in damages] == [("blob", path.name)]
        assert damages[0].hint
        flip_a_bit(path, position=-1, bit=0x80)
    assert verify(shop).damages == []


@pytest.mark.parametrize("cut", ["empty", "half", "gone"])
def test_a_cut_or_missing_blob_is_found(shop: Shop, cut: str) -> None:
    with shop.database() as database, database.read() as connection:
        digest = blobs.list_blobs(connection)[0].digest
    path = shop.path / "store" / "blobs" / "sha256" / digest[:2] / digest
    data = path.read_bytes()
    path.chmod(0o644)
    if cut == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if cut == "empty" else data[: len(data) // 2])
    assert [damage.subject for damage in verify(shop).damages] == [digest]


def test_damage_in_releases_pointers_and_history_is_found(shop: Shop) -> None:
    channel = shop.path / "store" / "channels" / "lenet" / "production"
    release = next((shop.path / "store" / "releases").iterdir())
    flip_a_bit(release / "cpu" / "model.onnx")
    flip_a_bit(channel / "pointer.json", position=40)
    flip_a_bit(channel / "history" / "000000000001.json", position=40)
    assert {damage.kind for damage in verify(shop).damages} == {"pointer", "history", "release"}


def test_the_advice_about_a_damaged_release_names_what_to_promote(shop: Shop) -> None:
    first = shop.storage.read_history("lenet", "production", 1).release
    flip_a_bit(shop.path / "store" / "releases" / first / "cpu" / "model.onnx")
    advice = "Promote lenet:1 with the same engines (cpu fp32) again"
    assert [damage.hint.startswith(advice) for damage in verify(shop).damages] == [True]
    assert advice in shop.cli("doctor", "--deep").out
    refused = shop.cli("rollback", "lenet@production")
    assert (refused.code, advice in refused.err, "--to-generation" in refused.err) == (6, True, True)
    flip_a_bit(shop.path / "store" / "releases" / first / "manifest.json")
    assert "Promote its version again" in verify(shop).damages[0].hint


@pytest.mark.parametrize("data", [b"", b"junk", b"{}", b"[1]"])
def test_whoever_meets_a_damaged_pointer_is_told_how_it_comes_back(shop: Shop, data: bytes) -> None:
    path = shop.path / "store" / "channels" / "lenet" / "production" / "pointer.json"
    path.chmod(0o644)
    path.write_bytes(data)
    for command in ("which", "rollback", "pull"):
        met = shop.cli(command, "lenet@production", *(("--into", shop.path / "served") if command == "pull" else ()))
        assert met.code == 6
        assert "modelreg doctor --fix --roll-forward lenet@production" in met.err
        assert "Error(" not in met.err
    assert shop.cli("doctor", "--fix", "--roll-forward", "lenet@production").code == 0
    assert shop.cli("which", "lenet@production").code == 0


def test_a_pipe_in_place_of_any_file_is_damage_and_keeps_nobody_waiting(shop: Shop) -> None:
    store = shop.path / "store"
    with shop.database() as database, database.read() as connection:
        digests = {blob.digest for blob in blobs.list_blobs(connection)}
    release = next((store / "releases").iterdir())
    channel = store / "channels" / "lenet" / "production"
    named = {
        "blob": next(path for path in blob_paths(shop) if path.name in digests),
        "release": release / "cpu" / "model.onnx",
        "pointer": channel / "pointer.json",
        "history": channel / "history" / "000000000001.json",
    }
    for kind, path in named.items():
        kept = path.with_name("kept")
        path.parent.chmod(0o755)
        path.rename(kept)
        os.mkfifo(path)
        assert kind in {damage.kind for damage in verify(shop).damages}, kind
        kept.replace(path)
    (release / "manifest.json").unlink()
    os.mkfifo(release / "manifest.json")
    assert "release" in {damage.kind for damage in verify(shop).damages}


def test_a_release_that_is_gone_is_found_by_who_names_it(shop: Shop) -> None:
    import shutil

    for release in (shop.path / "store" / "releases").iterdir():
        shutil.rmtree(release)
    assert [damage.kind for damage in verify(shop).damages] == ["release", "release"]


def test_a_gap_in_the_history_is_found(shop: Shop) -> None:
    (shop.path / "store" / "channels" / "lenet" / "production" / "history" / "000000000001.json").unlink()
    assert [(damage.kind, damage.subject) for damage in verify(shop).damages] == [
        ("history", "lenet@production generation 1")
    ]


def test_a_changed_event_is_found_only_when_asked(shop: Shop) -> None:
    import sqlite3

    raw = sqlite3.connect(shop.database_path)
    raw.execute("DELETE FROM event WHERE sequence = 3")
    raw.commit()
    raw.close()
    assert [damage.kind for damage in verify(shop).damages] == ["events"]
    assert verify_registry(shop.database(), shop.storage).damages == []


@pytest.mark.slow
def test_one_version_may_be_verified_alone(shop: Shop) -> None:
    whole = verify(shop)
    part = verify_version(shop.database(), shop.storage, parse_reference("lenet:2"))
    assert part.damages == []
    assert 0 < part.blobs < whole.blobs
    assert part.releases == 1
    with shop.database() as database, database.read() as connection:
        from modelreg.registry import engines, versions

        first = versions.get_version(connection, parse_reference("lenet:1"))
        plan = engines.list_engines(connection, version_id=first.id)[0].plan_digest
    flip_a_bit(shop.path / "store" / "blobs" / "sha256" / plan[:2] / plan)
    assert verify_version(shop.database(), shop.storage, parse_reference("lenet:2")).damages == []
    damaged = verify_version(shop.database(), shop.storage, parse_reference("lenet:1")).damages
    assert [damage.subject for damage in damaged] == [plan]
