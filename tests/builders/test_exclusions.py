from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from modelreg.builders.exclusions import require_known_nodes
from modelreg.registry.errors import UsageError
from modelreg_testing.onnx_models import conv_net, make_model, save, value, weight
from modelreg_testing.workshop import Workshop


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop.open(tmp_path)


def test_nodes_that_the_model_has_pass(workshop: Workshop) -> None:
    version = workshop.register(conv_net())
    require_known_nodes(version, ["conv1", "fc"], workshop.storage)
    require_known_nodes(version, [], workshop.storage)


def test_a_node_that_the_model_lacks_is_refused_with_names_like_it(workshop: Workshop) -> None:
    version = workshop.register(conv_net())
    with pytest.raises(UsageError, match="the model has no node 'conv9' to exclude") as raised:
        require_known_nodes(version, ["conv1", "conv9"], workshop.storage)
    assert "conv1" in raised.value.hint()


def test_a_node_without_a_name_has_the_one_that_the_build_gives_it(workshop: Workshop) -> None:
    model = make_model(
        [
            helper.make_node("Constant", [], ["two"], value_float=2.0),
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Mul", ["h", "two"], ["y"]),
        ],
        inputs=[value("x", ["N", 4])],
        outputs=[value("y", ["N", 4])],
        initializers=[weight("w", np.ones((4, 4), np.float32))],
    )
    version = workshop.register(save(model, workshop.folder / "unnamed.onnx"))
    require_known_nodes(version, ["MatMul_0", "Mul_1"], workshop.storage)
    with pytest.raises(UsageError):
        require_known_nodes(version, ["MatMul_1"], workshop.storage)
