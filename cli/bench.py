"""`modelreg bench`: time engines in trtexec's words, and two of them in turns."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelreg.cli.context import Invocation, Registry
from modelreg.cli.options import (
    list_option,
    make_command,
    positive_number,
    read_precisions,
    read_reference,
    read_words,
    whole_number,
)
from modelreg.cli.render import print_document, print_line, print_warning
from modelreg.cli.tables import Column, print_table
from modelreg.registry.errors import ModelregError, NotFoundError, UsageError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.registry.records import EngineRecord, VersionRecord
    from modelreg.registry.words import Json, Precision
    from modelreg.runtime.latency import Latency
    from modelreg.runtime.runner import Timing, WorkerRunner
    from modelreg.validators.pairing import PairedLatency

_COLUMNS = ("ENGINE", "BATCH", "MIN", "MEDIAN", "MEAN", "P90", "P95", "P99", "MAX", "PER SECOND")


def _read_batches(value: str) -> tuple[int, ...]:
    """Read batch sizes, separated by commas."""
    return tuple(whole_number(1)(each) for each in value.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """An engine and the version that it is of."""

    version: VersionRecord
    engine: EngineRecord

    @property
    def name(self) -> str:
        """Return what it is called."""
        return f"{self.version.reference} engine {self.engine.id} ({self.engine.target.name} {self.engine.precision})"


@make_command(
    "bench",
    help_line="Time engines, alone or in turns with others.",
    examples="""
    modelreg bench lenet:1
    modelreg bench lenet@production --batch 1,8,32 --duration 3 --json
    modelreg bench lenet:2 --precision int8 --vs lenet:1
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@click.option("--vs", type=read_reference, metavar="REF", help="Time REF's engines in turns with these.")
@list_option("--precision", "precisions", type=read_precisions, metavar="P,...", help="Only these precisions.")
@list_option("--target", "targets", type=read_words, metavar="T,...", help="Only these targets.")
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
@click.option("--threads", type=whole_number(1), metavar="N", help="Threads of one operator on the CPU.")
@click.option(
    "--useCudaGraph", "--use-cuda-graph", "cuda_graph", is_flag=True, help="Launch plans of TensorRT as a CUDA graph."
)
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    reference: ModelReference,
    vs: ModelReference | None,
    precisions: tuple[Precision, ...],
    targets: tuple[str, ...],
    batches: tuple[int, ...],
    warm_up: float,
    duration: float,
    threads: int | None,
    cuda_graph: bool,
) -> None:
    """Time the engines of REF that this host can run, on random inputs, each in a process of its own.

    On a GPU it is trtexec's GPU compute time, inputs uploaded before; on the CPU the call of the backend. --vs takes
    the engine of the same target and precision of another version or channel, times both in turns in one run, and
    says by a bootstrap interval of 95 % whether the first is better, worse, or nobody can tell. Nothing is kept.
    """
    from modelreg.runtime.host import describe_host
    from modelreg.runtime.runner import Timing

    registry = invocation.open_registry()
    timing = Timing(warmup_ms=warm_up, duration_s=duration, cuda_graph=cuda_graph)
    sides = _choose(registry, reference, precisions, targets)
    others = [] if vs is None else _choose(registry, vs, precisions, targets)
    rows: list[tuple[_Side, Latency]] = []
    pairs: list[tuple[_Side, _Side, PairedLatency]] = []
    with tempfile.TemporaryDirectory(prefix="modelreg-bench-") as folder:
        for side in sides:
            other = _find_other(side, others)
            if vs is not None and other is None:
                raise NotFoundError(
                    f"{vs} has no {side.engine.target.name} {side.engine.precision} engine to compare with"
                )
            with ExitStack() as stack:
                runner = stack.enter_context(_open(registry, side, Path(folder), threads))
                against = None if other is None else stack.enter_context(_open(registry, other, Path(folder), threads))
                for batch in batches or (1, 8, 32):
                    inputs = _make_inputs(side.version, batch)
                    try:
                        rows.append((side, _time(runner, inputs, timing, side, batch)))
                        if other is not None and against is not None:
                            from modelreg.validators.pairing import time_in_turns

                            pairs.append((side, other, time_in_turns(runner, against, inputs, samples=batch)))
                    except ModelregError as error:
                        print_warning(f"{side.name} at batch {batch}: {error}")
    if not rows:
        raise NotFoundError("nothing could be timed", hint="The warnings say why.")
    settings: Json = {
        "warmup_ms": warm_up,
        "duration_s": duration,
        "threads": threads,
        "cuda_graph": cuda_graph,
        "clocks": "not locked",
        "host": describe_host().to_json(),
    }
    if invocation.as_json:
        print_document(
            {
                "settings": settings,
                "latencies": [_row_document(*row) for row in rows],
                "pairs": [_pair_document(*pair) for pair in pairs],
            }
        )
        return
    _print(rows, pairs, no_color=invocation.no_color)


def _choose(
    registry: Registry, reference: ModelReference, precisions: Sequence[Precision], targets: Sequence[str]
) -> list[_Side]:
    """Return the built engines of a version that this host runs; of a channel, those that it serves."""
    from modelreg.cli.comparing import read_active
    from modelreg.cli.versions import read_version
    from modelreg.registry import engines
    from modelreg.runtime.host import describe_host
    from modelreg.runtime.suitability import why_not_here

    if reference.channel is not None:
        active = read_active(registry, reference.model, reference.channel)
        plans = {each.plan.digest for each in active.manifest.engines}
        version = active.version
        found = [each for each in active.engines if each.files and each.plan_digest in plans]
    else:
        with registry.database.read() as connection:
            version = read_version(connection, reference)
            found = [each for each in engines.current_engines(connection, version_id=version.id) if each.files]
    host = describe_host()
    chosen = [
        _Side(version=version, engine=each)
        for each in found
        if not each.is_swept
        and (not precisions or each.precision in precisions)
        and (not targets or each.target.name in targets)
        and not why_not_here(each.target.name, level=each.hardware_compatibility, host=host)
    ]
    if not chosen:
        raise NotFoundError(f"{reference} has no engine of that kind that this host runs", hint="Run `modelreg show`.")
    return chosen


def _find_other(side: _Side, others: Sequence[_Side]) -> _Side | None:
    wanted = (side.engine.target.name, side.engine.precision)
    return next((each for each in others if (each.engine.target.name, each.engine.precision) == wanted), None)


def _open(registry: Registry, side: _Side, folder: Path, threads: int | None) -> WorkerRunner:
    from modelreg.cli.evaluation import describe_load, fetch_files
    from modelreg.runtime.runner import WorkerRunner

    place = folder / f"engine-{side.engine.id}"
    engine = side.engine
    if not place.exists():
        fetch_files(engine.files, registry.storage, place)
    return WorkerRunner(
        place / engine.files[0].path,
        backend=engine.toolchain.backend,
        python=engine.toolchain.python,
        threads=threads,
        gpu=describe_load(engine, side.version),
    )


def _make_inputs(version: VersionRecord, batch: int) -> Mapping[str, Any]:
    from modelreg.runtime.warming import make_inputs

    signature = version.source.signature
    shapes: dict[str, list[int]] = {}
    for spec in signature.inputs:
        axes = spec.shape
        if axes is None or any(not isinstance(axis, int) for axis in axes[1:]):
            raise UsageError(f"input {spec.name!r} of {version.reference} has free axes beside the batch")
        shapes[spec.name] = [
            batch if index == 0 and not isinstance(axis, int) else int(axis or 0) for index, axis in enumerate(axes)
        ]
    inputs = make_inputs(signature, shapes)
    if inputs is None:
        raise UsageError(f"{version.reference} takes inputs that are no numbers")
    return inputs


def _time(runner: WorkerRunner, inputs: Mapping[str, Any], timing: Timing, side: _Side, batch: int) -> Latency:
    from modelreg.registry.words import Backend
    from modelreg.runtime.latency import summarise

    boundary = "host" if side.engine.toolchain.backend is Backend.ONNXRUNTIME else "gpu-compute"
    return summarise(runner.bench(inputs, timing), boundary=boundary, batch=batch)


def _engine_document(side: _Side) -> Json:
    engine = side.engine
    return {
        "version": side.version.reference,
        "engine": engine.id,
        "target": engine.target.name,
        "precision": str(engine.precision),
        "backend": str(engine.toolchain.backend),
        "backend_version": engine.toolchain.version,
        "plan": engine.plan_digest,
    }


def _row_document(side: _Side, latency: Latency) -> Json:
    return {**_engine_document(side), **latency.to_json()}


def _pair_document(first: _Side, second: _Side, pair: PairedLatency) -> Json:
    return {"first": _engine_document(first), "second": _engine_document(second), **pair.to_json()}


def _print(
    rows: Sequence[tuple[_Side, Latency]], pairs: Sequence[tuple[_Side, _Side, PairedLatency]], *, no_color: bool
) -> None:
    cells = []
    for side, found in rows:
        times = (found.min_ms, found.median_ms, found.mean_ms, found.p90_ms, found.p95_ms, found.p99_ms, found.max_ms)
        name = f"{side.engine.id} {side.engine.target.name} {side.engine.precision}"
        cells.append([name, str(found.batch), *(f"{each:.4g}" for each in times), f"{found.throughput:,.0f}"])
    print_table(
        [Column(header=header, right=index > 0) for index, header in enumerate(_COLUMNS)], cells, no_color=no_color
    )
    boundaries = ", ".join(dict.fromkeys(found.boundary for _, found in rows))
    print_line(f"milliseconds a run, {boundaries}; clocks not locked")
    for first, second, pair in pairs:
        print_line(f"{pair.standing()}: {first.name} takes {pair} of {second.name}, batch {pair.samples}")
