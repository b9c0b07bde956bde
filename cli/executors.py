"""`build --executor`: where cells are built, and how to get there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from modelreg.cli.options import whole_number
from modelreg.registry.errors import UsageError

if TYPE_CHECKING:
    from modelreg.builders.executors import CellExecutor

F = TypeVar("F", bound=Callable[..., Any])

LOCAL = "local"
_SCHEMES = {"dask": "tcp", "tls": "tls"}
_FORMS = "It is local, dask://HOST:PORT, or tls://HOST:PORT for a scheduler that speaks TLS."
_IN_FLIGHT = 64
"""Cells that are with a cluster at once: each has a thread here, which waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """
    Where cells are built.

    Attributes:
        scheduler: The address of a Dask scheduler, as Dask writes it; empty for this host.
        jobs: How many cells are under way at once.
        retries: How often a cell is tried again whose worker died; None for the default.
        wait_s: How long to wait for workers; None for the default.
    """

    scheduler: str = ""
    jobs: int = 1
    retries: int | None = None
    wait_s: float | None = None


def executor_options(function: F) -> F:
    """Add the options that say where cells are built."""
    options = (
        click.option(
            "--executor",
            "scheduler",
            type=read_executor,
            default=LOCAL,
            show_default=True,
            metavar="WHERE",
            help="Where to build: local, or dask://HOST:PORT for the workers of a Dask cluster.",
        ),
        click.option(
            "--retries",
            type=whole_number(0),
            metavar="N",
            help="With Dask: try a cell again so often when its worker died.  [default: 2]",
        ),
        click.option(
            "--wait-for-workers",
            "wait_s",
            type=whole_number(0),
            metavar="S",
            help="With Dask: seconds to wait for a worker that has what a cell needs.  [default: 60]",
        ),
        click.option(
            "--jobs",
            type=whole_number(1),
            metavar="N",
            help="Build so many engines side by side.  [default: 1; with Dask: what the workers take]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def read_executor(text: str) -> str:
    """Return the scheduler's address in Dask's spelling, or an empty string for this host."""
    if text in (LOCAL, ""):
        return ""
    scheme, found, _ = text.partition("://")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{text!r:.80} is no executor: {error}", hint=_FORMS) from None
    if not found or scheme not in _SCHEMES or not parts.hostname or port is None or parts.path.strip("/"):
        raise UsageError(f"{text!r:.80} is no executor", hint=_FORMS)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{_SCHEMES[scheme]}://{host}:{port}"


def choose_place(scheduler: str, *, jobs: int | None, retries: int | None, wait_s: float | None) -> Place:
    """
    Return where cells are built.

    Raises:
        UsageError: An option means nothing there.
    """
    if not scheduler:
        given = {"--retries": retries, "--wait-for-workers": wait_s}
        idle = next((name for name, value in given.items() if value is not None), "")
        if idle:
            raise UsageError(f"{idle} belongs to --executor dask://HOST:PORT", hint="Leave it out.")
        return Place(jobs=jobs or 1)
    return Place(scheduler=scheduler, jobs=jobs or _IN_FLIGHT, retries=retries, wait_s=wait_s)


@contextmanager
def open_executor(place: Place) -> Iterator[CellExecutor]:
    """
    Yield what builds there.

    Raises:
        MissingDependencyError: Dask is not installed.
        BuildError: Its scheduler does not answer.
    """
    if not place.scheduler:
        from modelreg.builders.executors import LocalExecutor

        yield LocalExecutor()
        return
    from modelreg.builders.elsewhere.cluster import Cluster
    from modelreg.builders.elsewhere.executor import DEFAULT_RETRIES, DEFAULT_WAIT_S, DaskExecutor

    retries = DEFAULT_RETRIES if place.retries is None else place.retries
    wait_s = DEFAULT_WAIT_S if place.wait_s is None else place.wait_s
    with Cluster.connect(place.scheduler) as cluster:
        yield DaskExecutor(cluster, retries=retries, wait_s=wait_s)
