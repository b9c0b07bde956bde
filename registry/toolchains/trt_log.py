"""What TensorRT and TensorRT-RTX say to their logger, which is the only place where they say why. Python 3.8.

Nothing here imports a backend: job files do, and pass their module in.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Dict, List, Optional

Json = Dict[str, Any]

_NOISE = re.compile(r"catchCudaError.*cudaError 35")
"""Each error is followed by this one where there is no driver."""

_ECHO = re.compile(r"catchCudaError.*Cuda Runtime \(In catchCudaError at [^:]*:\d+\)$")
"""The same in RTX 1.4, which leaves the reason out; alone it would be an error like any other."""

_GRAVE = re.compile(r"outside the range of INT32 was clamped")
"""Warnings of a build that would give other results: 8.6 clamps INT64 weights."""

_MAX_SHOWN = 5
_MAX_ERRORS = 2
_MAX_CHARACTERS = 300


class TensorRTError(Exception):
    """TensorRT refuses; the message is for the user, `details` carries the hint, and nodes that it cannot parse."""

    def __init__(self, message: str, hint: str = "", nodes: Optional[List[Json]] = None) -> None:
        super().__init__(message)
        self.details: Json = {"hint": hint} if hint else {}
        if nodes:
            self.details["nodes"] = nodes


class BackendChangedError(TensorRTError):
    """The interpreter no longer has what was registered: it is gone, broken, or of another version."""


def make_log(trt: Any, product: str) -> Any:
    """
    Return a logger of this TensorRT that keeps errors and warnings, and writes all to stderr, the log file.

    Args:
        trt: The backend's module.
        product: What errors call it, for example `TensorRT-RTX`.
    """

    class Log(trt.ILogger):  # type: ignore[misc]
        """Writes what is said to the log, and keeps what went wrong."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.product = product
            self.errors: List[str] = []
            self.warnings: List[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity > trt.ILogger.INFO:
                return
            sys.stderr.write("[%s] %s\n" % (severity.name, message))
            if severity <= trt.ILogger.ERROR or _GRAVE.search(message):
                if not _NOISE.search(message) and not (self.errors and _ECHO.search(message)):
                    self.errors.append(clean(message))
            elif severity == trt.ILogger.WARNING and clean(message) not in self.warnings:
                self.warnings.append(clean(message))

        def require_no_error(self, problem: str) -> None:
            """Raise what was logged as an error, if anything was."""
            if self.errors:
                raise TensorRTError("%s %s: %s" % (self.product, problem, self.say_errors()))

        def require(self, thing: Any, problem: str, hint: str = "") -> Any:
            """Return a thing that TensorRT made; what it could not make is None, and the reason in the log."""
            if thing is None:
                reason = self.say_errors() or "it gives no reason"
                raise TensorRTError("%s %s: %s" % (self.product, problem, reason), hint)
            return thing

        def say_errors(self) -> str:
            """Return the first errors, briefly: one often logs a dozen others, and the log has them all."""
            return join([text[:_MAX_CHARACTERS] for text in self.errors], shown=_MAX_ERRORS)

    return Log()


def join(texts: List[str], *, shown: int = _MAX_SHOWN) -> str:
    """Return the first of several messages on one line, and how many more there are."""
    more = "; and %d more" % (len(texts) - shown) if len(texts) > shown else ""
    return "; ".join(texts[:shown]) + more


def clean(message: str) -> str:
    """Return what TensorRT says on one line, without its source locations and the error of a missing driver."""
    lines = [line for line in message.splitlines() if not _NOISE.search(line)]
    text = " ".join(" ".join(lines).split())
    text = re.sub(r"\.? In \w+ at /_src/\S+?:\d+", "", text)
    text = re.sub(r"^[\w.]+\.cpp:\d+: ", "", text)
    text = re.sub(r"^(?:\d+: )?\[[\w.]+::\w+::\d+\] ", "", text)
    return re.sub(r" \(In \w+ at /_src/[^)]*\)", "", text)[:600]
