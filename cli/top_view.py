"""What `top` shows, as rows of text, whatever draws them. Pure. What a process does not know is `-`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from modelreg.cli.render import number, one_line, size, when
from modelreg.cli.tables import Column
from modelreg.registry.clock import parse_iso

if TYPE_CHECKING:
    from modelreg.registry.leases import Lease
    from modelreg.registry.words import Json

Row = Sequence[str]

MODEL_COLUMNS = (
    Column(header="MODEL"),
    Column(header="PROCESS", folds=True),
    Column(header="GEN", right=True),
    Column(header="VERSION", right=True),
    Column(header="PRECISION"),
    Column(header="REQ/S", right=True),
    Column(header="ERRORS", right=True),
    Column(header="P50 MS", right=True),
    Column(header="P99 MS", right=True),
    Column(header="QUEUE", right=True),
    Column(header="BATCH", right=True),
    Column(header="INST", right=True),
    Column(header="HEALTH"),
)
GPU_COLUMNS = (
    Column(header="GPU"),
    Column(header="NAME", folds=True),
    Column(header="UTIL", right=True),
    Column(header="MEMORY", right=True),
    Column(header="TEMP", right=True),
    Column(header="POWER", right=True),
    Column(header="SM MHZ", right=True),
    Column(header="MEM MHZ", right=True),
    Column(header="THROTTLE", folds=True),
)


def model_rows(documents: Iterable[Json]) -> list[Row]:
    """Return a row for each model of each process."""
    return [
        _model_row(name, model, process=f"{document['host']}:{document['pid']}")
        for document in documents
        for name, model in document["models"].items()
    ]


def _model_row(name: str, model: Mapping[str, Any], *, process: str) -> Row:
    state = model.get("state") or {}
    served, requests = state.get("served") or {}, model["requests"]
    latency = requests.get("latency_ms") or {}
    waiting = model.get("pending")
    return (
        name,
        process,
        say_generation(served.get("generation"), state.get("store_generation")),
        _text(served.get("version")),
        _text(served.get("precision")),
        _number(requests.get("per_second")),
        _percent(requests.get("error_rate")),
        _number(latency.get("p50")),
        _number(latency.get("p99")),
        _text(state.get("in_flight") if waiting is None else waiting),
        _number(requests.get("batch")),
        say_instances(state.get("instances")),
        _text(model.get("health")),
    )


def say_generation(served: object, stored: object) -> str:
    """Return `3`, or `3 of 4` where the store is ahead, or behind as after a restore."""
    if served is None:
        return "-" if stored is None else f"- of {stored}"
    return str(served) if stored in (None, served) else f"{served} of {stored}"


def say_instances(instances: Sequence[Mapping[str, Any]] | None) -> str:
    """Return `4`, or `3 of 4` while one is out; `1` for a model without a group. A device that is not used is none."""
    if not instances:
        return "-" if instances is None else "1"
    out = sum(each.get("out_since") is not None for each in instances)
    used = sum(not each.get("reason") for each in instances)
    return f"{used} of {used + out}" if out else str(used)


def gpu_rows(documents: Iterable[Json]) -> list[Row]:
    """Return a row for each GPU; two processes of one host see the same one."""
    gpus: dict[str, Mapping[str, Any]] = {}
    for document in documents:
        for gpu in document["devices"]["gpus"]:
            gpus.setdefault(str(gpu.get("uuid")), gpu)
    return [_gpu_row(gpu) for gpu in gpus.values()]


def _gpu_row(gpu: Mapping[str, Any]) -> Row:
    used, total = gpu.get("memory_used_bytes"), gpu.get("memory_total_bytes")
    reasons = gpu.get("throttle_reasons")
    return (
        _text(gpu.get("index")),
        _text(gpu.get("name")),
        _percent(gpu.get("utilization")),
        "-" if used is None or total is None else f"{size(used)} of {size(total)}",
        _unit(gpu.get("temperature_c"), "C"),
        _unit(gpu.get("power_w"), "W"),
        _text(gpu.get("sm_clock_mhz")),
        _text(gpu.get("memory_clock_mhz")),
        "-" if reasons is None else ", ".join(map(str, reasons)) or "none",
    )


def host_line(load: Mapping[str, Any]) -> str:
    """Return the load of a host in one line."""
    used, total = load.get("memory_used_bytes"), load.get("memory_total_bytes")
    memory = "-" if used is None or total is None else f"{size(used)} of {size(total)}"
    if load.get("problem"):
        return f"host: {load['problem']}"
    return f"host: CPU {_percent(load.get('cpu_utilization'))}, memory {memory}"


def finding_lines(documents: Iterable[Json]) -> list[str]:
    """Return what is wrong, each with what was measured, its limit, since when, and what to do."""
    return [_say_finding(finding) for document in documents for finding in document["health"]["findings"]]


def _say_finding(finding: Mapping[str, Any]) -> str:
    measured = f"{_number(finding.get('measured'))}, limit {_number(finding.get('limit'))}"
    measured += f", since {_moment(finding.get('since'))} UTC"
    text = f"{finding.get('state')} {finding.get('subject')}: {finding.get('message')} ({measured})"
    return one_line(f"{text}. {finding['hint']}" if finding.get("hint") else text)


def unmeasured_lines(documents: Iterable[Json]) -> list[str]:
    """Return what could not be looked at, and why."""
    return [
        one_line(f"{each.get('subject')}: {each.get('rule')} is not known: {each.get('reason')}")
        for document in documents
        for each in document["health"].get("unmeasured", [])
    ]


def lease_rows(leases: Iterable[Lease]) -> list[Row]:
    """Return a row for each lease of this host."""
    return [
        (
            f"{each.model}@{each.channel}",
            str(each.generation),
            str(each.version),
            each.holder.instance,
            when(each.since),
        )
        for each in leases
    ]


LEASE_COLUMNS = (
    Column(header="SERVED HERE", folds=True),
    Column(header="GEN", right=True),
    Column(header="VERSION", right=True),
    Column(header="INSTANCE", folds=True),
    Column(header="SINCE (UTC)"),
)


def _moment(text: object) -> str:
    try:
        return when(parse_iso(str(text)))
    except ValueError:
        return "-"


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _number(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number(round(value, 3) if abs(value) < 1000 else round(value))
    return _text(value)


def _percent(value: object) -> str:
    return f"{value * 100:.3g} %" if isinstance(value, (int, float)) else "-"


def _unit(value: object, unit: str) -> str:
    return f"{value:.0f} {unit}" if isinstance(value, (int, float)) else "-"
