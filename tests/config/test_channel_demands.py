from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from modelreg.config.channel_demands import (
    ChannelDemands,
    VerdictsFrom,
    parse_duration,
    read_max_verdict_age,
    read_verdicts_from,
    say_duration,
)
from modelreg.config.settings import load_settings
from modelreg.registry.clock import utc_now
from modelreg.registry.errors import ConfigError
from modelreg.registry.records import EngineRecord, ValidationRecord
from modelreg.registry.words import Json, Precision
from modelreg_testing.records import make_engine, make_validation

NOW = utc_now()
H200 = {"name": "NVIDIA H200", "target": "sm_90", "driver": "570"}


def engine(target: str, gpu: str = "") -> EngineRecord:
    made = make_engine(1, Precision.FP16)
    return replace(made, target=replace(made.target, name=target, gpu=gpu))


def verdict(host: Json | None = None, *, age: timedelta = timedelta(0)) -> ValidationRecord:
    made = make_validation(make_engine(1, Precision.FP16))
    return replace(made, created_at=NOW - age, host=host or {})


def age_objection(age: timedelta, longest: str = "1d") -> str:
    return ChannelDemands(max_verdict_age=longest).object_to(engine("cpu"), verdict(age=age), now=NOW)


def host_objection(made: EngineRecord, host: Json, demanded: VerdictsFrom) -> str:
    return ChannelDemands(verdicts_from=demanded).object_to(made, verdict(host), now=NOW)


def test_nothing_is_demanded_unless_it_is_written() -> None:
    assert ChannelDemands().object_to(engine("sm_90"), verdict(age=timedelta(days=999)), now=NOW) == ""


def test_a_verdict_counts_up_to_its_age_and_not_longer() -> None:
    assert age_objection(timedelta(days=1)) == ""
    assert age_objection(timedelta(days=1, seconds=1)).startswith("validated 1 day ago")
    assert age_objection(timedelta(minutes=91), "90m").startswith("validated 1 hour ago")


def test_a_verdict_from_the_future_does_not_count_for_ever() -> None:
    assert age_objection(timedelta(minutes=-4)) == ""
    assert "in the future: the clocks" in age_objection(timedelta(days=-2))


@pytest.mark.parametrize("demanded", [VerdictsFrom.SAME_TARGET, VerdictsFrom.SAME_GPU])
def test_a_verdict_from_another_architecture_does_not_count(demanded: VerdictsFrom) -> None:
    elsewhere = {"name": "lab", "targets": ["sm_90", "cpu"], "gpus": [H200]}
    assert host_objection(engine("sm_80", "NVIDIA A100"), elsewhere, demanded) == (
        "validated on lab (NVIDIA H200), and the channel demands a verdict from sm_80"
    )
    assert host_objection(engine("sm_90", "NVIDIA H200"), elsewhere, demanded) == ""
    assert host_objection(engine("cpu"), elsewhere, demanded) == ""


def test_another_model_of_the_same_architecture_is_its_target_but_not_its_gpu() -> None:
    host = {"name": "lab", "targets": ["sm_90", "cpu"], "gpus": [H200]}
    made = engine("sm_90", "NVIDIA H100")
    assert host_objection(made, host, VerdictsFrom.SAME_TARGET) == ""
    assert host_objection(made, host, VerdictsFrom.SAME_GPU).endswith("demands a verdict from its own NVIDIA H100")


def test_a_host_that_said_nothing_of_itself_is_not_believed() -> None:
    assert "said nothing of itself" in host_objection(engine("cpu"), {}, VerdictsFrom.SAME_TARGET)


@pytest.mark.parametrize(("text", "seconds"), [("90m", 5400), ("12h", 43200), ("1d", 86400), ("2w", 1209600)])
def test_durations_have_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("value", ["", "1", "d", "0d", "1.5d", "-1d", "1 d", "1day", "\u0661d", "9999999d", 86400])
def test_what_is_no_duration_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match="channels: age"):
        read_max_verdict_age(value, "channels: age")


@pytest.mark.parametrize("value", ["same-gpus", 3, "", None])
def test_an_origin_that_is_not_known_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match=r"is unknown") as refused:
        read_verdicts_from(value, "channels: from")
    assert "Known: anywhere, same-target, same-gpu." in refused.value.hint()


def test_the_settings_of_a_channel_are_its_demands(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[channels.production]\nmax_verdict_age = "12h"\n[channels.next]\nverdicts_from = "same-gpu"\n')
    settings = load_settings(path)
    assert settings.channel_demands("production") == ChannelDemands(max_verdict_age="12h")
    assert settings.channel_demands("next") == ChannelDemands(verdicts_from=VerdictsFrom.SAME_GPU)
    assert settings.channel_demands("staging") == ChannelDemands()
    path.write_text('[channels.production]\nmax_verdict_age = "soon"\n')
    with pytest.raises(ConfigError, match="max_verdict_age"):
        load_settings(path)


def test_durations_are_said_in_their_largest_unit() -> None:
    assert [say_duration(s) for s in (59, 60, 3600, 86_400, 200_000)] == [
        "less than a minute",
        "1 minute",
        "1 hour",
        "1 day",
        "2 days",
    ]
