"""Benchmarks that were kept: over time for `bench --history`, the newest of each engine for `show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from modelreg.cli.render import number, print_document, print_line, when
from modelreg.cli.table_widths import place_in
from modelreg.cli.tables import Column, print_table

if TYPE_CHECKING:
    from modelreg.cli.bench_choosing import Choice
    from modelreg.cli.context import Invocation
    from modelreg.registry.records import BenchmarkRecord, EngineRecord
    from modelreg.registry.references import ModelReference
    from modelreg.registry.words import Json

_COLUMNS = ("TIME (UTC)", "ENGINE", "BATCH", "BOUNDARY", "MEDIAN", "P99", "PER SECOND", "HOST", "SM MHZ")
_RIGHT = ("BATCH", "MEDIAN", "P99", "PER SECOND", "SM MHZ")
_LEAVE = ("SM MHZ", "HOST", "P99")
"""What is left out on a narrow screen, in this order."""


def show_history(
    invocation: Invocation, reference: ModelReference, choice: Choice, *, batches: Sequence[int], limit: int
) -> None:
    """Print the benchmarks of a version's engines, the newest first."""
    from modelreg.cli.bench_documents import stored_document
    from modelreg.cli.versions import read_version
    from modelreg.registry import benchmarks, engines

    registry = invocation.open_registry()
    with registry.database.read() as connection:
        version = read_version(connection, reference)
        known = {each.id: each for each in engines.list_engines(connection, version_id=version.id)}
        found = benchmarks.list_benchmarks(connection, version_id=version.id, limit=limit)
    shown = [
        (each, known[each.engine_id])
        for each in found
        if choice.includes(known[each.engine_id]) and (not batches or each.batch in batches)
    ]
    if invocation.as_json:
        documents = [stored_document(record, engine) for record, engine in shown]
        print_document({"version": version.reference, "benchmarks": documents})
    elif not shown:
        print_line(f"nothing measured yet: modelreg bench {version.reference}")
    else:
        columns = [
            Column(
                header=header,
                right=header in _RIGHT,
                folds=header == _COLUMNS[0],
                least=10,
                leaves=place_in(_LEAVE, header),
            )
            for header in _COLUMNS
        ]
        print_table(columns, [_row(*each) for each in shown], no_color=invocation.no_color)


def _row(record: BenchmarkRecord, engine: EngineRecord) -> list[str]:
    return [
        when(record.created_at),
        f"{engine.id} {engine.target.name} {engine.precision}",
        str(record.batch),
        record.boundary,
        number(record.shown["median_ms"]),
        number(record.shown["p99_ms"]),
        f"{record.figures['throughput']:,.0f}",
        str(record.host.get("name", "-")),
        _say_sm_clocks(record.clocks),
    ]


def _say_sm_clocks(clocks: Json) -> str:
    """Return the clocks of the first GPU, before and after where they differ."""
    found = [each["gpus"][0].get("sm_mhz") for each in (clocks["before"], clocks["after"]) if each["gpus"]]
    return " to ".join(dict.fromkeys(map(str, found))) or "-"


def say_figures(engines: Sequence[EngineRecord], measured: Mapping[int, Sequence[BenchmarkRecord]]) -> list[str]:
    """Return a line for each engine that was measured: its newest figures by batch size, with where and when. Pure."""
    lines = []
    for engine in engines:
        records = measured.get(engine.id, ())
        if not records:
            continue
        newest = max(records, key=lambda each: each.created_at)
        figures = ", ".join(f"{number(each.shown['median_ms'])} ms at batch {each.batch}" for each in records)
        about = f"{newest.boundary}, {newest.host.get('name', 'unknown host')}, {when(newest.created_at)} UTC"
        lines.append(f"engine {engine.id} ({engine.target.name} {engine.precision}): {figures} ({about})")
    return lines
