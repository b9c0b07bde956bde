"""One command in a forked child of a warm process, killed or failed at a named point or at a system call.

A fork of a process that has imported everything costs a hundredth of a new interpreter, and makes no other system calls
than the command's own. `strace` is attached to the child while it waits, so that the first counted call is the
command's.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from modelreg.cli.main import run
from modelreg.registry.database import Database
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.s3_client import S3Client
from modelreg_testing.campaign.homes import Place

LIMIT_S = 120.0
"""A command that takes longer hangs."""

WRITES = (
    *("write", "pwrite64", "writev", "fsync", "fdatasync", "ftruncate", "fallocate", "fchmod", "flock"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "symlink", "symlinkat"),
    *("mkdir", "mkdirat", "rmdir", "openat", "copy_file_range", "sendfile", "sendto", "recvfrom"),
)
"""The system calls at which a command is stopped; of `openat` those that may write, of the last two those of S3."""

_CALL = re.compile(r"^(\d+) +([a-z_0-9]+)\((.*)")
_PR_SET_PTRACER = 0x59616D61


@dataclass(frozen=True)
class Ran:
    """What a child left: its exit code (negative: a signal), what it printed, and whether the fault was met.

    `silenced` says that the call which failed was the printing of its error.
    """

    code: int
    out: str
    err: str
    met: bool
    seconds: float
    silenced: bool = False


@dataclass(frozen=True)
class Call:
    """The `number`-th call of a name, counted as strace counts: for each thread and each name."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name} {self.number}"


def has_strace() -> bool:
    """Return whether system calls can be traced here: strace is installed and may attach."""
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, check=False)
    return tried.returncode == 0


# -- running -------------------------------------------------------------------------------------------------
def run_child(
    place: Place,
    words: tuple[object, ...],
    *,
    prepare: Callable[[], object] | None = None,
    strace: list[str] | None = None,
    outputs_in: Path | None = None,
) -> Ran:
    """Run a command line in a forked child, `prepare` before it, traced with `strace`'s arguments where given."""
    folder = Path(tempfile.mkdtemp(prefix="child-", dir=outputs_in or place.folder))
    paths = [folder / "out", folder / "err"]
    # Opened here: what the child does before its command could be what is hit, if strace is quick.
    outputs = [os.open(path, os.O_WRONLY | os.O_CREAT, 0o644) for path in paths]
    ready, go = os.pipe()
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test runner's own threads; the child uses none
        pid = os.fork()
    if pid == 0:
        os.close(go)
        _be_child(place, words, prepare, outputs, ready)
    for fd in (ready, *outputs):
        os.close(fd)
    tracer = None if strace is None else _attach(pid, strace)
    os.write(go, b"x")
    os.close(go)
    code = _wait(pid)
    if tracer is not None:
        _finish(tracer)
    said = [path.read_text(errors="replace") for path in paths]
    shutil.rmtree(folder)
    return Ran(code, said[0], said[1], code == -signal.SIGKILL, time.monotonic() - started)


def _be_child(
    place: Place, words: tuple[object, ...], prepare: Callable[[], object] | None, outputs: list[int], ready: int
) -> None:
    code = 70
    try:
        os.setsid()
        if hasattr(ctypes, "CDLL"):
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1 & 0xFFFFFFFFFFFFFFFF), 0, 0, 0)
        for number, fd in enumerate(outputs, start=1):
            os.dup2(fd, number)
        sys.stdout, sys.stderr = (os.fdopen(os.dup(n), "w") for n in (1, 2))
        os.read(ready, 1)
        if prepare is not None:
            prepare()
        code = run(["--home", str(place.home), *(str(word) for word in words)])
        sys.stdout.flush()
    except BaseException:
        code = 71
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int) -> int:
    timer = threading.Timer(LIMIT_S, os.killpg, (pid, signal.SIGXCPU))
    timer.daemon = True
    timer.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        timer.cancel()
        timer.join()


def _attach(pid: int, arguments: list[str]) -> subprocess.Popen[bytes]:
    tracer = subprocess.Popen(["strace", "-f", *arguments, "-p", str(pid)], stderr=subprocess.PIPE)
    assert tracer.stderr is not None
    line = tracer.stderr.readline()
    if b"attached" not in line:
        os.kill(pid, signal.SIGKILL)
        raise RuntimeError(f"strace cannot attach: {line.decode(errors='replace')}")
    return tracer


def _finish(tracer: subprocess.Popen[bytes]) -> None:
    try:
        tracer.communicate(timeout=30)
    except subprocess.TimeoutExpired:  # a grandchild outlived the command
        tracer.terminate()
        tracer.communicate()


# -- system calls --------------------------------------------------------------------------------------------
def count_calls(place: Place, words: tuple[object, ...]) -> tuple[Ran, list[Call]]:
    """Run a command and return every call at which it could be stopped."""
    log = place.folder / "calls"
    ran = run_child(place, words, strace=["-o", str(log), "-e", f"trace={_names()}", "-s", "16"])
    counts: dict[tuple[str, str], int] = {}
    calls: dict[Call, None] = {}
    for line in log.read_text(errors="replace").splitlines():
        found = _CALL.match(line)
        if found is None:
            continue
        thread, name, rest = found.groups()
        counts[thread, name] = number = counts.get((thread, name), 0) + 1
        if name != "openat" or re.search(r"O_WRONLY|O_RDWR|O_CREAT", rest):
            calls[Call(name, number)] = None
    log.unlink()
    return ran, list(calls)


def run_with_fault(place: Place, words: tuple[object, ...], call: Call, fault: str) -> Ran:
    """Run a command whose `call` meets `fault`: `signal=KILL`, or `error=EIO`."""
    log = place.folder / "calls"
    inject = f"inject={call.name}:{fault}:when={call.number}"
    ran = run_child(place, words, strace=["-o", str(log), "-e", f"trace={call.name}", "-e", inject, "-s", "16"])
    text = log.read_text(errors="replace")
    log.unlink()
    met = "INJECTED" in text or "killed by SIGKILL" in text
    silenced = re.search(r"write\(2, .*INJECTED", text) is not None
    return Ran(ran.code, ran.out, ran.err, met, ran.seconds, silenced)


def _names() -> str:
    return ",".join(f"?{name}" for name in WRITES)


# -- named points --------------------------------------------------------------------------------------------
def count_points(place: Place, words: tuple[object, ...]) -> tuple[Ran, list[str]]:
    """Run a command and return the names of its points in order."""
    log = place.folder / "points"

    def prepare() -> None:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        install(lambda name: os.write(fd, name.encode() + b"\n"))

    ran = run_child(place, words, prepare=prepare)
    names = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return ran, names


def kill_at(number: int) -> Callable[[], None]:
    """Return what makes a child kill itself at its `number`-th point, from 1 on."""

    def prepare() -> None:
        counter = itertools.count(1)

        def die(_name: str) -> None:
            if next(counter) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        install(die)

    return prepare


def fail_at(number: int, code: int) -> Callable[[], None]:
    """Return what makes a child's `number`-th point fail, where it is one of the file system's before its act."""

    def prepare() -> None:
        counter = itertools.count(1)

        def fail(name: str) -> None:
            if next(counter) == number and can_fail(name):
                raise OSError(code, os.strerror(code))

        install(fail)

    return prepare


def can_fail(name: str) -> bool:
    """Return whether a point is one at which the file system may say no."""
    return name.startswith("before file ")


def install(on: Callable[[str], object]) -> None:
    """Have `on` called before and after every step of files, every request to S3, every transaction. In a child."""
    steps, send = FileOps._step, S3Client.send

    @contextmanager
    def step(self: FileOps, name: str, path: Path) -> Iterator[None]:
        with steps(self, name, path):
            on(f"before file {name} {path.name}")
            yield
        on(f"after file {name} {path.name}")

    def sent(self: S3Client, operation: str, path: str, **parameters: Any) -> dict[str, Any]:
        on(f"before request {operation} {path}")
        answer = send(self, operation, path, **parameters)
        on(f"after request {operation} {path}")
        return answer

    FileOps._step = step  # type: ignore[method-assign]
    S3Client.send = sent  # type: ignore[method-assign]
    for name in ("write", "migrate"):
        setattr(Database, name, _watched(getattr(Database, name), name, on))

    @sa.event.listens_for(sa.Engine, "commit")
    def before_commit(_connection: sa.Connection) -> None:
        on("before commit")


def _watched(original: Any, name: str, on: Callable[[str], object]) -> Any:
    @contextmanager
    def transaction(self: Database) -> Iterator[sa.Connection]:
        on(f"before {name} transaction")
        with original(self) as connection:
            yield connection
        on(f"after {name} transaction")

    return transaction
