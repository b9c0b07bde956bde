"""The same for asyncio: what blocks runs in threads, the event loop goes on.

async with AsyncActiveModel("resnet50@production", store="s3://bucket/models") as model:
    answer = await model.infer({"image": images})
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from modelreg.registry.contents import Signature
from modelreg.runtime.active import ActiveModel
from modelreg.runtime.serving import ActiveState, Answer, NotServingError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]


class AsyncActiveModel:
    """
    An `ActiveModel` whose calls are awaited. Enter it with `async with`, or await `open` and `close`.

    Args:
        name: NAME@CHANNEL.
        concurrency: So many requests are on the engine at a time; the others wait, in order.
        arguments: Those of `ActiveModel`.
    """

    def __init__(self, name: str, *, concurrency: int = 4, **arguments: Any) -> None:
        self._make = partial(ActiveModel, name, **arguments)
        self._concurrency = concurrency
        self._model: ActiveModel | None = None
        self._threads: ThreadPoolExecutor | None = None

    async def open(self) -> AsyncActiveModel:
        """
        Load what is active.

        Raises:
            ModelregError: As `ActiveModel`.
        """
        self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="modelreg-infer")
        opening = asyncio.get_running_loop().run_in_executor(self._threads, self._make)
        try:
            self._model = await asyncio.shield(opening)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                opening.add_done_callback(_close_late)  # it goes on in its thread, and nobody will have it
            self._threads.shutdown(wait=False)
            raise
        return self

    async def infer(self, inputs: Mapping[str, Array]) -> Answer:
        """
        Return every output for one set of inputs, and which engine gave them.

        A task that is cancelled ends at once; what was begun for it ends in its thread, and is thrown away.

        Raises:
            ModelregError: As `ActiveModel.infer`.
        """
        model = self._require_open()
        return await asyncio.get_running_loop().run_in_executor(self._threads, model.infer, inputs)

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


def _close_late(opening: asyncio.Future[ActiveModel]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, opening.result().close)
