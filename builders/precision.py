"""From the intent `--precision` to what a backend is really told, as one table.

Rows are per backend and version range, so that a new backend adds rows, not branches. Pure: no files, no
libraries.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from modelreg.builders.trt_capabilities import has, version_numbers
from modelreg.builders.variant_settings import BF16_SETTINGS, CPU_INT8, FP16_SETTINGS, TENSORRT_INT8
from modelreg.registry.errors import CellRefusedError
from modelreg.registry.words import Backend, Json, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """
    What a backend is told for an intent.

    Attributes:
        variant: Kind of variant to make, or an empty string when the source is built as it is.
        settings: What the variant is made with; part of the recipe.
        flags: Backend flags, by name.
        typing: `strong` or `weak` for TensorRT: whether the types in the model bind it; empty elsewhere.
        pins: What a weakly typed network is told to keep in FP32, as settings of a variant; None where types do that.
        calibrates: Whether TensorRT finds INT8 ranges itself.
        steps: The same for people, one line each.
    """

    precision: Precision
    variant: str = ""
    settings: Json = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    typing: str = ""
    pins: Json | None = None
    calibrates: bool = False
    steps: tuple[str, ...] = ()

    @property
    def can_exclude(self) -> bool:
        """Return whether anything is converted that nodes could be excluded from."""
        return bool(self.variant) or self.pins is not None

    @property
    def is_chosen_by_layer(self) -> bool:
        """Return whether the backend may leave any layer in FP32 that it finds faster so."""
        return self.typing == "weak" and self.precision in (Precision.FP16, Precision.BF16)


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


_ORT, _RTX, _TRT = Backend.ONNXRUNTIME, Backend.TENSORRT_RTX, Backend.TENSORRT
_RTX_FIRST, _RTX_FP8 = (1, 4), (1, 5)
_WEAK_FIRST, _STRONG_FIRST = (8, 6), (10, 12)
"""TensorRT's types are hints before 10.12 for us, and bind from then on: NVIDIA recommends it from 10.12 on."""

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
                "accuracy is measured with the rounding of FP16 kept (pass `rounded`)",
            ),
        ),
    ),
    _Row(
        backend=_ORT,
        translation=Translation(
            precision=Precision.INT8,
            variant="int8",
            settings=CPU_INT8,
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
            settings=BF16_SETTINGS,
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


_FP16_PINS: Json = {key: FP16_SETTINGS[key] for key in ("blocked_ops", "followed_ops")}
_PIN_STEP = "op types that overflow in FP16, and what is excluded, are constrained to FP32"


def _weak(precision: Precision, *steps: str, first: tuple[int, ...] = _WEAK_FIRST, **more: Any) -> _Row:
    """Return a row of a weakly typed TensorRT: builder flags say what it may use, pins what it may not."""
    translation = Translation(precision=precision, typing="weak", steps=steps, **more)
    return _Row(backend=_TRT, translation=translation, first=first, before=_STRONG_FIRST)


_WEAK_TABLE: tuple[_Row, ...] = (
    _weak(Precision.FP32, "the source is built as it is, in FP32", "builder flag TF32 is cleared"),
    _weak(Precision.TF32, "the source is built as it is, in FP32", "builder flag TF32 is set", flags=("TF32",)),
    _weak(
        Precision.FP16,
        "the source is built as it is; builder flag FP16 lets TensorRT choose FP16 layer by layer",
        _PIN_STEP,
        flags=("FP16",),
        pins=_FP16_PINS,
    ),
    _weak(
        Precision.INT8,
        "a variant with Q/DQ nodes is made from the source: static, S8, symmetric, weights per channel",
        "builder flags INT8 and FP16 are set: what has no Q/DQ nodes may run in FP16",
        _PIN_STEP,
        variant="int8",
        # Weights stay FP32 before their Q nodes: older parsers want both.
        settings={**TENSORRT_INT8, "options": {**TENSORRT_INT8["options"], "AddQDQPairToWeight": True}},
        flags=("FP16", "INT8"),
        pins=_FP16_PINS,
    ),
    _weak(
        Precision.BEST,
        "the source is built as it is; TensorRT chooses among FP32, TF32 and FP16, whatever is fastest",
        _PIN_STEP,
        flags=("FP16", "TF32"),
        pins=_FP16_PINS,
    ),
    _weak(
        Precision.BF16,
        "the source is built as it is; builder flag BF16 lets TensorRT choose BF16 layer by layer",
        "what is excluded is constrained to FP32",
        flags=("BF16",),
        pins={"blocked_ops": []},
        first=(10, 0),
    ),
    _refused(_TRT, Precision.BF16, "TensorRT before 10 has no BF16", first=_WEAK_FIRST, before=(10, 0)),
    _refused(_TRT, Precision.FP8, "FP8 variants are not made for it yet", first=_WEAK_FIRST, before=_STRONG_FIRST),
    *(_refused(_TRT, precision, "TensorRT before 8.6 is not supported", before=_WEAK_FIRST) for precision in Precision),
)
_STRONG_TABLE: tuple[_Row, ...] = tuple(
    replace(row, backend=_TRT, first=_STRONG_FIRST, translation=replace(row.translation, typing="strong"))
    for row in _TABLE
    if row.backend is _RTX and row.before == _OPEN_END
)
"""From 10.12 on, TensorRT is told what TensorRT-RTX is told: the types in the model bind both."""

_ROWS = (*_TABLE, *_WEAK_TABLE, *_STRONG_TABLE)


def translate_implicit(backend: Backend, version: str) -> Translation:
    """
    Return what TensorRT is told for INT8 whose ranges it finds itself, without Q/DQ nodes.

    Raises:
        CellRefusedError: This backend or version cannot.
    """
    if not has("implicit calibration", str(backend), version):
        raise CellRefusedError(
            f"{backend} {version} has no implicit calibration", hint="Leave --implicit-calibration out: Q/DQ is used."
        )
    return Translation(
        precision=Precision.INT8,
        flags=("FP16", "INT8"),
        typing="weak",
        pins=_FP16_PINS,
        calibrates=True,
        steps=(
            "the source is built as it is; TensorRT finds INT8 ranges itself (implicit calibration)",
            "builder flags FP16 and INT8 are set: TensorRT may choose either, or FP32, layer by layer",
        ),
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


_FIRST_TARGETS = {Precision.BF16: 80, Precision.FP8: 89}
"""The first compute capability that has a precision: Ampere brought BF16 and Ada FP8, each times ten."""


def require_target(precision: Precision, target: str) -> None:
    """
    Refuse a GPU that has no arithmetic of a precision.

    Raises:
        CellRefusedError: Says from which on there is.
    """
    first, digits = _FIRST_TARGETS.get(precision), target.removeprefix("sm_")
    if first is not None and digits.isdigit() and int(digits) < first:
        raise CellRefusedError(
            f"{precision} needs sm_{first} or newer, and is not built for {target}", hint="Build fp16 or int8 for it."
        )


def offered(backend: Backend, version: str) -> list[str]:
    """Return the precisions that a backend of this version can build, in the table's order."""
    return [str(row.translation.precision) for row in _rows(backend, version) if not row.refusal]


def _rows(backend: Backend, version: str) -> list[_Row]:
    numbers = version_numbers(version)
    return [row for row in _ROWS if row.backend is backend and row.first <= numbers < row.before]
