"""The job file of the registry's own interpreter: makes variants, and reads what a plan really became."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def make(
    request: dict[str, Any], _arrays: dict[str, Any], report: Callable[[float | None, str], None]
) -> dict[str, Any]:
    """Write a variant; answer with its files, the ONNX first."""
    source, target = Path(request["source"]), Path(request["target"])
    variant = request["variant"]
    if variant["kind"] == "fp16":
        from modelreg.builders.fp16 import make_fp16  # noqa: PLC0415 - one kind, one set of tools

        report(None, "converting to FP16")
        files = make_fp16(source, target, variant)
    elif variant["kind"] == "bf16":
        from modelreg.builders.bf16 import make_bf16  # noqa: PLC0415

        report(None, "converting to BF16")
        files = make_bf16(source, target, variant)
    elif variant["kind"] == "fp8":
        from modelreg.builders.fp8 import make_fp8  # noqa: PLC0415

        files = make_fp8(source, target, variant, request["calibration"], report)
    else:
        from modelreg.builders.qdq import make_int8  # noqa: PLC0415

        files = make_int8(source, target, variant, request["calibration"], report)
    return {"files": [str(path) for path in files]}


def merge(
    request: dict[str, Any], _arrays: dict[str, Any], report: Callable[[float | None, str], None]
) -> dict[str, Any]:
    """Write a model with external data as one file; answer with nothing."""
    import onnx  # noqa: PLC0415 - heavy

    report(None, "merging external data")
    onnx.save(onnx.load(request["source"]), request["target"])
    return {}


def inspect(
    request: dict[str, Any], _arrays: dict[str, Any], report: Callable[[float | None, str], None]
) -> dict[str, Any]:
    """Read the realised precision of a plan; answer with what `read_realised` or `read_parsed` returns."""
    report(None, "reading the realised precision")
    if request["layers"] is not None:
        from modelreg.builders.parsed import read_parsed  # noqa: PLC0415 - imports onnx

        return read_parsed(Path(request["layers"]), Path(request["model"]), request["variant"])
    from modelreg.builders.realised import read_realised  # noqa: PLC0415 - imports onnx

    return read_realised(Path(request["plan"]), Path(request["model"]), request["variant"])


JOBS = {"make": make, "merge": merge, "inspect": inspect}
