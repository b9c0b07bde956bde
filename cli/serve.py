"""`modelreg serve`: answer inference requests over HTTP, in the KServe v2 protocol. Reads the store alone."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelreg.cli.context import Invocation
from modelreg.cli.failures import report_after_result
from modelreg.cli.options import make_command, positive_number, read_reference, read_words, whole_number
from modelreg.cli.render import print_warning
from modelreg.registry.errors import ModelregError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelreg.config.health_limits import HealthLimits
    from modelreg.config.settings import Settings


def _read_port(value: str) -> int:
    port = whole_number(0)(value)
    if port > 65535:
        raise click.BadParameter(f"{port} is no port, the largest is 65535")
    return port


def _zero_or_more(value: str) -> float:
    return 0.0 if value.strip() in ("0", "0.0") else positive_number(value)


def _read_share(value: str) -> float:
    share = positive_number(value)
    if share > 1:
        raise click.BadParameter(f"{value} is more than 1, which is every request")
    return share


@make_command(
    "serve",
    help_line="Answer inference requests over HTTP.",
    examples="""
    modelreg serve lenet@production
    modelreg serve lenet@production lenet@staging --store s3://bucket/prefix --http-port 9000
    modelreg serve resnet50@production --devices all --instances 2 --max-batch 32 --max-delay-us 500
    modelreg serve lenet@production --uds /run/modelreg/lenet.sock --max-queue 32
    """,
)
@click.argument("references", type=read_reference, nargs=-1, required=True, metavar="NAME@CHANNEL…")
@click.option("--store", metavar="URL", help="The store (default: that of the registry, or MODELREG_STORE_URL).")
@click.option("--endpoint-url", metavar="URL", help="The S3 server of --store, where it is not AWS itself.")
@click.option("--host", metavar="ADDRESS", help="Where to listen (serve.host; this host alone).")
@click.option("--http-port", type=_read_port, metavar="PORT", help="The port (serve.http_port; 0: any that is free).")
@click.option("--uds", type=Path, metavar="PATH", help="Listen on a Unix socket and on no port.")
@click.option("--concurrency", type=whole_number(1), metavar="N", help="Requests of a model on its engine at a time.")
@click.option("--max-queue", type=whole_number(0), metavar="N", help="Requests of a model that may wait for that.")
@click.option("--devices", type=read_words, metavar="all|0,1,GPU-…", help="The GPUs to serve on (the first that fits).")
@click.option("--instances", type=whole_number(1), metavar="N", help="Engines on each device; on the CPU, in all (1).")
@click.option("--max-batch", type=whole_number(0), metavar="N", help="Batch requests, to so many rows (0: do not).")
@click.option("--max-delay-us", type=whole_number(0), metavar="N", help="How long a batch may wait for more requests.")
@click.option("--cuda-graphs", is_flag=True, help="Have TensorRT replay CUDA graphs where shapes repeat.")
@click.option("--max-body-mib", type=whole_number(1), metavar="MIB", help="The largest request.")
@click.option(
    "--max-memory-mib",
    type=whole_number(1),
    default="1024",
    show_default=True,
    metavar="MIB",
    help="All requests that are here at a time.",
)
@click.option(
    "--max-connections", type=whole_number(1), default="1000", show_default=True, metavar="N", help="Open connections."
)
@click.option("--request-timeout", type=positive_number, metavar="SECONDS", help="When a request is given up.")
@click.option("--read-timeout", type=positive_number, metavar="SECONDS", help="How long a client may take to send.")
@click.option(
    "--shutdown-timeout",
    type=positive_number,
    metavar="SECONDS",
    help="How long requests may take at the end.",
)
@click.option(
    "--ready-delay",
    type=_zero_or_more,
    default="0",
    show_default=True,
    metavar="SECONDS",
    help="At the end, take requests so long after the probe says no.",
)
@click.option("--threads", type=whole_number(1), metavar="N", help="Threads of one operator, in ONNX Runtime.")
@click.option("--isolate", is_flag=True, help="Run ONNX Runtime in a child, where it may crash.")
@click.option("--cache", type=Path, metavar="DIR", help="Pull releases into DIR (default: below ~/.cache).")
@click.option("--no-lease", is_flag=True, help="Do not write into the store what this host serves.")
@click.option(
    "--python", "pythons", multiple=True, metavar="PATH", help="What loads plans here (serve.python); may be repeated."
)
@click.option("--no-metrics", is_flag=True, help="Leave out /metrics, and what `modelreg top` reads.")
@click.option(
    "--parity-share", type=_read_share, metavar="X", help="Compare this part of the answers, 0 to 1, with the source's."
)
@click.option("--access-log", is_flag=True, help="Print a line for each inference request.")
@click.pass_obj
def command(invocation: Invocation, /, *, references: tuple[ModelReference, ...], **options: Any) -> int:
    """Serve what channels have active, in the KServe v2 (Open Inference) protocol, as Triton's clients speak it.

    A promote or rollback is followed within two seconds, and no request is lost over it; every answer says which
    generation, release, precision and digest gave it. The first channel of a model is called NAME, each other one
    NAME@CHANNEL. No database is needed. There is no authentication: it listens on this host alone unless told
    otherwise, and a proxy belongs in front of it. `/metrics` is for Prometheus, and `modelreg top URL` shows the same.

    SIGTERM or Ctrl-C ends it: the readiness probe says no, new requests get 503, those under way are answered, exit 0.
    A second one ends it at once. With --json, one line of JSON for each event.
    """
    from modelreg.runtime.serve.server import require_libraries

    require_libraries()
    names = _check_references(references)
    if options["parity_share"] is not None and options["no_metrics"]:
        raise click.UsageError("--parity-share is told by the metrics, which --no-metrics leaves out")
    from modelreg.cli.serve_events import ServeEvents, log_to
    from modelreg.cli.serve_setup import Setup
    from modelreg.registry.storage.open import locate_storage
    from modelreg.runtime.host import describe_serving_host

    store, endpoint_url = options["store"], options["endpoint_url"]
    if endpoint_url is not None and store is None:
        raise click.UsageError("--endpoint-url belongs to --store")
    settings = invocation.find_settings()
    url = locate_storage(store, endpoint_url=endpoint_url) if store else invocation.find_store_url()
    setup = Setup(
        settings=settings,
        health=_find_health_limits(invocation),
        options=options,
        store_url=url,
        events=ServeEvents(as_json=invocation.as_json),
    )
    try:
        with ExitStack() as stack:
            bound = setup.bind(stack)
            host = describe_serving_host(options["pythons"] or _serving_pythons(invocation, settings))
            if host.driver_problem:
                print_warning(host.driver_problem)
            stack.enter_context(log_to(setup.events))
            setup.serve(setup.make_actives(names, bound, host), bound)
    except ModelregError as error:
        if not invocation.as_json:
            raise
        setup.events.failed(error)
        return report_after_result(error)
    return 0


def _check_references(references: Sequence[ModelReference]) -> list[str]:
    """Return NAME@CHANNEL of each; raises UsageError where one has no channel, or is there twice."""
    for reference in references:
        if reference.channel is None:
            raise click.UsageError(f"{reference} names no channel, write {reference.model}@CHANNEL")
    names = [f"{reference.model}@{reference.channel}" for reference in references]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise click.UsageError(f"{twice} is named twice")
    return names


def _find_health_limits(invocation: Invocation) -> HealthLimits:
    """Return the limits of the registry, or of variables and flags alone where there is none."""
    from modelreg.config.health_limits import load_health_limits, read_health_limits
    from modelreg.registry.errors import HomeNotFoundError

    try:
        return read_health_limits(invocation.find_home().resolved)
    except HomeNotFoundError:
        return load_health_limits(flags=invocation.flags)


def _serving_pythons(invocation: Invocation, settings: Settings) -> tuple[str, ...]:
    """Return the interpreters of `serve.python`, relative to the registry where there is one."""
    from modelreg.registry.errors import HomeNotFoundError

    try:
        return invocation.find_home().serving_pythons
    except HomeNotFoundError:
        return settings.serve_python
