"""From the intent `--precision` to what a backend is really told, as one table; and whether it came true.

Rows are per backend and version range, so that a new backend adds rows, not branches. Pure: no files, no
libraries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from modelreg.builders.blocked_ops import BF16_BLOCKED_OPS, FP16_BLOCKED_OPS, FP16_FOLLOWED_OPS
from modelreg.registry.errors import CellRefusedError, PrecisionError
from modelreg.registry.words import Backend, Json, Precision

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """
    What a backend is told for an intent.

    Attributes:
        variant: Kind of variant to make, or an empty string when the source is built as it is.
        settings: What the variant is made with; part of the recipe.
        flags: Backend flags, by name.
        steps: The same for people, one line each.
    """

    precision: Precision
    variant: str = ""
    settings: Json = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    backend: Backend
    translation: Translation
    first: tuple[int, ...] = ()
    before: tuple[int, ...] = (1 << 30,)
    refusal: str = ""


_OPEN_END = (1 << 30,)


def _refused(
    backend: Backend,
    precision: Precision,
    reason: str,
    *,
    first: tuple[int, ...] = (),
    before: tuple[int, ...] = _OPEN_END,
) -> _Row:
    translation = Translation(precision=precision)
    return _Row(backend=backend, translation=translation, refusal=reason, first=first, before=before)


_ORT, _RTX = Backend.ONNXRUNTIME, Backend.TENSORRT_RTX
_RTX_FIRST, _RTX_FP8 = (1, 4), (1, 5)
_TABLE: tuple[_Row, ...] = (
    _Row(
        backend=_ORT,
        translation=Translation(precision=Precision.FP32, steps=("the source is built as it is, in FP32",)),
    ),
    _Row(
        backend=_ORT,
        translation=Translation(
            precision=Precision.FP16,
            variant="fp16",
            settings=FP16_SETTINGS,
            steps=(
                "a variant with FP16 weights and tensors is made from the source",
                "the CPU stores FP16 and computes in FP32 between casts",
                "accuracy is measured with the rounding of FP16 kept (mode `rounded`)",
            ),
        ),
    ),
    _Row(
        backend=_ORT,
        translation=Translation(
            precision=Precision.INT8,
            variant="int8",
            settings={
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
            },
            steps=(
                "a variant with Q/DQ nodes is made from the source: static, weights symmetric per channel",
                "activations U8; weights S8 in 7 bits, so that CPUs without VNNI do not saturate",
            ),
        ),
    ),
    # TensorRT-RTX: networks are strongly typed, the variant carries the types. TF32 is on by default there, and would
    # make FP32 of 10 bits what was excluded for its accuracy: the one precision that is named so has it.
    _Row(
        backend=_RTX,
        first=_RTX_FIRST,
        translation=Translation(
            precision=Precision.FP32,
            steps=("the source is built as it is, strongly typed in FP32", "builder flag TF32 is cleared"),
        ),
    ),
    _Row(
        backend=_RTX,
        first=_RTX_FIRST,
        translation=Translation(
            precision=Precision.TF32,
            flags=("TF32",),
            steps=("the source is built as it is, strongly typed in FP32", "builder flag TF32 is set"),
        ),
    ),
    _Row(
        backend=_RTX,
        first=_RTX_FIRST,
        translation=Translation(
            precision=Precision.FP16,
            variant="fp16",
            settings=FP16_SETTINGS,
            steps=(
                "a variant with FP16 weights and tensors is made from the source, and built strongly typed",
                "builder flag TF32 is cleared: what stays in FP32 keeps all its bits",
            ),
        ),
    ),
    _Row(
        backend=_RTX,
        first=_RTX_FIRST,
        translation=Translation(
            precision=Precision.INT8,
            variant="int8",
            settings=TENSORRT_INT8,
            steps=(
                "a variant with Q/DQ nodes is made from the source: static, S8, symmetric, weights per channel",
                "it is built strongly typed; biases and the outputs of weighted ops are not quantised",
                "builder flag TF32 is cleared: what stays in FP32 keeps all its bits",
            ),
        ),
    ),
    _Row(
        backend=_RTX,
        first=_RTX_FIRST,
        translation=Translation(
            precision=Precision.BF16,
            variant="bf16",
            settings={"blocked_ops": sorted(BF16_BLOCKED_OPS)},
            steps=(
                "a variant with BF16 weights and tensors is made from the source, and built strongly typed",
                "inputs and outputs keep their types",
                "builder flag TF32 is cleared: what stays in FP32 keeps all its bits",
            ),
        ),
    ),
    _Row(
        backend=_RTX,
        first=_RTX_FP8,
        translation=Translation(
            precision=Precision.FP8,
            variant="fp8",
            settings=TENSORRT_INT8,  # the same places and ranges
            steps=(
                "a variant with Q/DQ nodes is made from the source: static, E4M3, weights per channel",
                "it is built strongly typed; biases and the outputs of weighted ops are not quantised",
                "builder flag TF32 is cleared: what stays in FP32 keeps all its bits",
            ),
        ),
    ),
    _refused(
        _RTX, Precision.FP8, "TensorRT-RTX before 1.5 needs a GPU to compile FP8", first=_RTX_FIRST, before=_RTX_FP8
    ),
    _refused(_RTX, Precision.BEST, "its networks are strongly typed and nothing is chosen; name one", first=_RTX_FIRST),
    *(
        _refused(
            _RTX, precision, "TensorRT-RTX before 1.4 does not build for a GPU that is not there", before=_RTX_FIRST
        )
        for precision in Precision
    ),
    _refused(_ORT, Precision.TF32, "TF32 is arithmetic of NVIDIA GPUs; on the CPU, fp32 is FP32"),
    _refused(_ORT, Precision.BF16, "ONNX Runtime has almost no BF16 kernels on the CPU"),
    _refused(_ORT, Precision.FP8, "ONNX Runtime has no FP8 kernels on the CPU"),
    _refused(_ORT, Precision.BEST, "ONNX Runtime runs the types in the graph and chooses nothing; name one"),
)


def translate(precision: Precision, backend: Backend, version: str) -> Translation:
    """
    Return what `backend` of this version is told for an intent.

    Raises:
        CellRefusedError: The backend cannot do it; says why, and what it can.
    """
    for row in _rows(backend, version):
        if row.translation.precision is precision:
            if row.refusal:
                raise CellRefusedError(
                    f"{precision} cannot be built with {backend} {version}: {row.refusal}",
                    hint=f"{backend} builds: {', '.join(offered(backend, version)) or 'nothing'}.",
                )
            return row.translation
    raise CellRefusedError(f"nothing is known about building {precision} with {backend} {version}")


def offered(backend: Backend, version: str) -> list[str]:
    """Return the precisions that a backend of this version can build, in the table's order."""
    return [str(row.translation.precision) for row in _rows(backend, version) if not row.refusal]


def _rows(backend: Backend, version: str) -> list[_Row]:
    numbers = version_numbers(version)
    return [row for row in _TABLE if row.backend is backend and row.first <= numbers < row.before]


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: `10.12.0.36+x` gives (10, 12, 0, 36)."""
    numbers: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def require_precision(realised: Json, *, asked: Precision) -> None:
    """
    Refuse a plan that did not become what was asked.

    Raises:
        PrecisionError: Names the nodes that stayed in a higher precision.
    """
    stayed = realised.get("stayed", [])
    if stayed:
        shown = ", ".join(str(node) for node in stayed[:5]) + (", ..." if len(stayed) > 5 else "")
        raise PrecisionError(
            f"{asked} was asked, but {len(stayed)} of {realised.get('eligible')} nodes stayed in FP32: {shown}",
            hint="Exclude them by --nodes_to_exclude if they shall stay, or choose another precision.",
        )
    unwanted = realised.get("unwanted")
    if unwanted:
        raise PrecisionError(f"nodes that were excluded became {asked} all the same: {', '.join(map(str, unwanted))}")
    if asked is not Precision.FP32 and not realised.get("converted"):
        raise PrecisionError(
            f"{asked} was asked, but no node became {asked}: {realised.get('note') or 'nothing was eligible'}",
            hint="Build fp32 instead, or exclude fewer nodes.",
        )
    if asked in (Precision.FP16, Precision.BF16) and realised.get("storage") != str(asked):
        raise PrecisionError(
            f"{asked} was asked, but the optimised graph stores its weights in FP32",
            hint="Build with optimisation level `extended` or lower: `all` folds the casts of weights.",
        )
