"""What this host can run: the CPU, and each NVIDIA GPU by compute capability."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder  # a tenth of importlib.util's start-up
from pathlib import Path

from modelreg.registry.words import Backend, Json

_DRIVER_TIMEOUT_S = 10.0
_BACKEND_MODULES = {
    Backend.ONNXRUNTIME: ("onnxruntime",),
    Backend.TENSORRT: ("tensorrt",),
    Backend.TENSORRT_RTX: ("tensorrt_rtx_bindings", "tensorrt_rtx"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the driver describes it; `target` is `sm_90` for compute capability 9.0."""

    name: str
    target: str
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine: its GPUs, the backends that this Python can import, and their versions where they are known."""

    name: str
    gpus: tuple[Gpu, ...]
    backends: frozenset[Backend]
    versions: Mapping[Backend, str] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the targets this host runs, GPUs first."""
        return (*dict.fromkeys(gpu.target for gpu in self.gpus), "cpu")

    def to_json(self) -> Json:
        """Return the host as JSON."""
        return {
            "name": self.name,
            "targets": list(self.targets),
            "gpus": [{"name": gpu.name, "target": gpu.target, "driver": gpu.driver} for gpu in self.gpus],
            "backends": sorted(str(backend) for backend in self.backends),
            "versions": {str(backend): version for backend, version in sorted(self.versions.items())},
        }


def describe_host() -> Host:
    """Return this host. A missing or broken driver means no GPU, never an error."""
    folders = _find_backends()
    versions = {backend: version for backend, folder in folders.items() if (version := _read_version(folder))}
    return Host(name=os.uname().nodename, gpus=_find_gpus(), backends=frozenset(folders), versions=versions)


def _find_backends() -> dict[Backend, Path]:
    """Return the `__init__.py` of each backend that could be imported; none is."""
    found: dict[Backend, Path] = {}
    for backend, modules in _BACKEND_MODULES.items():
        for name in modules:
            spec = PathFinder.find_spec(name)
            if spec is not None:
                found[backend] = Path(spec.origin or name)
                break
    return found


def _read_version(module: Path) -> str:
    """Return the `__version__` that a module's text states, or an empty string: importing it could crash."""
    try:
        text = module.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    stated = re.search(r"^__version__\s*=\s*[\"']([^\"']+)[\"']", text, flags=re.MULTILINE)
    return stated.group(1) if stated else ""


def has_driver() -> bool:
    """Return whether an NVIDIA driver's device node is there (`dxg` is WSL's)."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()


def _find_gpus() -> tuple[Gpu, ...]:
    if not has_driver():
        return ()
    import shutil  # noqa: PLC0415 - most hosts of a registry have no GPU, and `which` must start at once
    import subprocess  # noqa: PLC0415

    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = [tool, "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_DRIVER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_gpu_query(answer.stdout) if answer.returncode == 0 else ()


def parse_gpu_query(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs in the driver tool's `name, compute_cap, driver_version` lines; other lines are skipped."""
    gpus: list[Gpu] = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[1].replace(".", "", 1).isdigit():
            gpus.append(Gpu(name=fields[0], target=f"sm_{fields[1].replace('.', '')}", driver=fields[2]))
    return tuple(gpus)
