"""What a GPU run found, as the Markdown of `docs/gpu-results.md`.

python -m modelreg_testing.gpu_report results.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]

_GATES = ("cosine", "sqnr_db", "top1_agreement", "accuracy_drop")
_MIB = 1 << 20


def render(body: Json) -> str:
    """Return the whole page."""
    parts = [
        _environment(body["environment"]),
        "## Accuracy, size and build time",
        _engines(body["engines"]),
        "## Latency",
        _latency(body["latency"]),
        "## As `modelreg bench` has it",
        _bench(body.get("bench", [])),
        *_serving(body.get("serving", [])),
        "## Stages",
        _stages(body["stages"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _environment(found: Json) -> str:
    if found.get("rehearsal"):
        return "A rehearsal on the CPU with ONNX Runtime: the numbers mean nothing, the script works."
    toolchain = found.get("toolchain")
    versions = f"TensorRT {toolchain['version']}" if toolchain else "no toolchain"
    card = f"{found.get('name', 'unknown GPU')} (driver {found.get('driver_version', '?')})"
    clocks = f"{found.get('clocks.sm', '?')} of {found.get('clocks.max.sm', '?')}"
    pytorch = f"PyTorch {found['torch']} (CUDA {found.get('cuda_of_torch')}, cuDNN {found.get('cudnn')})"
    return (
        f"Measured on {found['date']} on an {card}, clocks not locked ({clocks} at the start), with {versions}, "
        f"{pytorch}, ONNX Runtime {found['onnxruntime']}, modelreg {found['modelreg']}; printed by `tests/gpu/run.sh`."
    )


def _engines(engines: Sequence[Json]) -> str:
    heads = ("network", "precision", "verdict", "cosine", "SQNR dB", "top-1 agreement", "accuracy drop")
    rows = []
    for each in engines:
        gates = {gate["gate"]: gate["measured"] for gate in reversed(each.get("gates", []))}
        rows.append(
            (
                f"{each['network']}:{each['version']}",
                each["precision"],
                each.get("verdict", "-"),
                *(_number(gates.get(gate)) for gate in _GATES),
                f"{each['size_bytes'] / _MIB:.2f}",
                f"{each['build_s']:.1f}",
            )
        )
    return _table((*heads, "plan MiB", "build s"), rows) if rows else "Nothing was built."


def _latency(entries: Sequence[Json]) -> str:
    rows = [
        (
            each["network"],
            each["precision"],
            str(each["batch"]),
            *(_ms(each.get(name)) for name in ("runner", "bare", "runner_graph")),
            _number(each.get("runner_to_bare")),
            *(_ms(each.get(name)) for name in ("torch_fp32", "torch_fp16", "torch_fp16_channels_last")),
            _number(each.get("rival_to_runner")),
        )
        for each in entries
    ]
    heads = (
        *("network", "precision", "batch", "our runner", "bare TensorRT", "CUDA graph", "ours / bare"),
        *("PyTorch FP32", "FP16", "FP16 channels-last", "best PyTorch / ours"),
    )
    if not rows:
        return "Nothing was timed."
    return (
        "Median milliseconds of a batch on the GPU, between two events around each run, inputs already there; all "
        "columns of a row took turns in one run. `best PyTorch` is FP32 for FP32, else the better of the two FP16.\n\n"
    ) + _table(heads, rows)


def _bench(entries: Sequence[Json]) -> str:
    names = ("enqueue", "h2d", "gpu-compute", "d2h", "latency")
    rows = []
    for each in entries:
        graph, streams = "on" if each["settings"]["cuda_graph"] else "off", str(each["settings"]["streams"])
        for row in each["latencies"]:
            found = row["boundaries"]
            cells = [_ms(found.get(name)) for name in names]
            name = f"{row['version']} {row['precision']}"
            rows.append((name, str(row["batch"]), graph, streams, *cells, f"{row['throughput']:,.0f}"))
    heads = ("engine", "batch", "graph", "streams", *names, "samples/s")
    if not rows:
        return "Nothing was timed."
    clocks = dict.fromkeys(said["said"] for each in entries for said in each["clocks"])
    return (
        "Medians in milliseconds, trtexec's boundaries; throughput by the wall, of a loop in Python. "
        + ". ".join(clocks)
        + ".\n\n"
        + _table(heads, rows)
    )


def _serving(entries: Sequence[Json]) -> list[str]:
    """Return a table for each kind of line, with the columns that it has."""
    kinds = dict.fromkeys(each["what"] for each in entries)
    tables = []
    for kind in kinds:
        lines = [each for each in entries if each["what"] == kind]
        heads = [name for name in lines[0] if name != "what"]
        rows = [[_cell(line.get(name)) for name in heads] for line in lines]
        tables.append(f"Serving: {kind}\n\n{_table(heads, rows)}")
    return ["## Serving", *tables] if tables else []


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
    return "-" if value is None else _line(str(value)) or "-"


def _stages(stages: Sequence[Json]) -> str:
    rows = [(each["name"], each["outcome"], f"{each['seconds']:.1f}", _line(each["reason"])) for each in stages]
    return _table(("stage", "outcome", "s", "why"), rows) if rows else "No stage was run."


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ms(entry: Json | None) -> str:
    return "-" if entry is None else f"{entry['median_ms']:.3f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _line(reason: str) -> str:
    first = next((line for line in reason.splitlines() if line.strip()), "")
    return first.replace("|", "\\|")[:160]


if __name__ == "__main__":
    sys.stdout.write(render(json.loads(Path(sys.argv[1]).read_text())))
