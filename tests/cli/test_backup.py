"""`db backup`, `db restore`, and what `doctor` says afterwards."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from modelreg_testing.cli import Shop, run_cli


@pytest.fixture
def served(shop: Shop) -> Shop:
    for word in (1, 2):
        shop.add_version(word=word)
    assert shop.cli("promote", "lenet:1", "--to", "production").code == 0
    return shop


def test_a_backup_comes_back_and_the_database_catches_up_with_the_store(served: Shop, tmp_path: Path) -> None:
    file = tmp_path / "nightly.db"
    made = served.cli("db", "backup", file, "--json").document["backup"]
    assert subprocess.run(["sha256sum", "-c", f"{file}.sha256"], cwd=tmp_path, check=False).returncode == 0
    assert made["sha256"] in Path(f"{file}.sha256").read_text()
    served.cli("promote", "lenet:2", "--to", "production")
    refused = served.cli("db", "restore", file)
    assert refused.code == 4
    assert "channel.promote of lenet@production" in refused.err
    assert "--force" in refused.err
    dry = served.cli("db", "restore", file, "--force", "--dry-run", "--json").document
    gap = {"channel": "lenet@production", "known_generation": 1, "served_generation": 2}
    assert (dry["gaps"], dry["kept"], dry["replaced"]["newer_events"]) == ([gap], None, 2)
    assert served.cli("doctor").code == 0
    restored = served.cli("db", "restore", file, "--force")
    assert restored.code == 0
    assert "registry.db.replaced-000001" in restored.out
    assert "lenet@production: the store serves generation 2, the backup knows 1" in restored.err
    assert "modelreg doctor" in restored.err
    assert served.cli("doctor").code == 1
    assert served.cli("doctor", "--fix").code == 0
    again = served.cli("doctor", "--fix", "--json").document["findings"]
    assert {finding["level"] for finding in again} == {"ok"}
    assert served.cli("which", "lenet@production", "--json").document["version"] == 2
    assert served.cli("promote", "lenet:1", "--to", "production", "--json").document["generation"] == 3


def test_a_backup_is_not_replaced_without_force(served: Shop, tmp_path: Path) -> None:
    file = tmp_path / "b.db"
    assert served.cli("db", "backup", file, "--dry-run").code == 0
    assert not file.exists()
    assert served.cli("db", "backup", file).code == 0
    before = file.read_bytes()
    refused = served.cli("db", "backup", file)
    assert (refused.code, file.read_bytes()) == (2, before)
    assert "--force" in refused.err
    assert served.cli("db", "backup", file, "--force").code == 0


def test_a_damaged_backup_is_refused_with_exit_6(served: Shop, tmp_path: Path) -> None:
    file = tmp_path / "b.db"
    served.cli("db", "backup", file)
    data = bytearray(file.read_bytes())
    data[4096] ^= 1
    file.write_bytes(data)
    refused = served.cli("db", "restore", file, "--force")
    assert refused.code == 6
    assert "does not match its digest" in refused.err


def test_what_is_no_database_is_no_backup(served: Shop, tmp_path: Path) -> None:
    (tmp_path / "golden.npz").write_bytes(b"PK" * 4096)
    refused = served.cli("db", "restore", tmp_path / "golden.npz")
    assert (refused.code, "is no backup: it is no SQLite database" in refused.err) == (1, True)
    assert "modelreg db backup" in refused.err


def test_a_lost_database_is_restored(served: Shop, tmp_path: Path) -> None:
    file = tmp_path / "b.db"
    served.cli("db", "backup", file)
    served.database_path.unlink()
    told = served.cli("doctor")
    assert told.code == 1
    assert "modelreg db restore FILE" in told.out
    restored = served.cli("db", "restore", file)
    assert (restored.code, "kept" in restored.out) == (0, False)
    assert "no database was there before" in restored.err
    assert "does not exist" not in restored.err
    assert served.cli("doctor").code == 0


def test_a_backup_can_be_restored_while_the_store_is_away(served: Shop, tmp_path: Path) -> None:
    file = tmp_path / "b.db"
    served.cli("db", "backup", file)
    (served.path / "store").rename(tmp_path / "away")
    restored = served.cli("db", "restore", file)
    assert restored.code == 0
    assert "not compared" in restored.err


def test_who_looks_for_backup_at_the_top_is_shown_where_it_is(served: Shop) -> None:
    for word in ("backup", "restore"):
        refused = served.cli(word, "b.db")
        assert (refused.code, f"did you mean 'db {word}'?" in refused.err) == (2, True)


def test_a_database_on_a_server_is_backed_up_by_the_server_s_own_tools(served: Shop, tmp_path: Path) -> None:
    config = served.path / "config.toml"
    config.write_text('[database]\nurl = "postgresql+psycopg://ada:secret@db.example/models"\n')
    served.cli("db", "backup", tmp_path / "b.db")
    for words, line in (
        (("backup", "b.db"), "pg_dump --format=custom --file=b.db postgresql://ada@db.example/models"),
        (("restore", "b.db"), "pg_restore --clean --if-exists --dbname=postgresql://ada@db.example/models b.db"),
    ):
        refused = served.cli("db", *words)
        assert refused.code == 2
        assert line in refused.err
        assert "secret" not in refused.err


# -- doctor ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("content", [b"", b"{", None])
def test_a_store_whose_format_file_is_lost_is_found_and_mended(served: Shop, content: bytes | None) -> None:
    path = served.path / "store" / "FORMAT"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert served.cli("verify").code == 1
    told = served.cli("doctor", "--json")
    assert (told.code, told.document["exit_code"]) == (1, 1)
    [finding] = [each for each in told.document["findings"] if each["check"] == "store"]
    assert (finding["level"], finding["hint"]) == ("fixable", "Run `modelreg doctor --fix`.")
    assert served.cli("doctor", "--fix", "--dry-run").code == 1
    assert served.cli("doctor", "--fix").code == 0
    assert served.cli("doctor").code == 0
    assert served.cli("which", "lenet@production").code == 0


@pytest.mark.parametrize("content", [b'{"format": 2}', None])
def test_a_store_of_another_format_or_none_is_not_made_one_of_ours(served: Shop, content: bytes | None) -> None:
    store = served.path / "store"
    if content is None:
        store.rename(served.path / "away")
        store.mkdir()  # where a disk would be mounted
    else:
        (store / "FORMAT").write_bytes(content)
    told = served.cli("doctor", "--fix")
    assert told.code == 1
    assert "problem  store" in told.out
    assert not (store / "FORMAT").exists() if content is None else (store / "FORMAT").read_bytes() == content


def test_a_blob_is_healed_from_a_release_and_a_release_from_its_blobs(served: Shop) -> None:
    store = served.path / "store"
    release = served.cli("which", "lenet@production", "--json").document["release"]
    plan = store / "releases" / release / "cpu" / "model.onnx"
    whole = plan.read_bytes()
    blob = next(path for path in store.glob("blobs/sha256/*/*") if path.read_bytes() == whole)
    for damaged, option in ((blob, "--deep"), (plan, "-v")):
        damaged.chmod(0o644)
        damaged.write_bytes(whole[:-1] + b"?")
        assert served.cli("doctor", option).code == 6
        assert served.cli("doctor", option, "--fix").code == 0
        assert damaged.read_bytes() == whole
    blob.unlink()
    assert served.cli("doctor", "--fix").code == 0
    assert blob.read_bytes() == whole
    assert served.cli("doctor", "--deep").code == 0


def test_a_blob_of_another_size_is_found_without_reading_all(served: Shop) -> None:
    blob = next((served.path / "store").glob("blobs/sha256/*/*"))
    blob.chmod(0o644)
    blob.write_bytes(b"")
    told = served.cli("doctor")
    assert told.code == 6
    assert "the blob has 0 bytes" in told.out


def test_a_blob_that_others_could_change_in_place_is_a_warning(served: Shop, tmp_path: Path) -> None:
    first, second = sorted((served.path / "store").glob("blobs/sha256/*/*"))[:2]
    first.chmod(0o644)
    (tmp_path / "another name").hardlink_to(second)
    told = served.cli("doctor")
    assert told.code == 0
    assert "the blob is writable (mode 644)" in told.out
    assert "the blob has 2 names" in told.out
    first.chmod(0o444)
    (tmp_path / "another name").unlink()
    assert "warning" not in served.cli("doctor").out


def test_blobs_that_nobody_names_are_a_warning(served: Shop) -> None:
    served.storage.put_bytes(b"of a command that died")
    told = served.cli("doctor")
    assert told.code == 0
    assert "1 blob (22 bytes) that the database does not name" in told.out
    assert "modelreg gc" in told.out


def test_a_channel_is_moved_on_only_by_name_and_with_fix(served: Shop) -> None:
    first = served.cli("which", "lenet@production", "--json").document["generation"]
    pointer = served.path / "store" / "channels" / "lenet" / "production" / "pointer.json"
    older = pointer.read_bytes()
    served.cli("promote", "lenet:2", "--to", "production")
    served.cli("promote", "lenet:1", "--to", "production")
    pointer.write_bytes(older)
    assert served.cli("doctor", "--roll-forward", "lenet@production").code == 2
    assert served.cli("doctor", "--fix", "--roll-forward", "lenet").code == 2
    assert served.cli("doctor", "--fix").code == 1
    assert served.cli("which", "lenet@production", "--json").document["generation"] == first
    told = served.cli("doctor", "--fix", "--roll-forward", "lenet@production")
    assert told.code == 0
    assert "moved on from generation 1 to 3" in told.out
    assert served.cli("rollback", "lenet@production").code == 0


def test_hints_do_not_send_the_user_in_circles(served: Shop) -> None:
    pointer = served.path / "store" / "channels" / "lenet" / "production" / "pointer.json"
    pointer.write_bytes(b"{}")
    verified = served.cli("verify")
    assert verified.code == 6
    assert "modelreg verify" not in verified.err
    doctored = served.cli("doctor")
    assert doctored.code == 6
    for word in ("Run `modelreg verify`", "Run `modelreg doctor`"):
        assert word not in doctored.out
    assert "--roll-forward lenet@production" in doctored.out


def test_a_toolchain_that_is_gone_is_a_warning(served: Shop) -> None:
    from modelreg.registry.toolchains import catalogue
    from modelreg.registry.toolchains.probing import Probe
    from modelreg.registry.words import Backend

    probe = Probe(backend=Backend.TENSORRT_RTX, version="1.7", python="/nowhere/bin/python", details={})
    with served.database() as database, database.write() as connection:
        catalogue.register_toolchain(connection, name="rtx", probe=probe, actor="a")
    told = served.cli("doctor")
    assert told.code == 0
    assert "missing: there is no interpreter /nowhere/bin/python" in " ".join(told.out.split())
    assert "modelreg toolchain remove rtx" in told.out


def test_help_says_what_the_exit_codes_mean() -> None:
    page = " ".join(run_cli("doctor", "--help").out.split())
    assert "Exits with 0 when all is well or settled" in page
