"""`modelreg bench`: time engines in trtexec's words, beside others and beside PyTorch, and keep what they took."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.bench_choosing import Choice, choose_sides, match_others, settle_batches
from modelreg.cli.benching import PYTORCH_LOG, Benchmark, EngineResult, Request
from modelreg.cli.context import Invocation, Registry
from modelreg.cli.old_bench_spellings import TrtexecBenchCommand
from modelreg.cli.options import (
    dry_run_option,
    list_option,
    make_command,
    positive_number,
    read_precisions,
    read_reference,
    read_targets,
    whole_number,
)
from modelreg.cli.render import print_document, print_line, print_note, print_warning
from modelreg.registry.errors import NotFoundError, UsageError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.registry.words import Json, Precision

_HISTORY = 100


def _read_batches(value: str) -> tuple[int, ...]:
    """Read batch sizes, separated by commas."""
    return tuple(whole_number(1)(each) for each in value.split(","))


@make_command(
    "bench",
    help_line="Time engines, alone or in turns with others.",
    cls=TrtexecBenchCommand,
    examples="""
    modelreg bench lenet:1
    modelreg bench lenet@production --batch 1,8,32 --streams 2 --html bench.html
    modelreg bench lenet:2 --precision int8 --vs lenet:1
    modelreg bench lenet:2 --pytorch model.py:lenet --weights lenet.safetensors
    modelreg bench lenet:2 --history
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@click.option("--vs", type=read_reference, metavar="REF", help="Time REF's engines in turns with these.")
@click.option("--pytorch", metavar="FILE.py:FACTORY", help="Time this PyTorch model, eager, in turns with these.")
@click.option("--weights", type=click.Path(path_type=Path), metavar="FILE", help="Weights of the PyTorch model.")
@list_option("--precision", "precisions", type=read_precisions, metavar="P,...", help="Only these precisions.")
@list_option("--target", "targets", type=read_targets, metavar="T,...", help="Only these targets.")
@list_option("--batch", "batches", type=_read_batches, metavar="N,...", help="Batch sizes (default: 1,8,32).")
@click.option(
    "--warmUp",
    "--warm-up",
    "warm_up",
    type=positive_number,
    default=200.0,
    metavar="MS",
    help="Milliseconds before any run counts (default: 200).",
)
@click.option(
    "--duration",
    type=positive_number,
    default=1.0,
    metavar="S",
    help="Seconds of runs, for each batch size (default: 1).",
)
@click.option(
    "--streams",
    "--infStreams",
    "--inf-streams",
    "streams",
    type=whole_number(1),
    default=1,
    metavar="N",
    help="Queries at once (default: 1).",
)
@click.option(
    "--noDataTransfers", "--no-data-transfers", "no_transfers", is_flag=True, help="Leave out copies to and from a GPU."
)
@click.option("--threads", type=whole_number(1), metavar="N", help="Threads of one operator on the CPU.")
@click.option(
    "--useCudaGraph", "--use-cuda-graph", "cuda_graph", is_flag=True, help="Launch plans of TensorRT as a CUDA graph."
)
@click.option("--html", metavar="FILE", help="Write the figures as one HTML page with plots.")
@click.option("--no-store", is_flag=True, help="Keep nothing in the registry.")
@click.option("--history", is_flag=True, help="Show what was measured before instead.")
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    reference: ModelReference,
    vs: ModelReference | None,
    pytorch: str | None,
    weights: Path | None,
    precisions: tuple[Precision, ...],
    targets: tuple[str, ...],
    batches: tuple[int, ...],
    warm_up: float,
    duration: float,
    streams: int,
    no_transfers: bool,
    threads: int | None,
    cuda_graph: bool,
    html: str | None,
    no_store: bool,
    history: bool,
    dry_run: bool,
) -> None:
    """Time the engines of REF that this host can run, on random inputs, each in a process of its own.

    On a GPU the figures are trtexec's: enqueue, H2D, GPU compute, D2H, latency and throughput; on the CPU the call of
    the backend. --vs takes the engine of the same target and precision of another version or channel, --pytorch a model
    in eager mode; both are timed in turns with REF's, and a bootstrap interval of 95 % says whether REF's is better,
    worse, or nobody can tell. Figures are kept with host, clocks and runs, and shown by `show` and --history.
    """
    from modelreg.runtime.runner import Timing

    choice = Choice(precisions=precisions, targets=targets)
    if history:
        from modelreg.cli.bench_history import show_history

        show_history(invocation, reference, choice, batches=batches, limit=_HISTORY)
        return
    _check_places(pytorch, weights, html, as_json=invocation.as_json)
    registry = invocation.open_registry()
    sides = choose_sides(registry, reference, choice)
    others = {} if vs is None else match_others(sides, choose_sides(registry, vs, choice), reference=vs)
    request = Request(
        sides=sides,
        others=others,
        batches=settle_batches(sides[0].version, batches),
        timing=Timing(
            warmup_ms=warm_up, duration_s=duration, cuda_graph=cuda_graph, streams=streams, transfers=not no_transfers
        ),
        threads=threads,
        pytorch=pytorch,
        weights=weights,
    )
    if cuda_graph and all(side.engine.target.name == "cpu" for side in sides):
        print_warning("--useCudaGraph changes nothing on the CPU: only plans of TensorRT are launched as CUDA graphs")
    if dry_run:
        _preview(invocation, request)
        return
    _run(invocation, registry, request, html=html, is_kept=not no_store)


def _check_places(pytorch: str | None, weights: Path | None, html: str | None, *, as_json: bool) -> None:
    """Refuse, before anything is timed, what cannot be read or written at the end."""
    from modelreg.cli.report_files import ReportFiles
    from modelreg.validators.reference_capture import check_reference

    if weights is not None and pytorch is None:
        raise UsageError("--weights belongs to --pytorch", hint="Add --pytorch FILE.py:FACTORY.")
    if pytorch is not None:
        check_reference(reference=pytorch, weights=weights, option="--pytorch")
    if html is not None:
        ReportFiles({"html": html}).require_writable(as_json=as_json)


def _preview(invocation: Invocation, request: Request) -> None:
    """Say what would be timed."""
    if invocation.as_json:
        engines = [{"version": each.version.reference, "engine": each.engine.id} for each in request.sides]
        body: Json = {"dry_run": True, "engines": engines, "batches": [*request.batches], "settings": request.settings}
        print_document(body)
        return
    for side in request.sides:
        other = request.others.get(side.engine.id)
        rivals = ([other.name] if other is not None else []) + (["PyTorch"] if request.pytorch else [])
        beside = f", in turns with {' and '.join(rivals)}" if rivals else ""
        print_line(f"would time {side.name} at batch {', '.join(map(str, request.batches))}{beside}")


def _run(invocation: Invocation, registry: Registry, request: Request, *, html: str | None, is_kept: bool) -> None:
    from modelreg.cli.bench_documents import results_document
    from modelreg.cli.bench_keeping import keep_result
    from modelreg.cli.bench_tables import print_results
    from modelreg.cli.golden_sources import showing
    from modelreg.registry.clock import utc_now
    from modelreg.registry.scratch import scratch_folder
    from modelreg.runtime.host import describe_host

    host, at = describe_host().to_json(), utc_now()
    if is_kept:
        registry.require_writable()

    def keep(result: EngineResult) -> None:
        if is_kept:
            keep_result(registry, result, request, host=host)

    with (
        scratch_folder("bench") as folder,
        showing(folder / PYTORCH_LOG, verbose=invocation.verbose),
        invocation.reporter().step("timing") as tell,
    ):
        results = Benchmark(registry, request, folder).run(keep=keep, tell=lambda text: tell(None, text))
    if not results.engines:
        raise NotFoundError("nothing could be timed", hint="The warnings say why.")
    document = results_document(results, request, host=host, at=at, stored=is_kept)
    if html is not None:
        _write_page(document, html)
    if invocation.as_json:
        print_document(document)
    elif html != "-":
        print_results(document, results.pairs, no_color=invocation.no_color)


def _write_page(document: Json, place: str) -> None:
    from modelreg.cli.report_files import STDOUT, replace_file
    from modelreg.cli.version import __version__
    from modelreg.validators.reports.bench_page import render_bench_page

    page = render_bench_page({**document, "tool": {"version": __version__}})
    if place == STDOUT:
        click.echo(page, nl=False)
        return
    replace_file(Path(place), page)
    print_note(f"html: {place}")
