"""Whether a host can load a released engine: one check after the other, each with what it found. Pure.

The rules are TensorRT's own (docs/decisions/0017-where-an-engine-loads.md): a plan runs on the architecture and with
the version that built it, unless it was built to be compatible.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple  # a tenth of a dataclass's start-up, and `which` must start at once

from modelreg.registry.manifest import NO_HARDWARE_COMPATIBILITY, ReleasedEngine
from modelreg.registry.words import Backend, Word
from modelreg.runtime.host import Gpu, Host

if TYPE_CHECKING:
    from modelreg.registry.plans import PlanHeader

BOUND_TO_VERSION = (Backend.TENSORRT, Backend.TENSORRT_RTX)
"""Backends that load only what their own version built, unless it was built to be compatible."""

_AMPERE = 80
_FIRST_COMPATIBLE = (8, 6)
_NEXT_MAJOR = {8: 10, 10: 11}
_MINIMUM_DRIVER = {"11": 450, "12": 525, "13": 580}
"""By the major version of CUDA; TensorRT 11 asks more of CUDA 12."""
_TENSORRT_11_WITH_CUDA_12 = 535


class CheckOutcome(Word):
    """What a check came to; a caveat does not keep an engine from loading."""

    OK = "ok"
    CAVEAT = "caveat"
    REFUSED = "refused"


class Check(NamedTuple):
    """One question about an engine: `plan`, `gpu`, `backend`, `driver`, `plugins` or `gates`, and the answer."""

    name: str
    outcome: CheckOutcome
    finding: str


class Suitability(NamedTuple):
    """
    A released engine and whether this host can load it.

    Attributes:
        engine: The engine.
        checks: What was looked at, refused or not.
        runs_on: The target of this host that it runs on; empty where there is none.
        python: The interpreter that loads it; empty for our own, or where none does.
    """

    engine: ReleasedEngine
    checks: tuple[Check, ...]
    runs_on: str = ""
    python: str = ""

    @property
    def usable(self) -> bool:
        """Return whether nothing was refused."""
        return all(check.outcome is not CheckOutcome.REFUSED for check in self.checks)

    @property
    def is_exact(self) -> bool:
        """Return whether it was built for what it runs on here."""
        return self.runs_on == self.engine.target

    @property
    def passes_gates(self) -> bool:
        """Return whether it was promoted without going over its gates."""
        return all(check.outcome is CheckOutcome.OK for check in self.checks if check.name == "gates")

    @property
    def reason(self) -> str:
        """Return why it cannot be loaded, or on what it runs."""
        for check in self.checks:
            if check.outcome is CheckOutcome.REFUSED:
                return check.finding
        if self.is_exact:
            return f"runs on {self.runs_on}"
        return f"runs on {self.runs_on}: built for {self.engine.target} as {self.engine.hardware_compatibility}"


def judge(
    engine: ReleasedEngine,
    host: Host,
    *,
    header: PlanHeader | None = None,
    damage: str = "",
    overridden: Collection[str] = (),
) -> Suitability:
    """
    Return whether `host` can load `engine`.

    Args:
        engine: The engine as released.
        host: What would load it.
        header: What its plan says about itself, for TensorRT; None when that was not read.
        damage: Why the plan could not be read.
        overridden: The gates that the promotion went over, as in the pointer.
    """
    gpu, runs_on = _check_gpu(engine, host)
    backend, python = _check_backend(engine, host)
    checks = [
        _check_plan(engine, header, damage),
        gpu,
        backend,
        _check_driver(engine, host, runs_on),
        _check_plugins(engine),
        _check_gates(engine, overridden),
    ]
    return Suitability(
        engine=engine, checks=tuple(check for check in checks if check is not None), runs_on=runs_on, python=python
    )


def _check_plan(engine: ReleasedEngine, header: PlanHeader | None, damage: str) -> Check | None:
    if damage:
        return Check("plan", CheckOutcome.REFUSED, damage)
    if header is None:
        return None
    from modelreg.registry.plans import disagreement  # noqa: PLC0415 - nothing of TensorRT in most releases for a CPU

    found = disagreement(
        header,
        backend=engine.backend,
        version=engine.backend_version,
        target=engine.target,
        targets=engine.plan_targets,
    )
    if found:
        return Check("plan", CheckOutcome.REFUSED, f"its plan is not what the release says: {found}")
    return Check("plan", CheckOutcome.OK, f"its header says {header.backend} {header.version}")


def _check_gpu(engine: ReleasedEngine, host: Host) -> tuple[Check, str]:
    """Return the check, and the target of this host that the engine runs on."""
    level = engine.hardware_compatibility
    runs_on = find_target(engine.target, level=level, host=host)
    if runs_on == engine.target:
        same = [gpu for gpu in host.gpus if gpu.target == engine.target]
        other = _other_model(engine, same) if level == NO_HARDWARE_COMPATIBILITY else ""
        if other:
            return Check("gpu", CheckOutcome.CAVEAT, other), engine.target
        return Check("gpu", CheckOutcome.OK, f"this host has {engine.target}"), engine.target
    if runs_on:
        return Check("gpu", CheckOutcome.OK, f"built for {engine.target} as {level}, which {runs_on} runs"), runs_on
    return Check("gpu", CheckOutcome.REFUSED, why_not_here(engine.target, level=level, host=host)), ""


def find_target(target: str, *, level: str, host: Host) -> str:
    """Return the target of `host` that runs what was built for `target` at a hardware compatibility level, or ""."""
    if target in host.targets:
        return target
    if level != "AMPERE_PLUS":
        return ""
    return next((each for each in host.targets if compute_capability(each) >= _AMPERE), "")


def runs_on_target(engine: ReleasedEngine, target: str) -> bool:
    """Return whether an engine, as it was built, runs on one target."""
    if target == engine.target:
        return True
    return engine.hardware_compatibility == "AMPERE_PLUS" and compute_capability(target) >= _AMPERE


def why_not_here(target: str, *, level: str, host: Host) -> str:
    """Return why no target of `host` runs what was built for `target`, or an empty string."""
    if find_target(target, level=level, host=host):
        return ""
    needed = f"sm_{_AMPERE} or newer" if level == "AMPERE_PLUS" else target
    return f"needs {needed}; this host has {', '.join(host.targets)}"


def _other_model(engine: ReleasedEngine, same: list[Gpu]) -> str:
    """Return what to say where only other models have the architecture: TensorRT warns and loads."""
    names = [gpu.name for gpu in same]
    if not engine.gpu or not names or engine.gpu in names:
        return ""
    return f"built on {engine.gpu}, and this host has {', '.join(dict.fromkeys(names))}: it may be slower, or fail"


def compute_capability(target: str) -> int:
    """Return 90 for `sm_90`, and 0 for what is no GPU."""
    digits = target.removeprefix("sm_")
    return int(digits) if digits.isdigit() else 0


def _check_backend(engine: ReleasedEngine, host: Host) -> tuple[Check, str]:
    """Return the check, and the interpreter that loads the engine: one of its own version before all others."""
    installed = host.installations(engine.backend)
    if not installed:
        return Check("backend", CheckOutcome.REFUSED, f"{engine.backend} is not installed here"), ""
    found = [(python, _fit(engine, version)) for python, version in installed]
    for wanted in (CheckOutcome.OK, CheckOutcome.CAVEAT):
        for python, (outcome, finding) in found:
            if outcome is wanted:
                return Check("backend", outcome, finding), python
    versions = ", ".join(dict.fromkeys(version for _, version in installed))
    return Check("backend", CheckOutcome.REFUSED, f"needs {_say_needed(engine)}; this host has {versions}"), ""


def _fit(engine: ReleasedEngine, version: str) -> tuple[CheckOutcome, str]:
    """Return whether one installation loads an engine, and what to say of it; an empty version is not known."""
    backend, built = engine.backend, engine.backend_version
    if backend not in BOUND_TO_VERSION:
        return CheckOutcome.OK, f"{backend} {version} is here" if version else f"{backend} is here"
    from modelreg.registry.plans import is_same_version  # noqa: PLC0415 - as above

    if is_same_version(version, built):
        return CheckOutcome.OK, f"{backend} {version} is here"
    if not version:
        return CheckOutcome.CAVEAT, f"needs {backend} {built}; which version is here is not known"
    if backend is Backend.TENSORRT and engine.version_compatible and loads_compatible(built, version):
        return (
            CheckOutcome.CAVEAT,
            f"{backend} {version} loads it where host code is allowed: it is version-compatible",
        )
    return CheckOutcome.REFUSED, ""


def _say_needed(engine: ReleasedEngine) -> str:
    needed = f"{engine.backend} {engine.backend_version}"
    major = _numbers(engine.backend_version)[:1]
    if engine.backend is not Backend.TENSORRT or not engine.version_compatible or not major:
        return needed
    later = _NEXT_MAJOR.get(major[0])
    return f"{needed} or a newer {major[0]}" + (f", or {later}" if later else "")


def loads_compatible(built: str, installed: str) -> bool:
    """
    Return whether TensorRT `installed` loads what `built` built to be version-compatible.

    That is a newer one of the same major version, 10 for what 8 built, and 11 for what 10 built; nothing before 8.6.
    """
    old, new = _numbers(built), _numbers(installed)
    if not old or not new or min(old, new) < _FIRST_COMPATIBLE:
        return False
    shared = min(len(old), len(new))  # the build number is not always known
    return new[:shared] >= old[:shared] if new[0] == old[0] else _NEXT_MAJOR.get(old[0]) == new[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".")[:4] if number.isdigit())


def _check_driver(engine: ReleasedEngine, host: Host, runs_on: str) -> Check | None:
    driver = next((gpu.driver for gpu in host.gpus if gpu.target == runs_on), "")
    if not driver or engine.backend not in BOUND_TO_VERSION:
        return None
    minimum = _minimum_driver(engine)
    major = driver.split(".")[0]
    if minimum is None or not major.isdigit():
        return Check("driver", CheckOutcome.OK, f"driver {driver}; what is needed is not known")
    if int(major) < minimum:
        needed = f"CUDA {engine.cuda} needs driver {minimum} or newer"
        return Check("driver", CheckOutcome.REFUSED, f"{needed}; this host has {driver}")
    return Check("driver", CheckOutcome.OK, f"driver {driver} has CUDA {engine.cuda}")


def _minimum_driver(engine: ReleasedEngine) -> int | None:
    cuda = engine.cuda.split(".")[0]
    if cuda == "12" and engine.backend is Backend.TENSORRT and _numbers(engine.backend_version) >= (11,):
        return _TENSORRT_11_WITH_CUDA_12
    return _MINIMUM_DRIVER.get(cuda)


def _check_plugins(engine: ReleasedEngine) -> Check | None:
    if not engine.plugins:
        return None
    released = {file.digest for file in engine.files}
    missing = [f"{name} ({digest[:12]})" for name, digest in engine.plugins if digest not in released]
    if missing:
        finding = f"needs plugins that the release does not have: {', '.join(missing)}"
        return Check("plugins", CheckOutcome.REFUSED, finding)
    return Check("plugins", CheckOutcome.OK, f"loaded first: {', '.join(name for name, _ in engine.plugins)}")


def _check_gates(engine: ReleasedEngine, overridden: Collection[str]) -> Check:
    start = f"{engine.target} {engine.precision}: "
    for each in overridden:
        if each.startswith(start):
            return Check("gates", CheckOutcome.CAVEAT, f"its gates were overridden: {each.removeprefix(start)}")
    return Check("gates", CheckOutcome.OK, "it passed its gates when it was promoted")
