"""The parent side of a worker: start it, ask it, and end it whatever it does.

The child has its own session, so that one signal ends it with everything it started. Its stderr (and what its
libraries print) goes to the log file; only frames cross the pipes, and every wait has an end.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from modelreg.registry.errors import ToolchainError, WorkerError
from modelreg.registry.scratch import scratch_folder
from modelreg.registry.toolchains import worker as protocol
from modelreg.registry.toolchains.exits import describe_exit
from modelreg.registry.toolchains.pipes import TimedPipe
from modelreg.registry.toolchains.spawning import spawn
from modelreg.registry.words import Json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from modelreg.registry.toolchains.pieces import Feed
    from modelreg.registry.toolchains.shared import Arenas

    Array = NDArray[np.generic]

OnProgress = Callable[[float | None, str], None]

START_TIMEOUT_S = 120.0
MAX_LOG_BYTES = 64 << 20
_CLOSE_TIMEOUT_S = 5.0
_TAIL_BYTES = 16 << 10


class WorkerJobError(WorkerError):
    """The job raised an exception; the worker lives on."""

    def __init__(self, message: str, *, remote_type: str, remote_details: dict[str, object]) -> None:
        super().__init__(message)
        self.remote_type = remote_type
        self.remote_details = remote_details

    def details(self) -> dict[str, object]:
        """Return the exception's class and what it attached."""
        return {"type": self.remote_type, **self.remote_details}


class WorkerDiedError(WorkerError):
    """The worker process ended by itself; `return_code` is that of `subprocess`, None where it still runs."""

    default_hint = "The build log has what it said before; run again with -v to see it."

    def __init__(self, message: str, *, return_code: int | None) -> None:
        super().__init__(message)
        self.return_code = return_code


class WorkerTimeoutError(WorkerError):
    """The worker took too long and was killed."""

    default_hint = "Give it more time with --timeout, or look into the build log."


class WorkerLogError(WorkerTimeoutError):
    """The worker wrote more log than it may and was killed."""

    default_hint = "Look into the build log: something repeats there."


class WorkerProtocolError(WorkerError):
    """The worker answered something that is no frame and was killed."""


def ignore_progress(_fraction: float | None, _message: str) -> None:
    """Ignore progress."""


class Worker:
    """
    A child process that runs the jobs of one module file; close it, or use it as a context manager.

    The kernel kills the child when the *thread* that started it ends, so keep that thread alive while it works.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        module: Path,
        log_path: Path,
        belongings: contextlib.ExitStack,
        arenas: Arenas | None = None,
    ) -> None:
        self._sent = None if arenas is None else arenas.requests
        self._got = None if arenas is None else arenas.answers
        self._process = process
        self._belongings = belongings
        self._name = module.stem
        self._log_path = log_path
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        self._pipe = TimedPipe(process.stdin.fileno(), process.stdout.fileno(), self._watch)
        self._requests = cast(BinaryIO, self._pipe)
        self._answers = cast(BinaryIO, io.BufferedReader(self._pipe, buffer_size=1 << 16))
        self._is_dead = False
        self._is_over = False
        self.python_version = ""

    @classmethod
    def start(
        cls,
        python: str,
        module: Path,
        *,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        arenas: Arenas | None = None,
        timeout_s: float = START_TIMEOUT_S,
    ) -> Worker:
        """
        Start `python` on the module file and wait until it is ready.

        Args:
            python: Interpreter, 3.8 or newer.
            module: File with `JOBS`, a mapping of names to functions (request, arrays, report).
            log_path: File that the child's stderr is appended to.
            env: Variables to set beside those that every worker gets.
            arenas: Shared memory for large arrays, which is the worker's from now on; jobs must not keep an array of a
                request beyond their answer.
            timeout_s: How long the caller waits for anything; the imports of the module get no more than
                `START_TIMEOUT_S` of it.

        Raises:
            WorkerError: The interpreter does not start, or the module cannot be loaded.
            ToolchainError: It cannot be loaded for want of NumPy.
        """
        with contextlib.ExitStack() as belongings:
            temporary = belongings.enter_context(scratch_folder("worker"))
            extra = dict(env or {})
            fds: tuple[int, ...] = ()
            if arenas is not None:
                belongings.callback(arenas.close)
                fds = arenas.fds
                extra[protocol.ARENAS] = ",".join(map(str, fds))
            process = spawn(python, module, temporary=temporary, extra=extra, log_path=log_path, shared_fds=fds)
            started = cls(process, module, log_path, belongings.pop_all(), arenas)
        start_s = min(timeout_s, START_TIMEOUT_S)
        try:
            frame, _ = started._receive(time.monotonic() + start_s, start_s, ignore_progress)
            if frame.get("kind") != "ready" or frame.get("protocol") != protocol.PROTOCOL:
                raise WorkerProtocolError(f"worker {started._name} did not say that it is ready: {frame!r:.200}")
        except BaseException as error:
            started.kill()
            if isinstance(error, WorkerJobError) and "No module named 'numpy'" in str(error):
                hint = f"Install it there: {python} -m pip install numpy"
                raise ToolchainError(f"{python} has no NumPy, which {started._name} needs", hint=hint) from error
            raise
        started.python_version = str(frame.get("python", ""))
        return started

    @property
    def pid(self) -> int:
        """Return the process id of the child."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Return whether the child's process is gone."""
        return self._process.poll() is not None

    def call(
        self,
        job: str,
        request: Mapping[str, Any],
        arrays: Feed | None = None,
        *,
        timeout_s: float,
        on_progress: OnProgress = ignore_progress,
    ) -> tuple[Json, dict[str, Array]]:
        """
        Run one job; return its JSON object and its arrays. Every error but `WorkerJobError` kills the child.

        Raises:
            WorkerJobError: The job raised, or an array cannot travel.
            WorkerDiedError: The child exited or was killed by a signal.
            WorkerTimeoutError: `timeout_s` passed; as `WorkerLogError`, the log outgrew its limit.
            WorkerProtocolError: The child answered garbage.
        """
        if self._is_over:  # the numbers of its pipes may be somebody else's files by now
            raise WorkerDiedError(f"worker {self._name} has ended", return_code=self._process.poll())
        deadline = time.monotonic() + timeout_s
        with self._killing_on_error():
            self._pipe.deadline = deadline
            try:
                if self._sent is not None:
                    self._sent.start()
                sent = self._join(arrays) if arrays else None
                protocol.write_frame(self._requests, {"job": job, "request": dict(request)}, sent, arena=self._sent)
            except TimeoutError as error:
                raise self._timed_out(timeout_s) from error
            except BrokenPipeError as error:
                raise self._died() from error
            except protocol.FrameError as error:  # of the caller's arrays: the worker has heard nothing of it
                raise WorkerJobError(str(error), remote_type=type(error).__name__, remote_details={}) from error
            frame, out = self._receive(deadline, timeout_s, on_progress)
            body = frame.get("body")
            if frame.get("kind") != "result" or not isinstance(body, dict):
                raise WorkerProtocolError(f"worker {self._name} answered {frame!r:.200} to {job!r}")
        return body, out if self._got is None else self._got.take_out(out)

    def _join(self, arrays: Feed) -> dict[str, Array]:
        """Return the arrays of a frame that was begun, whole."""
        from modelreg.registry.toolchains.pieces import Pieces, whole  # noqa: PLC0415 - NumPy: start-up time

        if self._sent is None:
            return {name: whole(array) for name, array in arrays.items()}
        join = self._sent.join
        return {name: join(array) if isinstance(array, Pieces) else array for name, array in arrays.items()}

    def close(self) -> None:
        """End the child: politely by the end of its stdin, by SIGKILL to its whole session after 5 s."""
        assert self._process.stdin is not None
        self._is_over = True
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """Kill the child and everything it started, now, and remove its temporary files."""
        self._is_over = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._belongings.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def log_tail(self, lines: int = 20) -> list[str]:
        """Return the last non-empty lines of the log."""
        try:
            with self._log_path.open("rb") as log:
                log.seek(max(0, self._log_path.stat().st_size - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return []
        return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]

    @contextlib.contextmanager
    def _killing_on_error(self) -> Iterator[None]:
        try:
            yield
        except WorkerJobError:
            raise
        except BaseException:
            self.kill()
            raise

    def _receive(
        self, deadline: float, timeout_s: float, on_progress: OnProgress
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the next frame that is no progress."""
        self._pipe.deadline = deadline
        while True:
            try:
                received = protocol.read_frame(self._answers, arena=self._got)
            except TimeoutError as error:
                raise self._timed_out(timeout_s) from error
            except protocol.FrameError as error:
                if self._pipe.ended:
                    raise self._died() from error
                raise WorkerProtocolError(f"worker {self._name} printed garbage: {error}") from error
            if received is None:
                raise self._died()
            frame, arrays = received
            if frame.get("kind") == "error":
                raise _job_error(frame)
            if frame.get("kind") != "progress":
                return frame, arrays
            on_progress(_read_fraction(frame), str(frame.get("message", "")))
            self._watch_log()

    def _watch(self) -> None:
        """Look after the child while nothing comes: something it started may hold the pipe open when it is dead."""
        self._watch_log()
        if self._is_dead:  # and nothing came since: what it said last has been read
            raise self._died()
        self._is_dead = self._process.poll() is not None

    def _watch_log(self) -> None:
        """Kill a worker that prints without end: it must not fill the disk."""
        size_bytes = self._log_path.stat().st_size if self._log_path.exists() else 0
        if size_bytes > MAX_LOG_BYTES:
            self.kill()
            os.truncate(self._log_path, MAX_LOG_BYTES)
            raise WorkerLogError(f"worker {self._name} wrote more than {MAX_LOG_BYTES >> 20} MiB of log and was killed")

    def _timed_out(self, timeout_s: float) -> WorkerTimeoutError:
        return WorkerTimeoutError(f"worker {self._name} took longer than {timeout_s:g} s and was killed{self._last()}")

    def _died(self) -> WorkerDiedError:
        try:
            code = self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            message = f"worker {self._name} closed its output without an answer{self._last()}"
            return WorkerDiedError(message, return_code=None)
        return WorkerDiedError(f"worker {self._name} {describe_exit(code)}{self._last()}", return_code=code)

    def _last(self) -> str:
        tail = self.log_tail(1)
        return f"; its last log line: {tail[-1]:.200}" if tail else ""


def _job_error(frame: Json) -> WorkerJobError:
    """Return what a job raised; particulars that are no object are left out."""
    details = frame.get("details")
    return WorkerJobError(
        str(frame.get("message", "")) or str(frame.get("type")),
        remote_type=str(frame.get("type", "")),
        remote_details=details if isinstance(details, dict) else {},
    )


def _read_fraction(frame: Json) -> float | None:
    """Return how far a job says it is, from 0 to 1, or None where it says nothing of the kind."""
    fraction = frame.get("fraction")
    return fraction if isinstance(fraction, (int, float)) and 0 <= fraction <= 1 else None
