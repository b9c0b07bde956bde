"""A real served model under a monitor: its requests, its swaps, its alarms and its end."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.errors import WorkerError
from modelreg.runtime.active_async import AsyncActiveModel
from modelreg.runtime.instance_group import RequestLostError
from modelreg.runtime.monitoring.devices import DeviceReader
from modelreg.runtime.monitoring.hysteresis import HealthState
from modelreg.runtime.monitoring.monitor import Monitor
from modelreg.runtime.monitoring.parity import OnlineParity
from modelreg.runtime.monitoring.references import FunctionReference
from modelreg.runtime.monitoring.rules import Rule
from modelreg.runtime.monitoring.wrapped import count_rows, judge_error
from modelreg.runtime.requests import RequestObserver, RequestOutcome
from modelreg.runtime.runner import RunError
from modelreg.runtime.serving import DeadlineExceededError, NotServingError, QueueFullError
from modelreg.runtime.trying import ServingOptions
from modelreg_testing.monitoring import LIMITS, Nvml, h200, samples_of, served_adder, value_of
from modelreg_testing.serving import activate_plan, adder, eventually

Array = NDArray[Any]
X: dict[str, Array] = {"x": np.zeros((2, 3), np.float32)}
WRONG: dict[str, Array] = {"x": np.zeros((2, 4), np.float32)}


def no_gpu() -> DeviceReader:
    return DeviceReader(library=Nvml([]))


def test_calls_of_a_wrapped_model_are_counted_and_a_swap_begins_a_new_series(in_memory: Path) -> None:
    with (
        served_adder(in_memory) as (model, store),
        Monitor({"lenet": model}, limits=LIMITS, period_s=0.02, devices=no_gpu()) as monitor,
    ):
        wrapped = monitor.wrap("lenet")
        for _ in range(3):
            assert wrapped.infer(X).generation == 1
        with pytest.raises(RunError):
            wrapped.infer(WRONG)
        activate_plan(store, adder(2))
        eventually(lambda: model.served.generation == 2)
        wrapped.infer(X)
        eventually(lambda: monitor.document()["models"]["lenet"]["swaps"] == {"first": 1, "overlap": 1})
        text, kind = monitor.render()
        document = monitor.document()
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert value_of(text, "nv_inference_request_success", generation="1") == 3
    assert value_of(text, "nv_inference_request_success", generation="2") == 1
    assert value_of(text, "nv_inference_count", generation="1") == 6
    invalid = [
        own for own, value in samples_of(text)["modelreg_requests_total"] if own["outcome"] == "invalid" and value
    ]
    assert invalid == [{"model": "lenet", "outcome": "invalid"}]  # no engine answered
    assert value_of(text, "modelreg_generation", model="lenet") == 2
    assert value_of(text, "modelreg_store_generation", model="lenet") == 2
    assert value_of(text, "modelreg_swap_total", mode="overlap") == 1
    assert value_of(text, "modelreg_swap_seconds", mode="overlap") > 0
    assert value_of(text, "modelreg_health_state", model="lenet", state="HEALTHY") == 1
    assert value_of(text, "modelreg_served_info", generation="2", target="cpu") == 1
    assert "nv_inference_pending_request_count" not in samples_of(text)  # nobody here knows
    requests = document["models"]["lenet"]["requests"]
    assert (requests["total"], requests["answered"], requests["outcomes"]["invalid"]) == (5, 4, 1)
    assert requests["latency_ms"]["p50"] > 0
    assert requests["rows_per_request"] == 2
    json.dumps(document, allow_nan=False)


def test_a_release_that_does_not_come_up_is_an_alarm_a_stale_generation_and_a_warning(
    in_memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = LIMITS._replace(stale_s=0.01)
    with served_adder(in_memory) as (model, store):
        monitor = Monitor({"lenet": model}, limits=limits, devices=no_gpu())
        assert monitor.look().state is HealthState.HEALTHY
        activate_plan(store, b"no model")
        eventually(lambda: model.state().alarms)
        monitor.look()
        with caplog.at_level(logging.INFO, logger="modelreg.runtime"):
            eventually(lambda: {each.rule for each in monitor.look().findings} == {Rule.ALARM, Rule.STALE_GENERATION})
        text, _ = monitor.render()
        activate_plan(store, adder(3))
        eventually(lambda: model.served.generation == 3)
        with caplog.at_level(logging.INFO, logger="modelreg.runtime"):
            eventually(lambda: monitor.look().state is HealthState.HEALTHY)
    assert value_of(text, "modelreg_alarm", kind="load") == 1
    assert value_of(text, "modelreg_alarm", kind="store") == 0
    assert value_of(text, "modelreg_health_state", model="lenet", state="WARNING") == 1
    said = [each.getMessage() for each in caplog.records]
    assert any(
        each.startswith("WARNING: lenet: the store is at generation 2, and generation 1 answers") for each in said
    )
    assert any(each.startswith("no more: WARNING: lenet") for each in said)


def test_a_closed_model_is_critical(in_memory: Path) -> None:
    with served_adder(in_memory) as (model, _):
        monitor = Monitor({"lenet": model}, limits=LIMITS, devices=no_gpu())
    report = monitor.look()
    assert report.models == {"lenet": HealthState.CRITICAL}
    assert [each.rule for each in report.findings] == [Rule.SERVING]


def test_gpus_are_in_the_metrics_with_tritons_label(in_memory: Path) -> None:
    gpus = [h200(0), h200(1, MigMode=(1, 1), CurrentClocksEventReasons=0x40, Temperature=88)]
    with served_adder(in_memory) as (model, _):
        monitor = Monitor({"lenet": model}, limits=LIMITS, devices=DeviceReader(library=Nvml(gpus)))
        text, _ = monitor.render()
        gpu_1 = monitor.document()["devices"]["gpus"][1]
    first = "GPU-00000000-aaaa-bbbb-cccc-000000000000"
    assert value_of(text, "nv_gpu_utilization", gpu_uuid=first) == 0.37
    assert len(samples_of(text)["nv_gpu_utilization"]) == 1  # MIG has none, which is not 0
    assert value_of(text, "nv_gpu_memory_used_bytes", gpu="0") == 15_000_000_000
    assert value_of(text, "nv_gpu_power_usage", gpu="0") == pytest.approx(251.3)
    assert value_of(text, "modelreg_gpu_temperature_celsius", gpu="1") == 88
    assert value_of(text, "modelreg_gpu_clock_hertz", gpu="0", clock="sm") == 1.98e9
    assert value_of(text, "modelreg_gpu_throttle", gpu="1", reason="hw_thermal_slowdown") == 1
    assert value_of(text, "modelreg_gpu_throttle", gpu="0", reason="hw_thermal_slowdown") == 0
    assert value_of(text, "modelreg_gpu_ecc_errors_total", gpu="0", kind="uncorrected") == 0
    assert gpu_1["utilization"] is None


def test_who_knows_what_waits_tells_it(in_memory: Path) -> None:
    with served_adder(in_memory) as (model, _):
        monitor = Monitor({"lenet": model}, limits=LIMITS, devices=no_gpu(), pending=lambda: {"lenet": 7})
        assert value_of(monitor.render()[0], "nv_inference_pending_request_count", model="lenet") == 7
        assert monitor.document()["models"]["lenet"]["pending"] == 7


def test_an_asynchronous_model_is_watched_too(in_memory: Path) -> None:
    async def serve() -> bytes:
        with served_adder(in_memory) as (_, store):
            model = AsyncActiveModel(
                "lenet@production",
                store=str(store.root),
                cache=in_memory / "async",
                options=ServingOptions(trial=False),
            )
            monitor = Monitor({"lenet": model}, limits=LIMITS, devices=no_gpu())
            assert monitor.look().state is HealthState.UNKNOWN  # it is not open yet
            wrapped = monitor.wrap_async("lenet")
            with pytest.raises(NotServingError):
                await wrapped.infer(X)
            async with model:
                for _ in range(4):
                    await wrapped.infer(X)
                assert wrapped.state().served is not None
                with pytest.raises(RunError):
                    await wrapped.infer(WRONG)
                monitor.look()
                return monitor.render()[0]

    text = asyncio.run(serve())
    assert value_of(text, "nv_inference_request_success") == 4
    outcomes = {
        own["outcome"]: value for own, value in samples_of(text)["modelreg_requests_total"] if "digest" not in own
    }
    assert (outcomes["refused"], outcomes["invalid"], outcomes["ok"]) == (1, 1, 0)


def test_scrapes_and_requests_and_swaps_at_once_disturb_nobody(in_memory: Path) -> None:
    over, failed = threading.Event(), list[BaseException]()

    def repeat(what: Any) -> None:
        while not over.is_set():
            try:
                what()
            except BaseException as error:
                failed.append(error)
                return

    parity = OnlineParity(FunctionReference(lambda inputs: {"y": inputs["x"] + 1}, versions=[1]), share=0.5)
    with (
        served_adder(in_memory) as (model, store),
        Monitor({"lenet": model}, limits=LIMITS, period_s=0.01, devices=no_gpu(), parity={"lenet": parity}) as monitor,
    ):
        wrapped = monitor.wrap("lenet")
        works = [lambda: wrapped.infer(X)] * 4 + [lambda: samples_of(monitor.render()[0]), monitor.document]
        threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for generation in range(2, 8):
            activate_plan(store, adder(generation))
            eventually(lambda: failed or model.served.generation == generation)  # noqa: B023 - asked before the next
        over.set()
        for thread in threads:
            thread.join()
        totals = monitor.requests.totals("lenet")
    assert failed == []
    assert totals.answered == totals.requests > 0


def test_a_monitor_that_nobody_started_looks_when_it_is_asked(in_memory: Path) -> None:
    with served_adder(in_memory) as (model, store):
        monitor = Monitor({"lenet": model}, limits=LIMITS, devices=no_gpu(), period_s=0.001)
        assert monitor.document()["models"]["lenet"]["state"]["served"]["generation"] == 1
        activate_plan(store, adder(2))
        eventually(lambda: monitor.document()["models"]["lenet"]["state"]["served"]["generation"] == 2)


def test_a_monitor_is_an_observer_and_ends_quietly_twice(in_memory: Path) -> None:
    with served_adder(in_memory) as (model, _):
        monitor = Monitor({"lenet": model}, limits=LIMITS, devices=no_gpu(), period_s=0.01)
        observer: RequestObserver = monitor
        assert observer is monitor
        monitor.start()
        monitor.start()
        monitor.stop()
        monitor.stop()
        assert monitor.health.state is HealthState.HEALTHY
    with pytest.raises(ValueError, match="parity of 'other', which is not served"):
        Monitor({}, limits=LIMITS, parity={"other": OnlineParity(FunctionReference(dict, versions=[1]))})


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RunError("shape"), RequestOutcome.INVALID),
        (RequestLostError("two died over it"), RequestOutcome.FAILED),
        (NotServingError("closed"), RequestOutcome.REFUSED),
        (QueueFullError("full"), RequestOutcome.REFUSED),
        (DeadlineExceededError("late"), RequestOutcome.EXPIRED),
        (WorkerError("died"), RequestOutcome.FAILED),
        (asyncio.CancelledError(), RequestOutcome.CANCELED),
        (ZeroDivisionError(), RequestOutcome.FAILED),
    ],
)
def test_an_error_is_an_outcome(error: BaseException, outcome: RequestOutcome) -> None:
    assert judge_error(error) is outcome


def test_rows_are_the_first_axis() -> None:
    assert [count_rows(each) for each in (X, {"x": np.float32(1)}, {}, {"x": np.zeros((0, 3))})] == [2, 1, 0, 0]
