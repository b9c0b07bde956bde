"""The job file that looks at what an interpreter has: backend, exact version, CUDA, and whether it can build.

Runs in the interpreter that is asked about: Python 3.8, the standard library alone. It may well crash there (a
TensorRT without a driver does), so each backend is probed in a child of its own, one step after the other.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import platform
import re
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from modelreg.registry.toolchains.gpu import list_gpus

Json = Dict[str, Any]
Report = Callable[[Optional[float], str], None]

MODULES: Dict[str, Tuple[str, ...]] = {
    "tensorrt-rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
    "tensorrt": ("tensorrt", "tensorrt_bindings"),
    "onnxruntime": ("onnxruntime",),
}
"""Import names of each backend, the first that is found counts; what can do most comes first."""

_NEEDED = {"numpy": ("numpy",), "cuda-bindings": ("cuda.bindings.runtime", "cuda.cudart")}
"""What the jobs that load plans import beside the backend, by package: one of the names is enough."""

_LIBRARIES = ("libtensorrt_rtx.so", "libnvinfer.so")


class ProbeError(Exception):
    """The backend is there and cannot be used; the message says why."""


def find(_request: Json, _arrays: Json, _report: Report) -> Json:
    """Answer with the backends that are installed and the versions of their packages, without importing any."""
    modules = {backend: _find_module(names) for backend, names in MODULES.items()}
    packaged = {backend: _packaged_version(name) for backend, name in modules.items() if name}
    return {"backends": list(packaged), "packaged": packaged, **_python()}


def probe(request: Json, _arrays: Json, report: Report) -> Json:
    """Import one backend and, for TensorRT, make a builder; answer with what it is."""
    backend = request["backend"]
    name = _find_module(MODULES[backend])
    if name is None:
        raise ProbeError("%s is not installed" % backend)
    report(None, "importing %s" % name)
    module = importlib.import_module(name)
    if backend == "onnxruntime":
        found = {"version": module.__version__, "providers": module.get_available_providers()}
    else:
        report(None, "making a builder of %s" % name)
        _make_builder(module, name)
        found = {"version": _exact_version(module.__version__), "targets": _targets(module), "lacks": _lacks()}
    return {"backend": backend, "module": name, "cuda": _cuda(name), **_python(), **found}


def gpus(_request: Json, _arrays: Json, _report: Report) -> Json:
    """Answer with the GPUs that this process sees."""
    return {"gpus": list_gpus()}


def _python() -> Json:
    return {"python_version": platform.python_version(), "platform": "%s-%s" % (sys.platform, platform.machine())}


def _find_module(names: Tuple[str, ...]) -> Optional[str]:
    """Return the first of these that is there; a folder that an uninstallation left behind is not."""
    return next((name for name in names if getattr(importlib.util.find_spec(name), "origin", None)), None)


def _packaged_version(module: str) -> str:
    """Return the version of the package that a module is of, or an empty string where none lies beside it."""
    import importlib.metadata

    origin = getattr(importlib.util.find_spec(module), "origin", None) or ""
    places = Path(origin).resolve().parents
    for package in _packages_of(module.replace("_bindings", "")):
        try:
            distribution = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if Path(str(distribution.locate_file(""))).resolve() in places:
            return str(distribution.version)
    return ""


def _packages_of(base: str) -> List[str]:
    """Return what packages with a backend's bindings are called, for each CUDA; none of them says its version first."""
    if base == "onnxruntime":
        return [base, "%s-gpu" % base]
    cuda = ["%s_cu%d" % (base, major) for major in range(11, 15)]
    return [name for each in (base, *cuda) for name in ("%s_bindings" % each, each)]


def _make_builder(module: Any, name: str) -> None:
    if not hasattr(module, "Builder"):
        raise ProbeError("%s has no builder: it is a runtime only" % name)
    try:
        builder = module.Builder(module.Logger(module.Logger.WARNING))
    except TypeError as error:  # what the bindings make of a factory that returns nothing
        raise ProbeError("%s makes no builder here (no NVIDIA driver?): %s" % (name, error)) from error
    if builder is None:
        raise ProbeError("%s makes no builder here (no NVIDIA driver?)" % name)


def _targets(module: Any) -> List[str]:
    """Return the targets that can be built for: RTX names those it can without their GPU, others need it here."""
    if not hasattr(module, "ComputeCapability"):
        return sorted({gpu["target"] for gpu in list_gpus()})
    members = getattr(getattr(module, "ComputeCapability", None), "__members__", {})
    return ["sm_" + name[2:] for name in members if re.match(r"SM\d+$", name)]


def _lacks() -> List[str]:
    """Return the packages that running a plan needs beside the backend and that are not there."""
    return [package for package, names in _NEEDED.items() if not any(_is_there(name) for name in names)]


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # of a package that it would lie in
        return False


def _exact_version(version: str) -> str:
    """Return the version with its build number: old packages leave it out, the library knows it."""
    if version.count(".") >= 3:
        return version
    try:
        build = ctypes.CDLL(_mapped_library()).getInferLibBuildVersion()
    except (OSError, AttributeError):
        return version
    return "%s.%d" % (version, build)


def _mapped_library() -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if any(library in path for library in _LIBRARIES):
            return path
    raise OSError("no library of TensorRT is loaded")


def _cuda(module: str) -> str:
    """Return the major version of CUDA that the module's package was made for, or an empty string."""
    import importlib.metadata

    for each in importlib.metadata.distributions():
        name = str(each.metadata["Name"] or "").replace("-", "_").lower()
        found = re.search(r"_cu(\d+)", name)
        if found and name.startswith(module.replace("_bindings", "")):
            return found.group(1)
    return ""


JOBS = {"find": find, "probe": probe, "gpus": gpus}
