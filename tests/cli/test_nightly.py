"""`nightly` on real registries: a good night, nights before it, and nights when everything is wrong at once."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import pytest
from junitparser import JUnitXml

from modelreg.cli import night_checks, night_files
from modelreg.cli.night_files import only_one
from modelreg.registry.contents import StoredFile
from modelreg.registry.golden_sets import newest_golden_set
from modelreg.registry.leases import Holder, hold
from modelreg.registry.policy_events import list_reasons
from modelreg.registry.references import ModelReference
from modelreg.registry.storage.writing import host_name
from modelreg.registry.versions import get_version
from modelreg.runtime.runner import WorkerRunner
from modelreg_testing.checkout import ROOT
from modelreg_testing.cli import CliResult, Shop
from modelreg_testing.nights import copy_of_lenet_after_a_night, plant_nights
from modelreg_testing.registry import add_engine, add_validation
from modelreg_testing.reports import nightly_validator

pytestmark = pytest.mark.slow

Document = dict[str, Any]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """LeNet after its first night."""
    return Shop.at(copy_of_lenet_after_a_night(tmp_path_factory, tmp_path_factory.mktemp("nightly") / "home"))


@pytest.fixture
def shop(good: Shop, tmp_path: Path) -> Shop:
    return Shop.copy_of(good, tmp_path)


def latest(shop: Shop) -> Path:
    return (shop.path / "nights" / "latest").resolve()


def document(shop: Shop) -> Document:
    body = json.loads((latest(shop) / "nightly.json").read_bytes())
    assert isinstance(body, dict)
    nightly_validator().validate(body)
    return body


def findings(body: Document, kind: str) -> list[tuple[str, str, str]]:
    return [(each["severity"], each["subject"], each["message"]) for each in body["findings"] if each["kind"] == kind]


def damage(path: Path) -> None:
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def blobs_of(shop: Shop, generation: int) -> list[Path]:
    history = shop.storage.read_history("lenet", "production", generation)
    manifest = json.loads(shop.storage.read_manifest(history.release))
    digests = [file["sha256"] for engine in manifest["engines"] for file in engine["files"]]
    return [path for digest in digests for path in (shop.path / "store" / "blobs").rglob(digest)]


# -- a good night ----------------------------------------------------------------------------------------------
def test_a_good_night_exits_with_0_and_says_what_it_looked_at(good: Shop) -> None:
    body = document(good)
    assert (body["schema"], body["kind"], body["verdict"], body["exit_code"]) == (1, "modelreg-nightly", "ok", 0)
    assert [(check["name"], check["outcome"]) for check in body["checks"]] == [
        ("doctor", "ok"),
        ("policies", "ok"),
        ("leases", "ok"),
    ]
    (channel,) = body["channels"]
    assert (channel["model"], channel["channel"], channel["version"], channel["generation"]) == (
        *("lenet", "production", 2, 2),
    )
    assert channel["hashed_bytes"] == sum(path.stat().st_size for n in (1, 2) for path in blobs_of(good, n))
    assert (channel["rollback"]["state"], channel["rollback"]["version"]) == ("works", 1)
    (engine,) = channel["engines"]
    assert (engine["verdict"], engine["failed"], engine["objection"]) == ("pass", [], "")
    assert {*engine["measured"]} == {"sqnr_db of logits", "accuracy", "top1_agreement", "latency_ms"}
    assert {drift["trend"] for drift in engine["drift"]} == {"inconclusive"}


def test_a_night_is_a_folder_with_every_kind_of_report(good: Shop) -> None:
    night = latest(good)
    assert sorted(path.name for path in night.iterdir()) == [
        *("lenet@production.html", "nightly.html", "nightly.json", "nightly.md", "nightly.xml"),
    ]
    junit = JUnitXml.fromfile(str(night / "nightly.xml"))
    assert (junit.tests, junit.failures, junit.errors, junit.skipped) == (9, 0, 0, 4)
    assert "### ✅ modelreg nightly" in (night / "nightly.md").read_text()
    page = (night / "nightly.html").read_text()
    assert "<script" not in page
    assert '<a href="./lenet%40production.html"><bdi>lenet@production</bdi></a>' in page
    assert "Validation report, channel" in (night / "lenet@production.html").read_text()


def test_its_verdicts_are_kept_as_those_of_validate_are(good: Shop) -> None:
    (engine,) = document(good)["channels"][0]["engines"]
    report = good.cli("report", "lenet@production", "--json").document
    assert report["validations"][0]["report_digest"] == engine["report_digest"]
    assert good.cli("which", "lenet@production", "--json").document["generation"] == 2


def test_what_killed_ones_left_is_swept_and_a_night_of_the_future_is_told_and_not_compared_with(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    for purpose in ("validate", "nightly", "run"):  # their owners hold no lock any more
        (place / f"modelreg-{purpose}-{host_name()}.killed").mkdir()
        (place / f"modelreg-{purpose}-{host_name()}.killed" / "golden.safetensors").write_bytes(bytes(1000))
    ahead = shop.path / "nights" / "29990101T020000Z"
    shutil.copytree(latest(shop), ahead)
    done = shop.cli("nightly", "--keep", 1)
    assert done.code == 0, done.err
    assert list(place.iterdir()) == []
    body = document(shop)
    assert body["nights"] == 1
    message = "1 of the nights here are dated after this one, and are not compared with it"
    assert findings(body, "history") == [("warning", ahead.name, message)]


def test_where_reports_cannot_be_written_what_was_found_is_told_and_the_worst_counts(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    damage(blobs_of(shop, 2)[0])
    monkeypatch.setattr(night_files, "_write", full)
    done = shop.cli("nightly")
    assert done.code == 6
    assert "damage" in done.out
    assert "cannot write the report of the night into" in done.err
    assert [path.name for path in (shop.path / "nights").iterdir() if path.name.startswith(".")] == []
    assert len(document(shop)["findings"]) == 0  # `latest` is the night before


# -- nights before ---------------------------------------------------------------------------------------------
def test_drift_is_a_problem_with_a_runbook_and_what_is_steady_is_not(shop: Shop) -> None:
    (engine,) = document(shop)["channels"][0]["engines"]
    before = {name: [entry["value"]] * 9 for name, entry in engine["measured"].items()}
    before["accuracy"] = [engine["measured"]["accuracy"]["value"] + 0.02] * 9
    before["latency_ms"] = [1e-6] * 7 + [1e9] * 2  # tonight is the third night beyond
    plant_nights(shop.path / "nights", before)
    done = shop.cli("nightly", "--json")
    assert done.code == 1
    assert "docs/runbooks/nightly-drift.md" in done.err
    body = done.document
    assert body["nights"] == 10
    trends = {drift["metric"]: drift["trend"] for drift in body["channels"][0]["engines"][0]["drift"]}
    assert trends["sqnr_db of logits"] == trends["top1_agreement"] == "steady"
    assert trends["accuracy"] == trends["latency_ms"] == "drift"
    assert [each[:2] for each in findings(body, "accuracy-drift")] == [("problem", "lenet@production cpu int8")]
    assert len(findings(body, "latency-drift")) == 1
    root = Tree.fromstring((Path(body["folder"]) / "nightly.xml").read_bytes())
    assert [found.get("type") for found in root.iter("failure")] == ["drift", "drift"]
    page = (Path(body["folder"]) / "nightly.html").read_text()
    assert page.count("<svg") == 4


def test_one_slow_night_is_a_warning_that_only_strict_nights_fail_for(shop: Shop) -> None:
    plant_nights(shop.path / "nights", {"latency_ms": [1e-6] * 9})
    night = document(shop)
    night["channels"][0]["engines"][0]["measured"]["latency_ms"]["value"] = 1e-6
    (latest(shop) / "nightly.json").write_text(json.dumps(night))
    done = shop.cli("nightly", "--strict", "--json")
    assert done.code == 1
    assert [each[0] for each in findings(done.document, "outlier")] == ["warning"]
    assert done.document["verdict"] == "warning"


# -- bad nights ------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def bad(good: Shop, tmp_path_factory: pytest.TempPathFactory) -> tuple[Shop, CliResult]:
    """Five channels, each with its own trouble, a loosening that nobody accepted, and a host that does not follow."""
    shop = Shop.copy_of(good, tmp_path_factory.mktemp("bad"))
    plan = shop.storage.put_bytes(b"a plan for another GPU")
    file = StoredFile(path="model.plan", digest=plan.digest, size_bytes=plan.size_bytes)
    with shop.database() as database, database.write() as connection:
        version = get_version(connection, ModelReference(model="lenet", version=2))
        add_engine(connection, version, target="sm_89", files=[file])
    shop.storage.put_bytes(b"log lenet:2 sm_89 fp32")
    shop.add_version(model="broken")
    old = shop.storage.read_history("lenet", "production", 1)
    hold(shop.storage, old, Holder(host="edge-7", pid=1, instance="/srv/models"))
    for words in (
        ("promote", "lenet:1", "--to", "staging", "--precision", "fp32"),
        ("promote", "lenet:2", "--to", "edge", "--target", "sm_89", "--override-gates", "-m", "no sm_89 here"),
        ("promote", "broken:1", "--to", "production", "--override-gates", "-m", "a trouble"),
    ):
        done = shop.cli(*words)
        assert done.code == 0, done.err
    for place, limit in (("lenet/@staging/fp32.toml", 1000), ("lenet/int8.toml", 0.1)):
        path = shop.path / "policies" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'[[rules]]\nmetric = "sqnr_db"\nlimit = {limit}\n')
    (shop.path / "nights" / "20260101T000000Z").mkdir()
    (shop.path / "nights" / "20260101T000000Z" / "nightly.json").write_text("{")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(night_checks, "_FOLLOWS_WITHIN", timedelta())
        return shop, shop.cli("nightly", "--json")


def test_one_channel_in_trouble_does_not_stop_the_others(bad: tuple[Shop, CliResult]) -> None:
    _, done = bad
    rows = {f"{each['model']}@{each['channel']}": each for each in done.document["channels"]}
    assert sorted(rows) == ["broken@production", "lenet@edge", "lenet@production", "lenet@staging"]
    assert [each["verdict"] for each in rows["lenet@production"]["engines"]] == ["pass"]
    assert [each["verdict"] for each in rows["lenet@staging"]["engines"]] == ["fail"]
    assert rows["broken@production"]["engines"] == []
    assert [each[1] for each in findings(done.document, "not-validated")] == [
        *("broken@production cpu fp32", "lenet@edge sm_89 fp32"),
    ]


def test_the_worst_finding_is_first_and_makes_the_exit_code(bad: tuple[Shop, CliResult]) -> None:
    _, done = bad
    assert done.code == done.document["exit_code"] == 3
    severities = [finding["severity"] for finding in done.document["findings"]]
    order = ["damage", "gate", "problem", "warning", "note"]
    assert severities == sorted(severities, key=order.index)
    assert all((ROOT / each["runbook"]).is_file() for each in done.document["findings"])


def test_a_gate_that_fails_is_named_with_what_was_measured(bad: tuple[Shop, CliResult]) -> None:
    ((severity, subject, message),) = findings(bad[1].document, "gate")
    assert (severity, subject) == ("gate", "lenet@staging cpu fp32")
    assert "sqnr_db" in message
    assert "1000" in message


def test_engines_of_other_hosts_are_skipped_with_the_reason(bad: tuple[Shop, CliResult]) -> None:
    edge = next(each for each in bad[1].document["channels"] if each["channel"] == "edge")
    assert edge["engines"] == []
    assert [each["reason"] for each in edge["skipped"]] == ["needs sm_89; this host has cpu"]
    assert edge["rollback"] | {"seconds": None} == {
        **{"state": "none", "version": None, "generation": None, "seconds": None, "verified_bytes": None},
        "error": "there is no earlier release",
    }


def test_a_channel_without_an_earlier_release_is_a_warning(bad: tuple[Shop, CliResult]) -> None:
    places = ("broken@production", "lenet@edge", "lenet@staging")
    message = "there is no way back: there is no earlier release"
    assert findings(bad[1].document, "rollback") == [("warning", place, message) for place in places]


def test_an_engine_that_this_host_cannot_run_is_a_problem_until_another_host_has_validated_it(shop: Shop) -> None:
    engine = shop.add_engine("lenet:2", target="sm_89", verdict=None)
    shop.storage.put_bytes(b"log lenet:2 sm_89 fp32")
    promoted = shop.cli("promote", "lenet:2", "--to", "edge", "--target", "sm_89", "--override-gates", "-m", "no sm_89")
    assert promoted.code == 0, promoted.err
    done = shop.cli("nightly", "--json")
    assert (done.code, done.document["verdict"]) == (1, "problem")
    message = "it was never validated, and cannot be here: needs sm_89; this host has cpu"
    assert findings(done.document, "not-validated") == [("problem", "lenet@edge sm_89 fp32", message)]
    with shop.database() as database, database.write() as connection:
        golden = newest_golden_set(connection, version_id=engine.version_id)
        assert golden is not None
        add_validation(connection, engine, golden=golden.digest)
    shop.storage.put_bytes(f"report {engine.id} pass".encode())
    done = shop.cli("nightly", "--json")
    assert (done.code, done.document["verdict"]) == (0, "warning")
    assert findings(done.document, "not-validated") == []


def test_a_night_that_validated_nothing_is_no_good_night(bad: tuple[Shop, CliResult]) -> None:
    done = bad[0].cli("nightly", "--channel", "lenet@edge", "--json")
    assert done.code == 1
    assert ("problem", "registry", "nothing that is active was validated on this host") in findings(
        done.document, "not-validated"
    )


def test_a_loosening_is_found_and_a_night_does_not_accept_it(bad: tuple[Shop, CliResult]) -> None:
    shop, done = bad
    found = findings(done.document, "policy")
    assert ("problem", "policies/lenet/int8.toml") in [each[:2] for each in found]
    assert [each[1] for each in found if each[0] == "warning"] == ["lenet@production cpu int8"]
    with shop.database() as database, database.read() as connection:
        assert [*list_reasons(connection)] == []


def test_a_host_that_does_not_follow_and_a_night_that_cannot_be_read_are_named(bad: tuple[Shop, CliResult]) -> None:
    ((severity, subject, message),) = findings(bad[1].document, "lease")
    assert (severity, subject) == ("warning", "lenet@production")
    assert "edge-7 (/srv/models) still serves version 1 of generation 1" in message
    assert [each[1] for each in findings(bad[1].document, "history")] == ["20260101T000000Z"]


def test_damage_of_what_a_rollback_would_need_is_found_before_it_is_needed(shop: Shop) -> None:
    for path in blobs_of(shop, 1):
        damage(path)
    release = shop.storage.read_history("lenet", "production", 1).release
    for path in (shop.path / "store" / "releases" / release / "cpu").iterdir():
        damage(path)
    done = shop.cli("nightly")
    assert done.code == 6
    body = document(shop)
    assert [each[:2] for each in findings(body, "rollback")] == [("damage", "lenet@production")]
    assert body["channels"][0]["rollback"]["state"] == "fails"
    assert [each["verdict"] for each in body["channels"][0]["engines"]] == ["pass"]
    assert "docs/runbooks/corrupt-blob.md" in done.out


def test_without_a_database_the_store_is_still_looked_at(shop: Shop) -> None:
    shop.database_path.rename(shop.path / "away.db")
    done = shop.cli("nightly", "--json")
    assert done.code == 1
    (channel,) = done.document["channels"]
    assert (channel["rollback"]["state"], channel["engines"]) == ("works", [])
    assert {each["runbook"] for each in done.document["findings"]} == {"docs/runbooks/database-restore.md"}


# -- time, locks, arguments ------------------------------------------------------------------------------------
def test_what_there_is_no_time_for_is_a_problem_and_the_report_is_written(shop: Shop) -> None:
    done = shop.cli("nightly", "--timeout", "0.000001", "--json")
    assert done.code == 1
    assert [each[0] for each in findings(done.document, "time")] == ["problem"]
    assert {check["outcome"] for check in done.document["checks"]} == {"not done"}
    assert Path(done.document["folder"]) == latest(shop)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_time_that_runs_out_in_the_midst_of_a_validation_leaves_what_was_found(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ring(*_arguments: object) -> float:
        signal.raise_signal(signal.SIGALRM)
        return 1.0

    monkeypatch.setattr(WorkerRunner, "time_block", ring)
    done = shop.cli("nightly", "--json")
    assert done.code == 1
    ((_, _, message),) = findings(done.document, "time")
    assert "validation of lenet@production cpu int8" in message
    assert done.document["channels"][0]["rollback"]["state"] == "works"


def test_a_second_nightly_is_refused_and_writes_nothing(shop: Shop) -> None:
    before = sorted((shop.path / "nights").iterdir())
    with only_one(shop.path / "nightly.lock", wait_s=0):
        done = shop.cli("nightly", "--wait", "0.05")
    assert done.code == 4
    assert "Another `modelreg nightly` is at work" in done.err
    assert sorted((shop.path / "nights").iterdir()) == before


def test_a_preview_says_what_would_be_validated_and_writes_nothing(shop: Shop, tmp_path: Path) -> None:
    done = shop.cli("nightly", "--dry-run", "--into", tmp_path / "elsewhere")
    assert (done.code, done.out) == (0, "would validate engine 4 (cpu int8) of lenet@production\n")
    assert not (tmp_path / "elsewhere").exists()
    body = shop.cli("nightly", "--dry-run", "--json").document
    assert [(each["channel"], each["reason"]) for each in body["engines"]] == [("lenet@production", "")]


@pytest.mark.parametrize("place", ["staging", "other@production", "lenet@staging"])
def test_a_channel_that_is_not_there_is_said(shop: Shop, place: str) -> None:
    done = shop.cli("nightly", "--channel", place)
    assert done.code == 1
    assert f"there is no channel {place}" in done.err


def test_a_registry_in_which_nothing_is_active_has_good_nights(tmp_path: Path) -> None:
    done = Shop(tmp_path).cli("nightly")
    assert (done.code, done.out) == (0, "ok: 0 channels, 0 engines validated: nothing found\n")
