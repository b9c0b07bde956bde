"""The answer to a request that was begun, and that no thread waits for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from modelreg.runtime.engines import is_dead
from modelreg.runtime.serving import Answer, ServedEngine

if TYPE_CHECKING:
    from modelreg.runtime.batcher import Queued


class BegunAnswer(Future[Answer]):
    """Becomes the answer once the engine has given its outputs; it can be cancelled as long as the request waits."""

    def __init__(self, outputs: Queued, served: ServedEngine, give_back: Callable[[bool], None]) -> None:
        """
        Follow a request.

        Args:
            outputs: What the engine will give.
            served: Which engine.
            give_back: Called once with whether the engine died, before the answer is there.
        """
        super().__init__()
        self._outputs, self._served, self._give_back = outputs, served, give_back
        outputs.add_done_callback(self._finish)

    def cancel(self) -> bool:
        """Take the request back; return whether it still waited."""
        return self._outputs.cancel() and super().cancel()

    def _finish(self, outputs: Future[Any]) -> None:
        if outputs.cancelled():
            self._give_back(False)
            return
        error = outputs.exception()
        self._give_back(isinstance(error, Exception) and is_dead(error))
        self.set_running_or_notify_cancel()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(Answer(outputs.result(), self._served, self._outputs.turn))
