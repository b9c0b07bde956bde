"""What this host can run: the CPU, and each NVIDIA GPU by compute capability."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder  # a tenth of importlib.util's start-up
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from modelreg.registry.words import Backend, Json

_DRIVER_TIMEOUT_S = 10.0
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")
_BACKEND_MODULES = {
    Backend.ONNXRUNTIME: ("onnxruntime",),
    Backend.TENSORRT: ("tensorrt", "tensorrt_bindings"),  # from 10 on, the second states the version
    Backend.TENSORRT_RTX: ("tensorrt_rtx_bindings", "tensorrt_rtx"),
}


class Gpu(NamedTuple):
    """One GPU as the driver describes it; `target` is `sm_90` for compute capability 9.0."""

    name: str
    target: str
    driver: str


class Interpreter(NamedTuple):
    """Another Python of this host: the backends that it has, with versions where they are known, or what is wrong."""

    path: str
    versions: Mapping[Backend, str]
    problem: str = ""


class Host(NamedTuple):  # and no dataclass, for start-up time
    """
    A machine.

    Attributes:
        name: What it calls itself.
        gpus: Its GPUs.
        backends: What this Python can import.
        versions: The same with versions, where they are known.
        interpreters: Other Pythons that load plans here.
        driver_problem: Why GPUs may be missing, where a driver is there and its tool does not name them.
    """

    name: str
    gpus: tuple[Gpu, ...]
    backends: frozenset[Backend]
    versions: Mapping[Backend, str] = MappingProxyType({})
    interpreters: tuple[Interpreter, ...] = ()
    driver_problem: str = ""

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the targets this host runs, GPUs first."""
        return (*dict.fromkeys(gpu.target for gpu in self.gpus), "cpu")

    def installations(self, backend: Backend) -> tuple[tuple[str, str], ...]:
        """Return (interpreter, version) wherever a backend is; an empty interpreter is this one, an empty version
        not known."""
        here = (("", self.versions.get(backend, "")),) if backend in self.backends else ()
        return here + tuple(
            (each.path, each.versions[backend]) for each in self.interpreters if backend in each.versions
        )

    def to_json(self) -> Json:
        """Return the host as JSON."""
        return {
            "name": self.name,
            "targets": list(self.targets),
            "driver_problem": self.driver_problem,
            "gpus": [{"name": gpu.name, "target": gpu.target, "driver": gpu.driver} for gpu in self.gpus],
            "backends": sorted(str(backend) for backend in self.backends),
            "versions": _name(self.versions),
            "interpreters": [
                {"python": each.path, "versions": _name(each.versions), "problem": each.problem}
                for each in self.interpreters
            ],
        }


def _name(versions: Mapping[Backend, str]) -> dict[str, str]:
    return {str(backend): version for backend, version in sorted(versions.items())}


def describe_host() -> Host:
    """Return this host. A missing or broken driver means no GPU, never an error; a broken one is said."""
    found = find_versions()
    versions = {backend: version for backend, version in found.items() if version}
    gpus, problem = _find_gpus()
    return Host(
        name=os.uname().nodename,
        gpus=gpus,
        backends=frozenset(found),
        versions=versions,
        driver_problem=problem and f"this host's GPUs are not known: {problem}",
    )


def describe_serving_host(pythons: Sequence[str]) -> Host:
    """Return this host with the interpreters that load plans here, in place of our own where there are any."""
    host = describe_host()
    if not pythons:
        return host
    from modelreg.runtime.interpreters import ask_interpreter  # noqa: PLC0415 - `which` must start at once

    asked = tuple(ask_interpreter(python) for python in pythons)
    return host._replace(backends=frozenset(), versions={}, interpreters=asked)


def find_versions(path: Sequence[str] | None = None) -> dict[Backend, str]:
    """Return the backends on a module search path (None: our own), and what versions their text states, if any."""
    found: dict[Backend, str] = {}
    for backend, modules in _BACKEND_MODULES.items():
        specs = [spec for name in modules if (spec := PathFinder.find_spec(name, path)) is not None]
        if specs:
            stated = (_read_version(Path(spec.origin)) for spec in specs if spec.origin)
            found[backend] = next((version for version in stated if version), "")
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


def _find_gpus() -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs that the driver's tool names, and what is wrong with its answer."""
    if not has_driver():
        return (), ""
    import shutil  # noqa: PLC0415 - most hosts of a registry have no GPU, and `which` must start at once

    from modelreg.runtime.programs import ask_program  # noqa: PLC0415

    tool = shutil.which("nvidia-smi")
    if tool is None:
        return (), "there is an NVIDIA driver, but no nvidia-smi on the PATH"
    query = [tool, "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    answer = ask_program(query, timeout_s=_DRIVER_TIMEOUT_S)
    if answer.problem:
        return (), f"{tool} cannot be asked: {answer.problem}"
    gpus, others = parse_gpu_query(answer.text)
    if others or not gpus:
        return gpus, f"{tool} says {others[0][:80]!r}" if others else f"{tool} says nothing"
    return gpus, ""


def parse_gpu_query(text: str) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Return the GPUs in the driver tool's `name, compute_cap, driver_version` lines, and the lines that are none."""
    gpus: list[Gpu] = []
    others: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and _CAPABILITY.fullmatch(fields[1]):
            gpus.append(Gpu(name=fields[0], target=f"sm_{fields[1].replace('.', '')}", driver=fields[2]))
        else:
            others.append(line)
    return tuple(gpus), tuple(others)
