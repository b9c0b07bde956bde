"""`export bundle` and `import`: from one registry into another, on any store and database, and never half."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from modelreg_testing.cli import CliResult, Shop, run_cli
from modelreg_testing.registry import row_counts
from modelreg_testing.released_lenet import LENET, copy_of_released_lenet
from modelreg_testing.s3_server import BUCKET, S3Server

if TYPE_CHECKING:
    pass


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop.at(copy_of_released_lenet(tmp_path_factory, tmp_path_factory.mktemp("origin") / "home"))


@pytest.fixture(scope="module")
def bundle(origin: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "lenet.tar"
    done(origin.cli("export", "bundle", "lenet@production", "--into", path))
    return path


def done(result: CliResult) -> CliResult:
    assert result.code == 0, result.err
    return result


def require_released(cli: Shop | Path, release: str) -> None:
    """Promote what was imported, and look at it as a user would."""

    def run(*words: object) -> CliResult:
        return done(cli.cli(*words) if isinstance(cli, Shop) else run_cli(*words, home=cli))

    promoted = run("promote", "lenet:2", "--to", "production", "--json").document
    assert promoted["release"] == release, "the same engines of the same version are the same release"
    assert run("which", "lenet@production", "--json").document["version"] == 2
    assert "nothing damaged" in run("verify", "--events").out
    checked = run("doctor", "--deep")
    assert "all is well" in checked.out
    assert "0 warnings" in checked.out or "warning" not in checked.out


def test_the_same_content_is_the_same_file(origin: Shop, bundle: Path, tmp_path: Path) -> None:
    body = done(origin.cli("export", "bundle", "lenet@production", "--into", tmp_path / "a.tar", "--json")).document
    assert (tmp_path / "a.tar").read_bytes() == bundle.read_bytes()
    assert (body["version"], body["generation"], body["engines"], body["verdicts"]) == (2, 2, 1, 1)
    for name in ("b.tar.gz", "c.tgz"):
        done(origin.cli("export", "bundle", "lenet@production", "--into", tmp_path / name))
    assert (tmp_path / "b.tar.gz").read_bytes() == (tmp_path / "c.tgz").read_bytes()
    assert gzip.decompress((tmp_path / "b.tar.gz").read_bytes()) == bundle.read_bytes()
    again = origin.cli("export", "bundle", "lenet@production", "--into", tmp_path / "a.tar")
    assert (again.code, "is there already" in again.err) == (2, True)
    done(origin.cli("export", "bundle", "lenet:1", "--into", tmp_path / "a.tar", "--force"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "b.tar.gz", "c.tgz"]


def test_a_dry_run_writes_nothing_on_either_side(origin: Shop, bundle: Path, tmp_path: Path) -> None:
    done(origin.cli("export", "bundle", "lenet:1", "--into", tmp_path / "a.tar", "--dry-run"))
    assert list(tmp_path.iterdir()) == []
    other = Shop(tmp_path)
    with other.database() as database:
        before = row_counts(database)
        said = done(other.cli("import", bundle, "--dry-run", "--json")).document
        assert row_counts(database) == before
    assert (said["reference"], said["new_version"], said["changed"]) == ("lenet:2", True, True)
    assert list(other.storage.iterate_blobs()) == []


@pytest.mark.slow
def test_a_release_goes_to_an_empty_registry_and_is_promoted_there(
    origin: Shop, bundle: Path, tmp_path: Path, database_url: str | None
) -> None:
    release = done(origin.cli("which", "lenet@production", "--json")).document["release"]
    other = Shop(tmp_path, database_url=database_url)
    body = done(other.cli("import", bundle, "--json")).document
    assert (body["reference"], body["new_version"], body["golden_set"]) == ("lenet:2", True, "added")
    assert (body["verdicts_added"], body["variants_added"], body["release"]) == (1, 1, release)
    with other.database() as database:
        before = row_counts(database)
        assert before["event"] == 1
        assert done(other.cli("import", bundle, "--json")).document["changed"] is False
        assert row_counts(database) == before
    assert done(other.cli("list", "--json")).document["models"][0]["versions"] == 1
    require_released(other, release)
    done(other.cli("export", "bundle", "lenet@production", "--into", tmp_path / "back.tar"))
    done(other.cli("register", "lenet", LENET / "lenet-v1.onnx"))
    assert done(other.cli("show", "lenet:3", "--json")).code == 0, "the next number is beyond the one that came along"


@pytest.mark.slow
def test_a_release_goes_to_a_registry_in_s3(origin: Shop, bundle: Path, tmp_path: Path, s3_server: S3Server) -> None:
    release = done(origin.cli("which", "lenet@production", "--json")).document["release"]
    home, prefix = tmp_path / "home", s3_server.location().prefix
    store = ("--store", f"s3://{BUCKET}/{prefix}", "--endpoint-url", s3_server.endpoint_url)
    done(run_cli("init", *store, home=home))
    done(run_cli("import", bundle, home=home))
    require_released(home, release)
    done(run_cli("export", "bundle", "lenet@production", "--into", tmp_path / "back.tar.gz", home=home))


def test_a_taken_number_gives_the_next_one_and_says_so(bundle: Path, tmp_path: Path) -> None:
    other = Shop(tmp_path)
    for word in (1, 2, 3):
        other.add_version(word=word)
    said = done(other.cli("import", bundle, "--dry-run", "--json")).document
    body = done(other.cli("import", bundle, "--json")).document
    assert said["reference"] == body["reference"] == "lenet:4"
    assert body["offered"] == "lenet:2"
    assert "lenet:2 is lenet:4 here" in done(other.cli("import", bundle)).err
    done(other.cli("promote", "lenet:4", "--to", "production"))


def test_a_known_source_is_the_same_version_and_gets_what_it_lacks(origin: Shop, bundle: Path, tmp_path: Path) -> None:
    other = Shop(tmp_path)
    done(other.cli("register", "lenet", LENET / "lenet-v2.onnx", "--golden", LENET / "golden-v1.npz"))
    body = done(other.cli("import", bundle, "--json")).document
    assert (body["reference"], body["new_version"], body["golden_set"]) == ("lenet:1", False, "kept")
    assert body["verdicts_added"] == 1
    refused = other.cli("promote", "lenet:1", "--to", "production")
    assert refused.code == 3
    assert "another golden set" in refused.err
    done(origin.cli("export", "bundle", "lenet:2", "--into", tmp_path / "all.tar"))
    more = done(other.cli("import", tmp_path / "all.tar", "--json")).document
    assert sum(each["new"] for each in more["engines"]) == 1


def test_a_verdict_that_is_older_than_the_one_here_stays_out(origin: Shop, bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(origin.path, tmp_path / "home", symlinks=True)
    here = Shop.at(tmp_path / "home")
    done(here.cli("validate", "lenet:2", "--precision", "int8"))
    body = done(here.cli("import", bundle, "--json")).document
    assert (body["verdicts_added"], body["verdicts_kept_out"], body["changed"]) == (0, 1, False)


def test_imported_engines_can_be_judged_anew(bundle: Path, tmp_path: Path) -> None:
    other = Shop(tmp_path)
    done(other.cli("import", bundle))
    done(other.cli("validate", "lenet:2"))


def test_another_digest_than_expected_is_refused(bundle: Path, tmp_path: Path) -> None:
    other = Shop(tmp_path)
    refused = other.cli("import", bundle, "--sha256", "0" * 64)
    assert refused.code == 6
    assert "expected is" in refused.err
    assert list(other.storage.iterate_blobs()) == []
    assert other.cli("import", bundle, "--sha256", "12").code == 2


def test_a_damaged_store_gives_no_bundle(origin: Shop, tmp_path: Path) -> None:
    shutil.copytree(origin.path, tmp_path / "home", symlinks=True)
    here = Shop.at(tmp_path / "home")
    golden = done(here.cli("show", "lenet:2", "--json")).document["golden_set"]["sha256"]
    place = next(path for path in (here.path / "store" / "blobs").rglob("*") if path.name.endswith(golden[-40:]))
    place.chmod(0o644)
    place.write_bytes(place.read_bytes()[:-1] + b"?")
    (tmp_path / "out").mkdir()
    refused = here.cli("export", "bundle", "lenet:2", "--into", tmp_path / "out" / "x.tar")
    assert refused.code == 6, refused.err
    place.unlink()
    assert here.cli("export", "bundle", "lenet:2", "--into", tmp_path / "out" / "x.tar").code == 1
    assert list((tmp_path / "out").iterdir()) == []
