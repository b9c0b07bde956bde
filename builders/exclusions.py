"""Are the nodes that a build is to leave alone in the model? Asked before anything is built, without the weights."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from modelreg.builders.graphs import VariantError, normalise, require_nodes
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
    file = version.source.files[0]
    with storage.open_blob(file.digest) as blob:
        stripped = strip_model(blob, size_bytes=file.size_bytes, name=version.reference)
    graph = normalise(onnx.ModelProto.FromString(stripped.data)).graph
    try:
        require_nodes(graph, names)
    except VariantError as error:
        raise UsageError(str(error), hint=error.details.get("hint", "")) from None
