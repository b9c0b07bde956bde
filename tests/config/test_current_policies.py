from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modelreg.config.current_policies import CurrentPolicies
from modelreg.config.policy import Policy, load_policy
from modelreg.registry.errors import ConfigError
from modelreg.registry.records import ValidationRecord
from modelreg.registry.words import Json, Precision
from modelreg_testing.records import make_engine, make_validation

ENGINE = make_engine(1, Precision.INT8)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def rule(metric: str, limit: float) -> str:
    return f'[[rules]]\nmetric = "{metric}"\nlimit = {limit}\n'


def judged_by(policy: Policy) -> ValidationRecord:
    return replace(make_validation(ENGINE), policy_digest=policy.digest, policy=policy.to_json())


def changed(tmp_path: Path, text: str) -> Policy:
    return load_policy(Precision.INT8, override=write(tmp_path / "override.toml", text))


@pytest.fixture
def now(tmp_path: Path) -> CurrentPolicies:
    return CurrentPolicies(tmp_path, model="lenet")


def test_a_verdict_under_the_policy_of_now_counts(now: CurrentPolicies) -> None:
    assert now.object_to(ENGINE, judged_by(load_policy(Precision.INT8))) == ""


def test_a_verdict_under_a_stricter_policy_counts(now: CurrentPolicies, tmp_path: Path) -> None:
    stricter = changed(tmp_path, rule("cosine", 0.999) + rule("max_abs", 1))
    assert now.object_to(ENGINE, judged_by(stricter)) == ""


def test_a_verdict_under_a_policy_looser_in_one_rule_does_not_count(now: CurrentPolicies, tmp_path: Path) -> None:
    mixed = changed(tmp_path, rule("cosine", 0.9) + rule("accuracy_drop", 0))
    objection = now.object_to(ENGINE, judged_by(mixed))
    assert objection == "validated under another policy (cosine >= 0.9 was looser than >= 0.99)"


@pytest.mark.parametrize("place", ["policies/int8.toml", "policies/lenet/int8.toml"])
def test_tightening_ends_what_earlier_verdicts_are_worth(now: CurrentPolicies, tmp_path: Path, place: str) -> None:
    write(tmp_path / place, rule("cosine", 0.995) + rule("range_error", 0.1))
    assert now.object_to(ENGINE, judged_by(load_policy(Precision.INT8))) == (
        "validated under another policy (cosine >= 0.99 was looser than >= 0.995, range_error <= 0.1 was not asked)"
    )


def test_what_is_tightened_for_another_model_or_precision_changes_nothing(now: CurrentPolicies, tmp_path: Path) -> None:
    write(tmp_path / "policies/vgg/int8.toml", rule("cosine", 1))
    write(tmp_path / "policies/fp16.toml", rule("cosine", 1))
    assert now.object_to(ENGINE, judged_by(load_policy(Precision.INT8))) == ""


def test_of_many_objections_three_are_named(now: CurrentPolicies, tmp_path: Path) -> None:
    bare = changed(tmp_path, "inherit = false\n" + rule("max_abs", 1000))
    assert now.object_to(ENGINE, judged_by(bare)).endswith("mismatch_rate <= 0.02 was not asked and 12 more)")


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"precision": "int9", "rules": []},
        {"schema": 9, "precision": "int8", "rules": []},
        {"precision": "int8", "rules": [{"metric": "of another program", "limit": 1}]},
        {"precision": "int8", "rules": [{"metric": "cosine", "comparison": "<=", "limit": 0.99}]},
    ],
)
def test_a_stored_policy_that_is_not_understood_does_not_count(now: CurrentPolicies, stored: Json) -> None:
    validation = replace(make_validation(ENGINE), policy=stored)
    assert now.object_to(ENGINE, validation).startswith("validated under a policy that cannot be compared (")


def test_a_policy_that_cannot_be_read_is_an_error_or_where_nothing_depends_on_it_a_reason(
    now: CurrentPolicies, tmp_path: Path
) -> None:
    path = write(tmp_path / "policies/int8.toml", "rules = [")
    validation = judged_by(load_policy(Precision.INT8))
    with pytest.raises(ConfigError, match="not valid TOML"):
        now.object_to(ENGINE, validation)
    reason = now.object_or_say_why_not(ENGINE, validation)
    assert reason.startswith(f"its policy cannot be read: {path}")
    path.unlink()
    assert now.object_or_say_why_not(ENGINE, validation) == ""


def test_a_policy_is_read_once(now: CurrentPolicies, tmp_path: Path) -> None:
    first = now.read(Precision.INT8)
    write(tmp_path / "policies/int8.toml", rule("cosine", 1))
    assert now.read(Precision.INT8) is first
