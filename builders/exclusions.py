"""Are the nodes that a build is to leave alone in the model? Asked before anything is built, without the weights."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from modelreg.builders.graphs import VariantError, normalise, require_nodes
from modelreg.builders.planning import CellRequest, prepare_cell
from modelreg.registry.errors import UsageError
from modelreg.registry.records import VersionRecord
from modelreg.registry.sources.wire import strip_model
from modelreg.registry.storage.interface import Storage


def require_known_nodes(version: VersionRecord, names: Sequence[str], storage: Storage) -> None:
    """
    Let names pass that a version's nodes have once the model is normalised, as they are looked for in the build.

    Raises:
        UsageError: The model has no such node; names like it are in the hint.
    """
    if not names:
        return
    graph = _normalised(version, storage).graph
    try:
        require_nodes(graph, names)
    except VariantError as error:
        raise UsageError(str(error), hint=error.details.get("hint", "")) from None


def excludable_nodes(request: CellRequest, storage: Storage) -> dict[str, str]:
    """
    Return the nodes that a cell converts and that could be left alone, as they are named in the build.

    Returns:
        The nodes' names by the tensors that they make.

    Raises:
        BuildError: The cell is refused.
    """
    variant = prepare_cell(request).recipe.body
    settings = (variant["variant"] or variant.get("pins") or {}).get("settings") or {}
    graph = _normalised(request.cell.version, storage).graph
    excluded = {*request.options.op_types_to_exclude, *settings.get("blocked_ops", ())}
    wanted = settings.get("op_types")
    return {
        output: node.name
        for node in graph.node
        for output in node.output
        if node.op_type not in excluded
        and (wanted is None or node.op_type in wanted)
        and node.name not in request.options.nodes_to_exclude
    }


def _normalised(version: VersionRecord, storage: Storage) -> onnx.ModelProto:
    file = version.source.files[0]
    with storage.open_blob(file.digest) as blob:
        stripped = strip_model(blob, size_bytes=file.size_bytes, name=version.reference)
    return normalise(onnx.ModelProto.FromString(stripped.data))
