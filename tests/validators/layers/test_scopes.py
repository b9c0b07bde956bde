"""Names and metadata as PyTorch 2.13's exporters wrote them."""

from __future__ import annotations

import pytest

from modelreg.validators.layers.scopes import module_of

MODULES = ["stem", "layer.0.conv1", "layer.0.bn1", "layer.0.relu", "layer.1.conv1", "mha", "fc_1", "encoder.0.linear1"]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("/stem/Conv", ("stem", 1)),
        ("/layer/layer.0/conv1/Conv", ("layer.0.conv1", 1)),
        ("/layer/layer.0/relu_1/Relu", ("layer.0.relu", 2)),
        ("/layer/layer.1/conv1/Conv", ("layer.1.conv1", 1)),
        ("/mha/MatMul_1", ("mha", 1)),
        ("/fc_1/Gemm", ("fc_1", 1)),  # a name that ends like a number of a call
        ("/encoder/encoder.0/linear1/MatMul", ("encoder.0.linear1", 1)),
        ("/Relu", None),
        ("/layer/layer.0/Add", None),
        ("Conv_0", None),
        ("", None),
    ],
)
def test_the_older_exporter_writes_scopes_into_names(node: str, expected: tuple[str, int] | None) -> None:
    assert module_of(node, {}, MODULES) == expected


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"pkg.torch.onnx.name_scopes": "['', 'layer', 'layer.0', 'layer.0.bn1', 'relu']"}, ("layer.0.bn1", 0)),
        ({"pkg.torch.onnx.name_scopes": "['', 'relu']"}, None),
        ({"pkg.torch.onnx.name_scopes": "not a list"}, None),
        (
            {"namespace": ": __main__.Net/layer: Sequential/layer.0: Block/layer.0.conv1: Conv2d/x: aten"},
            ("layer.0.conv1", 0),
        ),
        ({"namespace": "something else"}, None),
    ],
)
def test_the_newer_exporter_writes_metadata(metadata: dict[str, str], expected: tuple[str, int] | None) -> None:
    assert module_of("node_conv2d", metadata, MODULES) == expected
