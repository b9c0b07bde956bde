from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from modelreg.runtime.monitoring.devices import (
    REASONS,
    DeviceReader,
    DeviceReading,
    choose_visible,
    name_reasons,
    read_devices,
)
from modelreg_testing.monitoring import Nvml, h200


def read(*gpus: dict[str, object], visible: str | None = None, missing: set[str] | None = None) -> DeviceReading:
    found = DeviceReader(visible=visible, library=Nvml(list(gpus), missing=missing or set())).read()
    assert found.problem == ""
    return found.readings[0]


def test_a_gpu_is_read_in_our_units() -> None:
    gpu = read(h200())
    assert (gpu.name, gpu.utilization, gpu.temperature_c, gpu.power_w) == ("NVIDIA H200", 0.37, 41, 251.3)
    assert (gpu.sm_clock_mhz, gpu.memory_clock_mhz, gpu.throttle_reasons) == (1980, 3201, ("sw_power_cap",))
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (150_754_820_096, 15_000_000_000)
    assert gpu.memory_share == pytest.approx(0.0995, abs=1e-4)
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.mig) == (0, 0, False)
    assert gpu.to_json()["throttle_reasons"] == ["sw_power_cap"]


def test_with_mig_utilisation_is_unknown_and_not_0() -> None:
    gpu = read(h200(MigMode=(1, 1)))
    assert (gpu.mig, gpu.utilization) == (True, None)


def test_what_a_gpu_does_not_support_is_none() -> None:
    gpu = read({"UUID": "GPU-1", "Name": b"old"})
    assert (gpu.name, gpu.utilization, gpu.memory_share, gpu.temperature_c) == ("old", None, None, None)
    assert (gpu.power_w, gpu.throttle_reasons, gpu.ecc_uncorrected, gpu.mig) == (None, None, None, False)


def test_an_older_driver_tells_throttling_under_its_former_name() -> None:
    gpu = read(h200(CurrentClocksThrottleReasons=0x40), missing={"CurrentClocksEventReasons"})
    assert gpu.throttle_reasons == ("hw_thermal_slowdown",)


def test_one_gpu_that_is_lost_leaves_the_others() -> None:
    found = DeviceReader(library=Nvml([h200(0), {"lost": True}, h200(2)])).read()
    assert [each.index for each in found.readings] == [0, 2]
    assert found.problem == "GPU 1 cannot be asked: GPU is lost"


def test_a_driver_that_is_not_there_is_a_reason_and_is_tried_again() -> None:
    nvml = Nvml([h200()], broken="Driver Not Loaded")
    reader = DeviceReader(library=nvml)
    assert reader.read().problem == "the NVIDIA driver cannot be asked: Driver Not Loaded"
    nvml.broken = ""
    assert len(reader.read().readings) == 1
    reader.close()
    assert nvml.opened == 0


def test_this_host_answers_or_says_why_not() -> None:
    found = read_devices({})
    assert found.readings or found.problem


def test_without_the_library_the_reason_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['pynvml'] = None; sys.modules['psutil'] = None\n"
        "from modelreg.runtime.monitoring.devices import read_devices\n"
        "from modelreg.runtime.monitoring.host_load import HostReader\n"
        "print(read_devices().problem); print(HostReader().read().problem)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    gpu, host = done.stdout.splitlines()
    assert gpu.startswith("nvidia-ml-py is not installed: ")
    assert host.startswith("psutil is not installed: ")
    assert "modelreg[serve]" in gpu


def test_reasons_are_named_and_a_new_one_by_its_number() -> None:
    assert name_reasons(0) == ()
    assert name_reasons(0x1 | 0x20 | 0x1000) == ("gpu_idle", "sw_thermal_slowdown", "0x1000")


def test_the_names_of_reasons_are_those_of_the_library() -> None:
    import pynvml

    known = {
        name.removeprefix("nvmlClocksEventReason"): getattr(pynvml, name)
        for name in dir(pynvml)
        if name.startswith("nvmlClocksEventReason")
    }
    known |= {"ApplicationsClocksSetting": 2}  # named once more as UserDefinedClocks
    ours = {bit: name.replace("_", "") for bit, name in REASONS.items()}
    assert all(ours[bit] in {n.lower() for n, b in known.items() if b == bit} for bit in ours)


GPUS = [
    DeviceReading(index=index, uuid=f"GPU-{letter * 8}-1", name="x", mig=letter == "c")
    for index, letter in enumerate("abc")
]


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        ("0,-1,2", [0]),  # CUDA stops at the first that is none
        ("7", []),
        ("GPU-bbbb", [1]),
        ("GPU-", []),  # means three
        ("0,0", [0]),
        ("MIG-1234", [2]),
        ("none", []),
    ],
)
def test_only_what_cuda_would_use_is_shown(visible: str | None, indices: list[int]) -> None:
    assert [each.index for each in choose_visible(GPUS, visible)] == indices


def test_readers_ask_every_time() -> None:
    gpu = h200()
    reader = DeviceReader(library=Nvml([gpu]))
    assert reader.read().readings[0].utilization == 0.37
    gpu["UtilizationRates"] = SimpleNamespace(gpu=100, memory=0)
    assert reader.read().readings[0].utilization == 1.0
