"""`modelreg gc`: mark what nothing needs, and remove what has been marked for long enough."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation
from modelreg.cli.options import dry_run_option, make_command, whole_number
from modelreg.cli.render import count, print_document, print_line, print_warning, size
from modelreg.cli.tables import Column, print_table
from modelreg.registry.clock import iso

if TYPE_CHECKING:
    from modelreg.config.settings import Settings
    from modelreg.registry.garbage.report import Collection, CollectionRequest, Tally
    from modelreg.registry.words import Json

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
_SPAN = re.compile(r"(\d{1,7}(?:\.\d{1,6})?)([smhdw])", re.ASCII)
_SHORT_GRACE = timedelta(hours=1)


def read_span(value: str) -> timedelta:
    """Read a length of time such as `7d`, `12h` or `90m`; 0 is one too."""
    if value == "0":
        return timedelta()
    found = _SPAN.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no length of time, write 7d, 12h, 90m or 30s")
    return timedelta(seconds=float(found.group(1)) * _UNITS_S[found.group(2)])


def say_span(span: timedelta) -> str:
    """Return a length of time in its largest whole unit, as `read_span` reads it."""
    seconds = span.total_seconds()
    for unit, unit_s in (("d", _UNITS_S["d"]), ("h", _UNITS_S["h"]), ("m", _UNITS_S["m"])):
        if seconds and seconds % unit_s == 0:
            return f"{seconds / unit_s:g}{unit}"
    return f"{seconds:g}s"


@make_command(
    "gc",
    help_line="Remove what no release, lease or pin needs.",
    examples="""
    modelreg gc --dry-run
    modelreg gc
    modelreg gc --keep 5 --grace 2d
    """,
)
@click.option(
    "--keep",
    type=whole_number(1),
    metavar="N",
    help="Keep the last N releases of every channel (default: gc.keep_releases, 20).",
)
@click.option(
    "--keep-versions",
    type=whole_number(0),
    metavar="N",
    help="Keep the engines of the N newest versions of every model (default: gc.keep_versions, 3).",
)
@click.option(
    "--grace",
    type=read_span,
    metavar="TIME",
    help="Remove what has been garbage for so long, such as 12h (default: gc.grace_s, 7d).",
)
@click.option(
    "--accept-database",
    is_flag=True,
    help="Go by this database though the store was collected with another, or a newer copy; what is gone, it forgets.",
)
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    keep: int | None,
    keep_versions: int | None,
    grace: timedelta | None,
    accept_database: bool,
    dry_run: bool,
) -> None:
    """Mark what nothing needs, and remove what was marked a while ago (--grace) and still is not needed.

    Kept is what any channel's last releases need, what a serving host holds a lease on, pinned versions, unsettled
    operations, the engines of the newest versions, plans that were imported, and every version's source, golden set,
    variants, logs, reports and benchmarks. So what goes are plans, which `build` makes again, releases, and blobs that
    nothing names. Refuses (exit 6) where the database does not know all that the store does.
    """
    from modelreg.registry.garbage.collecting import Collector

    registry = invocation.open_registry()
    registry.open()
    request = _request(registry.home.settings, keep, keep_versions, grace, accept_database=accept_database)
    if request.grace < _SHORT_GRACE and not dry_run:
        print_warning("with so short a grace nothing else may write to the store meanwhile")
    with invocation.reporter().step("looking for garbage") as tell:
        collector = Collector(
            database=registry.database,
            storage=registry.storage,
            actor=registry.actor,
            request=request,
            lock_timeout_s=registry.home.settings.lock_timeout_s,
            progress=lambda what, done, total: tell(done / max(1, total), f"{what} {done} of {total}"),
        )
        found = collector.preview() if dry_run else collector.collect()
    if invocation.as_json:
        print_document(_document(found, request))
    else:
        _print(found, no_color=invocation.no_color)


def _request(
    settings: Settings, keep: int | None, keep_versions: int | None, grace: timedelta | None, *, accept_database: bool
) -> CollectionRequest:
    from modelreg.registry.garbage.report import CollectionRequest

    return CollectionRequest(
        keep=settings.gc_keep_releases if keep is None else keep,
        keep_versions=settings.gc_keep_versions if keep_versions is None else keep_versions,
        grace=timedelta(seconds=settings.gc_grace_s) if grace is None else grace,
        accept_database=accept_database,
    )


def _document(found: Collection, request: CollectionRequest) -> Json:
    return {
        "dry_run": found.dry_run,
        "keep": request.keep,
        "keep_versions": request.keep_versions,
        "grace_s": request.grace.total_seconds(),
        "kept": [
            {"reason": str(need), "kind": str(kind), **tally.to_json()}
            for need, kinds in found.kept.items()
            for kind, tally in kinds.items()
        ],
        "garbage": [
            {
                "kind": str(each.thing.kind),
                "digest": each.thing.digest,
                "reason": str(each.reason),
                "size_bytes": each.size_bytes,
                "marked_at": None if each.marked_at is None else iso(each.marked_at),
                "due": each.is_due,
            }
            for each in found.garbage
        ],
        "marked": found.marked.to_json(),
        "swept": found.swept.to_json(),
        "waiting": found.tally(due=False).to_json(),
        "due": found.tally(due=True).to_json(),
        "revived": found.revived,
        "passed_over": found.passed_over,
        "forgotten": found.forgotten,
        "leftovers": found.leftovers,
        "leases_expired": found.leases_expired,
    }


def _print(found: Collection, *, no_color: bool) -> None:
    from modelreg.registry.garbage.needs import EXPLANATIONS, Need, Reason
    from modelreg.registry.storage.marks import MarkedKind

    columns = (
        Column(header=""),
        Column(header="WHAT", folds=True),
        Column(header="BLOBS", right=True),
        Column(header="SIZE", right=True),
        Column(header="RELEASES", right=True),
        Column(header="SIZE", right=True),
    )
    rows = []
    for need in Need:
        kinds = found.kept.get(need, {})
        if kinds:
            rows.append(
                ("keep", EXPLANATIONS[need], *_cells(kinds.get(MarkedKind.BLOB), kinds.get(MarkedKind.RELEASE)))
            )
    for due, word in ((False, "wait"), (True, "remove" if found.dry_run else "removed")):
        for reason in Reason:
            blobs, releases = (found.tally(reason=reason, kind=kind, due=due) for kind in MarkedKind)
            if blobs.things or releases.things:
                rows.append((word, EXPLANATIONS[reason], *_cells(blobs, releases)))
    print_table(columns, rows, no_color=no_color)
    print_line()
    for line in _summarise(found):
        print_line(line)


def _cells(blobs: Tally | None, releases: Tally | None) -> tuple[str, ...]:
    return tuple(
        text
        for tally in (blobs, releases)
        for text in (("-", "-") if tally is None or not tally.things else (str(tally.things), size(tally.size_bytes)))
    )


def _summarise(found: Collection) -> list[str]:
    waiting, grace = found.tally(due=False), say_span(found.grace)
    if found.dry_run:
        did, wait = f"would remove {_say(found.tally(due=True))}", "would wait"
    else:
        did, wait = f"removed {_say(found.swept)}", "left"
    left = f"; {_say(waiting)} {wait} until garbage for {grace}" if waiting.things else ""
    new = f", {count(found.marked.things, 'new one')} among them" if found.marked.things and waiting.things else ""
    lines = [f"{did}{left}{new}"]
    if found.revived:
        lines.append(f"{count(found.revived, 'thing')} needed again")
    if found.passed_over:
        lines.append(f"{count(found.passed_over, 'thing')} passed over: taken back, or another collector has them")
    if found.forgotten:
        would = "would be " if found.dry_run else ""
        lines.append(f"{count(found.forgotten, 'plan')} that nothing needs and that are gone {would}noted as removed")
    if found.leftovers:
        lines.append(f"{count(found.leftovers, 'leftover')} of interrupted commands" + _did(found))
    if found.leases_expired:
        lines.append(f"{count(found.leases_expired, 'lease')} that ran out" + _did(found))
    return lines


def _did(found: Collection) -> str:
    return " would be removed" if found.dry_run else " removed"


def _say(tally: Tally) -> str:
    return f"{count(tally.things, 'thing')} ({size(tally.size_bytes)})" if tally.things else "nothing"
