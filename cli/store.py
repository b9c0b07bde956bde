"""`modelreg store`: what a registry's bytes are kept in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation
from modelreg.cli.failures import report_after_result
from modelreg.cli.options import CONTEXT, add_global_options, make_command
from modelreg.cli.render import print_document, print_line, print_warning
from modelreg.cli.tables import Column, print_table
from modelreg.registry.errors import StorageError

if TYPE_CHECKING:
    from modelreg.registry.storage.s3_check import StoreCheck


@click.group(
    "store",
    short_help="Check what a store's server can be trusted with.",
    epilog="\b\nExamples:\n  modelreg store check\n  modelreg store check s3://bucket/prefix",
    context_settings=CONTEXT,
    no_args_is_help=False,
)
def command() -> None:
    """Check what a store's server can be trusted with."""


@make_command(
    "check",
    help_line="Try what a store in S3 relies on.",
    examples="""
    modelreg store check
    modelreg store check 's3://bucket/prefix?endpoint_url=https://s3.example.com'
    modelreg store check s3://bucket/prefix --endpoint-url https://s3.example.com
    """,
)
@click.argument("url", required=False)
@click.option("--endpoint-url", metavar="URL", help="The server, where it is not AWS itself.")
@click.pass_obj
def check(invocation: Invocation, *, url: str | None, endpoint_url: str | None) -> int:
    """Try what a store in S3 relies on, at URL or at the registry's own store: that a write under a condition is
    refused when the condition does not hold, also when many write at once, and that bytes come back as they were.

    Everything is tried below check/ of the prefix and removed again. `modelreg init` does the same before it makes a
    store. Of the registry's own store the date is noted, which `doctor` tells. Exits with 1 where a server cannot be
    trusted.
    """
    from modelreg.registry.storage.open import locate_storage

    wanted = url if url is not None else invocation.find_store_url()
    located = locate_storage(wanted, endpoint_url=endpoint_url)
    if not located.startswith("s3://"):
        from modelreg.registry.storage.open import open_storage

        open_storage(located).require_writable()
        if invocation.as_json:
            print_document({"store": located, "passed": True, "results": []})
        else:
            print_line(f"{located}: a folder that can be written; the file system's own rename is relied on")
        return 0
    from modelreg.registry.storage.s3_check import check_server
    from modelreg.registry.storage.s3_location import parse_location

    location = parse_location(located)
    with invocation.reporter().step(f"trying what {location} can be trusted with") as tell:
        found = check_server(location, trying=lambda name: tell(None, name))
    _print(located, found, invocation)
    try:
        found.require_passed(location)
    except StorageError as error:
        return report_after_result(error)
    if url is None:
        _note(located, found)
    return 0


def _note(located: str, found: StoreCheck) -> None:
    """Note the date in the registry's own store, for `doctor`; one that only reads its store checks it too."""
    from modelreg.registry.storage.s3 import S3Storage
    from modelreg.registry.storage.s3_location import parse_location

    try:
        S3Storage(parse_location(located)).note_check(found.quirks)
    except StorageError as error:
        print_warning(f"the date of this check could not be noted: {error}")


def _print(url: str, found: StoreCheck, invocation: Invocation) -> None:
    if invocation.as_json:
        results = [{"name": each.name, "passed": each.passed, "found": each.found} for each in found.results]
        print_document({"store": url, "passed": not found.failed, "results": results})
        return
    columns = (Column(header="TRIED", folds=True), Column(header="OUTCOME"), Column(header="FOUND", folds=True))
    words = {True: "ok", False: "failed", None: "noted"}
    rows = [(each.name, words[each.passed], each.found) for each in found.results]
    print_table(columns, rows, no_color=invocation.no_color)
    print_line()
    verdict = "cannot hold a store" if found.failed else "can hold a store"
    print_line(f"{url} {verdict}")


add_global_options(command)
command.add_command(check)
