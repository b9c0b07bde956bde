from __future__ import annotations

import pytest

from modelreg.builders.precision import offered, require_target, translate
from modelreg.builders.trt_capabilities import version_numbers
from modelreg.registry.errors import BuildError, CellRefusedError
from modelreg.registry.words import Backend, Precision

ORT, RTX = Backend.ONNXRUNTIME, Backend.TENSORRT_RTX


FP16, BF16 = Precision.FP16, Precision.BF16


def test_fp32_builds_the_source_as_it_is() -> None:
    translation = translate(Precision.FP32, ORT, "1.20.0")
    assert (translation.variant, translation.flags) == ("", ())


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8])
def test_the_variant_carries_the_types_and_the_translation_is_told(precision: Precision) -> None:
    translation = translate(precision, ORT, "1.32.0")
    assert translation.variant == str(precision)
    assert translation.steps


def test_fp16_clamps_at_the_range_of_fp16_and_not_at_ten_thousand() -> None:
    settings = translate(Precision.FP16, ORT, "1.32.0").settings
    assert settings["max_finite"] == 65504.0
    assert {"Softmax", "LayerNormalization", "ReduceMean", "Pow", "Exp"} <= set(settings["blocked_ops"])


def test_int8_on_the_cpu_has_unsigned_activations_and_symmetric_weights_per_channel() -> None:
    settings = translate(Precision.INT8, ORT, "1.32.0").settings
    assert settings["activation_type"] == "QUInt8"
    assert (settings["weight_type"], settings["weight_symmetric"], settings["per_channel"]) == ("QInt8", True, True)


@pytest.mark.parametrize("version", ["1.4.0.76", "1.7.1.116", "2.0"])
def test_on_rtx_the_variant_carries_the_types_and_tf32_alone_is_a_flag(version: str) -> None:
    found = {str(each): translate(each, RTX, version) for each in (Precision(name) for name in offered(RTX, version))}
    assert {name: each.variant for name, each in found.items()} == {
        "fp32": "",
        "tf32": "",
        "fp16": "fp16",
        "bf16": "bf16",
        "int8": "int8",
        **({} if version.startswith("1.4") else {"fp8": "fp8"}),
    }
    assert {name for name, each in found.items() if "TF32" in each.flags} == {"tf32"}
    assert all(any("TF32" in step for step in each.steps) for each in found.values())


def test_int8_on_rtx_is_symmetric_and_quantises_no_bias_and_no_output_of_weighted_ops() -> None:
    settings = translate(Precision.INT8, RTX, "1.7.1.116").settings
    assert (settings["activation_type"], settings["activation_symmetric"]) == ("QInt8", True)
    assert (settings["weight_type"], settings["per_channel"], settings["reduce_range"]) == ("QInt8", True, False)
    assert settings["options"]["QuantizeBias"] is False
    reached = ["Conv", "ConvTranspose", "Gemm", "MatMul"]
    assert settings["options"]["OpTypesToExcludeOutputQuantization"] == settings["op_types"] == reached
    assert settings["residual_skips"] == "quantised"


def test_bf16_blocks_what_lacks_kernels_and_not_what_fp16_would_overflow_in() -> None:
    blocked = {name: set(translate(name, RTX, "1.7").settings["blocked_ops"]) for name in (FP16, BF16)}
    assert {"Exp", "Pow", "Softmax", "LayerNormalization", "ReduceMean"} <= blocked[FP16] - blocked[BF16]
    assert {"ConvTranspose", "Mish"} <= blocked[BF16] - blocked[FP16]
    assert {"CumSum", "Range", "Celu", "TreeEnsemble"} <= blocked[FP16] & blocked[BF16]


def test_fp8_is_quantised_as_int8_is() -> None:
    assert translate(Precision.FP8, RTX, "1.7").settings == translate(Precision.INT8, RTX, "1.7").settings


@pytest.mark.parametrize("precision", Precision)
def test_rtx_before_1_4_builds_nothing(precision: Precision) -> None:
    with pytest.raises(CellRefusedError, match=r"before 1\.4") as caught:
        translate(precision, RTX, "1.3.0.35")
    assert caught.value.hint() == "tensorrt-rtx builds: nothing."


@pytest.mark.parametrize(
    ("precision", "version", "reason"),
    [(Precision.FP8, "1.4.0.76", r"before 1\.5 needs a GPU"), (Precision.BEST, "1.7.1.116", "strongly typed")],
)
def test_what_rtx_cannot_do_is_refused_with_the_reason(precision: Precision, version: str, reason: str) -> None:
    with pytest.raises(CellRefusedError, match=reason) as caught:
        translate(precision, RTX, version)
    assert "fp32, tf32, fp16, int8, bf16" in caught.value.hint()


@pytest.mark.parametrize(
    ("precision", "reason"),
    [
        (Precision.TF32, "NVIDIA"),
        (Precision.BF16, "kernels"),
        (Precision.FP8, "kernels"),
        (Precision.BEST, "chooses nothing"),
    ],
)
def test_what_the_cpu_cannot_do_is_refused_with_the_reason(precision: Precision, reason: str) -> None:
    with pytest.raises(BuildError, match=reason) as caught:
        translate(precision, ORT, "1.32.0")
    assert "fp32, fp16, int8" in caught.value.hint()


def test_a_version_that_is_too_old_is_refused() -> None:
    with pytest.raises(BuildError, match=r"fp16 cannot be built with tensorrt 5\.0: TensorRT before 8\.6"):
        translate(Precision.FP16, Backend.TENSORRT, "5.0")
    assert offered(Backend.TENSORRT, "5.0") == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("10.12.0.36", (10, 12, 0, 36)), ("1.20.0rc1", (1, 20, 0)), ("11.1+cu13", (11, 1)), ("dev", ()), ("2.x", (2,))],
)
def test_versions_compare_by_their_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert version_numbers(text) == numbers


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16, Precision.INT8, Precision.FP8])
def test_the_full_tensorrt_with_binding_types_makes_the_variants_of_rtx(precision: Precision) -> None:
    strong, rtx = translate(precision, Backend.TENSORRT, "10.12.0.36"), translate(precision, RTX, "1.7.1.116")
    assert (strong.typing, strong.variant, strong.settings) == ("strong", rtx.variant, rtx.settings)


def test_before_that_fp8_is_refused_and_int8_keeps_q_nodes_before_weights() -> None:
    with pytest.raises(CellRefusedError, match="not made for it yet"):
        translate(Precision.FP8, Backend.TENSORRT, "10.8.0.43")
    settings = translate(Precision.INT8, Backend.TENSORRT, "8.6.0").settings
    assert settings["options"]["AddQDQPairToWeight"] is True
    assert settings["residual_skips"] == "quantised"


@pytest.mark.parametrize(
    ("precision", "refused", "built"),
    [(Precision.BF16, "sm_75", "sm_80"), (Precision.FP8, "sm_86", "sm_89"), (Precision.FP8, "sm_75", "sm_120")],
)
def test_a_gpu_without_the_arithmetic_of_a_precision_is_refused(precision: Precision, refused: str, built: str) -> None:
    with pytest.raises(CellRefusedError, match=f"{precision} needs sm_.. or newer, and is not built for {refused}"):
        require_target(precision, refused)
    require_target(precision, built)
    require_target(Precision.INT8, refused)
    require_target(precision, "cpu")
