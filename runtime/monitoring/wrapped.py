"""An `ActiveModel` whose calls are counted, for a Python service that has no server of ours in front."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from modelreg.runtime.instance_group import is_refusal
from modelreg.runtime.requests import RequestOutcome, RequestRecord
from modelreg.runtime.serving import ActiveState, Answer, DeadlineExceededError, NotServingError, QueueFullError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from modelreg.runtime.active import ActiveModel
    from modelreg.runtime.active_async import AsyncActiveModel
    from modelreg.runtime.monitoring.monitor import Monitor

    Array = NDArray[np.generic]


ModelT = TypeVar("ModelT", bound="ActiveModel | AsyncActiveModel")


class _Monitored(Generic[ModelT]):
    """A model under a name, and who is told of its calls."""

    def __init__(self, model: ModelT, *, name: str, monitor: Monitor) -> None:
        self.model = model
        self._name, self._monitor = name, monitor

    def state(self) -> ActiveState:
        """Return a look at what is served."""
        return self.model.state()

    def _note_failure(self, error: BaseException, *, began_s: float) -> None:
        self._monitor.observe(describe_failure(self._name, error, began_s=began_s))

    def _note_answer(self, inputs: Mapping[str, Array], answer: Answer, *, began_s: float) -> None:
        self._monitor.observe(describe_answer(self._name, inputs, answer, began_s=began_s))
        self._monitor.offer(self._name, inputs, answer)


class MonitoredModel(_Monitored["ActiveModel"]):
    """Answers as the model does, and tells the monitor of each call; thread-safe as the model is."""

    def infer(self, inputs: Mapping[str, Array], **options: Any) -> Answer:
        """Return the answer; takes what `ActiveModel.infer` takes, and raises as it does."""
        began_s = time.perf_counter()
        try:
            answer = self.model.infer(inputs, **options)
        except BaseException as error:
            self._note_failure(error, began_s=began_s)
            raise
        self._note_answer(inputs, answer, began_s=began_s)
        return answer


class AsyncMonitoredModel(_Monitored["AsyncActiveModel"]):
    """The same for `AsyncActiveModel`: a call's time begins when it is made, so waiting for a thread is part of it."""

    async def infer(self, inputs: Mapping[str, Array], **options: Any) -> Answer:
        """Return the answer; takes what `AsyncActiveModel.infer` takes, and raises as it does."""
        began_s = time.perf_counter()
        try:
            answer = await self.model.infer(inputs, **options)
        except BaseException as error:
            self._note_failure(error, began_s=began_s)
            raise
        self._note_answer(inputs, answer, began_s=began_s)
        return answer


def describe_answer(name: str, inputs: Mapping[str, Array], answer: Answer, *, began_s: float) -> RequestRecord:
    """Return the record of a request that was answered just now."""
    took_s = time.perf_counter() - began_s
    return RequestRecord(
        model=name,
        outcome=RequestOutcome.OK,
        served=answer.served,
        rows=count_rows(inputs),
        queue_s=answer.turn.queue_s,
        compute_s=took_s - answer.turn.queue_s,
        batch_rows=answer.turn.batch_rows,
        executions=answer.turn.executions,
        total_s=took_s,
        bytes_in=sum(each.nbytes for each in inputs.values()),
        bytes_out=sum(each.nbytes for each in answer.outputs.values()),
    )


def describe_failure(name: str, error: BaseException, *, began_s: float) -> RequestRecord:
    """Return the record of a request that failed just now."""
    return RequestRecord(model=name, outcome=judge_error(error), total_s=time.perf_counter() - began_s)


def judge_error(error: BaseException) -> RequestOutcome:
    """Return how a request ended that raised `error`. Pure."""
    if is_refusal(error):
        return RequestOutcome.INVALID  # the backend refuses these inputs, and lives on
    if isinstance(error, (NotServingError, QueueFullError)):
        return RequestOutcome.REFUSED
    if isinstance(error, DeadlineExceededError):
        return RequestOutcome.EXPIRED
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
        return RequestOutcome.CANCELED
    return RequestOutcome.FAILED


def count_rows(inputs: Mapping[str, Array]) -> int:
    """Return the samples of a request: the first axis of its first input; 1 where that has none."""
    for array in inputs.values():
        return int(array.shape[0]) if getattr(array, "ndim", 0) else 1
    return 0
