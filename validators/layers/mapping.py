"""Which tensor of an ONNX is which output of a PyTorch module.

The exporter's metadata name a module for each node; the values say whether that is right, since exporters fold a
batch norm into the convolution before it. Where there are no metadata, values find the tensor; behind a fault, where no
value agrees any more, shape, kind and order do. A user's table overrides all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.errors import UsageError
from modelreg.registry.words import Json
from modelreg.validators.activations import Activation, KeptActivations
from modelreg.validators.golden import ACTIVATION
from modelreg.validators.layers.interface import SourceView
from modelreg.validators.layers.scopes import module_of
from modelreg.validators.layers.units import Group, Units

Array = NDArray[Any]

OVERRIDE, METADATA, VALUE, ORDER, NONE = "override", "metadata", "value", "order", "none"
_AGREES = 1e-3
_COMPARED_UNITS = 4
_COMPARED_ELEMENTS = 8192
_CHUNK_BYTES = 64 << 20
_LEAST_COSINE = 0.2
_KINDS = {
    "Linear": ("Gemm", "MatMul", "Add"),
    "Embedding": ("Gather",),
    "LayerNorm": ("LayerNormalization", "Add", "Mul"),
    "BatchNorm": ("BatchNormalization", "Conv"),
    "Conv": ("Conv", "ConvTranspose"),
    "ReLU": ("Relu", "Clip"),
    "GELU": ("Gelu", "Mul"),
    "Pool": ("MaxPool", "AveragePool", "GlobalAveragePool", "ReduceMean"),
    "Flatten": ("Flatten", "Reshape"),
    "Softmax": ("Softmax",),
    "Sigmoid": ("Sigmoid",),
    "Tanh": ("Tanh",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """
    What became of one activation.

    Attributes:
        activation: The golden set's name of it.
        kind: The module's class.
        tensor: The tensor that it is compared with, or an empty string.
        how: `override`, `metadata`, `value`, `order` or `none`.
        error: How far the tensor's values in FP32 are from PyTorch's, as a part of these; None if not compared.
        reason: Why there is none, or what is odd.
    """

    activation: str
    kind: str
    tensor: str
    how: str
    error: float | None
    reason: str = ""

    def to_json(self) -> Json:
        """Return the match as JSON."""
        error = self.error if self.error is None or math.isfinite(self.error) else str(self.error)
        return {
            "activation": self.activation,
            "kind": self.kind,
            "tensor": self.tensor,
            "how": self.how,
            "error": error,
            "reason": self.reason,
        }


def match_layers(
    kept: KeptActivations, units: Units, source: SourceView, overrides: Mapping[str, str]
) -> tuple[Match, ...]:
    """
    Return which tensor each kept activation is, in the order in which the reference made them.

    Args:
        kept: What the golden set has.
        units: Samples of it.
        source: The ONNX in FP32.
        overrides: Tensors by activation, as a user says; an empty one takes the activation out.

    Raises:
        UsageError: An override names an activation or a tensor that is not there.
    """
    tensors = list(source.tensors)
    order = {each["name"]: index for index, each in enumerate(tensors)}
    _check_overrides(overrides, {each.name for each in kept.activations}, order)
    errors, cosines = _compare(kept, units, source, tensors)
    named = _name(kept.activations, tensors)
    settled: dict[str, Match] = {}
    for each in kept.activations:
        if each.name in overrides:
            settled[each.name] = _override(each, overrides[each.name], errors[each.name])
    claimed = {match.tensor for match in settled.values()}
    for each in kept.activations:
        if each.name not in settled and (found := _by_value(each, named, errors, order, claimed)) is not None:
            settled[each.name] = found
            claimed.add(found.tensor)
    folds = not any(tensor["op"] == "BatchNormalization" for tensor in tensors)
    for each, follower in zip(kept.activations, [*kept.activations[1:], None], strict=True):
        if each.name not in settled:
            if folds and follower is not None and _is_folded(each, follower, settled):
                settled[each.name] = _match(each, "", NONE, None, f"folded into {follower.name}")
                named[follower.name] = [*named[follower.name], *named[each.name]]
                continue
            found = _by_name(each, named, errors, settled)
            if found is None:
                low, high = _between(each, kept.activations, settled, order)
                fitting = [
                    tensor
                    for tensor in tensors[low + 1 : high]
                    if tensor["name"] in errors[each.name] and tensor["name"] not in claimed
                ]
                found = _by_order(each, fitting, errors[each.name], cosines[each.name])
            settled[each.name] = found
            claimed.add(found.tensor)
    return tuple(settled[each.name] for each in kept.activations)


def _check_overrides(overrides: Mapping[str, str], activations: Iterable[str], tensors: Iterable[str]) -> None:
    known, names = set(activations), set(tensors)
    for activation, tensor in overrides.items():
        if activation not in known:
            raise UsageError(f"the golden set has no activation {activation!r} to map", hint=_listed(known))
        if tensor and tensor not in names:
            raise UsageError(f"the ONNX makes no floating tensor {tensor!r}", hint=_listed(names))


def _listed(names: set[str]) -> str:
    shown = sorted(names)
    return f"It has {', '.join(shown[:8])}{', …' if len(shown) > 8 else ''}."


def _override(activation: Activation, tensor: str, errors: Mapping[str, float]) -> Match:
    reason = "" if tensor else "taken out by the mapping table"
    how = OVERRIDE if tensor else NONE
    return _match(activation, tensor, how, errors.get(tensor), reason)


def _match(activation: Activation, tensor: str, how: str, error: float | None, reason: str = "") -> Match:
    return Match(activation=activation.name, kind=activation.kind, tensor=tensor, how=how, error=error, reason=reason)


def _by_value(
    activation: Activation,
    named: Mapping[str, Sequence[str]],
    errors: Mapping[str, Mapping[str, float]],
    order: Mapping[str, int],
    claimed: set[str],
) -> Match | None:
    """Return the tensor with the activation's values: the exporter's own first, then one that nobody has claimed."""
    agreeing = [name for name, error in errors[activation.name].items() if error <= _AGREES]
    if not agreeing:
        return None
    own = named.get(activation.name, ())
    best = min(agreeing, key=lambda name: (name not in own, name in claimed, order[name]))
    how = METADATA if best in own else VALUE
    return _match(activation, best, how, errors[activation.name][best])


def _by_name(
    activation: Activation,
    named: Mapping[str, Sequence[str]],
    errors: Mapping[str, Mapping[str, float]],
    settled: Mapping[str, Match],
) -> Match | None:
    """Return the exporter's tensor though its values are others, unless they are another module's."""
    owners = {match.tensor: match.activation for match in settled.values() if match.tensor}
    for tensor in reversed(named.get(activation.name, ())):
        error = errors[activation.name].get(tensor)
        if error is not None and tensor in owners:
            return _match(activation, "", NONE, None, f"folded into {owners[tensor]}")
        if error is not None:
            return _match(activation, tensor, METADATA, error, "the values differ")
    return None


def _is_folded(activation: Activation, follower: Activation, settled: Mapping[str, Match]) -> bool:
    """Return whether an exporter without batch norms has drawn the one that follows into this layer."""
    return "BatchNorm" in follower.kind and follower.name not in settled and activation.shape == follower.shape


def _between(
    activation: Activation, activations: Sequence[Activation], settled: Mapping[str, Match], order: Mapping[str, int]
) -> tuple[int, int]:
    """Return the places of the tensors of the modules before and after an activation."""
    place = next(index for index, each in enumerate(activations) if each.name == activation.name)
    before = [order[m.tensor] for each in activations[:place] if (m := settled.get(each.name)) and m.tensor]
    after = [order[m.tensor] for each in activations[place + 1 :] if (m := settled.get(each.name)) and m.tensor]
    low = max(before, default=-1)
    return low, min((number for number in after if number > low), default=len(order))


def _by_order(
    activation: Activation,
    fitting: Sequence[Json],
    errors: Mapping[str, float],
    cosines: Mapping[str, float],
) -> Match:
    """Return the likeliest tensor of the same shape between those of the modules before and after."""
    wanted = next((ops for kind, ops in _KINDS.items() if kind in activation.kind), None)
    names = [each["name"] for each in fitting if wanted is None or each["op"] in wanted]
    best = max(names, key=lambda name: (cosines[name], -names.index(name)), default=None)
    if best is None or (len(names) > 1 and not cosines[best] >= _LEAST_COSINE):
        return _match(activation, "", NONE, None, "no tensor has its shape and values: folded away, or not exported")
    return _match(activation, best, ORDER, errors[best], "the values differ")


def _name(activations: Sequence[Activation], tensors: Sequence[Json]) -> dict[str, list[str]]:
    """Return, by activation, the tensors that the exporter's metadata give to its call of its module."""
    modules = {each.module for each in activations}
    found: dict[tuple[str, int], list[str]] = {}
    for tensor in tensors:
        origin = module_of(tensor["node"], tensor["metadata"], modules)
        if origin is not None:
            found.setdefault(origin, []).append(tensor["name"])
    named = {}
    for each in activations:
        call = each.name.removeprefix(each.module).partition("[")[0].lstrip("#")
        named[each.name] = found.get((each.module, int(call or 1)), []) or found.get((each.module, 0), [])
    return named


def _compare(
    kept: KeptActivations, units: Units, source: SourceView, tensors: Sequence[Json]
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Return how far, and at which cosine, each tensor is from each activation of its shape."""
    errors: dict[str, dict[str, float]] = {each.name: {} for each in kept.activations}
    cosines: dict[str, dict[str, float]] = {each.name: {} for each in kept.activations}
    group = next(units.groups(_COMPARED_UNITS))
    shapes = source.shapes([each["name"] for each in tensors], group.inputs)
    fitting = {name: [a for a in kept.activations if _fits(a, shape, group, units)] for name, shape in shapes.items()}
    golden = {}
    for each in kept.activations:
        rows = [units.golden.read(ACTIVATION + each.name, place, place + 1) for place in group.places]
        golden[each.name] = _few(np.concatenate(rows))
    for names in _chunks({name: shapes[name] for name, fits in fitting.items() if fits}):
        for name, array in source.run_source(names, group.inputs).items():
            for each in fitting[name]:
                values = _few(each.choose(each.arrange(array[None] if units.is_run else array, units=group.size)))
                errors[each.name][name], cosines[each.name][name] = _distance(golden[each.name], values)
    return errors, cosines


def _fits(activation: Activation, shape: tuple[int, ...], group: Group, units: Units) -> bool:
    rest = (
        list(activation.shape[1:])
        if units.is_run
        else [n for i, n in enumerate(activation.shape) if i != activation.axis]
    )
    if units.is_run:
        return rest == list(shape)
    if activation.axis >= len(shape) or shape[activation.axis] != group.size * activation.per:
        return False
    return rest == [n for i, n in enumerate(shape) if i != activation.axis]


def _few(rows: Array) -> Array:
    """Return at most some thousand elements, evenly taken, as float64."""
    flat = rows.reshape(-1)
    return np.asarray(flat[:: max(1, flat.size // _COMPARED_ELEMENTS)], np.float64)


def _distance(reference: Array, values: Array) -> tuple[float, float]:
    """Return the relative error and the cosine; a reference without any variety agrees with nothing."""
    finite = np.isfinite(reference) & np.isfinite(values)
    r, v = reference[finite], values[finite]
    if not r.size or not np.ptp(r) > 0:
        return math.inf, 0.0
    energy, product = float(r @ r), float(r @ v)
    norm = math.sqrt(energy * float(v @ v))
    return math.sqrt(float((r - v) @ (r - v)) / energy), product / norm if norm else 0.0


def _chunks(shapes: Mapping[str, tuple[int, ...]]) -> Iterable[list[str]]:
    names: list[str] = []
    size = 0
    for name, shape in shapes.items():
        names.append(name)
        size += 4 * math.prod(shape)
        if size > _CHUNK_BYTES:
            yield names
            names, size = [], 0
    if names:
        yield names
