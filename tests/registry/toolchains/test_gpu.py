"""The GPUs as the driver tells them; the driver here is a pretended one, the real one is asked on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modelreg.registry.toolchains import gpu


class PretendDriver:
    """As much of libcuda as is asked: two GPUs, sm_90 and sm_86."""

    attributes = ({75: 9, 76: 0, 16: 132}, {75: 8, 76: 6, 16: 84})
    names = (b"NVIDIA H200", b"NVIDIA RTX A6000")

    def __init__(self, *, refusing: str = "", init: int = 0) -> None:
        self.refusing, self.init, self.current = refusing, init, -1

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if name == self.refusing:
                return 2
            getattr(self, f"do_{name}", lambda *_: None)(*arguments)
            return 0

        return call

    def cuInit(self, _flags: int) -> int:  # noqa: N802 - the driver's spelling
        return self.init

    def do_cuDeviceGetCount(self, count: Any) -> None:  # noqa: N802
        count._obj.value = len(self.names)

    def do_cuDriverGetVersion(self, version: Any) -> None:  # noqa: N802
        version._obj.value = 12080

    def do_cuDeviceGet(self, device: Any, index: int) -> None:  # noqa: N802
        device._obj.value = index

    def do_cuDeviceGetName(self, name: Any, _size: int, device: Any) -> None:  # noqa: N802
        name.value = self.names[device.value]

    def do_cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> None:  # noqa: N802
        value._obj.value = self.attributes[device.value][attribute]

    def do_cuDeviceGetUuid_v2(self, number: Any, device: Any) -> None:  # noqa: N802
        number._obj[15] = device.value + 1

    def do_cuDeviceGetUuid(self, _number: Any, _device: Any) -> None:  # noqa: N802
        """Leave it all zeros."""

    def do_cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> None:  # noqa: N802
        context._obj.value = 100 + device.value

    def do_cuCtxSetCurrent(self, context: Any) -> None:  # noqa: N802
        self.current = context.value - 100


def uuid_of(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> PretendDriver:
    found = PretendDriver()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: found)
    return found


def test_gpus_are_told_by_target_and_name(driver: PretendDriver) -> None:
    assert gpu.list_gpus() == [
        {"index": 0, "uuid": uuid_of(1), "name": "NVIDIA H200", "target": "sm_90", "sm_count": 132},
        {"index": 1, "uuid": uuid_of(2), "name": "NVIDIA RTX A6000", "target": "sm_86", "sm_count": 84},
    ]
    assert driver.current == -1


def test_the_first_gpu_of_a_target_becomes_the_current_one(driver: PretendDriver) -> None:
    assert gpu.use_gpu("sm_86")["name"] == "NVIDIA RTX A6000"
    assert driver.current == 1


def test_another_gpu_than_the_one_that_was_asked_for_is_refused(driver: PretendDriver) -> None:
    assert gpu.use_gpu("sm_86", uuid_of(2))["index"] == 1
    assert gpu.use_gpu("sm_86", uuid_of(2).replace("GPU", "MIG"))["index"] == 1  # the driver does not tell the kind
    with pytest.raises(gpu.GpuError, match=r"the GPU here is GPU-0+-.*1, and GPU-7 was asked for"):
        gpu.use_gpu("sm_90", "GPU-7")


def test_a_driver_that_tells_no_uuid_is_believed(driver: PretendDriver) -> None:
    driver.refusing = "cuDeviceGetUuid_v2"
    assert gpu.list_gpus()[1]["uuid"] == uuid_of(0)


def test_a_target_without_a_gpu_is_refused(driver: PretendDriver) -> None:
    with pytest.raises(gpu.GpuError, match="it needs a GPU of sm_120, and this host has sm_90, sm_86"):
        gpu.use_gpu("sm_120")
    assert driver.current == -1


def test_a_driver_that_refuses_a_context_is_told_by_its_code(driver: PretendDriver) -> None:
    driver.refusing = "cuDevicePrimaryCtxRetain"
    with pytest.raises(gpu.GpuError, match=r"refuses sm_90 \(NVIDIA H200\): CUDA error 2 in cuDevicePrimaryCtxRetain"):
        gpu.use_gpu("sm_90")


@pytest.mark.parametrize("function", ["cuDeviceGetCount", "cuDriverGetVersion"])
def test_a_broken_driver_means_no_gpu(driver: PretendDriver, function: str) -> None:
    driver.refusing = function
    found = gpu.list_gpus() if function == "cuDeviceGetCount" else gpu.describe_driver()
    assert found in ([], {"driver": "", "cuda": ""})


def test_a_driver_that_does_not_start_means_no_gpu(driver: PretendDriver) -> None:
    driver.init = 100
    assert gpu.list_gpus() == []
    with pytest.raises(gpu.GpuError, match="it needs a GPU of sm_90, and this host has no GPU"):
        gpu.use_gpu("sm_90")


def test_no_driver_means_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_LIBRARY", "libnothing-of-the-kind.so.1")
    assert gpu.list_gpus() == []
    assert gpu.describe_driver() == {"driver": "", "cuda": ""}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n", "580.159.04"),
        ("NVRM version: something else\n", ""),
        (None, ""),
    ],
)
def test_the_drivers_version_is_read_where_the_system_tells_it(
    driver: PretendDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, version: str
) -> None:
    file = tmp_path / "version"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(gpu, "_VERSION_FILE", file)
    assert gpu.describe_driver() == {"driver": version, "cuda": "12.8"}
