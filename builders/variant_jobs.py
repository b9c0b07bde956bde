"""The job file of the registry's own interpreter: makes variants, and reads what a plan really became."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def make(
    request: dict[str, Any], _arrays: dict[str, Any], report: Callable[[float | None, str], None]
) -> dict[str, Any]:
    """Write a variant; answer with its files, the ONNX first."""
    source, target = Path(request["source"]), Path(request["target"])
    with _naming(target.parent):
        return {"files": [str(path) for path in _make(source, target, request, report)]}


def _make(
    source: Path, target: Path, request: dict[str, Any], report: Callable[[float | None, str], None]
) -> list[Path]:
    variant = request["variant"]
    if variant["kind"] == "fp16":
        from modelreg.builders.fp16 import make_fp16  # noqa: PLC0415 - one kind, one set of tools

        report(None, "converting to FP16")
        return make_fp16(source, target, variant)
    if variant["kind"] == "bf16":
        from modelreg.builders.bf16 import make_bf16  # noqa: PLC0415

        report(None, "converting to BF16")
        return make_bf16(source, target, variant)
    if variant["kind"] == "fp8":
        from modelreg.builders.fp8 import make_fp8  # noqa: PLC0415

        return make_fp8(source, target, variant, request["calibration"], report)
    from modelreg.builders.qdq import make_int8  # noqa: PLC0415

    return make_int8(source, target, variant, request["calibration"], report)


@contextlib.contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Say where a write failed: of a file that is open already, the system does not tell its name."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        from modelreg.builders.graphs import VariantError  # noqa: PLC0415 - imports onnx

        raise VariantError(
            f"nothing can be written below {folder}: {error.strerror or error}",
            hint="Free some space there, or set TMPDIR to a folder that has some.",
        ) from error


def merge(
    request: dict[str, Any], _arrays: dict[str, Any], report: Callable[[float | None, str], None]
) -> dict[str, Any]:
    """Write a model with external data as one file; answer with nothing."""
    import onnx  # noqa: PLC0415 - heavy

    report(None, "merging external data")
    with _naming(Path(request["target"]).parent):
        onnx.save(onnx.load(request["source"]), request["target"])
    return {}


def pin(
    request: dict[str, Any], _arrays: dict[str, Any], report: Callable[[float | None, str], None]
) -> dict[str, Any]:
    """Name the nodes that a constraint is put on, all others too; answer with the model to build and these names."""
    import onnx  # noqa: PLC0415 - heavy

    from modelreg.builders.graphs import name_nodes, require_nodes  # noqa: PLC0415 - imports onnx
    from modelreg.builders.kept import kept_nodes  # noqa: PLC0415

    report(None, "naming the nodes to keep in FP32")
    path, pins = Path(request["model"]), request["pins"]
    model = onnx.load(path, load_external_data=False)
    unnamed = any(not node.name for node in model.graph.node)
    name_nodes(model.graph)
    require_nodes(model.graph, pins["excluded_nodes"])
    nodes = kept_nodes(model.graph, pins)
    if unnamed:  # beside the model, where its external data lies
        path = path.with_name("named-" + path.name)
        onnx.save(model, path)
    return {"model": str(path), "nodes": sorted(nodes)}


def inspect(
    request: dict[str, Any], _arrays: dict[str, Any], report: Callable[[float | None, str], None]
) -> dict[str, Any]:
    """Read the realised precision of a plan; answer in the words of `read_realised`."""
    report(None, "reading the realised precision")
    recipe, model = request["recipe"], Path(request["model"])
    if recipe["backend"] == "tensorrt":
        from modelreg.builders.inspected import read_inspected  # noqa: PLC0415 - imports onnx

        return read_inspected(Path(request["layers"]), model, recipe, request["pinned"])
    if request["layers"] is not None:
        from modelreg.builders.parsed import read_parsed  # noqa: PLC0415 - imports onnx

        return read_parsed(Path(request["layers"]), model, recipe["variant"])
    from modelreg.builders.realised import read_realised  # noqa: PLC0415 - imports onnx

    return read_realised(Path(request["plan"]), model, recipe["variant"])


JOBS = {"make": make, "merge": merge, "pin": pin, "inspect": inspect}
