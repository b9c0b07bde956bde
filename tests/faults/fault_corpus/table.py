"""What a campaign found, as Markdown."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fault_corpus.campaign import Measured, Outcome
    from fault_corpus.cases import Fault

_HEAD = """# Gate check

What `make gate-check` found: every fault of the corpus in `tests/faults/`, and healthy engines, each taken through
`register`, `build` with ONNX Runtime in its worker, and `validate`, under the policies that ship. A fault is caught
where one of the three refuses it; a healthy engine that is refused is a false alarm. The networks are trained on data
that packages ship: scikit-learn's digits; Python code, Python's documentation and tables of numbers. Of each fault the
table has the node that it was planted in.
"""


def summarise(caught: Sequence[tuple[Fault, Outcome]], healthy: Sequence[tuple[str, Outcome]]) -> str:
    """Return the one line that counts."""
    found = sum(not outcome.passed for _, outcome in caught)
    alarms = sum(not outcome.passed for _, outcome in healthy)
    kinds = len({fault.kind for fault, _ in caught})
    return f"caught {found} of {len(caught)} ({kinds} kinds of fault), false alarms {alarms} of {len(healthy)}"


def to_markdown(caught: Sequence[tuple[Fault, Outcome]], healthy: Sequence[tuple[str, Outcome]]) -> str:
    """Return the page."""
    lines = [_HEAD, f"With {_versions()}: **{summarise(caught, healthy)}**.\n", "## Faults\n"]
    lines += ["| fault | network | precision | planted in | caught by |", "|---|---|---|---|---|"]
    for fault, outcome in caught:
        kind = f"{fault.kind} ({fault.says})" if fault.says else fault.kind
        by = outcome.by or "**missed**"
        lines.append(f"| {kind} | {fault.network} | {fault.precision} | {_code(fault.layer)} | {by} |")
    lines += ["\n## What caught them\n", "| step or gate | faults | alone |", "|---|---|---|"]
    every = Counter(each for _, outcome in caught for each in (outcome.gates or (outcome.stage,)) if each)
    alone = Counter(outcome.by for _, outcome in caught if outcome.by and "," not in outcome.by)
    lines += [f"| {name} | {number} | {alone[name]} |" for name, number in every.most_common()]
    lines += ["\n## How near healthy engines come\n", "The worst that any of them measured, and its limit.\n"]
    lines += ["| precision | gate | worst | limit |", "|---|---|---|---|"]
    for (precision, gate), measured in sorted(_extremes(healthy).items()):
        limit = f"{measured.comparison} {measured.limit:g}"
        lines.append(f"| {precision} | {gate} | {measured.value:.4g} | {limit} |")
    lines += ["\n## Healthy engines\n", "| engine | verdict |", "|---|---|"]
    for name, outcome in healthy:
        verdict = "pass" if outcome.passed else f"**false alarm**: {outcome.by}"
        lines.append(f"| {name} | {verdict} |")
    return "\n".join(lines) + "\n"


def _extremes(healthy: Sequence[tuple[str, Outcome]]) -> dict[tuple[str, str], Measured]:
    found: dict[tuple[str, str], Measured] = {}
    for name, outcome in healthy:
        for gate, measured in outcome.measured.items():
            key = (next(word for word in ("fp32", "fp16", "int8") if word in name), gate)
            found[key] = measured.or_worse(found[key]) if key in found else measured
    return found


def _code(text: str) -> str:
    return f"`{text}`" if text else "-"


def _versions() -> str:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("onnxruntime", "onnx", "numpy"))
    return f"{versions} on {platform.machine()}, Python {platform.python_version()}"
