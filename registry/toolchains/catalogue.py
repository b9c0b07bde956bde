"""The registered toolchains: which there are, and who added or retired them. Nothing is updated, only added."""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sa

from modelreg.registry import engines
from modelreg.registry.clock import utc_now
from modelreg.registry.database import insert_row
from modelreg.registry.errors import NotFoundError, UsageError
from modelreg.registry.events import append_event
from modelreg.registry.records import ToolchainRecord
from modelreg.registry.references import check_name
from modelreg.registry.rows import decoding
from modelreg.registry.schema import toolchain, toolchain_state
from modelreg.registry.toolchains.answers import keep_sound
from modelreg.registry.toolchains.probing import Probe
from modelreg.registry.words import Backend, Json

EMBEDDED = "onnxruntime"
"""The name of the ONNX Runtime that modelreg itself is installed with; it is always there."""

_ACTIVE, _RETIRED = "active", "retired"
_INSERT = sa.insert(toolchain_state)
_NEWEST = sa.select(sa.func.max(toolchain_state.c.id)).group_by(toolchain_state.c.name)
_SELECT = (
    sa.select(toolchain, toolchain_state.c.state, toolchain_state.c.details.label("probed"))
    .select_from(toolchain_state)
    .join(toolchain, toolchain.c.id == toolchain_state.c.toolchain_id)
    .where(toolchain_state.c.id.in_(_NEWEST), toolchain_state.c.state == _ACTIVE)
    .order_by(toolchain_state.c.name)
)


def register_toolchain(
    connection: sa.Connection, *, name: str, probe: Probe, actor: str
) -> tuple[ToolchainRecord, bool]:
    """
    Return the toolchain under that name, and whether anything about it is new.

    A name that is known with another version or interpreter means the new one from now on; what was built with the
    old one keeps saying so.

    Raises:
        UsageError: The name is that of the embedded ONNX Runtime.
    """
    check_name(name, what="toolchain")
    if name == EMBEDDED:
        raise UsageError(f"toolchain {name!r} is the one that modelreg comes with", hint="Choose another name.")
    known = next((each for each in list_toolchains(connection) if each.name == name), None)
    record = engines.ensure_toolchain(
        connection,
        name=name,
        backend=probe.backend,
        version=probe.version,
        python=probe.python,
        details=probe.details,
        actor=actor,
    )
    record = replace(record, details=probe.details)
    if record == known:
        return record, False
    _append(connection, record, _ACTIVE, probe.details, actor)
    return record, True


def retire_toolchain(connection: sa.Connection, *, name: str, actor: str) -> ToolchainRecord:
    """
    Take a toolchain out of use and return it; the engines built with it stay.

    Raises:
        NotFoundError: There is none of that name.
    """
    record = get_toolchain(connection, name)
    _append(connection, record, _RETIRED, record.details, actor)
    return record


@decoding("toolchain")
def list_toolchains(connection: sa.Connection) -> list[ToolchainRecord]:
    """
    Return the toolchains in use, by name; `details` is what was probed when each was added last,
    without what cannot be used: one odd answer must not keep the other toolchains from being used.
    """
    return [
        ToolchainRecord(
            id=row.id,
            name=row.name,
            backend=Backend(row.backend),
            version=row.version,
            python=row.python,
            details=keep_sound(row.probed),
        )
        for row in connection.execute(_SELECT)
    ]


def get_toolchain(connection: sa.Connection, name: str) -> ToolchainRecord:
    """
    Return the toolchain of that name.

    Raises:
        NotFoundError: There is none, or it is retired.
    """
    known = list_toolchains(connection)
    for record in known:
        if record.name == name:
            return record
    names = ", ".join(record.name for record in known)
    hint = f"There are: {names}." if names else "Add it with: modelreg toolchain add NAME --python PATH"
    raise NotFoundError(f"there is no toolchain {name!r}", hint=hint)


def _append(connection: sa.Connection, record: ToolchainRecord, state: str, details: Json, actor: str) -> None:
    row = {
        "toolchain_id": record.id,
        "name": record.name,
        "state": state,
        "details": details,
        "created_at": utc_now(),
        "created_by": actor,
    }
    insert_row(connection, _INSERT, row)
    what = {"backend": str(record.backend), "version": record.version, "python": record.python, "details": details}
    kind = "toolchain.registered" if state == _ACTIVE else "toolchain.retired"
    append_event(connection, kind=kind, subject=record.name, details=what, actor=actor)
