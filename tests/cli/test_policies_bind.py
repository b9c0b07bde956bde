"""A policy binds from the moment it is there: promote, show and doctor go by what the registry demands now."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelreg.config.policy import load_policy
from modelreg.registry import golden_sets, versions
from modelreg.registry.engines import get_engine
from modelreg.registry.references import ModelReference
from modelreg.registry.words import Json, Precision, Verdict
from modelreg_testing.cli import CliResult, Shop
from modelreg_testing.registry import ACTOR, add_validation

STRICTER = '[[rules]]\nmetric = "cosine"\nlimit = 0.999\n'
OBJECTION = "validated under another policy (cosine >= 0.99 was looser than >= 0.999)"


@pytest.fixture
def judged(shop: Shop) -> Shop:
    shop.add_version(precisions=(Precision.FP32, Precision.INT8))
    return shop


def write(shop: Shop, name: str, text: str) -> None:
    path = shop.path / "policies" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def promote(shop: Shop, *words: str) -> CliResult:
    return shop.cli("promote", "lenet:1", "--to", "production", *words)


def validate_again(shop: Shop, precision: Precision, override: Path | None = None) -> None:
    """Add a passing verdict by the registry's policy of now, changed by `override`."""
    policy = load_policy(precision, home=shop.path, model="lenet", override=override)
    with shop.database() as database, database.write() as connection:
        version = versions.get_version(connection, ModelReference(model="lenet", version=1))
        golden = golden_sets.newest_golden_set(connection, version_id=version.id)
        assert golden is not None
        engine = get_engine(connection, {Precision.FP32: 1, Precision.INT8: 2}[precision])
        add_validation(connection, engine, golden=golden.digest, policy=policy)


def agree(shop: Shop) -> list[Json]:
    """Return what `show` says of each engine, which must be what `promote` says."""
    shown: list[Json] = shop.cli("show", "lenet:1", "--json").document["engines"]
    choice = promote(shop, "--dry-run", "--json").document["targets"][0]
    considered = {candidate["engine"]: candidate for candidate in choice["candidates"]}
    for engine in shown:
        assert engine["usable"] is considered[engine["id"]]["usable"]
        assert engine["reason"] == considered[engine["id"]]["reason"]
    return shown


@pytest.mark.parametrize("place", ["int8.toml", "lenet/int8.toml"])
def test_a_verdict_from_before_a_policy_was_tightened_does_not_count(judged: Shop, place: str) -> None:
    assert "-> cpu      int8" in promote(judged, "--dry-run").out
    write(judged, place, STRICTER)
    dry = promote(judged, "--dry-run").out
    assert f"int8  engine 2: {OBJECTION}" in dry
    assert "-> cpu      fp32" in dry
    refused = promote(judged, "--precision", "int8")
    assert refused.code == 3
    assert OBJECTION in refused.err
    assert judged.storage.read_pointer("lenet", "production") is None
    assert [engine["stale"] for engine in agree(judged)] == [False, True]


def test_validating_again_under_the_tightened_policy_lets_it_pass(judged: Shop) -> None:
    write(judged, "int8.toml", STRICTER)
    validate_again(judged, Precision.INT8)
    assert promote(judged, "--precision", "int8").code == 0
    assert [engine["usable"] for engine in agree(judged)] == [True, True]


def fail_under(shop: Shop, text: str, folder: Path) -> None:
    """Add a failing verdict of the INT8 engine by the registry's policy of now, changed by `text`."""
    (folder / "run.toml").write_text(text)
    policy = load_policy(Precision.INT8, home=shop.path, model="lenet", override=folder / "run.toml")
    with shop.database() as database, database.write() as connection:
        version = versions.get_version(connection, ModelReference(model="lenet", version=1))
        golden = golden_sets.newest_golden_set(connection, version_id=version.id)
        assert golden is not None
        engine = get_engine(connection, 2)
        add_validation(connection, engine, verdict=Verdict.FAIL, golden=golden.digest, policy=policy)


def test_a_failure_under_a_policy_that_demands_less_now_asks_for_another_validation(
    judged: Shop, tmp_path: Path
) -> None:
    fail_under(judged, STRICTER, tmp_path)
    refused = promote(judged, "--precision", "int8")
    assert (refused.code, "under a policy that demands less now" in refused.err) == (3, True)
    assert "Run `modelreg validate lenet:1`" in refused.err
    assert "passed over: cpu int8: validation fail" in promote(judged).out
    assert [engine["stale"] for engine in agree(judged)] == [False, True]


def test_a_failure_under_the_policy_of_now_or_a_looser_one_stands(judged: Shop, tmp_path: Path) -> None:
    fail_under(judged, "", tmp_path)
    write(judged, "int8.toml", STRICTER)
    refused = promote(judged, "--precision", "int8")
    assert (refused.code, "build another engine" in refused.err) == (3, True)
    assert [engine["stale"] for engine in agree(judged)] == [False, False]


def test_a_policy_that_cannot_be_read_stops_promote_whatever_the_verdict_is(judged: Shop, tmp_path: Path) -> None:
    fail_under(judged, "", tmp_path)
    write(judged, "lenet/int8.toml", '[[rules]]\nmetric = "cosin"\nlimit = 0.5\n')
    refused = promote(judged)
    assert (refused.code, "'cosin' is unknown" in refused.err) == (2, True)
    assert judged.storage.read_pointer("lenet", "production") is None
    assert judged.cli("show", "lenet:1").code == 0


def test_limits_are_shown_as_they_were_written(judged: Shop) -> None:
    write(judged, "int8.toml", STRICTER.replace("0.999", "0.9999999"))
    for words in (("policy", "show", "int8"), ("policy", "diff", "shipped/int8", "int8"), ("show", "lenet:1")):
        assert ">= 0.9999999" in judged.cli(*words).out


def test_a_pass_under_a_loose_policy_of_the_command_line_does_not_count(judged: Shop, tmp_path: Path) -> None:
    loose = tmp_path / "loose.toml"
    loose.write_text('[[rules]]\nmetric = "cosine"\nlimit = 0.5\n')
    validate_again(judged, Precision.INT8, override=loose)
    refused = promote(judged, "--precision", "int8")
    assert refused.code == 3
    assert "cosine >= 0.5 was looser than >= 0.99" in refused.err
    agree(judged)


def test_a_pass_under_a_stricter_policy_of_the_command_line_counts(judged: Shop, tmp_path: Path) -> None:
    strict = tmp_path / "strict.toml"
    strict.write_text(STRICTER)
    validate_again(judged, Precision.INT8, override=strict)
    assert promote(judged, "--precision", "int8").code == 0


def test_a_policy_that_was_loosened_lets_earlier_passes_count(judged: Shop) -> None:
    write(judged, "int8.toml", '[[rules]]\nmetric = "cosine"\nlimit = 0.5\n')
    assert promote(judged, "--precision", "int8").code == 0


def test_a_stale_pass_can_be_overridden_and_stays_visible(judged: Shop) -> None:
    write(judged, "int8.toml", STRICTER)
    done = promote(judged, "--precision", "int8", "--override-gates", "-m", "the demo is at noon")
    assert done.code == 0
    assert f"gates overridden: cpu int8: {OBJECTION}" in judged.cli("show", "lenet:1").out


def test_a_policy_that_cannot_be_read_stops_promote_and_is_said_by_show(judged: Shop) -> None:
    write(judged, "int8.toml", "rules = [")
    refused = promote(judged)
    assert refused.code == 2
    assert "int8.toml is not valid TOML" in refused.err
    assert judged.storage.read_pointer("lenet", "production") is None
    assert promote(judged, "--precision", "fp32").code == 0
    shown = judged.cli("show", "lenet:1")
    assert shown.code == 0
    assert "its policy cannot be read" in shown.out


def test_a_rollback_asks_no_policy(judged: Shop) -> None:
    judged.add_version(word=2)
    assert promote(judged).code == 0
    assert judged.cli("promote", "lenet:2", "--to", "production").code == 0
    write(judged, "int8.toml", "rules = [")
    assert judged.cli("rollback", "lenet", "--channel", "production").code == 0


def test_show_says_stale_and_why_for_another_policy_and_another_golden_set(judged: Shop) -> None:
    write(judged, "int8.toml", STRICTER)
    out = judged.cli("show", "lenet:1").out
    assert "stale" in next(line for line in out.splitlines() if " int8 " in line)
    assert "stale" not in next(line for line in out.splitlines() if " fp32 " in line)
    assert f"engine 2 (cpu int8): {OBJECTION}; validate it again" in out
    with judged.database() as database, database.write() as connection:
        version = versions.get_version(connection, ModelReference(model="lenet", version=1))
        blob = judged.storage.put_bytes(b"another golden set")
        golden_sets.add_golden_set(
            connection,
            version=version,
            digest=blob.digest,
            size_bytes=blob.size_bytes,
            samples=3,
            origin={},
            actor=ACTOR,
            message="more samples",
        )
    assert {engine["reason"] for engine in agree(judged)} == {"validated against another golden set"}
    out = judged.cli("show", "lenet:1").out
    assert out.count("validated against another golden set; validate it again") == 2


def findings(shop: Shop) -> dict[tuple[str, str], Json]:
    document = shop.cli("doctor", "--json").document
    return {(finding["check"], finding["subject"]): finding for finding in document["findings"]}


def test_doctor_finds_policies_that_bind_nobody_with_exit_1(judged: Shop) -> None:
    well = findings(judged)
    assert well["policies", "registry"]["level"] == well["settings", "registry"]["level"] == "ok"
    write(judged, "int88.toml", STRICTER)
    write(judged, "lenett/int8.toml", STRICTER)
    write(judged, "lenet/int8.toml", "rules = [")
    found = findings(judged)
    assert {subject for check, subject in found if check == "policies"} == {
        "policies/int88.toml",
        "policies/lenett",
        "policies/lenet/int8.toml",
    }
    told = judged.cli("doctor")
    assert told.code == 1
    assert "3 problems need a person" in told.err
    assert "Did you mean 'lenet'?" in told.out


def test_doctor_reports_broken_settings_as_a_finding(judged: Shop) -> None:
    judged.home.config_path.write_text("[stroe]\n")
    told = judged.cli("doctor")
    assert told.code == 1
    assert "unknown key 'stroe'" in told.out
    assert list(findings(judged)) == [("settings", "config.toml")]


def test_doctor_examines_policies_without_a_database(judged: Shop) -> None:
    judged.database_path.unlink()
    write(judged, "vgg/int8.toml", STRICTER)
    write(judged, "int88.toml", STRICTER)
    found = findings(judged)
    assert ("policies", "policies/int88.toml") in found
    assert ("policies", "policies/vgg") not in found


def test_policy_show_of_an_unknown_model_is_refused(judged: Shop) -> None:
    refused = judged.cli("policy", "show", "int8", "--model", "lenett")
    assert refused.code == 1
    assert "no model 'lenett'" in refused.err
    assert "'lenet'" in refused.err


def test_policy_show_lists_the_gates_that_always_apply(judged: Shop) -> None:
    out = judged.cli("policy", "show", "int8").out
    assert "always: finite: " in out
    assert "always: realised_precision: " in out
    assert "is judged by" not in out
    document = judged.cli("policy", "show", "int8", "--json").document
    assert set(document["always"]) == {"finite", "realised_precision"}


def test_policy_show_says_that_best_is_judged_like_fp16(judged: Shop) -> None:
    assert judged.cli("policy", "show", "best").out.startswith("best is judged by the policy of fp16\n")
    document = judged.cli("policy", "show", "best", "--json").document
    assert (document["precision"], document["judged_as"]) == ("best", "fp16")
