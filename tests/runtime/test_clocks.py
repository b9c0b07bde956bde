"""Clocks as far as they can be read without a GPU; `tests/gpu` reads those of one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from modelreg.runtime.clocks import describe_devices, read_clocks, read_cpu, say_clocks
from modelreg.runtime.monitoring.devices import DeviceReader, Devices
from modelreg_testing.monitoring import Nvml, h200


def gpu(**changes: Any) -> dict[str, Any]:
    found = {"name": "NVIDIA H200", "sm_mhz": 1980, "max_sm_mhz": 1980, "power_state": "P0", "temperature_c": 31}
    return {**found, "throttle_reasons": [], **changes}


def state(*gpus: dict[str, Any], why: str = "", governors: dict[str, int] | None = None) -> dict[str, Any]:
    return {"gpus": list(gpus), "gpus_not_read": why, "cpu": {"governors": governors or {}}}


def test_this_host_answers_whether_it_has_a_gpu_or_not() -> None:
    found = read_clocks()
    assert bool(found["gpus"]) is not bool(found["gpus_not_read"])
    assert set(found["cpu"]["governors"].values()) <= set(range(1, 10_000))


def test_a_host_without_a_driver_is_not_asked_to_install_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("modelreg.runtime.clocks.has_driver", lambda: False)
    assert read_clocks()["gpus_not_read"] == "no GPU is visible"


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("modelreg.runtime.clocks.has_driver", lambda: True)
    found = read_clocks()
    assert found["gpus_not_read"].startswith("nvidia-ml-py is not installed: ")
    assert "modelreg[serve]" in found["gpus_not_read"]
    assert say_clocks(found | {"cpu": {"governors": {}}}, found).startswith("clocks not read (nvidia-ml-py is not")


def test_a_gpu_is_told_as_monitoring_reads_it() -> None:
    found = describe_devices(DeviceReader(library=Nvml([h200(), {"UUID": "GPU-1", "Name": "old"}])).read())
    assert found["gpus_not_read"] == ""
    one, other = found["gpus"]
    assert (one["sm_mhz"], one["max_sm_mhz"], one["memory_mhz"], one["max_memory_mhz"]) == (1980, 1980, 3201, 3201)
    assert (one["power_state"], one["driver"], one["power_w"]) == ("P0", "580.95.05", 251.3)
    assert one["throttle_reasons"] == ["sw_power_cap"]
    assert (other["name"], other["sm_mhz"], other["power_state"], other["throttle_reasons"]) == ("old", *[None] * 3)


def test_no_gpu_is_a_reason_too() -> None:
    assert describe_devices(Devices()) == {"gpus": [], "gpus_not_read": "no GPU is visible"}
    assert describe_devices(Devices(problem="no driver"))["gpus_not_read"] == "no driver"


def test_the_cpu_tells_governors_and_clocks(tmp_path: Path) -> None:
    for number, (governor, clock_khz) in enumerate([("performance", 3_400_000), ("powersave", 800_000)]):
        folder = tmp_path / f"cpu{number}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{governor}\n")
        (folder / "scaling_cur_freq").write_text(f"{clock_khz}\n")
    (tmp_path / "cpu1" / "cpufreq" / "scaling_cur_freq").write_text("odd\n")
    found = read_cpu(tmp_path)
    assert found == {"governors": {"performance": 1, "powersave": 1}, "min_mhz": 3400.0, "max_mhz": 3400.0}
    assert read_cpu(tmp_path / "nowhere") == {"governors": {}}


def test_what_slowed_a_gpu_is_said_whenever_it_did() -> None:
    before, after = (
        state(gpu(throttle_reasons=["gpu_idle"])),
        state(gpu(sm_mhz=1200, throttle_reasons=["sw_power_cap"])),
    )
    said = "clocks: NVIDIA H200: SM 1980 to 1200 of 1980 MHz, P0, 31 °C"
    assert say_clocks(before, after) == f"{said}, slowed by sw power cap"
    assert say_clocks(after, before).endswith("slowed by sw power cap")
    assert "slowed" not in say_clocks(before, before)
    idle = gpu(name="another", throttle_reasons=["gpu_idle"])
    assert "another" not in say_clocks(state(gpu(), idle), state(gpu(), idle))
    assert say_clocks(state(idle, idle), state(idle, idle)).count("another") == 1
    assert say_clocks(state(governors={"performance": 2}), state()) == "clocks: CPU governor performance"
    assert say_clocks(state(), state()) == "clocks not read"
