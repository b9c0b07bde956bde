"""What is read when Prometheus asks: models, parity, GPUs, host and health, as metrics. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from modelreg.runtime.monitoring.devices import REASONS, DeviceReading
from modelreg.runtime.monitoring.facts import ModelFacts
from modelreg.runtime.monitoring.families import Family, MetricKind
from modelreg.runtime.monitoring.health import HealthReport
from modelreg.runtime.monitoring.host_load import HostLoad
from modelreg.runtime.monitoring.hysteresis import HealthState
from modelreg.runtime.monitoring.metrics import label
from modelreg.runtime.monitoring.tracking import ModelTracker
from modelreg.runtime.serving import AlarmKind

if TYPE_CHECKING:
    from modelreg.runtime.monitoring.parity import OnlineParity

COUNTER, GAUGE = MetricKind.COUNTER, MetricKind.GAUGE


def model_families(
    models: Iterable[tuple[ModelFacts, ModelTracker]], pending: Mapping[str, int] | None
) -> Iterator[Family]:
    """Return what is served and how it changed; `pending` maps a model to its waiting requests, where that is known."""
    served_at = Family("modelreg_generation", GAUGE, "The channel's generation that answers.")
    stored_at = Family("modelreg_store_generation", GAUGE, "The newest generation seen in the store.")
    info = Family("modelreg_served_info", GAUGE, "1 for the engine that answers; the labels say which.")
    in_flight = Family("modelreg_requests_in_flight", GAUGE, "Requests on the engine.")
    retired = Family("modelreg_retired_engines", GAUGE, "Replaced engines that still have a request on them.")
    stale = Family("modelreg_stale_seconds", GAUGE, "For how long the store has been ahead of what answers.")
    swaps = Family("modelreg_swap_total", COUNTER, "Swaps by how the new engine took over.")
    took = Family("modelreg_swap_seconds", GAUGE, "Seconds to try, load and warm up the engine of the last swap.")
    alarms = Family("modelreg_alarm", GAUGE, "1 while an alarm of this kind is raised.")
    waiting = Family("nv_inference_pending_request_count", GAUGE, "Requests that wait for their turn.")
    for facts, tracker in models:
        labels = {"model": facts.name}
        state = facts.state
        if state is not None:
            served_at.add(labels, None if state.served is None else state.served.generation)
            stored_at.add(labels, state.store_generation)
            if state.served is not None:
                info.add({**labels, **label(state.served), "target": state.served.target}, 1)
            in_flight.add(labels, state.in_flight)
            retired.add(labels, state.retired)
            raised = {str(alarm.kind) for alarm in state.alarms}
            for kind in dict.fromkeys([*map(str, AlarmKind), *raised]):
                alarms.add({**labels, "kind": kind}, kind in raised)
        stale.add(labels, facts.stale_s)
        for mode, number in tracker.swaps.items():
            swaps.add({**labels, "mode": mode}, number)
        if tracker.last_swap is not None:
            took.add({**labels, "mode": str(tracker.last_swap.mode)}, tracker.last_swap.load_s)
        waiting.add(labels, None if pending is None else pending.get(facts.name))
    yield from (served_at, stored_at, info, in_flight, retired, stale, swaps, took, alarms, waiting)


def parity_families(parities: Mapping[str, OnlineParity]) -> Iterator[Family]:
    """Return what online parity found, by output and generation."""
    compared = Family("modelreg_parity_samples_total", COUNTER, "Answers that were compared with the reference's.")
    dropped = Family("modelreg_parity_dropped_total", COUNTER, "Sampled answers that were not compared, by reason.")
    figures = {
        "max_abs": Family("modelreg_parity_max_abs", GAUGE, "Largest absolute error of the last answers."),
        "relative_rmse": Family("modelreg_parity_relative_rmse", GAUGE, "RMS of the error over the reference's RMS."),
        "sqnr_db": Family("modelreg_parity_sqnr_db", GAUGE, "Signal to noise ratio in decibels."),
        "cosine": Family("modelreg_parity_cosine", GAUGE, "Cosine of answers and reference."),
        "top1_agreement": Family("modelreg_parity_top1_agreement", GAUGE, "Part of rows with the reference's top-1."),
        "not_finite": Family("modelreg_parity_not_finite", GAUGE, "NaN or Inf that the reference has not."),
    }
    for name, parity in parities.items():
        compared.add({"model": name}, parity.compared)
        for reason, number in parity.dropped.items():
            dropped.add({"model": name, "reason": str(reason)}, number)
        for found in parity.found():
            labels = {"model": name, **label(found.served), "output": found.output}
            for figure, family in figures.items():
                family.add(labels, getattr(found.difference, figure))
    yield from (compared, dropped, *figures.values())


def device_families(readings: Iterable[DeviceReading]) -> Iterator[Family]:
    """Return readings of GPUs: Triton's metrics with its label `gpu_uuid`, and ours."""
    values = {
        "utilization": Family("nv_gpu_utilization", GAUGE, "Part of the time in which kernels ran, 0.0 to 1.0."),
        "memory_total_bytes": Family("nv_gpu_memory_total_bytes", GAUGE, "Memory of the GPU, in bytes."),
        "memory_used_bytes": Family("nv_gpu_memory_used_bytes", GAUGE, "Memory that is used, in bytes."),
        "power_w": Family("nv_gpu_power_usage", GAUGE, "Power, in watts."),
        "power_limit_w": Family("nv_gpu_power_limit", GAUGE, "Limit of its power, in watts."),
        "temperature_c": Family("modelreg_gpu_temperature_celsius", GAUGE, "Temperature of the chip."),
    }
    clocks = Family("modelreg_gpu_clock_hertz", GAUGE, "Clock rates now.")
    throttle = Family("modelreg_gpu_throttle", GAUGE, "1 while clocks are lowered for this reason.")
    ecc = Family("modelreg_gpu_ecc_errors_total", COUNTER, "Errors of its memory since the driver was loaded.")
    for each in readings:
        labels = {"gpu_uuid": each.uuid, "gpu": str(each.index)}
        for name, family in values.items():
            family.add(labels, getattr(each, name))
        for clock, rate in (("sm", each.sm_clock_mhz), ("memory", each.memory_clock_mhz)):
            clocks.add({**labels, "clock": clock}, None if rate is None else rate * 1e6)
        if each.throttle_reasons is not None:
            for reason in REASONS.values():
                throttle.add({**labels, "reason": reason}, reason in each.throttle_reasons)
        ecc.add({**labels, "kind": "corrected"}, each.ecc_corrected)
        ecc.add({**labels, "kind": "uncorrected"}, each.ecc_uncorrected)
    yield from (*values.values(), clocks, throttle, ecc)


def host_families(host: HostLoad) -> Iterator[Family]:
    """Return the load of the host, as Triton has it, and of this process, as every program of Prometheus has it."""
    for name, kind, text, value in (
        ("nv_cpu_utilization", GAUGE, "Part of all processors that is busy, 0.0 to 1.0.", host.cpu_utilization),
        ("nv_cpu_memory_total_bytes", GAUGE, "Memory of the host, or of its container.", host.memory_total_bytes),
        ("nv_cpu_memory_used_bytes", GAUGE, "Memory that is used of that.", host.memory_used_bytes),
        ("process_cpu_seconds_total", COUNTER, "Seconds of a processor that the process took.", host.process_cpu_s),
        ("process_resident_memory_bytes", GAUGE, "Memory of the process.", host.process_memory_bytes),
    ):
        family = Family(name, kind, text)
        family.add({}, value)
        yield family


def health_families(report: HealthReport) -> Iterator[Family]:
    """Return the states, one of which is 1 at a time, and a 1 for each finding."""
    state = Family("modelreg_health_state", GAUGE, "1 for the state that holds; without a model, of all together.")
    finding = Family("modelreg_health_finding", GAUGE, "1 for what is wrong; the JSON document has the words.")
    unmeasured = Family("modelreg_health_unmeasured", GAUGE, "Rules that could not be looked at.")
    for labels, holds in (({}, report.state), *(({"model": name}, each) for name, each in report.models.items())):
        for each in HealthState:
            state.add({**labels, "state": str(each)}, each is holds)
    for found in report.findings:
        labels = {"rule": str(found.rule), "subject": found.subject, "part": found.part, "state": str(found.state)}
        finding.add(labels, 1)
    unmeasured.add({}, len(report.unmeasured))
    yield from (state, finding, unmeasured)
