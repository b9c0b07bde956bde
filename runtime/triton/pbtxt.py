"""Protobuf's text format, as much of it as a Triton configuration needs. Pure.

Only this module knows how the text looks; the tests parse what it writes with protobuf and Triton's own messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Union

Scalar = Union[str, int, bool, "Word"]
Value = Union[Scalar, "Message", Sequence[Union[Scalar, "Message"]]]
Message = Mapping[str, Value]

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Word(str):
    """The name of an enum's value, written without quotes."""

    __slots__ = ()


def format_message(body: Message) -> str:
    """
    Return a message as text, its fields in the order given; an empty list is a field that is not set.

    Raises:
        ValueError: A text holds half a character, which no protobuf has.
    """
    return "".join(f"{line}\n" for line in _lines(body, ""))


def entries(body: Mapping[str, Value]) -> list[Message]:
    """Return a map field: one message of key and value for each entry."""
    return [{"key": key, "value": value} for key, value in body.items()]


def _lines(body: Message, indent: str) -> Iterator[str]:
    for name, value in body.items():
        if isinstance(value, Mapping):
            yield from _message(name, value, indent)
        elif isinstance(value, (str, int)):
            yield f"{indent}{name}: {_scalar(value)}"
        else:
            yield from _repeated(name, value, indent)


def _repeated(name: str, values: Sequence[Scalar | Message], indent: str) -> Iterator[str]:
    scalars = [value for value in values if not isinstance(value, Mapping)]
    if scalars:
        yield f"{indent}{name}: [{', '.join(map(_scalar, scalars))}]"
    for value in values:
        if isinstance(value, Mapping):
            yield from _message(name, value, indent)


def _message(name: str, body: Message, indent: str) -> Iterator[str]:
    if not body:
        yield f"{indent}{name} {{}}"
        return
    yield f"{indent}{name} {{"
    yield from _lines(body, indent + "  ")
    yield f"{indent}}}"


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return str(value) if isinstance(value, Word) else _quoted(value)


def _quoted(text: str) -> str:
    """Return a string literal in ASCII: bytes beyond are escaped, so that no locale can change them."""
    pieces = []
    for character in text:
        if character in _ESCAPES:
            pieces.append(_ESCAPES[character])
        elif " " <= character <= "~":
            pieces.append(character)
        else:
            pieces.extend(f"\\{byte:03o}" for byte in character.encode())
    return f'"{"".join(pieces)}"'
