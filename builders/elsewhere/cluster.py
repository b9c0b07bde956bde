"""A Dask cluster: the only module that imports `distributed`, on the registry's host and in the workers.

What crosses the wire as a pickle are the two functions `greet` and `build_order`, by their names; all that they take
and give is JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from modelreg.builders.elsewhere.resources import ClusterWorker, Resources
from modelreg.registry.errors import BuildError, MissingDependencyError
from modelreg.registry.words import Json

if TYPE_CHECKING:
    from distributed import Worker

CONNECT_TIMEOUT_S = 10.0
_FRESH_S = 1.0
_TICK_S = 0.25
_SEEN_TIMEOUT_S = 30.0
_STEP_EVERY_S = 0.5
_WANTED = ("waiting", "ready", "constrained", "executing", "long-running")
"""States of a task whose result somebody waits for; others mean that it was cancelled, or its client is gone."""


class SchedulerGoneError(BuildError):
    """The scheduler does not answer, or went away."""

    default_hint = "Check that it runs, and that this host reaches it."


class TooManyDeathsError(Exception):
    """Dask gave a task up, since the workers that ran it died."""


class Run:
    """One task that was sent to the cluster; `name` is what the events of a cell are told apart by."""

    def __init__(self, name: str, future: Any, news: queue.SimpleQueue[Json]) -> None:
        self.name = name
        self.news = news
        self._future = future
        self._ended = threading.Event()
        future.add_done_callback(lambda _: self._ended.set())

    def wait(self, timeout_s: float) -> Json | None:
        """
        Return what it answered, or None where it is not done in time.

        Raises:
            SchedulerGoneError: The connection was lost.
            TooManyDeathsError: Dask gave it up.
            BuildError: The worker could not run it at all.
        """
        if not self._ended.wait(timeout_s):
            return None
        if self._future.status == "finished":
            answer: Json = json.loads(self._future.result())
            return answer
        if self._future.status == "error":
            error = self._future.exception()
            if type(error).__name__ == "KilledWorker":
                raise TooManyDeathsError(str(error)) from error
            raise BuildError(f"a worker cannot run it: {_say(error)}")
        raise SchedulerGoneError("the connection to the scheduler was lost while cells were built")

    def cancel(self) -> None:
        """Tell the cluster that nobody waits for it; what works on it ends within a second."""
        with contextlib.suppress(Exception):  # a cluster that is gone has cancelled it already
            self._future.cancel(force=True)


class Cluster:
    """A connection to a scheduler; a context manager."""

    def __init__(self, client: Any, address: str) -> None:
        self.address = address
        self._client = client
        self._topic = f"modelreg-{uuid.uuid4().hex}"
        self._news: dict[str, queue.SimpleQueue[Json]] = {}
        self._workers: list[ClusterWorker] = []
        self._looked_at = float("-inf")
        self._lock = threading.Lock()
        client.subscribe_topic(self._topic, self._take_event)

    @classmethod
    def connect(cls, address: str, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Cluster:
        """
        Connect to a scheduler, `tcp://HOST:PORT` or `tls://HOST:PORT`; TLS is set up by Dask's own configuration.

        Raises:
            MissingDependencyError: `distributed` is not installed.
            SchedulerGoneError: None answers.
        """
        try:
            from distributed import Client
        except ImportError as error:
            raise MissingDependencyError("distributed", extra="dask") from error
        make: Any = Client  # Dask annotates only a part of it
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters is raised, in one line
        try:
            client: Any = make(
                address, timeout=timeout_s, set_as_default=False, name="modelreg", direct_to_workers=False
            )
        except (OSError, TimeoutError, ValueError, TypeError) as error:
            raise SchedulerGoneError(f"no Dask scheduler answers at {address}: {_say(error)}") from error
        return cls(client, address)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):  # it may be gone; what it held of ours goes with the connection
            self._client.close(timeout=2)

    def workers(self, *, fresh: bool = False) -> list[ClusterWorker]:
        """
        Return the workers that there are, as of at most a second ago, or with `fresh` as of now.

        Raises:
            SchedulerGoneError: The connection was lost.
        """
        with self._lock:
            if fresh or time.monotonic() - self._looked_at > _FRESH_S:
                self._workers = self._look()
                self._looked_at = time.monotonic()
            return self._workers

    def _look(self) -> list[ClusterWorker]:
        if self._client.status != "running":
            raise SchedulerGoneError(f"the scheduler at {self.address} went away while cells were built")
        # Releases of 2025 give five workers unless more are asked for; those before take no number.
        takes_number = "n_workers" in inspect.signature(self._client.scheduler_info).parameters
        info: Any = self._client.scheduler_info(**({"n_workers": -1} if takes_number else {}))
        return [
            ClusterWorker(address=address, name=str(each["name"]), resources=dict(each.get("resources") or {}))
            for address, each in info["workers"].items()
        ]

    def greet(self, workers: Sequence[ClusterWorker], body: Json) -> dict[str, Json]:
        """Return what each worker answers to a greeting, by address; `error` where it could not be asked."""
        addresses = [worker.address for worker in workers]
        answers = self._client.run(greet, json.dumps(body), workers=addresses, on_error="return")
        return {
            address: json.loads(answer) if isinstance(answer, str) else {"error": _say(answer)}
            for address, answer in answers.items()
        }

    def submit(self, name: str, order: Json, resources: Resources) -> Run:
        """
        Send a cell to a worker that has these resources free, as soon as there is one.

        Args:
            name: The same for every run of a cell: deaths are counted by it.
            order: What `build_order` takes beside the topic and the name.
            resources: How much of each it takes while it runs.
        """
        news = self._news.setdefault(name, queue.SimpleQueue())
        text = json.dumps({**order, "topic": self._topic, "name": name})
        key = f"modelreg-build-{name}-{uuid.uuid4().hex}"
        future = self._client.submit(build_order, text, key=key, resources=dict(resources), pure=False)
        return Run(name, future, news)

    def _take_event(self, event: tuple[float, Json]) -> None:
        _, told = event
        news = self._news.get(str(told.get("name")))
        if news is not None:
            news.put(told)


async def greet(text: str) -> str:
    """Answer a greeting in a worker, outside its event loop and its queue of tasks."""
    from modelreg.builders.elsewhere.site import answer_greeting  # noqa: PLC0415 - imports the builders

    return json.dumps(await asyncio.to_thread(answer_greeting, json.loads(text)))


def build_order(text: str) -> str:
    """Build a cell in a worker: the task that is sent there."""
    from distributed import get_worker

    from modelreg.builders.elsewhere.answers import describe_skew  # noqa: PLC0415 - imports the builders

    order, worker = json.loads(text), get_worker()
    skew = describe_skew(order["version"], where="the registry's host", here=f"on worker {worker.name}")
    if skew:
        return _fail(skew, hint="Install the same modelreg on both.")
    dead = _claim(worker, order)
    if len(dead) > order["retries"]:
        return _fail(f"the workers that built it died: {', '.join(dead)}", kind="WorkerError")
    return _build(worker, order, dead)


def _build(worker: Worker, order: Json, dead: Sequence[str]) -> str:
    from modelreg.builders.elsewhere.parcels import Parcel  # noqa: PLC0415 - imports the builders
    from modelreg.builders.elsewhere.site import build_parcel  # noqa: PLC0415
    from modelreg.registry.toolchains.pipes import interrupted_by  # noqa: PLC0415

    told = _Told(worker, order)
    try:
        with _stopped_when_unwanted(worker) as stop, interrupted_by(stop):
            answer = build_parcel(Parcel.from_json(order["parcel"]), worker=str(worker.name), progress=told)
    except KeyboardInterrupt:
        return _fail("interrupted")
    return json.dumps({**answer.to_json(), "dead": list(dead)})


def _fail(reason: str, *, kind: str = "BuildError", hint: str = "") -> str:
    error = {"kind": kind, "message": reason, "hint": hint}
    return json.dumps({"made": None, "error": error, "log": None, "calibration_cache": [], "dead": []})


class _Told:
    """Sends progress to the registry's host: what is new, and fractions now and then."""

    def __init__(self, worker: Worker, order: Json) -> None:
        self._worker, self._topic, self._name = worker, order["topic"], order["name"]
        self._last, self._sent_at = "", float("-inf")

    def __call__(self, fraction: float | None, doing: str) -> None:
        now = time.monotonic()
        if doing == self._last and now - self._sent_at < _STEP_EVERY_S:
            return
        self._last, self._sent_at = doing, now
        event = {"name": self._name, "kind": "step", "fraction": fraction, "doing": doing}
        self._worker.log_event(self._topic, event)


def _claim(worker: Worker, order: Json) -> list[str]:
    """
    Say that the cell begins here; return the workers that began it before, and so died at it.

    The scheduler keeps what was said. It is waited for until it knows of this one, so that a worker which dies at
    once is counted too; a scheduler that keeps no events counts none, and Dask's own `allowed-failures` holds then.
    """
    own = uuid.uuid4().hex
    event = {"name": order["name"], "kind": "started", "id": own, "on": str(worker.name), "address": worker.address}
    worker.log_event(order["topic"], event)
    deadline = time.monotonic() + _SEEN_TIMEOUT_S
    while time.monotonic() < deadline:
        started = [
            told
            for _, told in _read_events(worker, order["topic"])
            if told["kind"] == "started" and told["name"] == order["name"]
        ]
        if any(told["id"] == own for told in started):
            return [told["on"] for told in started if told["id"] != own]
        time.sleep(0.02)
    return []


def _read_events(worker: Worker, topic: str) -> Sequence[tuple[float, Json]]:
    from distributed.utils import sync

    found: Sequence[tuple[float, Json]] = sync(worker.loop, worker.scheduler.events, topic=topic)
    return found


@contextlib.contextmanager
def _stopped_when_unwanted(worker: Worker) -> Iterator[threading.Event]:
    """Set the event when nobody waits for this task any more: a task that runs is not stopped by Dask itself."""
    stop, done = threading.Event(), threading.Event()
    key = worker.get_current_task()

    def watch() -> None:
        while not done.wait(_TICK_S):
            state = worker.state.tasks.get(key)
            if state is None or state.state not in _WANTED or worker.status.name in ("closing", "closed", "failed"):
                stop.set()
                return

    watcher = threading.Thread(target=watch, name="modelreg-watch", daemon=True)
    watcher.start()
    try:
        yield stop
    finally:
        done.set()
        watcher.join()


def _say(error: object) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
