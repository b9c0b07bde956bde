"""What `modelreg serve` says while it runs: a line for people, or a line of JSON, for each event."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from modelreg.cli.failures import tell
from modelreg.cli.render import (
    JSON_SCHEMA,
    OutputError,
    count,
    echo,
    print_line,
    print_note,
    print_warning,
    short,
    when,
)
from modelreg.registry.clock import iso, utc_now

if TYPE_CHECKING:
    from modelreg.registry.errors import ModelregError
    from modelreg.runtime.requests import RequestRecord
    from modelreg.runtime.serve.models import ServedModel
    from modelreg.runtime.serving import Alarm, ServedEngine

_RUNTIME_LOG = logging.getLogger("modelreg.runtime")


_MOST_WAITING = 10_000
_FLUSH_S = 2.0


class ServeEvents:
    """
    Prints events, whichever thread they come from, in a thread of its own: who reads them may be slow, and what cannot
    be printed, or waits in too long a row, is lost rather than holding up a request.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._waiting: queue.Queue[Callable[[], None]] = queue.Queue(_MOST_WAITING)
        threading.Thread(target=self._work, name="modelreg events", daemon=True).start()

    def _work(self) -> None:
        while True:
            say = self._waiting.get()
            with suppress(OutputError, OSError):
                say()
            self._waiting.task_done()

    def _print(self, event: str, text: str, say: Callable[[str], None], **body: Any) -> None:
        if self._as_json:
            document = {"schema": JSON_SCHEMA, "event": event, "at": iso(utc_now()), **body}
            text, say = json.dumps(document, allow_nan=False), echo
        with suppress(queue.Full):
            self._waiting.put_nowait(partial(say, text))

    def flush(self) -> None:
        """Wait for what is not printed yet, as long as somebody reads it."""
        until_s = time.monotonic() + _FLUSH_S
        while self._waiting.unfinished_tasks and time.monotonic() < until_s:
            time.sleep(0.005)

    def listening(self, url: str, models: Sequence[ServedModel]) -> None:
        """Say where requests are answered, and what is served."""
        shown = [(model, model.served) for model in models]
        for model, served in shown:
            if not self._as_json and served is not None:
                self._print("", f"{model.name}: {_describe(served)}", print_line)
        body = [{"name": model.name, **({} if served is None else served.to_json())} for model, served in shown]
        self._print("listening", f"listening on {url}", print_line, url=url, models=body)

    def swapped(self, model: ServedModel, served: ServedEngine) -> None:
        """Say that another generation answers."""
        text = f"{when(utc_now())} {model.name}: {_describe(served)}"
        self._print("swapped", text, print_line, name=model.name, **served.to_json())

    def alarm(self, name: str) -> Callable[[Alarm], None]:
        """Return what says an alarm of a model."""

        def tell(alarm: Alarm) -> None:
            text = f"{when(alarm.at)} {name}: {alarm.kind}: {alarm.message}"
            hint = f" ({alarm.hint})" if alarm.hint else ""
            self._print("alarm", text + hint, print_warning, name=name, alarm=alarm.to_json())

        return tell

    def stopping(self, under_way: int) -> None:
        """Say that the server ends."""
        text = f"stopping, {count(under_way, 'request')} under way"
        self._print("stopping", text, print_note, under_way=under_way)

    def abandoned(self, why: str) -> None:
        """Say that not all that was under way has ended."""
        self._print("abandoned", f"{why}; leaving all the same", print_warning, why=why)
        self.flush()

    def stopped(self) -> None:
        """Say that all was answered and freed."""
        self._print("stopped", "stopped", print_note)
        self.flush()

    def failed(self, error: ModelregError) -> None:
        """Say why the server does not begin, or how it ended."""
        failure = tell(error)
        body = {"kind": failure.kind, "message": failure.message, "hint": failure.hint, "exit_code": failure.exit_code}
        self._print("error", failure.message, print_note, error=body)
        self.flush()

    def warn(self, message: str) -> None:
        """Say what the runtime warns of."""
        self._print("warning", f"{when(utc_now())} {message}", print_warning, message=message)

    def observe(self, record: RequestRecord) -> None:
        """Say that a request has ended: the access log."""
        times = {
            "queue_ms": round(record.queue_s * 1e3, 3),
            "compute_ms": round(record.compute_s * 1e3, 3),
            "total_ms": round(record.total_s * 1e3, 3),
        }
        generation = None if record.served is None else record.served.generation
        body = {
            "name": record.model,
            "outcome": str(record.outcome),
            "generation": generation,
            "rows": record.rows,
            **times,
            "bytes_in": record.bytes_in,
            "bytes_out": record.bytes_out,
        }
        words = " ".join(f"{key}={'-' if value is None else value}" for key, value in body.items() if key != "name")
        self._print("request", f"{when(utc_now())} {record.model} {words}", print_line, **body)


def _describe(served: ServedEngine) -> str:
    return (
        f"{served.model}@{served.channel} version {served.version}, generation {served.generation},"
        f" {served.target} {served.precision}, release {short(served.release)}"
    )


class _Warnings(logging.Handler):
    """Says warnings and unexpected errors of the runtime; alarms, which are logged too, are events of their own."""

    def __init__(self, events: ServeEvents) -> None:
        super().__init__(logging.WARNING)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self._events.warn(f"{record.getMessage()}: {type(error).__name__}: {error}")
        elif record.levelno == logging.WARNING:
            self._events.warn(record.getMessage())


@contextmanager
def log_to(events: ServeEvents) -> Iterator[None]:
    """Have the runtime's log said as events, until the end of the block."""
    handler = _Warnings(events)
    before = _RUNTIME_LOG.propagate
    _RUNTIME_LOG.addHandler(handler)
    _RUNTIME_LOG.propagate = False
    try:
        yield
    finally:
        _RUNTIME_LOG.propagate = before
        _RUNTIME_LOG.removeHandler(handler)
