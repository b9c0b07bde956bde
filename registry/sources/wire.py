"""A walk over the bytes of an ONNX file that leaves its weights unread.

The file is untrusted: every length is checked against what encloses it, and depth, number of messages, number of
fields and bytes kept are limited, so that neither time nor memory grows with what a file merely claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError

from modelreg.registry.errors import SourceError
from modelreg.registry.sources.tensors import TensorFacts
from modelreg.registry.sources.wire_reader import FIXED32, Field, FieldReader
from modelreg.registry.sources.wire_schema import PAYLOAD_FIELDS, VARINT_FIELDS, MessageSchema, model_schema

Edit = tuple[int, int, bytes]
"""Bytes [start, end) of the file and what stands there instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of a file the walk accepts: far above real models, far below what hurts a machine."""

    kept_payload_bytes: int = 1024
    depth: int = 100
    messages: int = 2_000_000
    fields: int = 10_000_000
    graph_bytes: int = 512 * 1024 * 1024
    tensor_head_bytes: int = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StrippedModel:
    """A serialised ModelProto without the numbers of its larger tensors, and the facts about every tensor."""

    data: bytes
    tensors: tuple[TensorFacts, ...]


DEFAULT_LIMITS = Limits()


def strip_model(file: BinaryIO, *, size_bytes: int, name: str, limits: Limits = DEFAULT_LIMITS) -> StrippedModel:
    """
    Return the model in `file` without its weights, reading only what is kept.

    Args:
        file: A seekable file, best unbuffered.
        size_bytes: Where the file ends.
        name: How messages call the file.
        limits: What to accept; the defaults are for untrusted files.

    Raises:
        SourceError: The bytes are no ONNX model, are cut short or damaged, or pass a limit.
    """
    reader = FieldReader(file, size_bytes=size_bytes, name=name, max_fields=limits.fields)
    walk = _Walk(reader, name, limits)
    data = walk.message(0, size_bytes, model_schema(), depth=1, role="")
    if data is None:
        data = walk.keep(0, size_bytes)
    return StrippedModel(data=data, tensors=tuple(walk.tensors))


class _Walk:
    """One walk: what was found so far, and what may still be kept."""

    def __init__(self, reader: FieldReader, name: str, limits: Limits) -> None:
        self.tensors: list[TensorFacts] = []
        self._reader = reader
        self._name = name
        self._limits = limits
        self._messages = 0
        self._kept_bytes = 0

    def message(self, start: int, end: int, schema: MessageSchema, *, depth: int, role: str) -> bytes | None:
        """Return what is kept of the message in [start, end), or None when all of it is."""
        self._check_limits(depth)
        edits: list[Edit] = []
        payload: list[Field] = []
        seen: set[int] = set()
        messages, strings, scalars = schema.messages, schema.strings, schema.scalars
        for field in self._reader.fields(start, end):
            tag, field_start, value_start, stop = field
            child = messages.get(tag)
            if child is not None:
                if tag in schema.single_messages:
                    self._refuse_second(field, seen, schema)
                inner_role = schema.field_names[tag >> 3] if child.is_tensor else ""
                body = self.message(value_start, stop, child, depth=depth + 1, role=inner_role)
                if body is not None:
                    edits.append((field_start, stop, _varint(tag) + _varint(len(body)) + body))
            elif tag in strings:
                self._check_text(value_start, stop)
            elif tag not in scalars:
                self._check_unknown(field, schema, depth)
            elif schema.is_tensor and tag >> 3 in PAYLOAD_FIELDS:
                payload.append(field)
        if schema.is_tensor:
            return self._tensor(start, end, edits, payload, role=role)
        return self._edited(start, end, edits) if edits else None

    def keep(self, start: int, end: int) -> bytes:
        """Return bytes of the file that belong to the graph, and count them."""
        self._kept_bytes += end - start
        if self._kept_bytes > self._limits.graph_bytes:
            raise SourceError(f"{self._name} holds more than {self._limits.graph_bytes >> 20:,} MiB beside its weights")
        return self._reader.read(start, end)

    def _tensor(self, start: int, end: int, edits: list[Edit], payload: list[Field], *, role: str) -> bytes | None:
        payload_bytes = sum(stop - field_start for _, field_start, _, stop in payload)
        if end - start - payload_bytes > self._limits.tensor_head_bytes:
            raise self._reader.damaged(start, "a tensor whose description alone is larger than a megabyte")
        drops = [(field_start, stop, b"") for _, field_start, _, stop in payload]
        head = self._edited(start, end, sorted(edits + drops))
        try:
            proto = onnx.TensorProto.FromString(head)
        except DecodeError:
            raise self._reader.damaged(start, "a tensor that cannot be decoded") from None
        is_external = proto.data_location == onnx.TensorProto.EXTERNAL
        is_large = payload_bytes > self._limits.kept_payload_bytes
        self.tensors.append(
            TensorFacts(
                name=proto.name,
                data_type=proto.data_type,
                dims=tuple(proto.dims),
                role=role,
                payloads=_payload_sizes(payload),
                external=tuple((e.key, e.value) for e in proto.external_data) if is_external else None,
                numbers=None if is_large else self._count_numbers(payload),
            )
        )
        return head if is_large else None

    def _count_numbers(self, payload: list[Field]) -> int | None:
        written = [self._reader.read(start, stop) for tag, _, start, stop in payload if tag >> 3 in VARINT_FIELDS]
        # The last byte of each number is below 0x80.
        return sum(byte < 0x80 for data in written for byte in data) if written else None

    def _edited(self, start: int, end: int, edits: list[Edit]) -> bytes:
        pieces = []
        for edit_start, edit_end, replacement in edits:
            if edit_start > start:
                pieces.append(self.keep(start, edit_start))
            pieces.append(replacement)
            start = edit_end
        pieces.append(self.keep(start, end))
        return b"".join(pieces)

    def _check_limits(self, depth: int) -> None:
        self._messages += 1
        if self._messages > self._limits.messages:
            raise SourceError(
                f"{self._name} holds more than {self._limits.messages:,} nodes, attributes, tensors and other "
                "messages, too many to read"
            )
        if depth > self._limits.depth:
            raise SourceError(f"{self._name} nests messages more than {self._limits.depth} deep")

    def _refuse_second(self, field: Field, seen: set[int], schema: MessageSchema) -> None:
        tag, field_start, _, _ = field
        if tag in seen:
            raise self._reader.damaged(field_start, f"a second {schema.field_names[tag >> 3]}")
        seen.add(tag)

    def _check_text(self, start: int, end: int) -> None:
        if end - start > self._limits.graph_bytes:
            self.keep(start, end)  # refuses it
        try:
            self._reader.read(start, end).decode()
        except UnicodeDecodeError:
            raise self._reader.damaged(start, "text that is not UTF-8") from None

    def _check_unknown(self, field: Field, schema: MessageSchema, depth: int) -> None:
        tag, field_start, _, _ = field
        label = schema.field_names.get(tag >> 3)
        if label is not None:
            raise self._reader.damaged(field_start, f"{label} with the wrong wire type")
        if depth == 1:
            raise self._reader.damaged(
                field_start, f"field {tag >> 3} is none of a model: trailing bytes, or a newer ONNX"
            )


def _payload_sizes(payload: list[Field]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for tag, field_start, value_start, stop in payload:
        label = PAYLOAD_FIELDS[tag >> 3]
        if label == "raw_data":  # not repeated: the last one counts
            sizes[label] = stop - value_start
        elif label == "string_data":
            sizes[label] = sizes.get(label, 0) + 1
        elif tag & 7 == FIXED32:
            sizes[label] = sizes.get(label, 0) + (stop - field_start) // 5 * 4
        else:
            sizes[label] = sizes.get(label, 0) + stop - value_start
    return {label: size for label, size in sizes.items() if size}


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
