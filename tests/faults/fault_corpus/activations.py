"""What every leaf module of a healthy network gives, for a comparison layer by layer to be held to the planted layer.

The exporter names nodes after modules (`/one/conv1/Conv` is of `one.conv1`), so that the last node of a module makes
what a forward hook on it would see. ONNX Runtime computes them on the healthy ONNX; a test compares them with
PyTorch's.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from fault_corpus.cases import Case, healthy_case, model_of
from modelreg.registry.words import Precision
from modelreg.validators.activations import METADATA, MODULE, PREFIX, Activation, KeptActivations

Array = NDArray[Any]

SAMPLES = 32
_KINDS = {
    "Conv": "Conv2d",
    "Gemm": "Linear",
    "Add": "Linear",
    "Gather": "Embedding",
    "LayerNormalization": "LayerNorm",
    "BatchNormalization": "BatchNorm2d",
    "AveragePool": "AvgPool2d",
    "GlobalAveragePool": "AdaptiveAvgPool2d",
    "Mul": "GELU",
    "Div": "Normalised",
}
"""The class of a module by its last node's op."""


def module_of(node: str) -> str:
    """Return the module that a node belongs to, for example `one.conv1`; empty for one of the network's own forward."""
    return ".".join(node.strip("/").split("/")[:-1])


def leaf_nodes(model: onnx.ModelProto) -> dict[str, str]:
    """Return the last node of each leaf module, in order of execution."""
    last = {module_of(node.name): node.name for node in model.graph.node if node.op_type != "Constant"}
    return {
        module: node
        for module, node in last.items()
        if module and not any(other.startswith(f"{module}.") for other in last)
    }


def activations_of(network: str, *, seed: int = 0, samples: int = SAMPLES) -> dict[str, Array]:
    """Return what each leaf module gives for the first golden samples, by the module's name."""
    case = healthy_case(network, Precision.FP32, seed)
    return _compute(model_of(network, seed), case.input, case.inputs[:samples])


def with_activations(case: Case, reference: onnx.ModelProto) -> Case:
    """
    Return a case whose golden set has what each leaf module of the reference gives for every sample.

    It is written as `register --reference --activations` writes it: every sample fits into the budget of that.
    """
    found = _compute(reference, case.input, case.inputs)
    ops = {module: _op(reference, node) for module, node in leaf_nodes(reference).items()}
    names = {module: _call_name(module, found) for module in found}
    kept = KeptActivations(
        unit="sample",
        units=tuple(range(len(case.inputs))),
        activations=tuple(
            Activation(
                name=names[module],
                module=MODULE.split(names[module])[0],
                kind=_KINDS.get(ops[module], ops[module]),
                shape=array.shape,
                axis=0,
                per=1,
            )
            for module, array in found.items()
        ),
    )
    golden = {**case.golden, **{PREFIX + names[module]: array for module, array in found.items()}}
    return replace(case, golden=golden, metadata={**case.metadata, METADATA: kept.to_text()})


def _op(model: onnx.ModelProto, name: str) -> str:
    return str(next(node.op_type for node in model.graph.node if node.name == name))


def _call_name(module: str, modules: Collection[str]) -> str:
    """Return what a capture calls a second call of a module, which the exporter gives a number."""
    base, _, number = module.rpartition("_")
    return f"{base}#{int(number) + 1}" if number.isdecimal() and base in modules else module


def _compute(model: onnx.ModelProto, name: str, inputs: Array) -> dict[str, Array]:
    import onnxruntime

    model = deepcopy(model)
    makers = {node.name: node.output[0] for node in model.graph.node}
    nodes = leaf_nodes(model)
    names = [makers[node] for node in nodes.values()]
    known = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=each) for each in dict.fromkeys(names) if each not in known)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(nodes, map(np.asarray, session.run(names, {name: inputs})), strict=True))
