"""`modelreg pull`: bring what a channel serves to this host, and follow it. Reads the store alone."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation
from modelreg.cli.options import (
    dry_run_option,
    list_option,
    make_command,
    positive_number,
    read_reference,
    read_targets,
)
from modelreg.cli.render import print_document, print_line, print_note, print_warning, short, size, when
from modelreg.registry.clock import utc_now
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.registry.errors import ModelregError
    from modelreg.registry.words import Json
    from modelreg.runtime.pull import PullFolder
    from modelreg.runtime.pull_request import Pulled, PullRequest


def _read_folder(value: str) -> Path:
    """Read a folder's name; raises UsageError for what `Path` would take for the current folder."""
    if not value or "\0" in value:
        raise click.BadParameter("it has no usable name")
    return Path(value)


@make_command(
    "pull",
    help_line="Bring what a channel serves to this host.",
    examples="""
    modelreg pull lenet@production --into /srv/lenet
    modelreg pull lenet@production --into /srv/lenet --store s3://bucket/prefix --watch
    """,
)
@click.argument("reference", type=read_reference, metavar="NAME@CHANNEL")
@click.option("--into", type=_read_folder, required=True, metavar="DIR", help="The folder to serve from.")
@click.option("--store", metavar="URL", help="The store (default: that of the registry, or MODELREG_STORE_URL).")
@click.option("--endpoint-url", metavar="URL", help="The S3 server of --store, where it is not AWS itself.")
@list_option(
    "--target",
    type=read_targets,
    metavar="TARGET,…",
    help="Bring the engines of these targets (default: of those that this host has).",
)
@click.option("--watch", is_flag=True, help="Go on, and bring each release that becomes active.")
@click.option(
    "--interval",
    type=positive_number,
    default="5",
    show_default=True,
    metavar="SECONDS",
    help="How often --watch looks.",
)
@click.option("--no-lease", is_flag=True, help="With --watch, do not write into the store what this host serves.")
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    reference: ModelReference,
    into: Path,
    store: str | None,
    endpoint_url: str | None,
    target: tuple[str, ...],
    watch: bool,
    interval: float,
    no_lease: bool,
    dry_run: bool,
) -> None:
    """Bring the active release of a channel into DIR, and make it current there in one step.

    DIR is new, empty, or from an earlier pull. DIR/current is a link to the release, DIR/pointer.json says which it is.
    Only what is missing is fetched, every file is checked against its digest (by --watch when it begins, then by size),
    and what was current stays so until the new release is complete. No database is needed, and no right to write to
    the store. --watch goes on until Ctrl-C or SIGTERM, and then exits with 0.

    --watch holds a lease: it writes into the store which release this host has, so that `show` and `leases` tell, and
    `gc` leaves that release alone. Where it may not write there it says so once and goes on.
    """
    if reference.channel is None:
        raise click.UsageError(f"{reference} names no channel, write {reference.model}@CHANNEL")
    if watch and dry_run:
        raise click.UsageError("--watch and --dry-run exclude each other")
    from modelreg.registry.storage.open import locate_storage
    from modelreg.runtime.following import StoreAt
    from modelreg.runtime.host import describe_host
    from modelreg.runtime.pull import PullFolder
    from modelreg.runtime.pull_request import PullRequest

    if endpoint_url is not None and store is None:
        raise click.UsageError("--endpoint-url belongs to --store")
    url = locate_storage(store, endpoint_url=endpoint_url) if store else invocation.find_store_url()
    host = None if target else describe_host()
    if host is not None and host.driver_problem:
        print_warning(host.driver_problem)
    request = PullRequest(
        store_url=url,
        model=reference.model,
        channel=reference.channel,
        wanted=target,
        host_targets=() if host is None else host.targets,
    )
    folder = PullFolder(into.absolute())
    if dry_run:
        from modelreg.runtime.following import preview_pull

        _print_preview(preview_pull(StoreAt(url), folder, request), as_json=invocation.as_json)
    elif watch:
        _follow(invocation, folder, request, interval_s=interval, with_lease=not no_lease)
    else:
        from modelreg.runtime.following import pull_once

        with invocation.reporter().counting_bytes(f"pulling {request.name}") as progress:
            pulled = pull_once(StoreAt(url), folder, request, progress=progress)
        _print(pulled, as_json=invocation.as_json)


def _follow(
    invocation: Invocation, folder: PullFolder, request: PullRequest, *, interval_s: float, with_lease: bool
) -> None:
    from modelreg.cli.progress import interrupted_by_signals
    from modelreg.runtime.following import StoreAt, follow, hold_nothing
    from modelreg.runtime.leases import LeaseKeeper

    source = StoreAt(request.store_url)
    keeper = LeaseKeeper(source.open, instance=str(folder.root), warn=print_warning)
    with suppress(KeyboardInterrupt), interrupted_by_signals(), keeper:  # being told to stop is how this ends
        print_note(f"following {request.name}, looking every {interval_s:g} s")
        follow(
            source,
            folder,
            request,
            told=_Watcher(name=request.name, as_json=invocation.as_json),
            wait=time.sleep,
            interval_s=interval_s,
            hold=keeper.hold if with_lease else hold_nothing,
        )


@dataclass(frozen=True, kw_only=True)
class _Watcher:
    """Says what --watch meets, and when."""

    name: str
    as_json: bool

    def pulled(self, pulled: Pulled) -> None:
        """Print what is current now."""
        _print(pulled, as_json=self.as_json, begin=f"{when(utc_now())} ")

    def failed(self, error: ModelregError) -> None:
        """Warn of what went wrong; the loop goes on."""
        print_warning(f"{when(utc_now())} {error}; what is current here stays so, trying again")

    def recovered(self) -> None:
        """Say that it is over."""
        print_note(f"{when(utc_now())} {self.name} can be read again")


def _print(pulled: Pulled, *, as_json: bool, begin: str = "") -> None:
    """Print what is current, its first line after the words of `begin`."""
    if as_json:
        print_document(_document(pulled))
        return
    print_line(f"{begin}{_name_release(pulled)} {'is current now' if pulled.changed else 'is current already'}")
    for target, plan in pulled.plans.items():
        print_line(f"  {target:<8} {plan}")
    if pulled.changed:
        print_line(f"  {size(pulled.fetched_bytes)} fetched, {size(pulled.reused_bytes)} were here")


def _print_preview(pulled: Pulled, *, as_json: bool) -> None:
    if as_json:
        print_document({"dry_run": True, **_document(pulled)})
        return
    print_line(f"{_name_release(pulled)} {'would become current' if pulled.changed else 'is current already'}")
    for target, plan in pulled.plans.items():
        print_line(f"  {target:<8} {plan}")
    if pulled.changed:
        print_line(f"  {size(pulled.fetched_bytes)} would be fetched, {size(pulled.reused_bytes)} are here")


def _name_release(pulled: Pulled) -> str:
    pointer = pulled.pointer
    return (
        f"{pointer.model}@{pointer.channel}: version {pointer.version}, generation {pointer.generation},"
        f" release {short(pointer.release)}"
    )


def _document(pulled: Pulled) -> Json:
    pointer = pulled.pointer
    return {
        "model": pointer.model,
        "channel": pointer.channel,
        "version": pointer.version,
        "generation": pointer.generation,
        "release": pointer.release,
        "path": str(pulled.path),
        "plans": {target: str(plan) for target, plan in pulled.plans.items()},
        "fetched_bytes": pulled.fetched_bytes,
        "reused_bytes": pulled.reused_bytes,
        "changed": pulled.changed,
    }
