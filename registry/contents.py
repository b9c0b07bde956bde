"""What a source or an engine consists of: its files, and the tensors it takes and gives.

Named tuples and no dataclasses, as in the manifest and the pointer: to define one takes a fifth as long at every start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from modelreg.registry.digests import canonical_json
from modelreg.registry.words import Json


class TensorSpec(NamedTuple):
    """One input or output as declared by the ONNX.

    `shape` holds integers, symbol names, or None for an unknown dimension; it is None when the rank is unknown.
    `dtype` is a NumPy name (`float32`, `int64`, `bool`), `bfloat16`, `string`, or `unknown`.
    `kind` is `tensor`, `sequence`, `optional`, `map` or `sparse`.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    kind: str = "tensor"

    def to_json(self) -> Json:
        """Return the spec as JSON."""
        shape = None if self.shape is None else list(self.shape)
        return {"name": self.name, "dtype": self.dtype, "shape": shape, "kind": self.kind}

    @classmethod
    def from_json(cls, body: Json) -> TensorSpec:
        """Read back what `to_json` wrote."""
        shape = None if body["shape"] is None else tuple(body["shape"])
        return cls(name=body["name"], dtype=body["dtype"], shape=shape, kind=body.get("kind", "tensor"))


class Signature(NamedTuple):
    """The inputs and outputs of a model, in the ONNX's order, initialisers not counted as inputs."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def to_json(self) -> Json:
        """Return the signature as JSON."""
        return {"inputs": [i.to_json() for i in self.inputs], "outputs": [o.to_json() for o in self.outputs]}

    @classmethod
    def from_json(cls, body: Json) -> Signature:
        """Read back what `to_json` wrote."""
        return cls(
            inputs=tuple(TensorSpec.from_json(i) for i in body["inputs"]),
            outputs=tuple(TensorSpec.from_json(o) for o in body["outputs"]),
        )


class StoredFile(NamedTuple):
    """One file of a source or an engine: its name inside the folder, and the blob that holds its bytes."""

    path: str
    digest: str
    size_bytes: int

    def to_json(self) -> Json:
        """Return the file as JSON, in the manifest's spelling."""
        return {"path": self.path, "sha256": self.digest, "size": self.size_bytes}

    @classmethod
    def from_json(cls, body: Json) -> StoredFile:
        """Read back what `to_json` wrote."""
        return cls(path=body["path"], digest=body["sha256"], size_bytes=body["size"])


def list_files(files: Sequence[StoredFile]) -> bytes:
    """Return the document whose SHA-256 is the digest of a source of several files; it is kept as a blob too."""
    return canonical_json([file.to_json() for file in files])
