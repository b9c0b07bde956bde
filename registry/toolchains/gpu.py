"""The GPUs that the NVIDIA driver shows, asked of the driver's own library alone. Python 3.8, standard library.

Job files use it: a TensorRT has no call that says what it would build for, and may crash where there is no driver.
"""

from __future__ import annotations

import ctypes
import re
import uuid
from pathlib import Path
from typing import Any, Dict, List, Optional

Json = Dict[str, Any]

_LIBRARY = "libcuda.so.1"
_VERSION_FILE = Path("/proc/driver/nvidia/version")
_SM_COUNT, _MAJOR, _MINOR = 16, 75, 76
"""CUdevice_attribute: MULTIPROCESSOR_COUNT, COMPUTE_CAPABILITY_MAJOR and _MINOR."""
_NAME_BYTES = 256


class GpuError(Exception):
    """There is no GPU of the kind asked for, or the driver refuses."""


def list_gpus() -> List[Json]:
    """Return `index`, `uuid`, `name`, `target` and `sm_count` of each visible GPU; none without a working driver."""
    driver = _load()
    if driver is None:
        return []
    count = ctypes.c_int(0)
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    return [_describe(driver, index) for index in range(count.value)]


def describe_driver() -> Json:
    """Return `driver`, its version where the system tells it, and `cuda`, the newest CUDA that it runs."""
    driver, version = _load(), ctypes.c_int(0)
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return {"driver": "", "cuda": ""}
    return {"driver": _read_driver_version(), "cuda": "%d.%d" % (version.value // 1000, version.value % 1000 // 10)}


def read_memory() -> Json:
    """Return `free_bytes` and `total_bytes` of the device of this thread's context; nothing where there is none."""
    driver, free, total = _load(), ctypes.c_size_t(0), ctypes.c_size_t(0)
    if driver is None or driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) != 0:
        return {}
    return {"free_bytes": free.value, "total_bytes": total.value}


def use_gpu(target: str, wanted: str = "") -> Json:
    """
    Make the first GPU of `target` the current one of this thread; return what `list_gpus` says of it.

    CUDA's runtime, and so TensorRT, works on the device of the current context. `wanted` is the UUID that it must
    have, where that matters.

    Raises:
        GpuError: There is none, or its context cannot be made.
    """
    gpus = list_gpus()
    found = next((gpu for gpu in gpus if gpu["target"] == target), None)
    if found is None:
        here = ", ".join(gpu["target"] for gpu in gpus) or "no GPU"
        raise GpuError("it needs a GPU of %s, and this host has %s" % (target, here))
    if wanted and found["uuid"] and _digits(found["uuid"]) != _digits(wanted):
        raise GpuError("the GPU here is %s, and %s was asked for" % (found["uuid"], wanted))
    driver = _load()
    device, context = ctypes.c_int(0), ctypes.c_void_p()
    steps = (
        ("cuDeviceGet", (ctypes.byref(device), found["index"])),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", (context,)),
    )
    for name, arguments in steps:
        code = getattr(driver, name)(*arguments)
        if code != 0:
            raise GpuError("the driver refuses %s (%s): CUDA error %d in %s" % (target, found["name"], code, name))
    return found


def _load() -> Optional[Any]:
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None


def _describe(driver: Any, index: int) -> Json:
    name = ctypes.create_string_buffer(_NAME_BYTES)
    device = ctypes.c_int(0)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, _NAME_BYTES, device)
    numbers = []
    for attribute in (_MAJOR, _MINOR, _SM_COUNT):
        value = ctypes.c_int(0)
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        numbers.append(value.value)
    major, minor, sm_count = numbers
    return {
        "index": index,
        "uuid": _read_uuid(driver, device),
        "name": name.value.decode(errors="replace"),
        "target": "sm_%d%d" % (major, minor),
        "sm_count": sm_count,
    }


def _read_uuid(driver: Any, device: Any) -> str:
    """Return the UUID of a GPU, or of the MIG instance that stands for it, as far as the driver tells."""
    number = (ctypes.c_ubyte * 16)()
    for name in ("cuDeviceGetUuid_v2", "cuDeviceGetUuid"):  # the first, from CUDA 11.4 on, knows MIG
        ask = getattr(driver, name, None)
        if ask is not None and ask(ctypes.byref(number), device) == 0:
            return "GPU-%s" % uuid.UUID(bytes=bytes(number))
    return ""


def _digits(name: str) -> str:
    """Return a UUID without its kind, which the driver does not tell: `GPU-…` or `MIG-…`."""
    return name.partition("-")[2].lower()


def _read_driver_version() -> str:
    try:
        text = _VERSION_FILE.read_text()
    except OSError:
        return ""
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found.group(1) if found else ""
