"""The field tables of ONNX's protobuf messages, taken from the descriptors of the installed onnx."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import onnx

from modelreg.registry.sources.wire_reader import BYTES, FIXED32, FIXED64, VARINT

_WIRE_TYPES = {1: FIXED64, 2: FIXED32, 6: FIXED64, 7: FIXED32, 15: FIXED32, 16: FIXED64}
_STRING, _MESSAGE, _BYTES = 9, 11, 12

PAYLOAD_FIELDS = {
    4: "float_data",
    5: "int32_data",
    6: "string_data",
    7: "int64_data",
    9: "raw_data",
    10: "double_data",
    11: "uint64_data",
}
"""The fields of a TensorProto that hold its numbers."""
VARINT_FIELDS = frozenset({5, 7, 11})
"""Those of them in which each number has a length of its own."""


@dataclass(slots=True, eq=False)
class MessageSchema:
    """What may stand in one kind of message, keyed by tag: field number shifted left by three, or wire type."""

    name: str
    messages: dict[int, MessageSchema] = field(default_factory=dict)
    single_messages: set[int] = field(default_factory=set)
    strings: set[int] = field(default_factory=set)
    scalars: set[int] = field(default_factory=set)
    field_names: dict[int, str] = field(default_factory=dict)

    @property
    def is_tensor(self) -> bool:
        """Return whether messages of this kind carry weights."""
        return self.name == "TensorProto"


@lru_cache(maxsize=1)
def model_schema() -> MessageSchema:
    """Return the schema of ModelProto, with every message below it."""
    return _schema_of(onnx.ModelProto.DESCRIPTOR, {})


def _schema_of(descriptor: Any, known: dict[str, MessageSchema]) -> MessageSchema:
    if descriptor.full_name in known:
        return known[descriptor.full_name]
    schema = known[descriptor.full_name] = MessageSchema(descriptor.name)
    for each in descriptor.fields:
        schema.field_names[each.number] = each.name
        tag = each.number << 3
        if each.type == _MESSAGE:
            schema.messages[tag | BYTES] = _schema_of(each.message_type, known)
            if not _is_repeated(each):
                schema.single_messages.add(tag | BYTES)
        elif each.type == _STRING:
            schema.strings.add(tag | BYTES)
        elif each.type == _BYTES:
            schema.scalars.add(tag | BYTES)
        else:
            schema.scalars.add(tag | _WIRE_TYPES.get(each.type, VARINT))
            if _is_repeated(each):
                schema.scalars.add(tag | BYTES)  # repeated numbers may come packed
    return schema


def _is_repeated(each: Any) -> bool:
    # protobuf 5 replaced `label` by `is_repeated`, and later releases dropped `label`.
    return bool(each.is_repeated) if hasattr(each, "is_repeated") else bool(each.label == 3)
