"""What the tests of monitoring share: an engine and its requests, a served adder, GPUs that NVML could tell of."""

# ruff: noqa: N802, N815 - NVML's own names

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from modelreg.config.health_limits import HealthLimits, load_health_limits
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.words import Backend, Precision
from modelreg.runtime.active import ActiveModel
from modelreg.runtime.monitoring.devices import DeviceReader
from modelreg.runtime.monitoring.families import Family
from modelreg.runtime.monitoring.monitor import Monitor
from modelreg.runtime.monitoring.parity import OnlineParity
from modelreg.runtime.monitoring.references import FunctionReference
from modelreg.runtime.requests import RequestOutcome, RequestRecord
from modelreg.runtime.serving import ActiveState, Alarm, ServedEngine, SwapMode, SwapReport
from modelreg.runtime.trying import ServingOptions
from modelreg_testing.serving import activate_plan, adder

LIMITS: HealthLimits = load_health_limits(environment={})


def engine(generation: int = 1, *, version: int = 1, precision: Precision = Precision.FP32, **changes: Any) -> Any:
    """Return a served engine of a generation."""
    facts: dict[str, Any] = {"model": "lenet", "channel": "production", "target": "cpu", "release": "ab" * 32}
    facts |= {"digest": f"{generation:064x}", "backend": Backend.ONNXRUNTIME} | changes
    return ServedEngine(version=version, generation=generation, precision=precision, **facts)


def record(
    served: ServedEngine | None = None, outcome: RequestOutcome = RequestOutcome.OK, **changes: Any
) -> RequestRecord:
    """Return the record of one request."""
    facts: dict[str, Any] = {"model": "lenet", "rows": 1, "total_s": 0.01, "compute_s": 0.008, "queue_s": 0.001}
    return RequestRecord(served=served, outcome=outcome, **(facts | changes))


def state(served: ServedEngine | None = None, *, stored: int | None = 1, alarms: tuple[Alarm, ...] = ()) -> ActiveState:
    """Return a model's look at itself."""
    return ActiveState(
        served=served, store_generation=stored, alarms=alarms, in_flight=0, swaps=0, last_swap=None, retired=0
    )


def samples_of(text: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return labels and values by metric as it is written, read by Prometheus' own parser, which renames counters."""
    written = {re.split(r"[{ ]", line)[0] for line in text.decode().splitlines() if not line.startswith("#")}
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            name = sample.name if sample.name in written else sample.name.removesuffix("_total")
            found.setdefault(name, []).append((dict(sample.labels), sample.value))
    return found


def value_of(text: bytes, name: str, **labels: str) -> float:
    """Return the one value of a metric that has these labels."""
    found = [value for own, value in samples_of(text).get(name, []) if labels.items() <= own.items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]


@contextmanager
def served_adder(folder: Path, *, generation_1: bytes | None = None) -> Iterator[tuple[ActiveModel, LocalStorage]]:
    """Serve a model that adds 1, from a store that is given too."""
    store = LocalStorage.create(folder / "store")
    activate_plan(store, adder(1) if generation_1 is None else generation_1)
    with ActiveModel(
        "lenet@production",
        store=str(store.root),
        cache=folder / "cache",
        interval_s=0.05,
        options=ServingOptions(trial=False),
    ) as model:
        yield model, store


class NvmlError(Exception):
    """What NVML says instead of an answer."""


@dataclass
class Nvml:
    """
    NVML's functions over GPUs that are given by their answers; what one does not have, it does not support.

    Each GPU is a table by function: `{"Name": "H200", "Temperature": 40}`. Names and arguments are pynvml's.
    """

    gpus: list[dict[str, Any]]
    opened: int = 0
    broken: str = ""
    missing: set[str] = field(default_factory=set)

    NVML_DEVICE_MIG_ENABLE = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    NVML_VOLATILE_ECC = 0
    nvmlMemory_v2 = 0x02000028

    def nvmlInit(self) -> None:
        if self.broken:
            raise NvmlError(self.broken)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlDeviceGetCount(self) -> int:
        if self.broken:
            raise NvmlError(self.broken)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        if "lost" in self.gpus[index]:
            raise NvmlError("GPU is lost")
        return self.gpus[index]

    def __getattr__(self, name: str) -> Any:
        what = name.removeprefix("nvmlDeviceGet")
        if what == name or what in self.missing:
            raise AttributeError(name)

        def answer(gpu: dict[str, Any], *arguments: Any, **_options: Any) -> Any:
            key = f"{what} {arguments[0]}" if what in ("ClockInfo", "MaxClockInfo", "TotalEccErrors") else what
            if key not in gpu:
                raise NvmlError("Not Supported")
            return gpu[key]

        return answer


def h200(index: int = 0, **changes: Any) -> dict[str, Any]:
    """Return the answers of a GPU at work."""
    return {
        "UUID": f"GPU-{index}0000000-aaaa-bbbb-cccc-000000000000",
        "Name": "NVIDIA H200",
        "MigMode": (0, 0),
        "MemoryInfo": SimpleNamespace(total=150_754_820_096, used=15_000_000_000),
        "UtilizationRates": SimpleNamespace(gpu=37, memory=12),
        "PowerUsage": 251_300,
        "EnforcedPowerLimit": 700_000,
        "Temperature": 41,
        "ClockInfo 1": 1980,
        "ClockInfo 2": 3201,
        "MaxClockInfo 1": 1980,
        "MaxClockInfo 2": 3201,
        "PerformanceState": 0,
        "CurrentClocksEventReasons": 0x4,
        "TotalEccErrors 0": 0,
        "TotalEccErrors 1": 0,
    } | changes


def every_family() -> list[Family]:
    """Return every metric that there is, with samples where something served them: a model, its parity, a GPU."""
    served = engine(precision=Precision.INT8)
    parity = OnlineParity(FunctionReference(lambda inputs: {"y": inputs["x"]}, versions=[1]), share=1.0, max_per_s=1e9)
    monitor = Monitor(
        {"lenet": Still(served)},
        limits=LIMITS,
        devices=DeviceReader(library=Nvml([h200()])),
        parity={"lenet": parity},
        pending=lambda: {"lenet": 1},
    )
    monitor.observe(record(served))
    parity.start()
    parity.offer(served, {"x": np.ones((1, 2))}, {"y": np.full((1, 2), np.nan)})
    while not parity.compared:
        time.sleep(0.01)
    parity.stop()
    monitor.look()
    return list(monitor.families())


@dataclass
class Still:
    """A model that only says that it serves."""

    served: ServedEngine

    def state(self) -> ActiveState:
        """Return a look after a swap."""
        swap = SwapReport(generation=1, mode=SwapMode.FIRST, load_s=0.5)
        return replace(state(self.served), swaps=1, last_swap=swap)
