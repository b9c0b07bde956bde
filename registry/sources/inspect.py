"""Learning all that `register` needs from an ONNX file, without its weights and without storing anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from modelreg.registry.contents import Signature
from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import SourceError
from modelreg.registry.sources.checking import check_model
from modelreg.registry.sources.external import MODEL_NAME, find_external_data
from modelreg.registry.sources.formats import HEAD_BYTES, require_onnx_start
from modelreg.registry.sources.lint import check_graph, check_tensors, count_nodes, find_warnings, read_opsets
from modelreg.registry.sources.local_files import LocalFile, open_regular, shown, unreadable
from modelreg.registry.sources.signature import read_signature, unbuildable_reasons
from modelreg.registry.sources.wire import StrippedModel, strip_model


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedSource:
    """A valid ONNX model in local files, not yet stored; `files[0]` is the ONNX, the rest its external data.

    `graph_digest` is the SHA-256 of the model without its weights: it changes when the file is edited meanwhile.
    The other fields are those of `SourceInfo`.
    """

    files: tuple[LocalFile, ...]
    graph_digest: str
    signature: Signature
    opsets: dict[str, int]
    ir_version: int
    producer: str
    node_counts: dict[str, int]
    parameter_bytes: int
    unbuildable: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all files, as many as storing them reports as progress."""
        return sum(file.size_bytes for file in self.files)


def inspect_source(path: Path) -> InspectedSource:
    """
    Read and check an ONNX model with its external data, in memory bounded by its graph.

    Args:
        path: The ONNX file, or a link to it; external data is looked for beside this name.

    Raises:
        SourceError: It is no valid ONNX model, is too new for the installed onnx, or its external data is missing,
            damaged or outside the model's folder.
    """
    # Absolute at once, and not resolved: a later chdir changes nothing, a link stays the name it was given.
    name = shown(path)
    file, stripped = read_stripped(path.absolute(), shown_as=name)
    model = _parse(stripped, name)
    opsets = read_opsets(model, name=name)
    if not model.HasField("graph"):
        raise SourceError(f"{name} is not an ONNX model, or is cut short: it has no graph")
    check_tensors(stripped.tensors, name=name)
    external = find_external_data(file.path, stripped.tensors)
    check_graph(model.graph, name=name)
    disagreements = check_model(model, name=name)
    signature = read_signature(model.graph)
    return InspectedSource(
        files=(file, *external.files),
        graph_digest=sha256_hex(stripped.data),
        signature=signature,
        opsets=opsets,
        ir_version=model.ir_version,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        node_counts=count_nodes(model),
        parameter_bytes=sum(tensor.size_bytes or 0 for tensor in stripped.tensors),
        unbuildable=unbuildable_reasons(signature),
        warnings=(*find_warnings(model, size_bytes=file.size_bytes), *external.warnings, *disagreements),
    )


def read_stripped(path: Path, *, shown_as: str) -> tuple[LocalFile, StrippedModel]:
    """
    Walk an ONNX file and return its identity and its model without the weights.

    Raises:
        SourceError: It cannot be read, or is no ONNX model.
    """
    file, identity = open_regular(path)
    try:
        with file:
            require_onnx_start(file.read(HEAD_BYTES), name=shown_as)
            stripped = strip_model(file, size_bytes=identity.size_bytes, name=shown_as)
    except OSError as error:
        raise unreadable(path, error) from error
    return LocalFile(name=MODEL_NAME, path=path, identity=identity), stripped


def _parse(stripped: StrippedModel, name: str) -> onnx.ModelProto:
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(stripped.data)
    except DecodeError as error:
        raise SourceError(f"{name} is damaged: {error}") from error
    return model
