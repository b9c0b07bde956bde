"""Which tensor of a version's ONNX is which layer of its reference, where a user says so: the newest event counts."""

from __future__ import annotations

import json

import sqlalchemy as sa

from modelreg.registry.events import append_event
from modelreg.registry.records import VersionRecord
from modelreg.registry.schema import event
from modelreg.registry.statements import Statement

MAPPED = "layers.mapped"

_NEWEST = Statement(
    sa.select(event.c.details)
    .where(event.c.kind == MAPPED, event.c.subject == sa.bindparam("of_version"))
    .order_by(event.c.sequence.desc())
    .limit(1)
)


def read_layer_map(connection: sa.Connection, version: VersionRecord) -> dict[str, str]:
    """Return the tensors that a user gave to layers, by the layers' names; an empty one takes its layer out."""
    row = _NEWEST.first(connection, of_version=version.reference)
    if row is None:
        return {}
    details = json.loads(row.details)  # as the text that was hashed
    return {str(layer): str(tensor) for layer, tensor in details["layers"].items()}


def record_layer_map(
    connection: sa.Connection, version: VersionRecord, layers: dict[str, str], *, message: str, actor: str
) -> bool:
    """Keep a table in place of the one before; return whether it is another one."""
    if read_layer_map(connection, version) == layers:
        return False
    details = {"layers": layers, "message": message}
    append_event(connection, kind=MAPPED, subject=version.reference, details=details, actor=actor)
    return True
