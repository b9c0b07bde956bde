"""Clocks as far as they can be read without a GPU; `tests/gpu` reads those of one."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from modelreg.runtime.clocks import name_reasons, read_clocks, read_cpu, say_clocks

pynvml: Any = importlib.import_module("pynvml")


def gpu(**changes: Any) -> dict[str, Any]:
    found = {"name": "NVIDIA H200", "sm_mhz": 1980, "max_sm_mhz": 1980, "power_state": "P0", "temperature_c": 31}
    return {**found, "throttle_reasons": [], **changes}


def state(*gpus: dict[str, Any], why: str = "", governors: dict[str, int] | None = None) -> dict[str, Any]:
    return {"gpus": list(gpus), "gpus_not_read": why, "cpu": {"governors": governors or {}}}


def test_this_host_answers_whether_it_has_a_gpu_or_not() -> None:
    found = read_clocks()
    assert bool(found["gpus"]) is not bool(found["gpus_not_read"])
    assert set(found["cpu"]["governors"].values()) <= set(range(1, 10_000))


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = read_clocks()
    assert found["gpus_not_read"] == "nvidia-ml-py is not installed: pip install 'modelreg[serve]'"
    assert say_clocks(found | {"cpu": {"governors": {}}}, found).startswith("clocks not read (nvidia-ml-py is not")


def test_reasons_have_the_names_of_nvml() -> None:
    every = {name: getattr(pynvml, name) for name in dir(pynvml) if name.startswith("nvmlClocksThrottleReason")}
    assert name_reasons(pynvml, every["nvmlClocksThrottleReasonNone"]) == []
    assert name_reasons(pynvml, every["nvmlClocksThrottleReasonGpuIdle"]) == ["idle"]
    hot = every["nvmlClocksThrottleReasonSwPowerCap"] | every["nvmlClocksThrottleReasonHwThermalSlowdown"]
    assert name_reasons(pynvml, hot) == ["power cap", "hardware thermal slowdown"]
    assert name_reasons(pynvml, 1 << 40) == ["reason 0x10000000000"]
    assert not any("reason" in word for word in name_reasons(pynvml, every["nvmlClocksThrottleReasonAll"]))


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
    before, after = state(gpu(throttle_reasons=["idle"])), state(gpu(sm_mhz=1200, throttle_reasons=["power cap"]))
    said = "clocks: NVIDIA H200: SM 1980 to 1200 of 1980 MHz, P0, 31 °C"
    assert say_clocks(before, after) == f"{said}, slowed by power cap"
    assert say_clocks(after, before).endswith("slowed by power cap")
    assert "slowed" not in say_clocks(before, before)
    idle = gpu(name="another", throttle_reasons=["idle"])
    assert "another" not in say_clocks(state(gpu(), idle), state(gpu(), idle))
    assert say_clocks(state(idle, idle), state(idle, idle)).count("another") == 1
    assert say_clocks(state(governors={"performance": 2}), state()) == "clocks: CPU governor performance"
    assert say_clocks(state(), state()) == "clocks not read"
