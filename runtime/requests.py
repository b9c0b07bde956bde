"""What is known of one answered or refused request, and who wants to hear of it. Values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from modelreg.registry.words import Word
from modelreg.runtime.serving import Answer, ServedEngine

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]


class RequestOutcome(Word):
    """How a request ended. All but `ok` are failures, by the reason."""

    OK = "ok"
    INVALID = "invalid"
    REFUSED = "refused"
    EXPIRED = "expired"
    CANCELED = "canceled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """
    One request.

    Attributes:
        model: The name that it was asked under.
        outcome: `invalid`: not what the model takes; `refused`: no room, or no engine; `expired`: its deadline passed
            while it waited; `canceled`: who asked went away; `failed`: the engine failed.
        served: The engine that answered; None where none did.
        rows: Samples of the request; 0 where nobody can tell.
        queue_s: Seconds that it waited for its turn.
        compute_s: Seconds that the engine took.
        batch_rows: Rows of the batch that it was part of; 0 where nothing batches.
        executions: Runs of the engine that count with this request: with dynamic batching 1 for one request of each
            batch and 0 for the others. Nothing where no engine answered.
        total_s: Seconds from the first byte to the answer.
        bytes_in: Size of what came.
        bytes_out: Size of what went.
    """

    model: str
    outcome: RequestOutcome
    served: ServedEngine | None = None
    rows: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0
    batch_rows: int = 0
    executions: int = 1
    total_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0


class RequestObserver(Protocol):
    """Hears of every request, from any thread; must return at once and raise nothing."""

    def observe(self, record: RequestRecord) -> None:
        """Take note of a request that has ended."""
        ...


class AnswerTaker(Protocol):
    """Is offered every answer before it goes; must return at once, raise nothing, and copy what it keeps."""

    def offer(self, model: str, inputs: Mapping[str, Array], answer: Answer) -> None:
        """Take a look at what a model, by the name that it was asked under, answered to these inputs."""
        ...
