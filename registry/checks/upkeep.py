"""What needs a look now and then: leftovers, clocks, the date of a server's check, the interpreters for builds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import sqlalchemy as sa

from modelreg.registry.checks.findings import Finding, Level, found
from modelreg.registry.clock import iso, utc_now
from modelreg.registry.database import Database
from modelreg.registry.schema import event
from modelreg.registry.storage.interface import Served, Storage
from modelreg.registry.toolchains.catalogue import list_toolchains
from modelreg.registry.toolchains.probing import ToolchainState, look_again

_LONGEST_SKEW = timedelta(seconds=60)
_CHECK_VALID_FOR = timedelta(days=180)
_NEWEST_TIME = sa.select(event.c.at).order_by(event.c.sequence.desc()).limit(1)
_CLOCK_HINT = (
    "Set the clock (NTP). Nothing is ordered by time, so what is active is right; the ages that gc and leases go by"
    " are not."
)


def examine_leftovers(storage: Storage) -> Finding:
    """Tell of what commands that died left in the store."""
    leftovers = storage.count_leftovers()
    if not leftovers:
        return found(Level.OK, "leftovers", "store", "none")
    message = f"{leftovers} temporary files of commands that died"
    return found(Level.FIXABLE, "leftovers", "store", message, "Run `modelreg doctor --fix` to remove them.")


def examine_clocks(database: Database | None, storage: Storage, *, now: datetime | None = None) -> Iterator[Finding]:
    """Compare this host's clock with the server's, and with the newest event; `now` stands in for the time."""
    here = utc_now() if now is None else now
    if isinstance(storage, Served) and (there := storage.server_time()) is not None:
        skew = here - there
        if abs(skew) > _LONGEST_SKEW:
            message = f"the clock here is {_say(skew)} the store's server"
            yield found(Level.WARNING, "clock", "store", message, _CLOCK_HINT)
        else:
            yield found(Level.OK, "clock", "store", "as the server's")
    if database is not None:
        with database.read() as connection:
            newest = connection.execute(_NEWEST_TIME).scalar()
        if newest is not None and newest - here > _LONGEST_SKEW:
            message = f"the newest event is of {iso(newest)}: the clock here is {_say(here - newest)} it"
            yield found(Level.WARNING, "clock", "registry", message, _CLOCK_HINT)


def examine_server(storage: Storage, *, now: datetime | None = None) -> Iterator[Finding]:
    """Tell when a store's server was last tried; servers are upgraded, and conditions with them."""
    if not isinstance(storage, Served):
        return
    checked = storage.checked_at
    here = utc_now() if now is None else now
    hint = "Run `modelreg store check`, after each upgrade of the server too."
    if checked is None:
        yield found(Level.WARNING, "server", "store", "nobody knows when the server was tried", hint)
    elif here - checked > _CHECK_VALID_FOR:
        yield found(Level.WARNING, "server", "store", f"the server was last tried on {iso(checked)[:10]}", hint)
    else:
        yield found(Level.OK, "server", "store", f"tried on {iso(checked)[:10]}")


def examine_toolchains(database: Database) -> Iterator[Finding]:
    """Look at every registered toolchain again; on a host that only promotes, a missing one hurts nobody."""
    with database.read() as connection:
        known = list_toolchains(connection)
    for toolchain in known:
        standing = look_again(toolchain)
        if standing.state is ToolchainState.USABLE:
            message = f"{toolchain.backend} {toolchain.version}"
            yield found(Level.OK, "toolchain", toolchain.name, message)
            continue
        hint = (
            f"Where builds are made here: `modelreg toolchain add {toolchain.name} --python {toolchain.python}` takes"
            f" what is there now, `modelreg toolchain remove {toolchain.name}` takes it out."
        )
        yield found(Level.WARNING, "toolchain", toolchain.name, f"{standing.state}: {standing.reason}", hint)


def _say(skew: timedelta) -> str:
    seconds = abs(round(skew.total_seconds()))
    amount = f"{seconds} s" if seconds < 600 else f"{seconds // 60} min" if seconds < 36_000 else f"{seconds // 3600} h"
    return f"{amount} {'ahead of' if skew > timedelta() else 'behind'}"
