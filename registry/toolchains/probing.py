"""What an interpreter has to build with, found out in child processes: a backend may crash where it is imported."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from modelreg.registry.errors import ToolchainError, WorkerError
from modelreg.registry.records import ToolchainRecord
from modelreg.registry.scratch import scratch_folder
from modelreg.registry.toolchains.answers import (
    AnswerError,
    is_same_version,
    read_backends,
    read_facts,
    read_lacks,
    read_packaged_version,
    read_version,
)
from modelreg.registry.toolchains.process import Worker, WorkerJobError
from modelreg.registry.words import Backend, Json, Word

PROBE_TIMEOUT_S = 120.0
_JOB_FILE = Path(__file__).with_name("probe.py")
_RUNTIME_FACTS = ("python_version", "platform", "module", "cuda", "targets")


class ToolchainState(Word):
    """What became of a registered toolchain."""

    USABLE = "usable"
    MISSING = "missing"
    CHANGED = "changed"
    UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """
    A backend that an interpreter has; `details` holds the Python version, CUDA and targets.

    Attributes:
        lacks: The packages that are not there and that running a plan needs; of TensorRT building too, which runs it.
    """

    backend: Backend
    version: str
    python: str
    details: Json
    lacks: tuple[str, ...] = ()

    def say_lack(self) -> str:
        """Return what cannot be done for want of packages, and how to get them; or an empty string."""
        if not self.lacks:
            return ""
        able = "builds only" if self.backend is Backend.TENSORRT_RTX else "neither builds nor runs"
        verb = "is" if len(self.lacks) == 1 else "are"
        needed = "to run plans (validate, serve, bench)" if self.backend is Backend.TENSORRT_RTX else "for both"
        install = f"{self.python} -m pip install {' '.join(self.lacks)}"
        return f"{able}: {' and '.join(self.lacks)} {verb} missing, needed {needed}: {install}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolchainStanding:
    """
    A registered toolchain and what is found in its place now.

    `reason` says what is not as registered, or what its interpreter lacks to run plans too.
    """

    toolchain: ToolchainRecord
    state: ToolchainState
    reason: str = ""


def locate_python(given: str) -> str:
    """
    Return the interpreter that is meant: a path, a virtual environment's folder, or a command on the PATH.

    Links are kept: through its own path alone an interpreter finds its virtual environment.

    Raises:
        ToolchainError: There is none.
    """
    try:
        path = Path(given).expanduser()
    except RuntimeError:
        raise ToolchainError(
            f"there is no interpreter {given}: nobody of that name has a home folder here",
            hint="Give the path of a Python, or of its venv.",
        ) from None
    if path.is_dir():
        path = path / "bin" / "python"
    if path.is_file():
        return str(_without_dots(path.absolute()))
    found = shutil.which(given) if "/" not in given else None
    if found is None:
        raise ToolchainError(f"there is no interpreter {given}", hint="Give the path of a Python, or of its venv.")
    return str(_without_dots(Path(found).absolute()))


def _without_dots(path: Path) -> Path:
    """Return the path without `..` where that names the same folder: behind a link, `..` leads elsewhere."""
    plain = Path(os.path.normpath(path))
    is_same = plain.parent.is_dir() and plain.parent.samefile(path.parent)
    return plain if is_same else path


def probe_python(python: str, *, backend: Backend | None = None, timeout_s: float = PROBE_TIMEOUT_S) -> Probe:
    """
    Return what `python` builds with; without `backend`, the one of TensorRT's that it has, else ONNX Runtime.

    Raises:
        ToolchainError: It has no backend, has several, or the backend crashes or cannot build; the reason is named.
    """
    chosen = _choose(_find_backends(python, timeout_s=timeout_s), backend, python)
    what = f"{chosen} of {python}"
    body = _ask(python, "probe", {"backend": str(chosen)}, what=what, timeout_s=timeout_s)
    with _refusing_odd_answers(what, python):
        return Probe(
            backend=chosen,
            version=read_version(body),
            python=python,
            details=read_facts(body, chosen),
            lacks=read_lacks(body),
        )


def look_again(toolchain: ToolchainRecord, *, timeout_s: float = PROBE_TIMEOUT_S) -> ToolchainStanding:
    """Return whether a registered toolchain is still what it was; never raises for what is found."""

    def standing(state: ToolchainState, reason: str = "") -> ToolchainStanding:
        return ToolchainStanding(toolchain=toolchain, state=state, reason=reason)

    state, reason = glance(toolchain.python, backend=toolchain.backend, version=toolchain.version, timeout_s=timeout_s)
    if state in (ToolchainState.MISSING, ToolchainState.UNUSABLE):
        return standing(state, reason)
    try:
        probe = probe_python(toolchain.python, backend=toolchain.backend, timeout_s=timeout_s)
    except WorkerError as error:
        return standing(ToolchainState.UNUSABLE, str(error))
    changes = differences(toolchain, probe)
    state = ToolchainState.CHANGED if changes else ToolchainState.USABLE
    return standing(state, "; ".join(filter(None, (*changes, probe.say_lack()))))


def glance(
    python: str, *, backend: Backend, version: str, timeout_s: float = PROBE_TIMEOUT_S
) -> tuple[ToolchainState, str]:
    """
    Return the state of a registered toolchain as far as it can be seen without importing the backend, and the reason.

    Takes what a start of the interpreter takes. A backend that is there and breaks when it is imported counts as
    usable; `look_again` tells.
    """
    if not Path(python).is_file():
        return ToolchainState.MISSING, f"there is no interpreter {python}"
    try:
        answer = _ask(python, "find", {}, what=python, timeout_s=timeout_s)
        with _refusing_odd_answers(python, python):
            installed, packaged = read_backends(answer), read_packaged_version(answer, backend)
    except WorkerError as error:
        return ToolchainState.UNUSABLE, str(error)
    if backend not in installed:
        return ToolchainState.MISSING, f"{backend} is not installed in {python}"
    if packaged and not is_same_version(packaged, version):
        return ToolchainState.CHANGED, f"version was {version}, is {packaged}"
    return ToolchainState.USABLE, ""


def differences(toolchain: ToolchainRecord, probe: Probe) -> list[str]:
    """Return what a probe finds other than registered, one phrase each."""
    pairs: list[tuple[str, object, object]] = [("version", toolchain.version, probe.version)]
    pairs += [(name, toolchain.details.get(name), probe.details.get(name)) for name in _RUNTIME_FACTS]
    return [f"{name} was {_say(before)}, is {_say(now)}" for name, before, now in pairs if before != now]


def _say(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "none")


def _choose(installed: list[Backend], wanted: Backend | None, python: str) -> Backend:
    if wanted is not None:
        if wanted not in installed:
            has = ", ".join(map(str, installed)) or "no backend"
            raise ToolchainError(f"{python} has no {wanted}, it has {has}", hint=_install_hint(python))
        return wanted
    special = [backend for backend in installed if backend is not Backend.ONNXRUNTIME]
    if len(special) > 1:
        names = " and ".join(map(str, special))
        raise ToolchainError(f"{python} has {names}", hint="Say which one is meant with --backend.")
    if not installed:
        known = ", ".join(Backend)
        raise ToolchainError(f"{python} has no backend (looked for {known})", hint=_install_hint(python))
    return installed[0]


def _install_hint(python: str) -> str:
    return f"Install one there, for example: {python} -m pip install tensorrt-rtx-cu13-libs tensorrt-rtx-cu13-bindings"


def _find_backends(python: str, *, timeout_s: float) -> list[Backend]:
    answer = _ask(python, "find", {}, what=python, timeout_s=timeout_s)
    with _refusing_odd_answers(python, python):
        return read_backends(answer)


@contextmanager
def _refusing_odd_answers(what: str, python: str) -> Iterator[None]:
    try:
        yield
    except AnswerError as error:
        raise ToolchainError(
            f"{what} cannot be used: {error}", hint=f"Check that {python} is a Python, and add it again."
        ) from error


def _ask(python: str, job: str, request: Json, *, what: str, timeout_s: float) -> Json:
    steps: list[str] = []
    note: Callable[[float | None, str], None] = lambda _fraction, doing: steps.append(doing)  # noqa: E731
    with scratch_folder("probe") as folder:
        try:
            with Worker.start(python, _JOB_FILE, log_path=folder / "log", timeout_s=timeout_s) as worker:
                return worker.call(job, request, timeout_s=timeout_s, on_progress=note)[0]
        except WorkerError as error:
            reason = _reason(error, steps)
            raise ToolchainError(
                f"{what} cannot be used: {reason}", hint=f"Import it in {python} to see more."
            ) from error


def _reason(error: WorkerError, steps: list[str]) -> str:
    """Return what happened, and for a crash at which step."""
    text = " ".join(str(error).split())
    if isinstance(error, WorkerJobError):
        return text if error.remote_type == "ProbeError" else f"{error.remote_type}: {text}"
    return f"{text} while {steps[-1]}" if steps else text
