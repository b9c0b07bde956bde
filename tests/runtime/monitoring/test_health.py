from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from modelreg.registry.clock import utc_now
from modelreg.runtime.monitoring.devices import DeviceReading, Devices
from modelreg.runtime.monitoring.facts import Facts, ModelFacts, ParityFacts, RecentRequests
from modelreg.runtime.monitoring.health import HealthReport, HealthWatch
from modelreg.runtime.monitoring.host_load import HostLoad
from modelreg.runtime.monitoring.hysteresis import HealthState
from modelreg.runtime.monitoring.rules import Rule
from modelreg.runtime.serving import Alarm, AlarmKind
from modelreg_testing.monitoring import LIMITS, engine, state

HEALTHY, UNKNOWN, WARNING, CRITICAL = HealthState
AT = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)
HOST = HostLoad(memory_total_bytes=100, memory_used_bytes=50)
SERVED = state(engine())


def gpu(**changes: Any) -> DeviceReading:
    facts: dict[str, Any] = {"memory_total_bytes": 100, "memory_used_bytes": 10, "utilization": 0.5}
    facts |= {"temperature_c": 50.0, "throttle_reasons": (), "ecc_uncorrected": 0}
    return DeviceReading(index=0, uuid="GPU-1", name="H200", **(facts | changes))


def model(**changes: Any) -> ModelFacts:
    facts: dict[str, Any] = {"name": "lenet", "state": SERVED}
    return ModelFacts(**(facts | changes))


def facts(*models: ModelFacts, gpus: tuple[DeviceReading, ...] = (), problem: str = "", host: HostLoad = HOST) -> Facts:
    return Facts(models=models, devices=Devices(readings=gpus, problem=problem), host=host)


def judge(seen: Facts, *, after_s: float = 0.0) -> HealthReport:
    """Judge the same moment twice, so that what must last has lasted."""
    watch = HealthWatch(LIMITS)
    report = watch.judge(seen, now_s=0.0, at=AT)
    return watch.judge(seen, now_s=after_s, at=AT + timedelta(seconds=after_s)) if after_s else report


def alarm(kind: AlarmKind) -> Alarm:
    return Alarm(kind=kind, message="it is so", hint="Do this.", generation=2, at=utc_now())


def recent(faults: int, requests: int) -> RecentRequests:
    return RecentRequests(seconds=60.0, requests=requests, faults=faults)


def parity(sqnr_db: float | None, *, not_finite: int = 0, samples: int = 50) -> ParityFacts:
    return ParityFacts(output="logits", samples=samples, sqnr_db=sqnr_db, limit_db=34.0, not_finite=not_finite)


def test_all_is_well() -> None:
    report = judge(facts(model(recent=recent(0, 1000), parity=(parity(60.0),)), gpus=(gpu(),)))
    assert (report.state, report.models, report.findings, report.unmeasured) == (HEALTHY, {"lenet": HEALTHY}, (), ())


@pytest.mark.parametrize(
    ("seen", "rule", "expected"),
    [
        (facts(model(state=state(None))), Rule.SERVING, CRITICAL),
        (facts(model(stale_s=31.0)), Rule.STALE_GENERATION, WARNING),
        (facts(model(stale_s=601.0)), Rule.STALE_GENERATION, CRITICAL),
        (facts(model(recent=recent(2, 100))), Rule.ERROR_RATE, WARNING),
        (facts(model(recent=recent(6, 100))), Rule.ERROR_RATE, CRITICAL),
        (facts(model(parity=(parity(33.0),))), Rule.PARITY_DRIFT, WARNING),
        (facts(model(parity=(parity(-math.inf),))), Rule.PARITY_DRIFT, WARNING),
        (facts(model(parity=(parity(60.0, not_finite=1),))), Rule.PARITY_NOT_FINITE, CRITICAL),
        (facts(model(state=state(engine(), alarms=(alarm(AlarmKind.STORE),)))), Rule.ALARM, WARNING),
        (facts(model(state=state(engine(), alarms=(alarm(AlarmKind.SMOKE),)))), Rule.ALARM, WARNING),
        (facts(model(state=state(engine(), alarms=(alarm(AlarmKind.DIED),)))), Rule.ALARM, CRITICAL),
        (facts(model(), gpus=(gpu(memory_used_bytes=86),)), Rule.GPU_MEMORY, WARNING),
        (facts(model(), gpus=(gpu(memory_used_bytes=96),)), Rule.GPU_MEMORY, CRITICAL),
        (facts(model(), gpus=(gpu(ecc_uncorrected=1),)), Rule.GPU_ECC, WARNING),
        (facts(model(), host=HostLoad(memory_total_bytes=100, memory_used_bytes=91)), Rule.HOST_MEMORY, WARNING),
    ],
)
def test_a_rule_finds_what_it_is_for_and_nothing_else(seen: Facts, rule: Rule, expected: HealthState) -> None:
    report = judge(seen)
    (finding,) = report.findings
    assert (finding.rule, finding.state, report.state) == (rule, expected, expected)
    assert finding.message
    assert finding.hint
    assert finding.measured is None or finding.measured != finding.limit


@pytest.mark.parametrize(
    ("changes", "rule", "expected"),
    [
        ({"utilization": 0.91}, Rule.GPU_UTILIZATION, WARNING),
        ({"temperature_c": 86.0}, Rule.GPU_TEMPERATURE, WARNING),
        ({"temperature_c": 93.0}, Rule.GPU_TEMPERATURE, CRITICAL),
        ({"throttle_reasons": ("hw_thermal_slowdown",)}, Rule.GPU_THROTTLE, WARNING),
        ({"throttle_reasons": ("sw_power_cap", "hw_slowdown")}, Rule.GPU_THROTTLE, WARNING),
    ],
)
def test_load_and_heat_count_when_they_last(changes: dict[str, Any], rule: Rule, expected: HealthState) -> None:
    seen = facts(model(), gpus=(gpu(**changes),))
    assert judge(seen, after_s=59.0).state is HEALTHY
    report = judge(seen, after_s=60.0)
    assert [(each.rule, each.state, each.subject) for each in report.findings] == [(rule, expected, "GPU 0")]
    assert report.findings[0].since == AT  # when it began, not when it was believed


@pytest.mark.parametrize(
    "seen",
    [
        facts(model(stale_s=30.0, recent=recent(1, 100), parity=(parity(34.0),))),  # at a limit is not beyond
        facts(model(recent=recent(3, 3))),  # too few to make a rate of
        facts(model(parity=(parity(None, samples=3),))),
        facts(model(), gpus=(gpu(memory_used_bytes=85, utilization=None),)),
        facts(model(), gpus=(gpu(throttle_reasons=("gpu_idle", "sw_power_cap")),)),
    ],
)
def test_what_is_no_trouble_is_none(seen: Facts) -> None:
    assert judge(seen, after_s=100.0).state is HEALTHY


def test_nothing_measured_is_unknown_and_never_healthy() -> None:
    empty = facts(host=HostLoad(problem="psutil is not installed"), problem="no driver")
    assert judge(empty).state is UNKNOWN
    silent = judge(facts(model(state=None)))
    assert (silent.state, silent.models) == (UNKNOWN, {"lenet": UNKNOWN})
    assert any("says nothing" in each.reason for each in silent.unmeasured)


def test_a_gpu_that_answers_and_cannot_be_read_is_unknown_but_not_on_a_cpu() -> None:
    on_gpu = model(state=state(engine(target="sm_90")))
    assert judge(facts(on_gpu, problem="the driver hangs")).state is UNKNOWN
    assert judge(facts(on_gpu)).state is UNKNOWN
    on_cpu = judge(facts(model(), problem="no driver"))
    assert on_cpu.state is HEALTHY
    assert [each.reason for each in on_cpu.unmeasured if each.subject == "GPUs"] == ["no driver"]


def test_a_warning_is_not_hidden_by_what_is_unknown() -> None:
    on_gpu = model(state=state(engine(target="sm_90")), stale_s=40.0)
    assert judge(facts(on_gpu, problem="the driver hangs")).state is WARNING


def test_a_finding_stays_for_a_while_when_its_measurement_stops_and_then_is_forgotten() -> None:
    watch = HealthWatch(LIMITS)
    watch.judge(facts(model(recent=recent(50, 100))), now_s=0.0, at=AT)
    quiet = facts(model(recent=recent(0, 0)))
    kept = watch.judge(quiet, now_s=60.0, at=AT + timedelta(seconds=60))
    assert [(each.rule, each.measured, each.since) for each in kept.findings] == [(Rule.ERROR_RATE, None, AT)]
    assert watch.judge(quiet, now_s=121.0, at=AT).findings == ()


def test_an_alarm_that_is_lifted_is_over_at_once_and_two_kinds_are_two_findings() -> None:
    watch = HealthWatch(LIMITS)
    both = state(engine(), alarms=(alarm(AlarmKind.STORE), alarm(AlarmKind.LOAD)))
    found = watch.judge(facts(model(state=both)), now_s=0.0, at=AT)
    assert sorted(each.part for each in found.findings) == ["load", "store"]
    assert watch.judge(facts(model()), now_s=1.0, at=AT).state is HEALTHY


def test_each_model_has_the_state_of_its_own_findings_and_the_worst_comes_first() -> None:
    report = judge(facts(model(stale_s=40.0), model(name="other"), model(name="gone", state=state(None))))
    assert report.models == {"lenet": WARNING, "other": HEALTHY, "gone": CRITICAL}
    assert [each.subject for each in report.findings] == ["gone", "lenet"]
    assert str(report.findings[0]) == "gone: no engine answers at this moment"


def test_a_report_is_json_with_nan_and_infinity_as_words() -> None:
    body = judge(facts(model(parity=(parity(-math.inf),)))).to_json()
    (finding,) = body["findings"]
    assert (finding["measured"], finding["limit"], finding["part"]) == ("-inf", 34.0, "logits")
    assert body["models"] == {"lenet": "WARNING"}
