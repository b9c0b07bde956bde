"""What the database knows of a channel, and how far that is from the pointer."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from modelreg.registry.operations import open_operations
from modelreg.registry.pointers import Pointer
from modelreg.registry.records import OperationRecord
from modelreg.registry.schema import OPEN_OPERATION, activation, channel, model, operation
from modelreg.registry.statements import Statement

_NEWEST = (
    sa.select(sa.func.max(activation.c.generation))
    .where(activation.c.channel_id == channel.c.id)
    .correlate(channel)
    .scalar_subquery()
)
_IS_OPEN = sa.exists().where(operation.c.channel_id == channel.c.id, OPEN_OPERATION).correlate(channel)
_STATE = Statement(
    sa.select(channel.c.id, activation.c.generation, activation.c.txn, _IS_OPEN.label("is_open"))
    .join_from(channel, model)
    .outerjoin(activation, (activation.c.channel_id == channel.c.id) & (activation.c.generation == _NEWEST))
    .where(model.c.name == sa.bindparam("model"), channel.c.name == sa.bindparam("channel"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelState:
    """What the database knows of a channel: its newest generation (0 and no `txn` for none) and what is unfinished.

    `channel_id` is None for a channel that it does not know.
    """

    channel_id: int | None = None
    generation: int = 0
    txn: str = ""
    open: tuple[OperationRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """How far the database is from the pointer.

    `known` is the newest generation of the database, `served` that of the pointer, 0 for none. `behind` lists
    generations without a row.
    """

    open: tuple[OperationRecord, ...]
    known: int
    served: int
    behind: tuple[int, ...]
    ahead: bool

    @property
    def is_settled(self) -> bool:
        """Return whether nothing is left to do."""
        return not self.open and not self.behind and not self.ahead


def read_channel_state(connection: sa.Connection, *, model: str, channel: str) -> ChannelState:
    """Return the state of a channel; one query, and another where something is open."""
    row = _STATE.first(connection, model=model, channel=channel)
    if row is None:
        return ChannelState()
    return ChannelState(
        channel_id=row.id,
        generation=row.generation or 0,
        txn=row.txn or "",
        open=tuple(open_operations(connection, channel_id=row.id)) if row.is_open else (),
    )


def compare(state: ChannelState, pointer: Pointer | None) -> Disagreement:
    """Return how the database and the pointer differ. Pure."""
    known, served = state.generation, pointer.generation if pointer else 0
    is_forked = pointer is not None and known == served and state.txn != pointer.txn
    return Disagreement(
        open=state.open,
        known=known,
        served=served,
        behind=tuple(range(known + 1, served + 1)),
        ahead=known > served or is_forked,
    )
