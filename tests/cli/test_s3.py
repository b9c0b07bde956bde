"""Every command on a store in S3, as on a folder; and the check of a server before anything is made there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import CliResult, run_cli
from modelreg_testing.s3_server import BUCKET, S3Server, localbucket

LENET = ROOT / "examples" / "lenet"


def cli(home: Path, *words: object) -> CliResult:
    result = run_cli(*words, home=home)
    assert result.code == 0, result.err
    return result


@pytest.mark.slow
@pytest.mark.installed
def test_the_main_job_runs_on_a_store_in_s3(s3_server: S3Server, tmp_path: Path) -> None:
    home = tmp_path / "home"
    prefix = s3_server.location().prefix
    made = cli(home, "init", "--store", f"s3://{BUCKET}/{prefix}", "--endpoint-url", s3_server.endpoint_url, "--json")
    url = f"s3://{BUCKET}/{prefix}?endpoint_url={s3_server.endpoint_url}"
    assert made.document["store"] == url
    assert f'url = "{url}"' in (home / "config.toml").read_text()
    assert cli(home, "init", "--json").document["created"] is False
    for number in (1, 2):
        golden = LENET / f"golden-v{number}.npz"
        cli(home, "register", "lenet", LENET / f"lenet-v{number}.onnx", "--golden", golden)
        cli(home, "build", f"lenet:{number}", "--precision", "fp32")
        cli(home, "validate", f"lenet:{number}")
        cli(home, "promote", f"lenet:{number}", "--to", "production")
    assert cli(home, "which", "lenet@production", "--json").document["version"] == 2
    assert cli(home, "rollback", "lenet@production", "--drill", "--json").document["target"]["generation"] == 1
    assert cli(home, "rollback", "lenet@production", "--json").document["generation"] == 3
    served = cli(home, "which", "lenet@production", "--json").document
    assert (served["version"], served["generation"], served["path"]) == (1, 3, None)
    assert "nothing damaged" in cli(home, "verify", "--events").out
    assert "all is well" in cli(home, "doctor").out
    assert len(cli(home, "history", "lenet", "--json").document["generations"]) == 3
    for words in (("show", "lenet:1"), ("list",), ("diff", "lenet:1", "lenet:2"), ("show", "lenet")):
        assert "lenet" in cli(home, *words).out
    assert "modelreg pull lenet@production --into DIR" in cli(home, "which", "lenet@production").err
    pathless = run_cli("which", "-q", "lenet@production", home=home)
    assert (pathless.code, pathless.out) == (1, "")
    assert "modelreg pull lenet@production --into DIR" in pathless.err
    pulled = cli(home, "pull", "lenet@production", "--into", tmp_path / "served", "--json").document
    assert Path(pulled["plans"]["cpu"]).stat().st_size == pulled["fetched_bytes"] > 0
    (home / "registry.db").unlink()
    assert run_cli("rollback", "lenet@production", "--to-generation", 2, home=home).code == 0
    refused = run_cli("init", home=home)
    assert refused.code == 1
    assert "the store serves lenet@production" in refused.err


def test_a_server_that_can_be_trusted_is_told_so(s3_server: S3Server) -> None:
    location = s3_server.location()
    told = run_cli("store", "check", f"s3://{BUCKET}/{location.prefix}", "--endpoint-url", s3_server.endpoint_url)
    assert told.code == 0
    assert told.err == f"trying what {location} can be trusted with ...\n"
    assert "create only what is absent" in told.out
    assert ["an", "upload", "with", "a", "wrong", "SHA-256", "noted", "is", "refused"] in [
        line.split() for line in told.out.splitlines()
    ]
    assert told.out.endswith(f"{location} can hold a store\n")
    document = run_cli("store", "check", str(location), "--json").document
    assert document["passed"] is True
    assert {"name": "clock", "passed": None, "found": "agrees with the server's"} in document["results"]


@pytest.mark.parametrize("extra", [(), ("--dry-run",)], ids=["init", "dry run"])
def test_a_bucket_that_is_not_there_is_named_before_anything_is_made(
    s3_server: S3Server, tmp_path: Path, extra: tuple[str, ...]
) -> None:
    words = ("init", "--store", "s3://nowhere/prod", "--endpoint-url", s3_server.endpoint_url)
    refused = run_cli(*words, *extra, home=tmp_path / "home")
    assert (refused.code, refused.out) == (1, "")
    assert "there is no bucket 'nowhere'" in refused.err
    assert "Create the bucket first" in refused.err
    assert not (tmp_path / "home").exists()


def test_making_a_store_says_what_is_tried_meanwhile(s3_server: S3Server, tmp_path: Path) -> None:
    location = s3_server.location()
    dry = run_cli("init", "--store", location, "--dry-run", home=tmp_path / "home")
    assert "would be made a registry" in dry.out
    made = run_cli("init", "--store", location, "-v", home=tmp_path / "home")
    assert made.code == 0
    assert f"trying what {location} can be trusted with ...\n" in made.err
    assert "can be trusted with: replace only what has the ETag\n" in made.err


@pytest.mark.slow
def test_a_server_that_ignores_conditions_is_refused_and_nothing_is_made(s3_server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with localbucket(tmp_path / "data") as liar:
        url = str(liar.location())
        told = run_cli("store", "check", url)
        assert told.code == 1
        assert "If-Match was ignored" in told.out
        assert "cannot hold a store" in told.err
        refused = run_cli("init", "--store", url, home=tmp_path / "home")
        assert refused.code == 1
        assert "If-Match was ignored" in refused.err
        assert "conditional writes" in refused.err
        assert not (tmp_path / "home" / "config.toml").exists()
        assert "Contents" not in liar.boto.list_objects_v2(Bucket=BUCKET, Prefix="test")


def test_a_folder_needs_no_more_than_to_be_writable(tmp_path: Path) -> None:
    home = tmp_path / "home"
    cli(home, "init")
    assert "can be written" in cli(home, "store", "check").out
    assert cli(home, "store", "check", "--json").document == {
        "schema": 1,
        "store": str(home / "store"),
        "passed": True,
        "results": [],
    }
    assert run_cli("store", "check", tmp_path / "nowhere").code == 1


def test_an_endpoint_belongs_to_a_store_in_s3(tmp_path: Path) -> None:
    for words in (("init",), ("init", "--store", "folder"), ("store", "check", "folder")):
        refused = run_cli(*words, "--endpoint-url", "http://127.0.0.1:9", home=tmp_path / "home")
        assert refused.code == 2
        assert "endpoint" in refused.err
    refused = run_cli("init", "--store", "s3://bucket/x", "--endpoint-url", "nonsense", home=tmp_path / "home")
    assert (refused.code, "no address" in refused.err) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ("init", "--store", "s3://models/prod"),
        ("store", "check", "s3://models/prod"),
        ("pull", "lenet@production", "--into", "served", "--store", "s3://models/prod"),
    ],
    ids=lambda words: words[0],
)
def test_a_plain_install_is_told_which_extra_a_store_in_s3_needs(words: tuple[str, ...], tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules.update({name: None for name in ('boto3', 'botocore')});"
        "from modelreg.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *words]
    told = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert told.returncode == 1
    assert "boto3 is not installed" in told.stderr
    assert "pip install '.[s3]'" in told.stderr
    assert "internal" not in told.stderr


def test_a_server_that_is_away_is_named_once(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelreg.registry.storage.s3_client.S3Client.pause", lambda *_: None)
    refused = run_cli("init", "--store", "s3://bucket/x", "--endpoint-url", "http://127.0.0.1:9", home=tmp_path / "h")
    assert refused.code == 1
    assert "127.0.0.1:9" in refused.err
    assert "network" in refused.err
    assert not (tmp_path / "h" / "config.toml").exists()
