from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modelreg.config.acknowledgements import is_acknowledged, parse_acknowledgement
from modelreg.config.policy import Metric, Policy, load_policy
from modelreg.registry.words import Json, Precision


def loosened(limit: float, precision: Precision = Precision.INT8) -> Policy:
    policy = load_policy(precision)
    rules = tuple(replace(rule, limit=limit) if rule.metric is Metric.COSINE else rule for rule in policy.rules)
    return replace(policy, rules=rules)


def details(policy: Policy, **more: object) -> Json:
    return {"policy": policy.digest, "demands": policy.to_json(), **more}


@pytest.mark.parametrize(
    ("subject", "channel", "covered"),
    [
        ("*", None, True),
        ("lenet", None, True),
        ("lenet:3", None, True),
        ("vgg", None, False),
        ("lenet", "production", True),
        ("lenet", "staging", False),
    ],
)
def test_a_reason_holds_for_the_model_and_channel_that_it_was_given_for(
    subject: str, channel: str | None, covered: bool
) -> None:
    policy = loosened(0.5)
    given = parse_acknowledgement(subject, details(policy, channel=channel) if channel else details(policy))
    assert is_acknowledged(policy, [given], model="lenet", channel="production") is covered


def test_a_reason_holds_for_what_is_nowhere_looser_and_of_the_same_precision() -> None:
    given = [parse_acknowledgement("*", details(loosened(0.5)))]
    assert is_acknowledged(loosened(0.6), given, model="lenet")
    assert not is_acknowledged(loosened(0.4), given, model="lenet")
    assert not is_acknowledged(loosened(0.6, Precision.FP8), given, model="lenet")
    assert not is_acknowledged(loosened(0.6), [], model="lenet")


@pytest.mark.parametrize("demands", [None, "odd", {"precision": "int9"}])
def test_a_reason_whose_policy_is_not_understood_holds_for_its_digest_alone(demands: object) -> None:
    given = [parse_acknowledgement("lenet:1", {"policy": loosened(0.5).digest, "demands": demands})]
    assert is_acknowledged(loosened(0.5), given, model="lenet")
    assert not is_acknowledged(loosened(0.6), given, model="lenet")


def test_channels_and_models_change_a_policy_in_order(tmp_path: Path) -> None:
    places = ["default.toml", "int8.toml", "lenet/int8.toml", "@prod/int8.toml", "lenet/@prod/int8.toml"]
    for number, place in enumerate(places):
        path = tmp_path / "policies" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'[[rules]]\nmetric = "cosine"\nlimit = 0.99{number}\n')

    def cosine(*, model: str | None = None, channel: str | None = None) -> float:
        policy = load_policy(Precision.INT8, home=tmp_path, model=model, channel=channel)
        return next(rule.limit for rule in policy.rules if rule.metric is Metric.COSINE)

    assert cosine() == 0.991
    assert cosine(model="vgg") == 0.991
    assert cosine(model="lenet") == 0.992
    assert cosine(model="vgg", channel="prod") == 0.993
    assert cosine(channel="prod") == 0.993
    assert cosine(model="lenet", channel="prod") == 0.994
    assert cosine(model="lenet", channel="staging") == 0.992
