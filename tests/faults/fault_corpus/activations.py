"""What every leaf module of a healthy network gives, for a comparison layer by layer to be held to the planted layer.

The exporter names nodes after modules (`/one/conv1/Conv` is of `one.conv1`), so that the last node of a module makes
what a forward hook on it would see. ONNX Runtime computes them on the healthy ONNX; a test compares them with
PyTorch's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from fault_corpus.cases import healthy_case, model_of
from modelreg.registry.words import Precision

Array = NDArray[Any]

SAMPLES = 32


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
    import onnxruntime

    model = model_of(network, seed)
    makers = {node.name: node.output[0] for node in model.graph.node}
    nodes = leaf_nodes(model)
    names = [makers[node] for node in nodes.values()]
    known = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in known)
    case = healthy_case(network, Precision.FP32, seed)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(names, {case.input: case.inputs[:samples]})
    return dict(zip(nodes, map(np.asarray, found), strict=True))
