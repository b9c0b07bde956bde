"""Keeping what `bench` measured: runs as blobs, figures and comparisons as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelreg.cli.bench_documents import pair_document

if TYPE_CHECKING:
    from modelreg.cli.benching import EngineResult, Request
    from modelreg.cli.context import Registry
    from modelreg.registry.words import Json


def keep_result(registry: Registry, result: EngineResult, request: Request, *, host: Json) -> None:
    """Keep what an engine took: its runs as blobs, then figures and comparisons as rows with an event."""
    from modelreg.registry.benchmarks import Measured, record_benchmarks
    from modelreg.registry.scratch import scratch_folder
    from modelreg.registry.tensor_sets import write_tensor_set
    from modelreg.runtime.latency import thin_out

    rows = []
    with scratch_folder("bench-runs") as folder:
        for measured in result.measured:
            path = folder / f"batch-{measured.batch}.safetensors"
            arrays = {str(boundary): thin_out(times) for boundary, times in measured.samples.items()}
            about = {"plan": result.side.engine.plan_digest, "batch": str(measured.batch), "unit": "ms"}
            write_tensor_set(path, arrays, about | {"queries": str(measured.shown.runs)})
            stored = registry.storage.put_file(path)
            pairs = [each for each in result.pairs if each.latency.samples == measured.batch]
            rows.append(
                Measured(
                    batch=measured.batch,
                    boundary=str(measured.shown.boundary),
                    figures=measured.figures(),
                    comparisons=[pair_document(pair) for pair in pairs],
                    samples_digest=stored.digest,
                    samples_bytes=stored.size_bytes,
                )
            )
        with registry.database.write() as connection:
            record_benchmarks(
                connection,
                engine=result.side.engine,
                measured=rows,
                settings=request.settings,
                clocks=result.clocks,
                host=host,
                actor=registry.actor,
            )
