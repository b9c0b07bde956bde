"""`validate` and `report` write reports: the same ones, of real engines, without running anything again."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as Tree

import pytest

from modelreg.registry.references import ModelReference
from modelreg.registry.versions import get_version
from modelreg.registry.words import Json, Precision
from modelreg_testing.cli import CliResult, Shop
from modelreg_testing.released_lenet import copy_of_released_lenet
from modelreg_testing.reports import report_validator, sarif_validator

KINDS = ("report-json", "junit", "sarif", "html", "markdown")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shop, Path, CliResult]:
    """Two versions of LeNet; the second one also in FP16, and validated again with every kind of report."""
    folder = tmp_path_factory.mktemp("report")
    copy_of_released_lenet(tmp_path_factory, folder / "home")
    shop, out = Shop.at(folder / "home"), folder / "out"
    out.mkdir()
    assert shop.cli("build", "lenet:2", "--precision", "fp16").code == 0
    files = [word for kind in KINDS for word in (f"--{kind}", out / kind)]
    return shop, out, shop.cli("validate", "lenet:2", "--precision", "fp32,fp16", *files)


@pytest.fixture
def shop(validated: tuple[Shop, Path, CliResult], tmp_path: Path) -> Shop:
    return Shop.copy_of(validated[0], tmp_path)


def without_time(document: Json) -> Json:
    return {key: value for key, value in document.items() if key != "created_at"}


def test_validate_writes_every_kind_and_says_where(validated: tuple[Shop, Path, CliResult]) -> None:
    _, out, done = validated
    assert done.code == 0, done.err
    assert sorted(path.name for path in out.iterdir()) == sorted(KINDS)
    for kind in KINDS:
        assert f"{kind}: {out / kind}" in done.err
    plain = out.parent / "plain"
    plain.touch()
    assert (out / "html").stat().st_mode == plain.stat().st_mode


def test_the_json_of_real_engines_satisfies_the_schema(validated: tuple[Shop, Path, CliResult]) -> None:
    _, out, _ = validated
    document = json.loads((out / "report-json").read_bytes())
    report_validator().validate(document)
    assert document["verdict"] == "pass"
    fp32, fp16 = (each["report"] for each in document["validations"])
    assert [one["name"] for one in fp16["passes"]] == ["plan", "rounded"]
    output = fp32["passes"][0]["outputs"]["logits"]
    assert sum(output["histogram"]["counts"]) + output["histogram"]["zeros"] == output["values"] == 5970
    assert fp32["passes"][0]["runs"]["runs"] == fp32["golden"]["runs"]
    assert [(each["version"], each["precision"]) for each in document["history"]] == [
        (1, "fp32"),
        (1, "int8"),
        (2, "int8"),
        (2, "fp32"),
        (2, "fp16"),
    ]


def test_the_other_kinds_are_of_the_same_engines(validated: tuple[Shop, Path, CliResult]) -> None:
    _, out, _ = validated
    root = Tree.fromstring((out / "junit").read_bytes())
    assert (root.get("failures"), root.get("errors"), len(root)) == ("0", "0", 2)
    sarif = json.loads((out / "sarif").read_bytes())
    sarif_validator().validate(sarif)
    assert sarif["runs"][0]["results"] == []
    page = (out / "html").read_text(encoding="utf-8")
    assert "History over versions" in page
    assert "logits (rounded)" in page
    assert (out / "markdown").read_text(encoding="utf-8").startswith("### ✅ `lenet:2`: pass\n")


def test_report_writes_the_same_from_what_is_stored(
    shop: Shop, validated: tuple[Shop, Path, CliResult], tmp_path: Path
) -> None:
    path = tmp_path / "again.json"
    words = ("report", "lenet:2", "--precision", "fp32,fp16")
    done = shop.cli(*words, "--report-json", path)
    assert done.code == 0, done.err
    again = json.loads(path.read_bytes())
    first = json.loads((validated[1] / "report-json").read_bytes())
    assert without_time(again) == without_time(first)
    assert without_time(shop.cli(*words, "--json").document) == without_time(first)
    assert "engine 3 (cpu fp32): pass" in done.out


def test_a_report_of_a_channel_is_of_what_it_serves(shop: Shop) -> None:
    assert shop.cli("promote", "lenet:2", "--to", "production", "--precision", "fp16").code == 0
    document = shop.cli("report", "lenet@production", "--json").document
    assert [each["report"]["engine"]["precision"] for each in document["validations"]] == ["fp16"]
    assert document["channel"] == "production"


def test_a_verdict_that_does_not_count_any_more_is_reported_as_such(shop: Shop) -> None:
    policy = shop.path / "policies" / "fp32.toml"
    policy.parent.mkdir()
    policy.write_text('[[rules]]\nmetric = "sqnr_db"\nlimit = 120\n')
    document = shop.cli("report", "lenet:2", "--json").document
    assert document["verdict"] == "incomplete"
    assert "sqnr_db >= 90 was looser than >= 120" in document["validations"][0]["objection"]


def test_a_report_can_go_to_stdout_alone(shop: Shop) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "modelreg.cli", "--home", str(shop.path), "report", "lenet:2", "--markdown", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("### ✅ `lenet:2`: pass\n")
    assert done.stdout.rstrip().endswith("</sub>")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--html", "nowhere/report.html"), "cannot write into nowhere"),
        (("--html", "."), "is a folder"),
        (("--html", "a", "--junit", "a"), "two reports cannot both go to a"),
        (("--html", "-", "--json"), "cannot both go to stdout"),
    ],
)
@pytest.mark.parametrize("command", ["report", "validate"])
def test_what_cannot_be_written_is_said_before_anything_is_run(
    shop: Shop, command: str, words: tuple[str, ...], said: str
) -> None:
    refused = shop.cli(command, "lenet:2", *words)
    assert refused.code == 2
    assert said in refused.err


def test_a_file_that_is_there_is_replaced_whole(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("earlier " * 100_000)
    assert shop.cli("report", "lenet:2", "--html", path).code == 0
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_an_engine_without_a_verdict_makes_the_report_incomplete(shop: Shop) -> None:
    assert shop.cli("build", "lenet:2", "--precision", "fp32", "--rebuild").code == 0
    document = shop.cli("report", "lenet:2", "--json").document
    assert document["verdict"] == "incomplete"
    assert [each["reason"] for each in document["skipped"]] == ["it was never validated"]


def test_a_failure_reaches_every_kind(shop: Shop, tmp_path: Path) -> None:
    strict = tmp_path / "strict.toml"
    strict.write_text('[[rules]]\nmetric = "sqnr_db"\nlimit = 900\n')
    words = [word for kind in KINDS for word in (f"--{kind}", tmp_path / kind)]
    done = shop.cli("validate", "lenet:2", "--precision", "fp16", "--policy", strict, *words)
    assert done.code == 3
    report_validator().validate(json.loads((tmp_path / "report-json").read_bytes()))
    root = Tree.fromstring((tmp_path / "junit").read_bytes())
    assert root.get("failures") == "2"  # in both passes
    (run,) = json.loads((tmp_path / "sarif").read_bytes())["runs"]
    assert {result["ruleId"] for result in run["results"]} == {"sqnr_db"}
    assert "❌" in (tmp_path / "markdown").read_text(encoding="utf-8")
    assert 'class="badge fail"' in (tmp_path / "html").read_text(encoding="utf-8")


def test_a_damaged_stored_report_is_exit_6(shop: Shop) -> None:
    with shop.database() as database, database.read() as connection:
        from modelreg.registry.validations import newest_validations

        version = get_version(connection, ModelReference(model="lenet", version=2))
        digest = newest_validations(connection, version_id=version.id)[3].report_digest
    (blob,) = (shop.path / "store").rglob(digest)
    blob.chmod(0o644)
    blob.write_bytes(b"{}")
    refused = shop.cli("report", "lenet:2", "--json")
    assert refused.code == 6


@pytest.fixture
def elsewhere(tmp_path: Path) -> Shop:
    """Return a version with an engine for the CPU, validated, and one for another host, which a channel serves."""
    made = Shop(tmp_path / "elsewhere")
    made.add_version(verdict=None)
    made.add_engine(target="sm_89", precision=Precision.FP16, verdict=None)
    for channel, targets in (("gpu", "sm_89"), ("both", "cpu,sm_89")):
        words = ("--to", channel, "--target", targets, "--override-gates", "-m", "not here")
        assert made.cli("promote", "lenet:1", *words).code == 0
    return made


NEVER = "it was never validated, and cannot be here: needs sm_89; this host has cpu"


@pytest.mark.parametrize("words", [("lenet@gpu",), ("lenet:1", "--target", "sm_89"), ("lenet:1", "--engine", "2")])
def test_engines_that_no_host_validated_are_in_the_report_as_that(
    elsewhere: Shop, tmp_path: Path, words: tuple[str, ...]
) -> None:
    kinds = [word for kind in KINDS for word in (f"--{kind}", tmp_path / kind)]
    done = elsewhere.cli("report", *words, *kinds)
    assert done.code == 0, done.err
    assert f"engine 2 (sm_89 fp16): skipped, {NEVER}\n" in done.out
    assert "next: modelreg validate lenet:1, on a host that runs sm_89\n" in done.err
    body = json.loads((tmp_path / "report-json").read_bytes())
    report_validator().validate(body)
    assert (body["verdict"], body["validations"], [each["reason"] for each in body["skipped"]]) == (
        *("incomplete", [], [NEVER]),
    )
    assert NEVER in (tmp_path / "html").read_text(encoding="utf-8")


def test_a_channel_of_two_targets_says_the_same_of_each(elsewhere: Shop) -> None:
    done = elsewhere.cli("report", "lenet@both", "--json")
    assert [each["reason"] for each in done.document["skipped"]] == ["it was never validated", NEVER]
    assert "next: modelreg validate lenet:1 --target cpu\n" in done.err


@pytest.mark.parametrize(
    ("words", "fact", "hint"),
    [
        (("lenet:1", "--engine", "999"), "there is no engine 999", "lists engines"),
        (("lenet@gpu", "--engine", "1"), "engine 1 is not one that lenet@gpu serves", "report lenet:1 --engine 1"),
        (("lenet:1", "--precision", "int8"), "lenet:1 has no built int8 engine", "It has cpu fp32, sm_89 fp16"),
        (("lenet:1", "--target", "sm_90"), "lenet:1 has no built engine for sm_90", "It has cpu fp32, sm_89 fp16"),
        (("bare:1",), "bare:1 has no built engine", "Run `modelreg build bare:1`."),
    ],
)
def test_what_is_not_there_has_no_report(elsewhere: Shop, words: tuple[str, ...], fact: str, hint: str) -> None:
    elsewhere.add_version(model="bare", precisions=())
    refused = elsewhere.cli("report", *words)
    assert refused.code == 1
    assert fact in refused.err
    assert hint in refused.err
