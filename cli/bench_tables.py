"""What `bench` found as tables: every boundary of every engine, then precisions by batch sizes, then the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelreg.cli.render import print_line
from modelreg.cli.table_widths import place_in
from modelreg.cli.tables import Column, print_table

if TYPE_CHECKING:
    from modelreg.cli.benching import Pair
    from modelreg.registry.words import Json

_COLUMNS = ("ENGINE", "BATCH", "BOUNDARY", "MIN", "MEDIAN", "MEAN", "P90", "P95", "P99", "MAX", "PER SECOND")
_FIGURES = ("min_ms", "median_ms", "mean_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")
_TEXT_COLUMNS = ("ENGINE", "BOUNDARY")
_LEAVE = ("P90", "P95", "MIN", "MAX", "MEAN")
"""What is left out on a narrow screen, in this order."""


def print_results(document: Json, pairs: Sequence[Pair], *, no_color: bool) -> None:
    """Print everything that `results_document` has."""
    rows = [row for each in document["latencies"] for row in _boundary_rows(_engine_name(each), each)]
    rows += [row for each in document["pytorch"] for row in _boundary_rows(f"PyTorch {each['variant']}", each)]
    columns = [
        Column(
            header=header,
            right=header not in _TEXT_COLUMNS,
            leaves=place_in(_LEAVE, header),
        )
        for header in _COLUMNS
    ]
    print_table(columns, rows, no_color=no_color)
    print_line(f"milliseconds a query, samples a second; {_say_settings(document)}")
    for clocks in document["clocks"]:
        print_line(f"engine {clocks['engine']}, {clocks['said']}")
    for each in document["latencies"]:
        for remark in each["remarks"]:
            print_line(f"{_engine_name(each)}, batch {each['batch']}: {remark}")
    if len(document["matrix"]) > 1:
        print_line()
        print_matrix(document["matrix"], no_color=no_color)
    for pair in pairs:
        print_line(f"{pair.latency.standing()}: {_say_pair(pair)}")


def _engine_name(row: Json) -> str:
    return f"{row['engine']} {row['target']} {row['precision']}"


def _boundary_rows(name: str, row: Json) -> list[list[str]]:
    """Return one line for each boundary; the first one has the name and the throughput."""
    found = []
    for index, (boundary, figures) in enumerate(row["boundaries"].items()):
        first, per_second = (name, f"{row['throughput']:,.0f}") if index == 0 else ("", "")
        times = [f"{figures[figure]:.4g}" for figure in _FIGURES]
        found.append([first, str(row["batch"]) if first else "", boundary, *times, per_second])
    return found


def _say_settings(document: Json) -> str:
    settings = document["settings"]
    streams = "1 stream" if settings["streams"] == 1 else f"{settings['streams']} streams"
    told = [each["told"] for each in document["latencies"]]
    if not any("cuda_graph" in each for each in told):
        return streams
    graph = "with a CUDA graph" if settings["cuda_graph"] else "no CUDA graph"
    return f"{streams}, {graph}, {'with' if settings['transfers'] else 'no'} transfers"


def print_matrix(matrix: Sequence[Json], *, no_color: bool) -> None:
    """Print precisions by batch sizes: median milliseconds, samples a second, and the part of FP32's latency."""
    batches = sorted({cell["batch"] for row in matrix for cell in row["cells"]})
    rows = []
    for row in matrix:
        cells = {cell["batch"]: cell for cell in row["cells"]}
        rows.append([_engine_name(row), *(_say_cell(cells.get(batch)) for batch in batches)])
    columns = [Column(header="ENGINE"), *(Column(header=f"BATCH {batch}", right=True, folds=True) for batch in batches)]
    print_table(columns, rows, no_color=no_color)
    print_line("median milliseconds, samples a second, part of FP32's latency (not in turns)")


def _say_cell(cell: Json | None) -> str:
    if cell is None:
        return "-"
    part = "-" if cell["to_fp32"] is None else f"{cell['to_fp32']:.2f}"
    return f"{cell['median_ms']:.4g} ms  {cell['throughput']:,.0f}/s  {part}"


def _say_pair(pair: Pair) -> str:
    if isinstance(pair.second, tuple):
        variant, info = pair.second
        other = f"PyTorch {info['torch']} eager {variant}"
    else:
        other = pair.second.name
    return f"{pair.first.name} takes {pair.latency} of {other}, batch {pair.latency.samples}"
