from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from modelreg.config.policy import (
    Metric,
    Policy,
    Rule,
    Scope,
    load_policy,
    loosened_rules,
    missing_demands,
    parse_policy,
)
from modelreg.registry.errors import ConfigError
from modelreg.registry.words import Precision

JUDGED = [precision for precision in Precision if precision is not Precision.BEST]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def limit(policy: Policy, metric: Metric) -> float:
    return next(rule.limit for rule in policy.rules if rule.metric is metric)


@pytest.mark.parametrize("precision", JUDGED)
def test_every_precision_ships_a_policy_for_outputs_and_for_the_task(precision: Precision) -> None:
    policy = load_policy(precision)
    assert policy.precision is precision
    for scope in (Scope.FLOATING, Scope.INTEGER, Scope.TASK):
        assert policy.rules_for(scope), scope
    inside = {Precision.FP16: ["overflows <= 0"], Precision.INT8: ["saturation <= 0.01", "range_use >= 0.0625"]}
    assert [str(rule) for rule in policy.rules_for(Scope.INSIDE)] == inside.get(precision, [])
    assert len(policy.rules_for(Scope.BEHAVIOUR)) == 3
    assert policy.rules_for(Scope.SLICE)
    assert policy.rules_for(Scope.ACTIVE)
    gains = ["gain >= 0.02"] if precision in (Precision.INT8, Precision.FP8) else []
    assert [str(rule) for rule in policy.rules_for(Scope.VALUE)] == gains
    assert {Metric.COSINE, Metric.SQNR_DB, Metric.ACCURACY_DROP} <= {rule.metric for rule in policy.rules}


def test_the_task_may_lose_half_a_percent_in_fp16_and_one_percent_in_int8() -> None:
    assert limit(load_policy(Precision.FP16), Metric.ACCURACY_DROP) == 0.005
    assert limit(load_policy(Precision.INT8), Metric.ACCURACY_DROP) == 0.01
    assert limit(load_policy(Precision.FP32), Metric.ACCURACY_DROP) <= 0.001


def test_a_lower_precision_is_never_judged_harder() -> None:
    order = [Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16, Precision.INT8]
    for higher, lower in itertools.pairwise(order):
        assert not [line for line in loosened_rules(load_policy(higher), base=load_policy(lower)) if "became" in line]


def test_best_is_judged_like_fp16() -> None:
    assert load_policy(Precision.BEST) == load_policy(Precision.FP16)


def test_the_home_and_then_the_model_change_single_rules(tmp_path: Path) -> None:
    write(tmp_path / "policies/fp16.toml", '[[rules]]\nmetric = "cosine"\nlimit = 0.9999\n')
    write(
        tmp_path / "policies/lenet/fp16.toml",
        '[[rules]]\nmetric = "cosine"\nlimit = 0.99999\n[[rules]]\nmetric = "rmse"\nlimit = 1\n',
    )
    shipped = load_policy(Precision.FP16)
    home = load_policy(Precision.FP16, home=tmp_path)
    other = load_policy(Precision.FP16, home=tmp_path, model="other")
    lenet = load_policy(Precision.FP16, home=tmp_path, model="lenet")
    assert limit(home, Metric.COSINE) == limit(other, Metric.COSINE) == 0.9999
    assert limit(lenet, Metric.COSINE) == 0.99999
    assert limit(lenet, Metric.SQNR_DB) == limit(shipped, Metric.SQNR_DB)
    assert limit(lenet, Metric.RMSE) == 1.0
    assert home.digest == other.digest
    assert len({shipped.digest, home.digest, lenet.digest}) == 3
    assert lenet.origins[0] == "fp16.toml"
    assert "policies/lenet/fp16.toml" in lenet.name


def test_an_override_may_drop_everything_before_it(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.toml", 'inherit = false\n[[rules]]\nmetric = "max_abs"\nlimit = 0.5\n')
    policy = load_policy(Precision.INT8, override=path)
    assert policy.rules == (Rule(metric=Metric.MAX_ABS, applies_to=Scope.FLOATING, limit=0.5),)
    assert policy.name == str(path)


def test_the_digest_depends_on_demands_not_on_order_or_files(tmp_path: Path) -> None:
    rules = ['[[rules]]\nmetric = "max_abs"\nlimit = 1\n', '[[rules]]\nmetric = "rmse"\nlimit = 2.0\n']
    one = write(tmp_path / "one.toml", "inherit = false\n" + "".join(rules))
    two = write(tmp_path / "two.toml", "inherit = false\n" + "".join(reversed(rules)))
    assert load_policy(Precision.FP16, override=one).digest == load_policy(Precision.FP16, override=two).digest
    assert load_policy(Precision.FP16, override=one).digest != load_policy(Precision.INT8, override=one).digest


def test_loosening_is_told_from_tightening(tmp_path: Path) -> None:
    base = load_policy(Precision.FP16)
    text = '[[rules]]\nmetric = "cosine"\nlimit = {}\n[[rules]]\nmetric = "accuracy_drop"\nlimit = {}\n'
    tighter = load_policy(Precision.FP16, override=write(tmp_path / "a.toml", text.format(0.9999, 0.001)))
    looser = load_policy(Precision.FP16, override=write(tmp_path / "b.toml", text.format(0.9, 0.1)))
    fewer = load_policy(Precision.FP16, override=write(tmp_path / "c.toml", "inherit = false\n" + text.format(1, 0)))
    assert loosened_rules(tighter, base=base) == []
    assert loosened_rules(base, base=base) == []
    assert loosened_rules(looser, base=base) == [
        "floating cosine >= 0.999 became 0.9",
        "task accuracy_drop <= 0.005 became 0.1",
    ]
    assert "floating sqnr_db >= 40 is dropped" in loosened_rules(fewer, base=base)


@pytest.mark.parametrize("precision", JUDGED)
def test_a_stored_policy_is_read_back_as_it_was(precision: Precision) -> None:
    policy = load_policy(precision)
    read = parse_policy(policy.to_json())
    assert read.digest == policy.digest
    assert set(read.rules) == set(policy.rules)


def test_what_an_earlier_policy_did_not_demand_is_named(tmp_path: Path) -> None:
    shipped = load_policy(Precision.INT8)
    text = '[[rules]]\nmetric = "cosine"\nlimit = 0.9\n[[rules]]\nmetric = "max_abs"\nlimit = 2\n'
    mixed = load_policy(Precision.INT8, override=write(tmp_path / "mixed.toml", text))
    assert missing_demands(shipped, current=shipped) == []
    assert missing_demands(mixed, current=shipped) == ["cosine >= 0.9 was looser than >= 0.99"]
    assert missing_demands(shipped, current=mixed) == ["max_abs <= 2 was not asked"]


def test_a_home_policy_that_is_there_and_cannot_be_read_is_refused_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "int8.toml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="cannot read"):
        load_policy(Precision.INT8, home=tmp_path)
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "policies").symlink_to("policies")
    with pytest.raises(ConfigError, match="cannot read"):
        load_policy(Precision.INT8, home=tmp_path / "loop")


def test_nan_meets_no_limit() -> None:
    for metric in Metric:
        rule = Rule(metric=metric, applies_to=Scope.FLOATING, limit=0.0)
        assert not rule.is_met(float("nan"))
        assert rule.is_met(0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules = [", "not valid TOML"),
        ("limits = 1\n", "unknown key 'limits'"),
        ("schema = 2\n", "schema 2"),
        ('precision = "int8"\n', "is for 'int8', not for fp16"),
        ('inherit = "no"\n', "inherit must be"),
        ("rules = 3\n", r"\[\[rules\]\] tables"),
        ("rules = [3]\n", r"\[\[rules\]\] tables"),
        ("inherit = false\n", "has no rules"),
        ("[[rules]]\nlimit = 1\n", "rule 1: metric is missing"),
        ('[[rules]]\nmetric = "cosine"\n', "rule 1: limit is missing"),
        ('[[rules]]\nmetric = "cosin"\nlimit = 1\n', "metric 'cosin' is unknown"),
        ('[[rules]]\nmetric = ["cosine"]\nlimit = 1\n', "is unknown"),
        ('[[rules]]\nmetric = "cosine"\nlimit = 1\nwhy = ""\n', "unknown key 'why'"),
        ('[[rules]]\nmetric = "cosine"\nlimit = "1"\n', "finite number"),
        ('[[rules]]\nmetric = "cosine"\nlimit = true\n', "finite number"),
        ('[[rules]]\nmetric = "cosine"\nlimit = nan\n', "finite number"),
        ('[[rules]]\nmetric = "cosine"\nlimit = inf\n', "finite number"),
        ('[[rules]]\nmetric = "max_abs"\nlimit = 1' + "0" * 400, "more than 64 bits"),
        ("rules = " + "[" * 5000 + "]" * 5000, "nests tables or lists"),
        ('[[rules]]\nmetric = "cosine"\nlimit = 1\ncomparison = "<="\n', "compared with >="),
        ('[[rules]]\nmetric = "cosine"\nlimit = 1\napplies_to = "task"\n', "cannot apply to task"),
        ('[[rules]]\nmetric = "accuracy_drop"\nlimit = 1\napplies_to = "floating"\n', "cannot apply to floating"),
        ('[[rules]]\nmetric = "mismatch_rate"\nlimit = 1\napplies_to = "floating"\n', "cannot apply to floating"),
        ('[[rules]]\nmetric = "cosine"\nlimit = 1\n' * 2, "rule 2: cosine is there twice"),
    ],
)
def test_a_wrong_policy_is_refused_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "wrong.toml", text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_policy(Precision.FP16, override=path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_policy_that_is_a_pipe_a_device_or_huge_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fp16.toml")
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies/fp16.toml").symlink_to("/dev/zero")
    large = write(tmp_path / "large.toml", "#" * (1 << 20) + "\n")
    for override, home, message in [
        (tmp_path / "fp16.toml", None, r"fp16\.toml is a named pipe, not a file"),
        (None, tmp_path, r"fp16\.toml is a device, not a file"),
        (large, None, r"large\.toml is larger than 1 MiB"),
    ]:
        with pytest.raises(ConfigError, match=message):
            load_policy(Precision.FP16, override=override, home=home)


def test_a_stored_limit_that_no_float_holds_is_refused() -> None:
    rule = {"metric": "max_abs", "applies_to": "floating", "limit": 10**400}
    with pytest.raises(ConfigError, match="must be a finite number, not 1000"):
        parse_policy({"schema": 1, "precision": "fp16", "rules": [rule]})


def test_a_missing_override_is_refused_but_a_missing_home_file_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mine"):
        load_policy(Precision.FP16, override=tmp_path / "mine.toml")
    assert load_policy(Precision.FP16, home=tmp_path, model="lenet") == load_policy(Precision.FP16)
