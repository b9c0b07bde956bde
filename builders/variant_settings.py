"""What variants are made with, by kind of variant and of backend; part of each recipe."""

from __future__ import annotations

from modelreg.builders.blocked_ops import BF16_BLOCKED_OPS, FP16_BLOCKED_OPS, FP16_FOLLOWED_OPS
from modelreg.registry.words import Json

WEIGHTED_OPS = ("Conv", "Gemm", "MatMul")
"""Op types with constant weights that INT8 must reach; what the CPU has integer kernels for."""

GPU_WEIGHTED_OPS = (*WEIGHTED_OPS, "ConvTranspose")
"""The same for GPUs."""

INT8_CPU_OPS = (
    *WEIGHTED_OPS,
    *("Add", "Relu", "Clip", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Split"),
    *("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Pad"),
)

FP16_SETTINGS: Json = {
    "blocked_ops": sorted(FP16_BLOCKED_OPS),
    "followed_ops": sorted(FP16_FOLLOWED_OPS),
    "max_finite": 65504.0,
    "min_positive": 5.96e-8,
}
"""How FP16 variants are made."""

BF16_SETTINGS: Json = {"blocked_ops": sorted(BF16_BLOCKED_OPS)}
"""How BF16 variants are made."""

CPU_INT8: Json = {
    "activation_type": "QUInt8",
    "activation_symmetric": False,  # all 8 bits for values that are never negative, and no Relu left
    "weight_type": "QInt8",
    "weight_symmetric": True,
    "per_channel": True,
    # 7-bit weights: without VNNI, x86 adds U8 x S8 pairs in saturating 16 bits, and results would
    # depend on the CPU that serves.
    "reduce_range": True,
    "op_types": sorted(INT8_CPU_OPS),
    "residual_skips": "by_op_types",  # Add is among them
    "guard_excluded": True,
    "options": {},
}
"""How INT8 variants for ONNX Runtime are made."""

TENSORRT_INT8: Json = {
    "activation_type": "QInt8",
    "activation_symmetric": True,  # the parser refuses zero points
    "weight_type": "QInt8",
    "weight_symmetric": True,
    "per_channel": True,
    "reduce_range": False,
    "op_types": sorted(GPU_WEIGHTED_OPS),
    # Conv, Add and activation become one INT8 kernel where the other input of the Add is quantised.
    "residual_skips": "quantised",
    "guard_excluded": False,
    "options": {
        "QuantizeBias": False,  # nor does it take INT32 that is dequantised
        "AddQDQPairToWeight": False,  # weights stored in INT8; only older TensorRT needs Q nodes there
        # Conv, bias, add and activation fuse only without Q/DQ between them.
        "OpTypesToExcludeOutputQuantization": sorted(GPU_WEIGHTED_OPS),
    },
}
"""How INT8 variants for TensorRT are made."""
