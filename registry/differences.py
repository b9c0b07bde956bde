"""What changed between two versions or two releases. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.imported_plans import read_import
from modelreg.registry.manifest import Manifest
from modelreg.registry.promotion import EngineStanding
from modelreg.registry.records import SourceInfo
from modelreg.registry.words import EngineStatus, Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field that differs; an absent side is an empty string."""

    field: str
    left: str
    right: str


_COUNTS = ("size", "parameter bytes", "IR version")

Facts = Mapping[str, str]
"""Field -> value as text, in the order to be shown."""


def compare_facts(left: Facts, right: Facts) -> list[Difference]:
    """Return the fields whose values differ, in the order of `left`, then those only `right` has."""
    fields = [*left, *(field for field in right if field not in left)]
    return [
        Difference(field=field, left=left.get(field, ""), right=right.get(field, ""))
        for field in fields
        if left.get(field, "") != right.get(field, "")
    ]


def as_json(field: str, value: str) -> str | int | Json | None:
    """Return a fact for programs: a count as a number, a gate with what was measured, and None for an absent side."""
    if not value:
        return None
    if " gate " in field:
        outcome, _, measured = value.partition(" ")
        return {"outcome": outcome, "measured": _as_number(measured)}
    if value.isdigit() and (field in _COUNTS or field.startswith(("opset ", "nodes ")) or field.endswith(" size")):
        return int(value)
    return value


def _as_number(text: str) -> float | str | None:
    """Return a measurement; one that is not finite stays text, since JSON has no number for it."""
    if not text:
        return None
    return float(text) if isfinite(float(text)) else text


def source_facts(source: SourceInfo) -> dict[str, str]:
    """Return what identifies and describes a source."""
    facts = {
        "source": source.digest,
        "size": str(sum(file.size_bytes for file in source.files)),
        "parameter bytes": str(source.parameter_bytes),
        "IR version": str(source.ir_version),
        "producer": source.producer,
    }
    facts |= {f"opset {domain or 'ai.onnx'}": str(number) for domain, number in sorted(source.opsets.items())}
    facts |= _signature_facts(source.signature)
    facts |= {f"nodes {operator}": str(count) for operator, count in sorted(source.node_counts.items())}
    return facts


def engine_facts(standings: Sequence[EngineStanding]) -> dict[str, str]:
    """Return each cell's state, size and verdict."""
    facts: dict[str, str] = {}
    for standing in standings:
        engine = standing.engine
        cell = f"{engine.target.name} {engine.precision} {engine.toolchain.backend}"
        built = engine.status is EngineStatus.BUILT
        facts[f"{cell} plan"] = engine.plan_digest if built else f"failed: {engine.brief_error}"
        facts[f"{cell} size"] = str(engine.size_bytes) if built else ""
        facts[f"{cell} recipe"] = engine.recipe_digest
        facts[f"{cell} backend version"] = engine.toolchain.version
        facts[f"{cell} origin"] = "built here" if read_import(engine.recipe) is None else "imported"
        facts[f"{cell} verdict"] = str(standing.validation.verdict) if standing.validation else "not validated"
        if standing.validation:
            facts |= {
                f"{cell} gate {gate.gate} of {gate.subject}": f"{gate.outcome} {_number(gate.measured)}"
                for gate in standing.validation.gates
            }
    return facts


def manifest_facts(manifest: Manifest) -> dict[str, str]:
    """Return what a release serves."""
    facts = {"version": f"{manifest.model}:{manifest.version}", "source": manifest.source_digest}
    facts |= _signature_facts(manifest.signature)
    for engine in manifest.listed:
        facts[f"{engine.target} precision"] = str(engine.precision)
        facts[f"{engine.target} backend"] = f"{engine.backend} {engine.backend_version}"
        facts[f"{engine.target} plan"] = engine.plan.digest
        facts[f"{engine.target} size"] = str(sum(file.size_bytes for file in engine.files))
        facts[f"{engine.target} recipe"] = engine.recipe_digest
    return facts


def _signature_facts(signature: Signature) -> dict[str, str]:
    facts = {f"input {spec.name}": describe_tensor(spec) for spec in signature.inputs}
    return facts | {f"output {spec.name}": describe_tensor(spec) for spec in signature.outputs}


def describe_tensor(spec: TensorSpec) -> str:
    """Return a tensor as people write it: `float32[N,3,224,224]`; an unknown dimension is `?`."""
    prefix = "" if spec.kind == "tensor" else f"{spec.kind} of "
    if spec.shape is None:
        return f"{prefix}{spec.dtype}[…]"
    return f"{prefix}{spec.dtype}[{','.join('?' if size is None else str(size) for size in spec.shape)}]"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
