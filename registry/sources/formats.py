"""Telling what a file is when it is no ONNX model, so that the message can say so."""

from __future__ import annotations

from modelreg.registry.errors import SourceError
from modelreg.registry.sources.wire_reader import BYTES, VARINT

HEAD_BYTES = 512

_MAGICS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive, as PyTorch checkpoints and .pt2 files are"),
    (0, b"\x80\x02", "a Python pickle"),
    (0, b"\x80\x04", "a Python pickle"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"\x89HDF", "an HDF5 file"),
    (0, b"\x1f\x8b", "gzip-compressed"),
    (0, b"\x7fELF", "a program or library"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"GGUF", "a GGUF model"),
    (0, b"ftrt", "a TensorRT plan"),
    (0, b"ptrt", "a TensorRT plan"),
    (4, b"ORTM", "a model in ORT format"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (8, b'{"', "a safetensors file"),
)
_MODEL_TAGS = {
    number << 3 | kind
    for number, kind in (
        (1, VARINT),
        (2, BYTES),
        (3, BYTES),
        (4, BYTES),
        (5, VARINT),
        (6, BYTES),
        (7, BYTES),
        (8, BYTES),
        (14, BYTES),
    )
}
_TEXT_BYTES = frozenset(b"\t\n\r\f") | frozenset(range(32, 127)) | frozenset(range(128, 256))


def require_onnx_start(head: bytes, *, name: str) -> None:
    """
    Check that the first bytes of a file (`HEAD_BYTES` of them, if it has so many) can begin an ONNX model.

    Raises:
        SourceError: The file is empty, or is something else, named where it is well known.
    """
    if not head:
        raise SourceError(f"{name} is empty")
    for offset, magic, what in _MAGICS:
        if head[offset:].startswith(magic):
            raise SourceError(f"{name} is not an ONNX model: it is {what}")
    if head.startswith(b"version https://git-lfs"):
        raise SourceError(
            f"{name} is not an ONNX model: it is a Git LFS pointer", hint="Fetch the file with `git lfs pull`."
        )
    if _TEXT_BYTES.issuperset(head):
        raise SourceError(f"{name} is not an ONNX model: it is text")
    if head[0] not in _MODEL_TAGS:
        raise SourceError(f"{name} is not an ONNX model: its first byte is 0x{head[0]:02x}")
