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

Where a node was planted, the golden set has what PyTorch's modules give, and `validate --layers` is asked for the first
bad layer. It is right where the planted node lies in that layer's part of the graph: between the layers that it reads
and its own output (see [decision 0043](decisions/0043-when-a-named-layer-is-right.md)). No layer is asked for where
the fault is in no node (a reference, a golden set, a calibration, a whole variant), nor where `build` refuses it.
"""
LEAST_RIGHT = 0.95
"""Of the first bad layers, this part must be right."""


def summarise(caught: Sequence[tuple[Fault, Outcome]], healthy: Sequence[tuple[str, Outcome]]) -> str:
    """Return the one line that counts."""
    found = sum(not outcome.passed for _, outcome in caught)
    alarms = sum(not outcome.passed for _, outcome in healthy)
    kinds = len({fault.kind for fault, _ in caught})
    asked = [outcome.layer for _, outcome in caught if outcome.layer is not None]
    right = sum(layer.is_right for layer in asked)
    named = f", first bad layer right in {right} of {len(asked)} ({right / len(asked):.1%})" if asked else ""
    return f"caught {found} of {len(caught)} ({kinds} kinds of fault), false alarms {alarms} of {len(healthy)}{named}"


def _say_unnamed(healthy: Sequence[tuple[str, Outcome]]) -> str:
    looked = [outcome.layer for _, outcome in healthy if outcome.layer is not None]
    named = sum(not layer.is_right for layer in looked)
    return f"A layer was called bad in {named} of the {len(looked)} healthy engines that were looked into."


def share_right(outcomes: Sequence[Outcome]) -> float:
    """Return the part of the named layers that are right; one where none was asked for."""
    asked = [outcome.layer for outcome in outcomes if outcome.layer is not None]
    return sum(layer.is_right for layer in asked) / len(asked) if asked else 1.0


def to_markdown(
    caught: Sequence[tuple[Fault, Outcome]], healthy: Sequence[tuple[str, Outcome]], *, seeds: int = 0
) -> str:
    """Return the page."""
    lines = [_HEAD, f"With {_versions()}: **{summarise(caught, healthy)}**.\n"]
    lines += [f"The healthy engines are of {seeds} seeds (`make gate-check SEEDS={seeds}`). {_say_unnamed(healthy)}\n"]
    lines += ["## Faults\n"]
    lines += ["| fault | network | precision | planted in | first bad layer | caught by |", "|---|---|---|---|---|---|"]
    for fault, outcome in caught:
        kind = f"{fault.kind} ({fault.says})" if fault.says else fault.kind
        by, named = outcome.by or "**missed**", _say_layer(fault, outcome)
        planted = f"| {kind} | {fault.network} | {fault.precision} | {_code(fault.layer)}"
        lines.append(f"{planted} | {named} | {by} |")
    lines += _misses(caught)
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


def _say_layer(fault: Fault, outcome: Outcome) -> str:
    if outcome.layer is None:
        return "no engine" if fault.layer and outcome.stage in ("register", "build") else "-"
    named = _code(outcome.layer.name)
    return named if outcome.layer.is_right else f"**wrong**: {named}"


def _misses(caught: Sequence[tuple[Fault, Outcome]]) -> list[str]:
    """Return a section on the layers that were not named."""
    wrong = [(fault, outcome.layer) for fault, outcome in caught if outcome.layer is not None]
    wrong = [(fault, layer) for fault, layer in wrong if not layer.is_right]
    lines = ["\n## Layers that were not named\n"]
    if not wrong:
        return [*lines, "None: the first bad layer was right each time."]
    lines += ["| fault | planted in | named | why that is wrong |", "|---|---|---|---|"]
    for fault, layer in wrong:
        lines.append(f"| {fault.name} | {_code(fault.layer)} | {_code(layer.name)} | {layer.reason} |")
    return lines


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
