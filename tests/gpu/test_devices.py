"""The driver's readings on a real GPU: plausible, those of nvidia-smi, and higher under load."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from modelreg.runtime.monitoring.devices import REASONS, DeviceReader, DeviceReading, read_devices
from modelreg.runtime.monitoring.monitor import Monitor
from modelreg_testing.monitoring import LIMITS, samples_of, value_of

pytestmark = pytest.mark.gpu

MIB = 1 << 20
TAKEN_BYTES = 4096 * MIB
_FIELDS = {
    "index": int,
    "uuid": str,
    "name": str,
    "memory.total": float,
    "memory.used": float,
    "temperature.gpu": float,
    "clocks.sm": float,
    "power.draw": float,
    "mig.mode.current": str,
}


@pytest.fixture(scope="module")
def smi() -> str:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    tool = shutil.which("nvidia-smi")
    if tool is None:
        pytest.skip("there is no nvidia-smi: no GPU")
    return tool


def ask_smi(tool: str) -> list[dict[str, Any]]:
    """Return nvidia-smi's answers, `[N/A]` as None."""
    query = [tool, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    return [
        {
            name: None if text.strip().startswith("[") else kind(text.strip())
            for (name, kind), text in zip(_FIELDS.items(), line.split(","), strict=True)
        }
        for line in lines
    ]


@contextmanager
def busy_gpu() -> Iterator[None]:
    """Multiply matrices on the first GPU until the block ends, from before it begins."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA, and nothing else here makes load")
    over, working = threading.Event(), threading.Event()

    def work() -> None:
        left = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
        taken = torch.empty(TAKEN_BYTES, device="cuda", dtype=torch.uint8)  # more than any cache of earlier tests has
        while not over.is_set():
            for _ in range(20):
                left @ left
            torch.cuda.synchronize()
            working.set()
        del taken

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert working.wait(120)
        time.sleep(2)  # utilisation is of the last second
        yield
    finally:
        over.set()
        thread.join()


def test_every_gpu_is_read_and_agrees_with_nvidia_smi(smi: str) -> None:
    found = DeviceReader().read()
    told = ask_smi(smi)
    assert found.problem == ""
    assert [(each.index, each.uuid, each.name) for each in found.readings] == [
        (each["index"], each["uuid"], each["name"]) for each in told
    ]
    for ours, theirs in zip(found.readings, told, strict=True):
        require_plausible(ours)
        assert ours.memory_total_bytes == pytest.approx(theirs["memory.total"] * MIB, abs=2 * MIB)
        assert ours.memory_used_bytes == pytest.approx(theirs["memory.used"] * MIB, rel=0.05, abs=512 * MIB)
        assert ours.temperature_c == pytest.approx(theirs["temperature.gpu"], abs=5)
        assert ours.mig is (theirs["mig.mode.current"] == "Enabled")


def require_plausible(gpu: DeviceReading) -> None:
    assert gpu.memory_total_bytes is not None
    assert 1 << 30 <= gpu.memory_total_bytes <= 1 << 40
    assert gpu.memory_share is not None
    assert 0 <= gpu.memory_share <= 1
    assert gpu.temperature_c is not None
    assert 10 <= gpu.temperature_c <= 100
    assert gpu.power_w is not None
    assert gpu.power_limit_w is not None
    assert 5 < gpu.power_w < 1.2 * gpu.power_limit_w
    assert gpu.throttle_reasons is not None
    assert set(gpu.throttle_reasons) <= set(REASONS.values())
    assert (gpu.utilization is None) is gpu.mig


def test_under_load_utilisation_clocks_and_power_rise_and_memory_is_taken(smi: str) -> None:
    reader = DeviceReader(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    idle = reader.read().readings[0]
    with busy_gpu():
        busy = reader.read().readings[0]
        text, _ = Monitor({}, limits=LIMITS, devices=reader).render()
        told = ask_smi(smi)[busy.index]
    if not busy.mig:
        assert busy.utilization is not None
        assert busy.utilization > 0.5
        assert value_of(text, "nv_gpu_utilization", gpu_uuid=busy.uuid) > 0.5
    assert busy.sm_clock_mhz is not None
    assert busy.sm_clock_mhz == pytest.approx(told["clocks.sm"], rel=0.25)
    assert busy.sm_clock_mhz > 300
    assert busy.power_w is not None
    assert idle.power_w is not None
    assert busy.power_w > idle.power_w
    assert busy.power_w == pytest.approx(told["power.draw"], rel=0.4)
    assert busy.memory_used_bytes is not None
    assert idle.memory_used_bytes is not None
    assert busy.memory_used_bytes - idle.memory_used_bytes > TAKEN_BYTES // 2
    assert "gpu_idle" not in (busy.throttle_reasons or ())
    assert value_of(text, "modelreg_gpu_clock_hertz", gpu_uuid=busy.uuid, clock="sm") > 3e8
    assert {own["reason"] for own, _ in samples_of(text)["modelreg_gpu_throttle"]} == set(REASONS.values())


def test_a_reading_is_quick_enough_for_once_a_second(smi: str, record_property: Callable[[str, object], None]) -> None:
    reader = DeviceReader()
    reader.read()
    began_s = time.perf_counter()
    for _ in range(5):
        reader.read()
    took_s = (time.perf_counter() - began_s) / 5
    record_property("reading_ms", took_s * 1e3)
    reader.close()
    assert took_s < 0.5  # it is to be read once a second, and a driver that needs this long needs another period


def test_only_visible_gpus_are_shown(smi: str) -> None:
    every = read_devices({}).readings
    assert read_devices({"CUDA_VISIBLE_DEVICES": every[-1].uuid}).readings[0].uuid == every[-1].uuid
    assert read_devices({"CUDA_VISIBLE_DEVICES": ""}).readings == ()
