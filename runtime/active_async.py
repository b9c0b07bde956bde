"""The same for asyncio: what blocks runs in threads, the event loop goes on.

async with AsyncActiveModel("resnet50@production", store="s3://bucket/models") as model:
    answer = await model.infer({"image": images})
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from modelreg.registry.contents import Signature
from modelreg.runtime.active import ActiveModel
from modelreg.runtime.mailbox import Mailbox
from modelreg.runtime.serving import ActiveState, Answer, NotServingError, count_instances, expired

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]


class AsyncActiveModel:
    """
    An `ActiveModel` whose calls are awaited. Enter it with `async with`, or await `open` and `close`.

    Args:
        name: NAME@CHANNEL.
        concurrency: So many requests are on the engine at a time, at least one for each instance; the others wait, in
            order. With dynamic batching, its queue takes their place.
        arguments: Those of `ActiveModel`.
    """

    def __init__(self, name: str, *, concurrency: int = 4, **arguments: Any) -> None:
        self._make = partial(ActiveModel, name, **arguments)
        self._concurrency = concurrency
        self._model: ActiveModel | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._mailbox: Mailbox | None = None

    async def open(self) -> AsyncActiveModel:
        """
        Load what is active.

        Raises:
            ModelregError: As `ActiveModel`.
        """
        loop = asyncio.get_running_loop()
        opener = ThreadPoolExecutor(1, thread_name_prefix="modelreg-open")
        opening = loop.run_in_executor(opener, self._make)
        opener.shutdown(wait=False)  # its thread ends with that
        try:
            self._model = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_late)  # it goes on in its thread, and nobody will have it
            raise
        size = max(self._concurrency, count_instances(self._model.state()))
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="modelreg-infer")
        self._mailbox = Mailbox(loop)
        return self

    async def infer(self, inputs: Mapping[str, Array], *, timeout_s: float | None = None) -> Answer:
        """
        Return every output for one set of inputs, and which engine gave them.

        With dynamic batching no thread waits for the answer. A task that is cancelled ends at once; a request of it
        that waits in the queue is taken back, and one that was begun ends for nobody.

        Raises:
            ModelregError: As `ActiveModel.infer`.
        """
        model = self._require_open()
        assert self._threads is not None
        assert self._mailbox is not None
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        begun = model.begin(inputs, until_s=until_s)
        if begun is not None:
            return await _wait(begun, self._mailbox, timeout_s)
        return await asyncio.get_running_loop().run_in_executor(self._threads, model.infer_until, inputs, until_s)

    @property
    def is_batched(self) -> bool:
        """Return whether requests wait in the queue of dynamic batching."""
        return self._require_open().is_batched

    @property
    def signature(self) -> Signature:
        """Return what the model takes and gives, of what is served or was served last."""
        return self._require_open().signature

    def state(self) -> ActiveState:
        """Return a look at what is served; it waits for nothing."""
        return self._require_open().state()

    def _require_open(self) -> ActiveModel:
        if self._model is None:
            raise NotServingError("this model is not open", hint="Use it in `async with`.")
        return self._model

    async def close(self) -> None:
        """Answer what is under way, and free the engines."""
        model, threads = self._model, self._threads
        self._model = self._threads = None
        if model is None or threads is None:
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, partial(threads.shutdown, wait=True))
        await loop.run_in_executor(None, model.close)

    async def __aenter__(self) -> AsyncActiveModel:
        return await self.open()

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()


async def _wait(begun: Future[Answer], mailbox: Mailbox, timeout_s: float | None) -> Answer:
    """Return the answer; at the deadline, take the request back if it still waits."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()
    late = False

    def take_back() -> None:
        nonlocal late
        late = begun.cancel()  # False: it runs, and its answer comes

    begun.add_done_callback(lambda done: mailbox.put(partial(_pass_on, done, answer)))
    timer = None if timeout_s is None else loop.call_later(timeout_s, take_back)
    try:
        return await answer
    except asyncio.CancelledError:
        if late:
            raise expired() from None
        begun.cancel()
        raise
    finally:
        if timer is not None:
            timer.cancel()


def _pass_on(done: Future[Answer], answer: asyncio.Future[Answer]) -> None:
    if answer.done():  # who waited was cancelled
        return
    if done.cancelled():
        answer.cancel()
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())


def _close_late(opening: asyncio.Future[ActiveModel]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, opening.result().close)
