"""Readings of this host's NVIDIA GPUs, from the driver's management library (NVML). What it does not tell is None."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from modelreg.registry.errors import MissingDependencyError
from modelreg.registry.words import Json
from modelreg.runtime.devices import VISIBLE, parse_visible

if TYPE_CHECKING:
    from types import ModuleType

T = TypeVar("T")

REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Why clocks are below their maximum: the bits of NVML's nvmlClocksEventReasons, in nvidia-smi's words."""

THROTTLES = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
"""The reasons that are trouble: heat, or a power supply that gives way. An idle GPU, or its power cap, is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """
    One GPU at one moment.

    Attributes:
        index: The driver's number of it, which CUDA_VISIBLE_DEVICES may change for a program.
        uuid: What stays.
        utilization: Part of the last moments in which a kernel ran, 0 to 1; None with MIG, where NVML has none.
        memory_used_bytes: Of all programs together, the driver's own reserve not counted.
        power_state: `P0` at full speed to `P15`.
        driver: Its version.
        throttle_reasons: Why clocks are lowered, by name; None where it is not told.
        ecc_uncorrected: Errors of its memory since the driver was loaded.
        mig: Whether it is divided into instances.
    """

    index: int
    uuid: str
    name: str
    utilization: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    power_state: str | None = None
    driver: str | None = None
    throttle_reasons: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    mig: bool = False

    @property
    def memory_share(self) -> float | None:
        """Return the part of the memory that is used."""
        if self.memory_used_bytes is None or not self.memory_total_bytes:
            return None
        return self.memory_used_bytes / self.memory_total_bytes

    def to_json(self) -> Json:
        """Return it as JSON."""
        reasons = None if self.throttle_reasons is None else list(self.throttle_reasons)
        return {name: getattr(self, name) for name in DeviceReading.__slots__} | {"throttle_reasons": reasons}


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The GPUs that this process may use, and why there are none, or one less."""

    readings: tuple[DeviceReading, ...] = ()
    problem: str = ""

    def to_json(self) -> Json:
        """Return them as JSON."""
        return {"gpus": [each.to_json() for each in self.readings], "problem": self.problem}


class DeviceReader:
    """
    Asks NVML. The library is loaded at the first reading, and tried again where the driver was not there.

    Args:
        visible: What CUDA_VISIBLE_DEVICES says; None: every GPU of the host.
        library: The module `pynvml`, or one like it; None imports it.
    """

    def __init__(self, *, visible: str | None = None, library: ModuleType | Any = None) -> None:
        self._visible = visible
        self._nvml: Any = library
        self._is_open = False

    def read(self) -> Devices:
        """Return what the GPUs say now; without driver, library or GPU, nothing and the reason. Never raises."""
        try:
            if not self._is_open:
                self._open()
            count = int(self._nvml.nvmlDeviceGetCount())
        except MissingDependencyError as error:
            return Devices(problem=f"{error}: {error.hint()}")
        except Exception as error:  # NVML's own class, which is known only when it is there
            self._is_open = False
            return Devices(problem=f"the NVIDIA driver cannot be asked: {error}")
        readings, problems = [], []
        for index in range(count):
            try:
                readings.append(self._read_one(index))
            except Exception as error:  # a GPU that fell off the bus: the others are read
                problems.append(f"GPU {index} cannot be asked: {error}")
        return Devices(readings=choose_visible(readings, self._visible), problem="; ".join(problems))

    def close(self) -> None:
        """Let NVML go."""
        if self._is_open:
            self._is_open = False
            self._try(self._nvml.nvmlShutdown)

    def _open(self) -> None:
        if self._nvml is None:
            self._nvml = _import_nvml()
        self._nvml.nvmlInit()
        self._is_open = True

    def _read_one(self, index: int) -> DeviceReading:
        nvml, ask = self._nvml, self._try
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        mig = ask(lambda: nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE) or False
        memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        memory = memory or ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        rates = None if mig else ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        return DeviceReading(
            index=index,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            utilization=None if rates is None else rates.gpu / 100,
            memory_total_bytes=None if memory is None else int(memory.total),
            memory_used_bytes=None if memory is None else int(memory.used),
            power_w=_scale(ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle)), 1e-3),
            power_limit_w=_scale(ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)), 1e-3),
            temperature_c=_scale(ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)), 1),
            sm_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            memory_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
            max_sm_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
            max_memory_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM))),
            power_state=ask(lambda: f"P{int(nvml.nvmlDeviceGetPerformanceState(handle))}"),
            driver=ask(lambda: _text(nvml.nvmlSystemGetDriverVersion())),
            throttle_reasons=self._read_reasons(handle),
            ecc_corrected=self._read_ecc(handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=self._read_ecc(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            mig=mig,
        )

    def _read_reasons(self, handle: Any) -> tuple[str, ...] | None:
        nvml = self._nvml
        bits = self._try(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        if bits is None:  # drivers before 535 have the older name alone
            bits = self._try(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return None if bits is None else name_reasons(int(bits))

    def _read_ecc(self, handle: Any, kind: int) -> int | None:
        nvml = self._nvml
        return self._try(lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC)))

    def _try(self, ask: Callable[[], T]) -> T | None:
        """Return an answer, None where this GPU or this driver has none."""
        try:
            return ask()
        except Exception:  # not supported, no permission, a function that the driver lacks
            return None


def read_devices(environment: Mapping[str, str] | None = None) -> Devices:
    """Return one reading of the GPUs that this process may use."""
    environment = os.environ if environment is None else environment
    reader = DeviceReader(visible=environment.get(VISIBLE))
    try:
        return reader.read()
    finally:
        reader.close()


def name_reasons(bits: int) -> tuple[str, ...]:
    """Return the names of the bits that are set; one that is new is named by its number. Pure."""
    known = [name for bit, name in REASONS.items() if bits & bit]
    rest = bits & ~sum(REASONS)
    return (*known, *([f"0x{rest:x}"] if rest else []))


def choose_visible(readings: Sequence[DeviceReading], visible: str | None) -> tuple[DeviceReading, ...]:
    """
    Return the GPUs that CUDA_VISIBLE_DEVICES leaves to a program, as CUDA reads it: up to the first that is none. Pure.

    NVML counts by the place on the bus, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID; where GPUs differ, name UUIDs.
    """
    words = parse_visible(visible)
    if words is None:
        return tuple(readings)
    chosen: list[DeviceReading] = []
    for word in words:
        if word.startswith("MIG-"):  # an instance; which GPU it is of, its name does not say
            return tuple(each for each in readings if each.mig)
        found = [each for each in readings if _is_meant(each, word)]
        if len(found) != 1:
            break
        chosen += [each for each in found if each not in chosen]
    return tuple(chosen)


def _is_meant(reading: DeviceReading, word: str) -> bool:
    if word.isdecimal():
        return reading.index == int(word)
    return word.startswith("GPU-") and reading.uuid.startswith(word)


def _import_nvml() -> ModuleType:
    try:
        import pynvml  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingDependencyError("nvidia-ml-py", extra="serve") from None
    module: ModuleType = pynvml
    return module


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _scale(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
