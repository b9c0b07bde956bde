"""Serve what a channel has active, and follow it without dropping a request.

    with ActiveModel("resnet50@production", store="s3://bucket/models") as model:
        answer = model.infer({"image": images})
        answer["logits"], answer.generation

A background thread looks at the channel's pointer, pulls a new release, checks its digests, tries it, loads it and
warms it up; then one reference is swapped between two requests. A request that is under way ends on the engine that
it began with; when the last one has, the old engine is freed. A release that does not load, or does not answer as it
should, changes nothing: the old engine stays, an alarm is raised, and it is tried again after a while.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from modelreg.registry.contents import Signature
from modelreg.registry.errors import ModelregError, UsageError
from modelreg.registry.references import parse_reference
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.open import locate_storage
from modelreg.runtime.active_following import ActiveFollower
from modelreg.runtime.batcher import Batcher
from modelreg.runtime.begun import BegunAnswer
from modelreg.runtime.engines import Engine, is_dead
from modelreg.runtime.following import Source, StoreAt
from modelreg.runtime.host import Host, describe_serving_host
from modelreg.runtime.leases import LeaseKeeper
from modelreg.runtime.lending import Placed
from modelreg.runtime.pull import PullFolder
from modelreg.runtime.pull_request import PullRequest
from modelreg.runtime.serving import ActiveState, Alarm, Answer, NotServingError, ServedEngine, expired
from modelreg.runtime.swapping import Swapper
from modelreg.runtime.trying import Label, ServingOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

_log = logging.getLogger("modelreg.runtime")


def log_only(_alarm: Alarm) -> None:
    """Leave an alarm to the log and the state."""


@dataclass(frozen=True, slots=True)
class _Given:
    """A store that is open already, as a source."""

    storage: Storage

    def connect(self) -> Storage:
        return self.storage

    def open(self) -> Storage:
        return self.storage


class ActiveModel:
    """
    A model that is served. Thread-safe: any number of threads may call `infer`, `state` and `close`.

    Do not fork a process that has one: make it in the child.

    Attributes:
        is_batched: Whether requests wait in the queue of dynamic batching.
    """

    def __init__(
        self,
        name: str,
        *,
        store: str | os.PathLike[str] | Storage,
        cache: Path | None = None,
        options: ServingOptions | None = None,
        host: Host | None = None,
        interval_s: float = 1.0,
        retry_s: float = 30.0,
        wait_s: float = 30.0,
        on_alarm: Callable[[Alarm], None] = log_only,
        lease: bool = True,
        instance: str = "",
    ) -> None:
        """
        Load what is active now; return when it answers. Where the store is away, what an earlier run left here serves.

        Args:
            name: NAME@CHANNEL.
            store: The store's URL or folder, or an open store.
            cache: Folder that releases are pulled into; by default below `$XDG_CACHE_HOME/modelreg`.
            options: How engines are brought up.
            host: What this host has, of `describe_serving_host`; by default it is asked with our own interpreter.
            interval_s: About how often the pointer is looked at; a store that fails is asked half as often.
            retry_s: When a release that was refused is tried again; each time twice as long, up to ten minutes.
            wait_s: How long a request waits while there is no engine: drain-first, or a process that died.
            on_alarm: Called by the background thread; see `ActiveState.alarms` too.
            lease: Whether the store is told what this host serves.
            instance: What tells this server from others of the host in the lease; by default its process id.

        Raises:
            UsageError: The name has no channel, or the folder is something else.
            ModelregError: Nothing can be served.
        """
        reference = parse_reference(name)
        if reference.channel is None:
            raise UsageError(f"{name} names no channel", hint=f"Write {reference.model}@CHANNEL.")
        source: Source
        if isinstance(store, (str, os.PathLike)):
            url = locate_storage(os.fspath(store))
            source = StoreAt(url)
        else:
            url, source = store.url, _Given(store)
        host = describe_serving_host(()) if host is None else host
        request = PullRequest(
            store_url=url, model=reference.model, channel=reference.channel, host_targets=host.targets
        )
        folder = PullFolder((cache or default_cache(request)).absolute())
        swapper = Swapper(host=host, options=options or ServingOptions(), on_alarm=on_alarm)
        keeper = LeaseKeeper(source.open, instance=instance, warn=_log.warning) if lease else None
        self.is_batched = options is not None and options.batching is not None
        self._wait_s = wait_s
        self._lender = swapper.lender
        self._follower = ActiveFollower(
            source, folder, request, swapper=swapper, keeper=keeper, interval_s=interval_s, retry_s=retry_s
        )
        try:
            self._follower.start()
        except BaseException:
            self._follower.stop()
            raise
        atexit.register(self.close)

    # -- answering -----------------------------------------------------------------------------------------
    def infer(self, inputs: Mapping[str, Array], *, timeout_s: float | None = None) -> Answer:
        """
        Return every output for one set of inputs, and which engine gave them.

        Args:
            inputs: One array for each input.
            timeout_s: How long the request may wait for its turn; what runs is not interrupted. None: as long as it
                takes.

        Raises:
            RunError: The engine refuses the inputs.
            WorkerError: The engine's process died over this request; it is started again.
            QueueFullError: As many requests wait for a batch as may.
            DeadlineExceededError: `timeout_s` passed while it waited; it was not run.
            NotServingError: There is no engine, and none came in time; or the model is closed.
        """
        if timeout_s is None:
            return self.infer_until(inputs, None)
        return self.infer_until(inputs, time.monotonic() + timeout_s)

    def infer_until(self, inputs: Mapping[str, Array], until_s: float | None) -> Answer:
        """Do the same, with the time (`time.monotonic`) when it must have begun; raises as `infer`."""
        placed = self._borrow(until_s)
        dead = False
        try:
            engine = placed.seat.engine
            if isinstance(engine, Batcher):
                outputs, turn = engine.run_in_turn(inputs, until_s=until_s)
                return Answer(outputs, placed.label.served, turn)
            return Answer(engine.run(inputs, until_s=until_s), placed.label.served)
        except ModelregError as error:
            dead = is_dead(error)
            raise
        except BaseException:
            dead = placed.seat.engine.is_gone()  # Ctrl-C in a call ends a child: the next call must not find it dead
            raise
        finally:
            self._give_back(placed, is_broken=dead)

    def begin(self, inputs: Mapping[str, Array], *, until_s: float | None = None) -> Future[Answer] | None:
        """
        Put a request into the queue of dynamic batching and return at once; no thread waits for it.

        Cancelling the future takes the request back as long as it waits.

        Returns:
            None where there is no queue, or no engine at this moment: `infer` waits for one.

        Raises:
            ModelregError: As `infer`, for what is known at once.
        """
        placed = self._lender.try_borrow()
        if placed is None:
            return None
        engine = placed.seat.engine
        if not isinstance(engine, Batcher):
            self._give_back(placed, is_broken=False)
            return None
        try:
            inner = engine.submit(inputs, until_s=until_s)
        except BaseException:
            self._give_back(placed, is_broken=False)
            raise
        return BegunAnswer(inner, placed.label.served, lambda dead: self._give_back(placed, is_broken=dead))

    def _borrow(self, until_s: float | None) -> Placed[Engine, Label]:
        if until_s is None:
            return self._lender.borrow(wait_s=self._wait_s)
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise expired()
        try:
            return self._lender.borrow(wait_s=min(left_s, self._wait_s))
        except NotServingError as error:
            if time.monotonic() < until_s:
                raise
            raise expired() from error

    def _give_back(self, placed: Placed[Engine, Label], *, is_broken: bool) -> None:
        self._lender.give_back(placed, is_broken=is_broken)
        if is_broken:
            self._follower.wake()

    @property
    def served(self) -> ServedEngine:
        """
        Return which engine answers now.

        Raises:
            NotServingError: There is none at this moment.
        """
        current = self._lender.current
        if current is None:
            raise NotServingError(f"{self._follower.request.name} has no engine at this moment")
        return current.label.served

    @property
    def signature(self) -> Signature:
        """Return what the model takes and gives, of what is served or was served last."""
        label = self._follower.swapper.last_good
        assert label is not None, "a model that was opened has served something"
        return label.signature

    def state(self) -> ActiveState:
        """Return a look at what is served, and at what is wrong."""
        current, seen, swapper = self._lender.current, self._follower.seen, self._follower.swapper
        return ActiveState(
            served=None if current is None else current.label.served,
            store_generation=None if seen is None else seen.pointer.generation,
            alarms=swapper.alarms,
            in_flight=0 if current is None else current.seat.users,
            swaps=swapper.swaps,
            last_swap=swapper.last_swap,
            retired=swapper.retired,
            waiting=0 if current is None else current.seat.engine.waiting,
            instances=() if current is None else tuple(current.seat.engine.instances),
        )

    def look_now(self) -> None:
        """Have the background thread look at the channel at once, and try again what was refused."""
        self._follower.look_now()

    def close(self) -> None:
        """Answer what is under way, free the engines, give the lease back. May be called more than once."""
        self._follower.stop()
        atexit.unregister(self.close)

    def __enter__(self) -> ActiveModel:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def default_cache(request: PullRequest) -> Path:
    """Return the folder of this user that a channel's releases are pulled into."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    store = hashlib.sha256(request.store_url.encode()).hexdigest()[:16]
    return Path(base) / "modelreg" / "active" / store / request.model / request.channel
