"""How a comparison of layers is printed: one line a layer in order of execution, with a bar of its noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from modelreg.cli.render import count, number, print_line, print_note
from modelreg.cli.tables import Column, print_table

if TYPE_CHECKING:
    from modelreg.registry.records import EngineRecord, GoldenContents
    from modelreg.registry.words import Verdict
    from modelreg.validators.layers.comparison import LayerReport
    from modelreg.validators.layers.measuring import LayerMeasurement

_BAR_DB = 120.0
_BAR_WIDTH = 12
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SHOWN_GONE = 6
_SAME_AS_SOURCE = (
    ": the engine does what the ONNX does; what fails all the same lies between the ONNX and its golden set"
)
_MARKS = {"ok": "", "born": "<- born here", "carried": "carried", "healed": "healed"}


_REFERENCES = {
    "pytorch": "PyTorch",
    "onnx": "the source in FP32",
    "itself": "itself in the golden set's runs,",
}


def print_layers(report: LayerReport, *, name: str, verdict: Verdict, no_color: bool) -> None:
    """Print every layer, what is bad, and where it began; the engine's verdict decides what no bad layer means."""
    what = _REFERENCES[report.reference] + (f" at batch {report.batch}" if report.batch else "")
    print_line(
        f"layers of {name} against {what}, {count(len(report.samples), report.unit)}, bad below {report.limit_db:g} dB"
    )
    columns = (
        Column(header="#", right=True),
        Column(header="LAYER", folds=True),
        Column(header="OP"),
        Column(header="COSINE", right=True, leaves=5),
        Column(header="SQNR", right=True),
        Column(header="OWN", right=True),
        Column(header="MAX ERR", right=True, leaves=6),
        Column(header="REFERENCE", right=True, leaves=1),
        Column(header="ENGINE", right=True, leaves=2),
        Column(header="SAT", right=True, leaves=4),
        Column(header="NOISE", leaves=3),
        Column(header="STATE"),
    )
    rows = [_row(index, layer, report) for index, layer in enumerate(report.rows, start=1)]
    print_table(columns, rows, no_color=no_color)
    for line in explain_layers(report, verdict=verdict):
        print_line(line)


def advise_repair(report: LayerReport, engine: EngineRecord, reference: str) -> None:
    """Name the command that repairs an engine whose precision is what a layer cannot bear."""
    if not report.diagnosis.first_bad or str(engine.precision) in ("fp32", "tf32"):
        return
    calibration = " --calibration FILE" if str(engine.precision) in ("int8", "fp8") else ""
    target = "" if engine.target.name == "cpu" else f" --target {engine.target.name}"
    print_note(f"next: modelreg repair {reference} --precision {engine.precision}{target}{calibration}")


def advise_activations(report: LayerReport, contents: GoldenContents | None) -> str:
    """Return how the layers are compared with PyTorch's own, where the golden set has none; or an empty string."""
    if report.reference != "onnx" or contents is None or contents.layers:
        return ""
    return (
        "the golden set has no activations: to compare with PyTorch's layers, register the same ONNX again with"
        " --reference FILE.py:NAME --inputs FILE --activations all -m WHY"
    )


def explain_layers(report: LayerReport, *, verdict: Verdict) -> list[str]:
    """Return what the table says in words: the first bad layer, what is not compared, and what looking in changed."""
    lines = []
    states = report.diagnosis.states
    if report.diagnosis.first_bad:
        first = next(row for row in report.rows if row.row.name == report.diagnosis.first_bad)
        others = [row.row.name for row in report.bad if states[row.row.name] == "born" and row is not first]
        more = f"; born again in {', '.join(others[:5])}{', …' if len(others) > 5 else ''}" if others else ""
        carried = sum(states[row.row.name] == "carried" for row in report.rows)
        lines.append(
            f"first bad layer: {first.row.name} ({first.row.op}, node {first.row.node}){_say_missing(report)}: "
            f"{_say_bad(first)}"
            f"{more}; {count(carried, 'layer')} behind it only carry an error"
        )
    else:
        is_blameless = report.reference == "pytorch" or verdict != "fail"  # what did not run blames nothing
        lines.append("no bad layer" if is_blameless else f"no bad layer{_SAME_AS_SOURCE}")
    if report.gone:
        shown = [f"{layer} ({reason})" for layer, reason in list(report.gone.items())[:_SHOWN_GONE]]
        rest = f" and {len(report.gone) - _SHOWN_GONE} more" if len(report.gone) > _SHOWN_GONE else ""
        lines.append(f"not compared: {', '.join(shown)}{rest}")
    if report.own == "none":
        lines.append("OWN is not known: layers of this engine cannot be run alone")
    elif report.own == "simulated":
        lines.append("OWN is what ONNX Runtime makes of the same variant on the CPU; all else is the engine's")
    for output, changed in (report.taps or {}).items():
        lines.append(f"looking inside changes {output} by {_say_change(changed)}")
    return lines


def _say_missing(report: LayerReport) -> str:
    missing = report.missing_before
    return f", or {', '.join(missing)} before it, which the ONNX does not have" if missing else ""


def _say_bad(layer: LayerMeasurement) -> str:
    if layer.odd:
        return f"{count(layer.odd, 'value')} NaN or infinite where the reference is not"
    own = "" if layer.own_sqnr_db is None else f", {_db(layer.own_sqnr_db)} on the reference's own inputs"
    return f"{_db(layer.sqnr_db)}{own}"


def _say_change(changed: dict[str, float | str]) -> str:
    if changed["odd"]:
        return f"{changed['odd']} values that are no numbers in one of the two"
    if changed["max_abs"] == 0:
        return "nothing"
    return f"at most {number(float(changed['max_abs']))} ({_db(float(changed['sqnr_db']))})"


def _row(index: int, layer: LayerMeasurement, report: LayerReport) -> tuple[str, ...]:
    name = layer.row.name if not layer.row.through_relu else f"{layer.row.name} + Relu"
    return (
        str(index),
        name,
        layer.row.op,
        number(layer.cosine),
        _db(layer.sqnr_db),
        "-" if layer.own_sqnr_db is None else ("lost" if layer.own_odd else _db(layer.own_sqnr_db)),
        number(layer.max_abs) if math.isfinite(layer.max_abs) else "inf",
        _range(layer.reference_range),
        _range(layer.candidate_range),
        f"{100 * layer.saturated:.2g} %" if layer.saturated else "-",
        bar(layer.sqnr_db if not layer.odd else -math.inf),
        _MARKS[report.diagnosis.states[layer.row.name].value],
    )


def bar(sqnr_db: float) -> str:
    """Return a bar that is full where nothing is left of the signal, and empty from 120 dB on."""
    part = 1 - min(1.0, max(0.0, (sqnr_db if math.isfinite(sqnr_db) else (_BAR_DB if sqnr_db > 0 else 0)) / _BAR_DB))
    eighths = round(part * _BAR_WIDTH * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _db(value: float) -> str:
    if math.isinf(value):
        return "exact" if value > 0 else "lost"
    return f"{value:.1f} dB"


def _range(ends: tuple[float, float]) -> str:
    return "-" if math.isnan(ends[0]) else f"{ends[0]:.3g} … {ends[1]:.3g}"
