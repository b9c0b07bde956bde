"""The live view of `top`: drawn by Rich, anew at every look, until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from modelreg.cli import top_view as view
from modelreg.cli.render import clean, one_line, when
from modelreg.cli.top import HostView
from modelreg.registry.clock import utc_now

if TYPE_CHECKING:
    from modelreg.cli.tables import Column
    from modelreg.runtime.monitoring.remote import Answered

_STYLES = {"HEALTHY": "green", "WARNING": "yellow", "CRITICAL": "bold red", "UNKNOWN": "magenta"}


class Downtimes:
    """Since when each process does not answer."""

    def __init__(self) -> None:
        self._since: dict[str, datetime] = {}

    def tell(self, answers: Sequence[Answered], *, now: datetime) -> list[str]:
        """Return a line for each process that does not answer at this moment."""
        down = [each for each in answers if each.error is not None]
        self._since = {each.url: self._since.get(each.url, now) for each in down}
        return [one_line(f"down since {when(self._since[each.url])} UTC: {each.error}") for each in down]


def watch(
    look: Callable[[], Sequence[Answered] | HostView],
    *,
    interval_s: float,
    no_color: bool,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Look and draw until Ctrl-C, which is how one ends a view and no failure."""
    console = Console(file=sys.stdout, no_color=no_color or None, markup=False, highlight=False)
    downtimes = Downtimes()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(draw(look(), downtimes), refresh=True)
                wait(interval_s)
        except KeyboardInterrupt:
            return


def draw(seen: Sequence[Answered] | HostView, downtimes: Downtimes) -> RenderableType:
    """Return one look as something that Rich draws."""
    now = utc_now()
    if isinstance(seen, HostView):
        return _draw_host(seen, now)
    documents = [each.document for each in seen if each.document is not None]
    parts: list[RenderableType] = [Text(f"modelreg top   {when(now)} UTC   Ctrl-C ends", style="dim")]
    if documents:
        parts.append(_table(view.MODEL_COLUMNS, view.model_rows(documents)))
    if rows := view.gpu_rows(documents):
        parts += [Text(""), _table(view.GPU_COLUMNS, rows)]
    hosts = {document["host"]: document["load"] for document in documents}
    parts += [Text(clean(f"{name} {view.host_line(load)}")) for name, load in hosts.items()]
    parts += [Text(line, style=_STYLES.get(line.split(" ")[0], "")) for line in view.finding_lines(documents)]
    parts += [Text(line, style="bold red") for line in downtimes.tell(seen, now=now)]
    return Group(*parts)


def _draw_host(host: HostView, now: datetime) -> RenderableType:
    parts: list[RenderableType] = [Text(f"modelreg top   {when(now)} UTC   this host   Ctrl-C ends", style="dim")]
    rows = view.gpu_rows([{"devices": host.devices}])
    problem = host.devices["problem"] or "none is visible"
    parts.append(_table(view.GPU_COLUMNS, rows) if rows else Text(clean(f"GPUs: {problem}")))
    parts.append(Text(clean(view.host_line(host.load))))
    if host.leases:
        parts.append(_table(view.LEASE_COLUMNS, view.lease_rows(host.leases)))
    elif host.store_problem:
        parts.append(Text(clean(host.store_problem), style="dim"))
    return Group(*parts)


def _table(columns: Sequence[Column], rows: Sequence[view.Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.header, justify="right" if column.right else "left", no_wrap=not column.folds)
    for row in rows:
        table.add_row(*(Text(one_line(cell), style=_STYLES.get(cell, "")) for cell in row))
    return table
