"""Reasons that were given for loosened policies, as the event log keeps them."""

from __future__ import annotations

import json

import sqlalchemy as sa

from modelreg.registry.events import append_event
from modelreg.registry.rows import decoding
from modelreg.registry.schema import event, validation
from modelreg.registry.statements import Statement
from modelreg.registry.words import Json

ACCEPTED = "policy.accepted"
LOOSENED = "policy.loosened"
EVERY_MODEL = "*"

_REASONS = Statement(
    sa.select(event.c.subject, event.c.details)
    .where(sa.or_(event.c.kind == ACCEPTED, event.c.kind == LOOSENED))
    .order_by(event.c.sequence)
)
_JUDGED_BY = Statement(
    sa.select(validation.c.policy, validation.c.policy_digest)
    .where(validation.c.policy_digest >= sa.bindparam("first"), validation.c.policy_digest <= sa.bindparam("last"))
    .order_by(validation.c.id)
)


def accept_policy(
    connection: sa.Connection,
    *,
    model: str | None,
    channel: str | None,
    digest: str,
    demands: Json,
    rules: list[str],
    message: str,
    actor: str,
) -> None:
    """Keep why a policy may be looser than the shipped one: for a model, or for all of them where it is None."""
    details: Json = {"policy": digest, "demands": demands, "rules": rules, "message": message}
    if channel is not None:
        details["channel"] = channel
    append_event(connection, kind=ACCEPTED, subject=model or EVERY_MODEL, details=details, actor=actor)


@decoding("event")
def list_reasons(connection: sa.Connection) -> list[tuple[str, Json]]:
    """Return subject and details of every event that gives a reason for a loosened policy, the oldest first."""
    return [(row.subject, json.loads(row.details)) for row in _REASONS.rows(connection)]


@decoding("validation")
def find_judging_policies(connection: sa.Connection, *, prefix: str) -> dict[str, Json]:
    """Return the policies, by digest, that verdicts were reached under and whose digest begins with `prefix`."""
    rows = _JUDGED_BY.rows(connection, first=prefix, last=prefix + "g")  # g follows every hexadecimal digit
    return {row.policy_digest: row.policy for row in rows}
