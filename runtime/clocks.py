"""The state of this host's clocks, read before and after a measurement: a figure without it compares with nothing.

GPUs are asked through NVIDIA's `nvidia-ml-py`, which is optional; the CPU through Linux. Nothing is changed: who wants
locked clocks locks them (`nvidia-smi --lock-gpu-clocks`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from modelreg.registry.words import Json

_CPUS = Path("/sys/devices/system/cpu")
_REASONS = {
    "GpuIdle": "idle",
    "ApplicationsClocksSetting": "application clocks",
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SyncBoost": "sync boost",
    "SwThermalSlowdown": "thermal slowdown",
    "HwThermalSlowdown": "hardware thermal slowdown",
    "HwPowerBrakeSlowdown": "power brake",
    "DisplayClockSetting": "display clocks",
    "BoardLimit": "board limit",
    "Reliability": "reliability limit",
}
"""NVML's reasons for clocks below the highest, as `nvml.h` has them, without `nvmlClocksThrottleReason`."""
SLOWING = frozenset(_REASONS.values()) - {"idle", "application clocks"}
"""Those that make a figure worse than the settings would."""


def read_clocks() -> Json:
    """Return `gpus`, `gpus_not_read` (why there may be none) and `cpu`; never an error."""
    gpus, reason = _read_gpus()
    return {"gpus": gpus, "gpus_not_read": reason, "cpu": read_cpu()}


def _read_gpus() -> tuple[list[Json], str]:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return [], "nvidia-ml-py is not installed: pip install 'modelreg[serve]'"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [], str(error)
    try:
        count = nvml.nvmlDeviceGetCount()
        return [describe_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)], ""
    except nvml.NVMLError as error:
        return [], str(error)
    finally:
        nvml.nvmlShutdown()


def describe_gpu(nvml: Any, handle: Any) -> Json:
    """
    Return the clocks of a GPU, in the words of `nvidia-smi -q -d CLOCK,PERFORMANCE`.

    Args:
        nvml: The module `pynvml`, initialised.
        handle: Of the device.

    Returns:
        Megahertz, degrees Celsius and watts; None for what this device does not tell.
    """

    def ask(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    power_mw = ask("nvmlDeviceGetPowerUsage")
    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    state = ask("nvmlDeviceGetPerformanceState")
    return {
        "name": _text(ask("nvmlDeviceGetName")),
        "uuid": _text(ask("nvmlDeviceGetUUID")),
        "driver": _text(nvml.nvmlSystemGetDriverVersion()),
        "sm_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        "max_sm_mhz": ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        "memory_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        "max_memory_mhz": ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
        "power_state": None if state is None else f"P{state}",
        "throttle_reasons": None if reasons is None else name_reasons(nvml, reasons),
        "temperature_c": ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        "power_w": None if power_mw is None else power_mw / 1000,
    }


def name_reasons(nvml: Any, mask: int) -> list[str]:
    """Return what keeps the clocks down, of NVML's bit mask; a bit without a name is told as a number."""
    bits = {getattr(nvml, f"nvmlClocksThrottleReason{name}", 0): word for name, word in _REASONS.items()}
    known = [word for bit, word in bits.items() if bit and mask & bit]
    rest = mask & ~sum(bits)
    return known + ([f"reason {rest:#x}"] if rest else [])


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


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
    busy = [pair for pair in both if "idle" not in (pair[1]["throttle_reasons"] or ())]
    for first, last in busy or both[:1]:  # of many GPUs, those at work
        reasons = {*(first["throttle_reasons"] or ()), *(last["throttle_reasons"] or ())}
        slowed = ", ".join(sorted(SLOWING & reasons))
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
