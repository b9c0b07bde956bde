"""How a request's turn on the engine came. Values."""

from __future__ import annotations

from typing import NamedTuple


class Turn(NamedTuple):
    """
    When a request was run, and with whom.

    Attributes:
        queue_s: Seconds that it waited for a batch.
        batch_rows: Rows of the batch that it was part of; 0 where nothing batches.
        executions: 1 for one request of each batch, 0 for the others; so their sum is how often the engine ran.
    """

    queue_s: float = 0.0
    batch_rows: int = 0
    executions: int = 1


ALONE = Turn()
"""That of a request which nothing batches."""
