"""The health rules: what is measured, what it is held to, and what to say and to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from modelreg.config.health_limits import HealthLimits
from modelreg.registry.words import Word
from modelreg.runtime.monitoring.devices import THROTTLES, DeviceReading
from modelreg.runtime.monitoring.facts import Facts, ModelFacts, ParityFacts
from modelreg.runtime.monitoring.host_load import HostLoad
from modelreg.runtime.monitoring.hysteresis import Limit
from modelreg.runtime.serving import Alarm, AlarmKind

_FEWEST_REQUESTS = 20
"""Of fewer requests in the window no rate is made: one of three is no third."""
_CLEARS_S = 10.0
"""What comes and goes with every batch is over when it was so for this long."""
_HOTTER_C = 7.0
"""From the warning to CRITICAL: data-centre GPUs slow down at about 90 C, where the warning is set to 85."""
_HOLDS = Limit(warning=0.5)
_BREAKS = Limit(warning=0.5, critical=0.5)


class Rule(Word):
    """What can be wrong. There is one `alarm` for each kind of alarm of `ActiveModel`."""

    SERVING = "serving"
    STALE_GENERATION = "stale_generation"
    ALARM = "alarm"
    ERROR_RATE = "error_rate"
    PARITY_DRIFT = "parity_drift"
    PARITY_NOT_FINITE = "parity_not_finite"
    GPU_UTILIZATION = "gpu_utilization"
    GPU_MEMORY = "gpu_memory"
    GPU_TEMPERATURE = "gpu_temperature"
    GPU_THROTTLE = "gpu_throttle"
    GPU_ECC = "gpu_ecc"
    HOST_MEMORY = "host_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """
    One rule on one subject at one moment.

    Attributes:
        rule: The rule.
        subject: A model's name, `GPU 0`, or `host`.
        part: What tells apart what one rule sees of one subject: an output, a kind of alarm.
        measured: None where it could not be measured; `message` then says why.
        limit: What it is held to.
        message: What is said if it is beyond.
        hint: What to do then.
        is_needed: Whether nothing can be called healthy without it.
    """

    rule: Rule
    subject: str
    measured: float | None
    limit: Limit
    message: str
    hint: str = ""
    part: str = ""
    is_needed: bool = False


def observe_all(facts: Facts, limits: HealthLimits) -> Iterator[Observation]:
    """Yield what every rule sees."""
    for model in facts.models:
        yield from _observe_model(model, limits)
    if facts.devices.problem or (facts.needs_gpu and not facts.devices.readings):
        yield Observation(
            rule=Rule.GPU_MEMORY,
            subject="GPUs",
            measured=None,
            limit=Limit(),
            message=facts.devices.problem or "no GPU is visible",
            is_needed=facts.needs_gpu,
        )
    for device in facts.devices.readings:
        yield from _observe_device(device, limits, is_needed=facts.needs_gpu)
    yield _observe_host(facts.host, limits)


# -- models ------------------------------------------------------------------------------------------------
def _observe_model(model: ModelFacts, limits: HealthLimits) -> Iterator[Observation]:
    state = model.state
    if state is None:
        message = "it says nothing of itself: it is closed, or not open yet"
        yield Observation(
            rule=Rule.SERVING, subject=model.name, measured=None, limit=_BREAKS, message=message, is_needed=True
        )
        return
    yield Observation(
        rule=Rule.SERVING,
        subject=model.name,
        measured=float(state.served is None),
        limit=_BREAKS,
        message="no engine answers at this moment",
        hint="Its alarms say why; a swap that drains first is over when its new engine is loaded.",
        is_needed=True,
    )
    served = "nothing" if state.served is None else f"generation {state.served.generation}"
    yield Observation(
        rule=Rule.STALE_GENERATION,
        subject=model.name,
        measured=model.stale_s,
        limit=Limit(warning=limits.stale_s, critical=limits.stale_critical_s),
        message=f"the store is at generation {state.store_generation}, and {served} answers",
        hint="Its alarms say why the new release does not come up; roll back, or mend it.",
    )
    yield from (_observe_alarm(model.name, alarm) for alarm in state.alarms)
    yield _observe_errors(model, limits)
    for parity in model.parity:
        yield from _observe_parity(model.name, parity)


def _observe_alarm(name: str, alarm: Alarm) -> Observation:
    return Observation(
        rule=Rule.ALARM,
        subject=name,
        part=str(alarm.kind),
        measured=1.0,
        limit=_BREAKS if alarm.kind is AlarmKind.DIED else _HOLDS,
        message=f"{alarm.kind}: {alarm.message}",
        hint=alarm.hint,
    )


def _observe_errors(model: ModelFacts, limits: HealthLimits) -> Observation:
    recent = model.recent
    is_enough = recent is not None and recent.requests >= _FEWEST_REQUESTS
    if recent is None or not is_enough:
        rate, message = None, f"fewer than {_FEWEST_REQUESTS} requests in a minute"
    else:
        rate = recent.faults / recent.requests
        message = f"{recent.faults} of {recent.requests} requests of the last {recent.seconds:.0f} s failed"
    return Observation(
        rule=Rule.ERROR_RATE,
        subject=model.name,
        measured=rate,
        limit=Limit(warning=limits.error_rate, critical=limits.error_rate_critical, clears_s=_CLEARS_S),
        message=message,
        hint="modelreg_requests_total says by outcome: refused and expired want capacity, failed a look at the log.",
    )


def _observe_parity(name: str, parity: ParityFacts) -> Iterator[Observation]:
    yield Observation(
        rule=Rule.PARITY_DRIFT,
        subject=name,
        part=parity.output,
        measured=parity.sqnr_db,
        limit=Limit(warning=parity.limit_db, is_floor=True),
        message=f"output {parity.output!r} is {_say_db(parity.sqnr_db)} beside the reference"
        if parity.sqnr_db is not None
        else f"too few samples of output {parity.output!r} were compared",
        hint="Validate the engine with inputs like these (docs/runbooks/int8-regression.md), or roll back.",
    )
    yield Observation(
        rule=Rule.PARITY_NOT_FINITE,
        subject=name,
        part=parity.output,
        measured=float(parity.not_finite) if parity.samples else None,
        limit=_BREAKS,
        message=f"output {parity.output!r} has NaN or Inf where the reference has not",
        hint="Roll back: FP16 overflows on inputs that its golden set does not have.",
    )


def _say_db(sqnr_db: float) -> str:
    return f"at {sqnr_db:.1f} dB"


# -- devices and host --------------------------------------------------------------------------------------
def _observe_device(device: DeviceReading, limits: HealthLimits, *, is_needed: bool) -> Iterator[Observation]:
    subject = f"GPU {device.index}"
    lasting = limits.sustained_s
    yield Observation(
        rule=Rule.GPU_UTILIZATION,
        subject=subject,
        measured=device.utilization,
        limit=Limit(warning=limits.gpu_utilization, holds_s=lasting, clears_s=_CLEARS_S),
        message="it is busy" if device.utilization is not None else "not told, as with MIG",
        hint="There is no room for more requests: add GPUs, larger batches, or a lower precision.",
    )
    yield Observation(
        rule=Rule.GPU_MEMORY,
        subject=subject,
        measured=device.memory_share,
        limit=Limit(warning=limits.gpu_memory, critical=limits.gpu_memory_critical, clears_s=_CLEARS_S),
        message="its memory is nearly full" if device.memory_share is not None else "its memory is not told",
        hint="A swap needs room for both engines, or drains first.",
        is_needed=is_needed,
    )
    hot_c = limits.gpu_temperature_c
    yield Observation(
        rule=Rule.GPU_TEMPERATURE,
        subject=subject,
        measured=device.temperature_c,
        limit=Limit(warning=hot_c, critical=hot_c + _HOTTER_C, holds_s=lasting, clears_s=_CLEARS_S),
        message="it is hot" if device.temperature_c is not None else "its temperature is not told",
        hint="Look at its cooling: soon it lowers its clocks.",
    )
    yield _observe_throttling(subject, device, lasting_s=lasting)
    yield Observation(
        rule=Rule.GPU_ECC,
        subject=subject,
        measured=None if device.ecc_uncorrected is None else float(device.ecc_uncorrected),
        limit=_HOLDS,
        message="its memory had errors that could not be corrected" if device.ecc_uncorrected else "it has no ECC",
        hint="Answers may be wrong: `nvidia-smi -q -d ECC,PAGE_RETIREMENT`, then drain and reset it.",
    )


def _observe_throttling(subject: str, device: DeviceReading, *, lasting_s: float) -> Observation:
    reasons = device.throttle_reasons
    bad = [reason for reason in reasons or () if reason in THROTTLES]
    return Observation(
        rule=Rule.GPU_THROTTLE,
        subject=subject,
        measured=None if reasons is None else float(bool(bad)),
        limit=Limit(warning=0.5, holds_s=lasting_s, clears_s=_CLEARS_S),
        message=f"its clocks are lowered: {', '.join(bad)}" if reasons is not None else "not told",
        hint="Latencies are longer than measured by `modelreg bench`; look at cooling and power.",
    )


def _observe_host(host: HostLoad, limits: HealthLimits) -> Observation:
    return Observation(
        rule=Rule.HOST_MEMORY,
        subject="host",
        measured=host.memory_share,
        limit=Limit(warning=limits.host_memory, clears_s=_CLEARS_S),
        message=host.problem or "its memory is nearly full",
        hint="The kernel ends processes when it is full: serve less here, or give the container more.",
    )
