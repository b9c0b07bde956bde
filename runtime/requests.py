"""What is known of one answered or refused request, and who wants to hear of it. Values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from modelreg.registry.words import Word
from modelreg.runtime.serving import ServedEngine


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
    total_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0


class RequestObserver(Protocol):
    """Hears of every request, from any thread; must return at once and raise nothing."""

    def observe(self, record: RequestRecord) -> None:
        """Take note of a request that has ended."""
        ...
