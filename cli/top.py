"""`modelreg top`: a live view of what serves, and how it is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation
from modelreg.cli.options import make_command, positive_number
from modelreg.cli.render import print_document, print_line, print_note, print_warning
from modelreg.cli.tables import print_table
from modelreg.registry.errors import HomeNotFoundError, ModelregError, UsageError

if TYPE_CHECKING:
    from modelreg.registry.leases import Lease
    from modelreg.registry.words import Json
    from modelreg.runtime.monitoring.remote import Answered

EXIT_UNHEALTHY = 3
"""As for a gate that fails: what was measured is not what is wanted."""
EXIT_UNREACHABLE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """What this host shows without any process: its devices, its load, and the leases that it holds."""

    devices: Json
    load: Json
    leases: tuple[Lease, ...]
    store_problem: str


@make_command(
    "top",
    help_line="Watch what serves: load, latencies, GPUs, health.",
    examples="""
    modelreg top http://gpu-7:9400
    modelreg top gpu-7:9400 gpu-8:9400 --interval 5
    modelreg top gpu-7:9400 --check
    modelreg top --once --json
    """,
)
@click.argument("urls", nargs=-1, metavar="[URL]…")
@click.option("--once", is_flag=True, help="Print one look and end; so it is where the output is no terminal.")
@click.option("--check", is_flag=True, help="As --once, and exit 3 unless all is HEALTHY.")
@click.option("--interval", type=positive_number, default=2.0, metavar="S", help="Seconds between looks (default: 2).")
@click.option(
    "--timeout", type=positive_number, default=3.0, metavar="S", help="How long a process may take to answer."
)
@click.pass_obj
def command(
    invocation: Invocation, *, urls: tuple[str, ...], once: bool, check: bool, interval: float, timeout: float
) -> int:
    """Watch serving processes by the addresses of their metrics, until Ctrl-C.

    For each model: the generation that answers and that of the store, requests a second, errors, latencies and queue;
    for each GPU what its driver says; and what is wrong, since when, and what to do. Without URL: this host's devices,
    and what it serves by the leases of the store. A process that does not answer is exit 1, in the live view a line.
    """
    from modelreg.runtime.monitoring.remote import ask_all, locate_document

    if check and not urls:
        raise UsageError("--check asks serving processes", hint="Name their URLs: modelreg top URL… --check")
    addresses = [locate_document(url) for url in dict.fromkeys(urls)]
    if once or check or invocation.as_json or not sys.stdout.isatty():
        if not addresses:
            return _show_host(look_at_host(invocation), invocation)
        return _show(ask_all(addresses, timeout_s=timeout), invocation, check=check)
    from modelreg.cli.progress import interrupted_by_signals
    from modelreg.cli.top_live import watch

    no_color = invocation.no_color or bool(os.environ.get("NO_COLOR"))
    with interrupted_by_signals():  # so that the screen from before comes back
        if addresses:
            watch(lambda: ask_all(addresses, timeout_s=timeout), interval_s=interval, no_color=no_color)
        else:
            watch(lambda: look_at_host(invocation), interval_s=interval, no_color=no_color)
    return 0


def _show(answers: Sequence[Answered], invocation: Invocation, *, check: bool) -> int:
    from modelreg.runtime.monitoring.hysteresis import HealthState, worst

    documents = [each.document for each in answers if each.document is not None]
    health = worst(*(HealthState(document["health"]["state"]) for document in documents))
    if invocation.as_json:
        processes = [
            {"url": each.url, "document": each.document, "error": None if each.error is None else str(each.error)}
            for each in answers
        ]
        print_document({"health": str(health), "processes": processes})
    else:
        print_processes(documents, no_color=invocation.no_color, verbose=invocation.verbose)
    for each in answers:
        if each.error is not None:
            print_warning(f"{each.error}. {each.error.hint()}")
    if len(documents) < len(answers):
        return EXIT_UNREACHABLE
    return EXIT_UNHEALTHY if check and health is not HealthState.HEALTHY else 0


def print_processes(documents: Sequence[Json], *, no_color: bool, verbose: bool) -> None:
    """Print models, GPUs and findings of some processes."""
    from modelreg.cli import top_view as view

    if not documents:
        return
    print_table(view.MODEL_COLUMNS, view.model_rows(documents), no_color=no_color)
    if rows := view.gpu_rows(documents):
        print_line()
        print_table(view.GPU_COLUMNS, rows, no_color=no_color)
    for line in view.finding_lines(documents):
        print_line(line)
    for line in view.unmeasured_lines(documents) if verbose else ():
        print_note(line)


def look_at_host(invocation: Invocation) -> HostView:
    """Return this host's devices and load, and the leases that it holds where a store is known."""
    from modelreg.runtime.monitoring.devices import read_devices
    from modelreg.runtime.monitoring.host_load import HostReader

    reader = HostReader()
    reader.read()
    time.sleep(0.2)  # utilisation is what was busy between two looks
    leases, problem = _read_leases(invocation)
    return HostView(
        devices=read_devices().to_json(), load=reader.read().to_json(), leases=leases, store_problem=problem
    )


def _read_leases(invocation: Invocation) -> tuple[tuple[Lease, ...], str]:
    import socket

    from modelreg.registry.leases import read_leases
    from modelreg.registry.storage.open import open_storage

    try:
        found = read_leases(open_storage(invocation.find_store_url()))
    except HomeNotFoundError:
        if invocation.home is not None:
            raise
        return (), "no registry here: --home or MODELREG_STORE_URL names a store whose leases are shown"
    except ModelregError as error:
        return (), str(error)
    host = socket.gethostname()
    return tuple(lease for lease in found.live if lease.holder.host == host), ""


def _show_host(host: HostView, invocation: Invocation) -> int:
    from modelreg.cli import top_view as view

    if invocation.as_json:
        print_document(
            {
                "devices": host.devices,
                "load": host.load,
                "leases": [lease.to_json() for lease in host.leases],
                "store_problem": host.store_problem,
            }
        )
        return 0
    if rows := view.gpu_rows([{"devices": host.devices}]):
        print_table(view.GPU_COLUMNS, rows, no_color=invocation.no_color)
    elif host.devices["problem"]:
        print_line(f"GPUs: {host.devices['problem']}")
    else:
        print_line("GPUs: none is visible")
    print_line(view.host_line(host.load))
    if host.leases:
        print_table(view.LEASE_COLUMNS, view.lease_rows(host.leases), no_color=invocation.no_color)
    elif host.store_problem:
        print_note(host.store_problem)
    else:
        print_note("no lease of the store is this host's: nothing is served here that says so")
    return 0
