from __future__ import annotations

import pytest

from modelreg.builders.asked_precision import require_precision
from modelreg.registry.errors import PrecisionError
from modelreg.registry.words import Precision


def test_nodes_that_stayed_are_named() -> None:
    realised = {"stayed": [f"conv{i} (Conv)" for i in range(7)], "eligible": 9, "converted": 2}
    with pytest.raises(PrecisionError, match=r"7 of 9 nodes stayed in FP32: conv0 \(Conv\), .*, \.\.\."):
        require_precision(realised, asked=Precision.INT8)


def test_nodes_that_should_have_stayed_are_named() -> None:
    with pytest.raises(PrecisionError, match=r"excluded became int8 all the same: conv1 \(QLinearConv\)"):
        require_precision({"stayed": [], "converted": 2, "unwanted": ["conv1 (QLinearConv)"]}, asked=Precision.INT8)


def test_a_build_that_converted_nothing_failed() -> None:
    with pytest.raises(PrecisionError, match="no node became int8: nothing was eligible"):
        require_precision({"stayed": [], "converted": 0}, asked=Precision.INT8)


@pytest.mark.parametrize("asked", [Precision.FP16, Precision.BF16])
def test_half_precision_stored_in_fp32_failed(asked: Precision) -> None:
    with pytest.raises(PrecisionError, match=f"{asked} was asked, but .* stores its weights in FP32"):
        require_precision({"stayed": [], "converted": 3, "storage": "fp32"}, asked=asked)


def test_what_came_true_passes() -> None:
    require_precision({"stayed": [], "converted": 3, "storage": "fp16"}, asked=Precision.FP16)
    require_precision({"stayed": [], "converted": 0, "storage": "fp32"}, asked=Precision.FP32)


@pytest.mark.parametrize("word", ["fp16", "bf16"])
def test_a_model_typed_in_half_precision_is_no_fp32(word: str) -> None:
    with pytest.raises(PrecisionError, match=f"fp32 was asked, but the model itself is typed in {word}") as caught:
        require_precision({"stayed": [], "converted": 0, "compute": word}, asked=Precision.FP32)
    assert caught.value.hint() == f"Build {word} instead, or export the model in FP32."


def test_the_advice_on_weights_in_fp32_is_for_the_backend() -> None:
    realised = {"stayed": [], "converted": 3, "storage": "fp32"}
    with pytest.raises(PrecisionError) as caught:
        require_precision({**realised, "flags": []}, asked=Precision.FP16, excluded=["/c1/Conv"])
    assert caught.value.hint() == "Exclude fewer nodes: all those with weights stay in FP32."
    with pytest.raises(PrecisionError) as caught:
        require_precision(realised, asked=Precision.FP16)
    assert "optimisation level" in caught.value.hint()


def test_fewer_exclusions_are_advised_only_where_something_was_excluded() -> None:
    realised = {"stayed": [], "converted": 0, "note": "nothing"}
    for excluded, hint in ((["a"], "Exclude fewer nodes, or build fp32 instead."), ([], "Build fp32 instead.")):
        with pytest.raises(PrecisionError) as caught:
            require_precision(realised, asked=Precision.FP16, excluded=excluded)
        assert caught.value.hint() == hint
