"""The state of this host's clocks, read before and after a measurement: a figure without it compares with nothing.

GPUs are asked as monitoring asks them; the CPU through Linux. Nothing is changed: who wants locked clocks locks them
(`nvidia-smi --lock-gpu-clocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from modelreg.registry.words import Json
from modelreg.runtime.host import has_driver
from modelreg.runtime.monitoring.devices import REASONS, DeviceReading, Devices, read_devices

_CPUS = Path("/sys/devices/system/cpu")
SLOWING = frozenset(REASONS.values()) - {"gpu_idle", "applications_clocks_setting"}
"""The reasons for low clocks that make a figure worse than the settings would."""


def read_clocks() -> Json:
    """Return `gpus` that this process may use, `gpus_not_read` (why there may be none) and `cpu`; never an error."""
    devices = read_devices() if has_driver() else Devices()  # a host without a GPU needs nothing installed to say so
    return {**describe_devices(devices), "cpu": read_cpu()}


def describe_devices(devices: Devices) -> Json:
    """Return the clocks of GPUs, and why there are none, or one less. Pure."""
    found = [describe_gpu(each) for each in devices.readings]
    return {"gpus": found, "gpus_not_read": devices.problem or ("" if found else "no GPU is visible")}


def describe_gpu(gpu: DeviceReading) -> Json:
    """Return the clocks of a GPU: megahertz, degrees Celsius and watts; None for what it does not tell. Pure."""
    return {
        "name": gpu.name,
        "uuid": gpu.uuid,
        "driver": gpu.driver,
        "sm_mhz": gpu.sm_clock_mhz,
        "max_sm_mhz": gpu.max_sm_clock_mhz,
        "memory_mhz": gpu.memory_clock_mhz,
        "max_memory_mhz": gpu.max_memory_clock_mhz,
        "power_state": gpu.power_state,
        "throttle_reasons": None if gpu.throttle_reasons is None else list(gpu.throttle_reasons),
        "temperature_c": gpu.temperature_c,
        "power_w": gpu.power_w,
    }


def read_cpu(folder: Path = _CPUS) -> Json:
    """Return how many CPUs have each governor, and the slowest and fastest clock; empty where Linux does not say."""
    governors: dict[str, int] = {}
    clocks_mhz: list[float] = []
    for place in sorted(folder.glob("cpu[0-9]*/cpufreq")):
        governor = _read(place / "scaling_governor", str)
        clock_khz = _read(place / "scaling_cur_freq", int)
        if governor is not None:
            governors[governor] = governors.get(governor, 0) + 1
        if clock_khz is not None:
            clocks_mhz.append(clock_khz / 1000)
    clocks = {"min_mhz": min(clocks_mhz), "max_mhz": max(clocks_mhz)} if clocks_mhz else {}
    return {"governors": governors, **clocks}


def _read(path: Path, convert: Callable[[str], Any]) -> Any:
    try:
        return convert(path.read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return None


def say_clocks(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the clocks of both readings for people, and what slowed them; whether they are locked nobody tells."""
    parts = []
    both = [*zip(before["gpus"], after["gpus"], strict=False)]
    busy = [pair for pair in both if "gpu_idle" not in (pair[1]["throttle_reasons"] or ())]
    for first, last in busy or both[:1]:  # of many GPUs, those at work
        reasons = {*(first["throttle_reasons"] or ()), *(last["throttle_reasons"] or ())}
        slowed = ", ".join(sorted(SLOWING & reasons)).replace("_", " ")
        clocks = f"SM {first['sm_mhz']} to {last['sm_mhz']} of {first['max_sm_mhz']} MHz"
        parts.append(
            f"{first['name']}: {clocks}, {last['power_state']}, {last['temperature_c']} °C"
            + (f", slowed by {slowed}" if slowed else "")
        )
    cpu = before["cpu"]
    if cpu["governors"]:
        parts.append(f"CPU governor {', '.join(cpu['governors'])}")
    if not parts:
        return "clocks not read" + (f" ({before['gpus_not_read']})" if before["gpus_not_read"] else "")
    return "clocks: " + "; ".join(parts)
