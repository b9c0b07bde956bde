"""Protobuf fields read from a window that slides over a file; what is skipped is never read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NoReturn

from modelreg.registry.errors import SourceError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, int, int]
"""Tag, where the field starts, where its value starts, where both end; a run of equal fixed32 fields is one."""

_WINDOW_BYTES = 256 * 1024
_HEADER_BYTES = 20  # a tag and a length, each as long as a varint can be
_RUN_BYTES = 5 * 4096
_REEXPORT = "Copy it or export it again."


class FieldReader:
    """Reads the fields of messages in an untrusted file, each field once, from front to back."""

    def __init__(self, file: BinaryIO, *, size_bytes: int, name: str, max_fields: int) -> None:
        self.size_bytes = size_bytes
        self._file = file
        self._name = name
        self._fields_left = max_fields
        self._max_fields = max_fields
        self._window = b""
        self._window_start = 0

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """
        Yield the fields of the message in [start, end); the caller may read nested messages in between.

        Raises:
            SourceError: A field runs past `end` or past the file, has no known wire type, or there are too many.
        """
        position = start
        while position < end:
            at = position - self._window_start
            if at + _HEADER_BYTES > len(self._window):
                at = self._slide(position)
            window = self._window
            self._fields_left -= 1
            field_start = position
            try:
                tag = window[at]
                at += 1
                if tag >= 0x80:
                    tag, at = self._varint(at - 1)
                kind = tag & 7
                if kind == BYTES:
                    length = window[at]
                    at += 1
                    if length >= 0x80:
                        length, at = self._varint(at - 1)
                    position = self._window_start + at
                    stop = position + length
                else:
                    position = self._window_start + at
                    stop = self._scalar_end(tag, at, end)
            except IndexError:
                raise self.cut_short(field_start) from None
            if stop > end:
                self._refuse_overrun(field_start, end)
            if tag < 8 or tag > 0xFFFFFFFF:
                raise self.damaged(field_start, "a field number that cannot be")
            yield tag, field_start, position, stop
            position = stop
        if self._fields_left < 0:
            raise SourceError(f"{self._name} holds more than {self._max_fields:,} fields, too many to read")

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes in [start, end)."""
        at = start - self._window_start
        if at >= 0 and end - self._window_start <= len(self._window):
            return self._window[at : end - self._window_start]
        data = self._read_file(start, end - start)
        if len(data) < end - start:
            raise self.cut_short(start)
        return data

    def damaged(self, position: int, fact: str) -> SourceError:
        """Return the error for bytes that no writer of ONNX leaves."""
        return SourceError(f"{self._name} is damaged at byte {position}: {fact}", hint=_REEXPORT)

    def cut_short(self, position: int, claimed_end: int | None = None) -> SourceError:
        """Return the error for a file that ends inside a field."""
        claim = f", to end at byte {claimed_end}" if claimed_end is not None else ""
        return SourceError(
            f"{self._name} is cut short at byte {self.size_bytes}: a field starts at byte {position}{claim}",
            hint=_REEXPORT,
        )

    def _slide(self, position: int) -> int:
        if self._window_start + len(self._window) < self.size_bytes or position < self._window_start:
            if self._fields_left < 0:
                raise SourceError(f"{self._name} holds more than {self._max_fields:,} fields, too many to read")
            self._window = self._read_file(position, min(_WINDOW_BYTES, self.size_bytes - position))
            self._window_start = position
        return position - self._window_start

    def _read_file(self, start: int, size: int) -> bytes:
        self._file.seek(start)
        data = self._file.read(size)
        while len(data) < size:  # an unbuffered read may return less
            more = self._file.read(size - len(data))
            if not more:
                break
            data += more
        return data

    def _varint(self, at: int) -> tuple[int, int]:
        window = self._window
        value = shift = 0
        while True:
            byte = window[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if shift >= 70:
                raise self.damaged(self._window_start + at, "a number longer than ten bytes")

    def _scalar_end(self, tag: int, at: int, end: int) -> int:
        kind = tag & 7
        if kind == VARINT:
            return self._window_start + self._varint(at)[1]
        if kind == FIXED32:
            return self._window_start + self._run_end(tag, at, end)
        if kind == FIXED64:
            return self._window_start + at + 8
        raise self.damaged(self._window_start + at, f"protobuf wire type {kind}, which ONNX does not use")

    def _run_end(self, tag: int, at: int, end: int) -> int:
        # Lists of floats come unpacked, a tag before each: a forest has millions.
        window = self._window
        if tag >= 0x80 or at + 4 >= len(window) or window[at + 4] != tag:
            return at + 4
        tags = window[at - 1 : min(end - self._window_start, at - 1 + _RUN_BYTES) : 5]
        return at - 1 + 5 * (len(tags) - len(tags.lstrip(bytes([tag]))))

    def _refuse_overrun(self, position: int, end: int) -> NoReturn:
        if end == self.size_bytes:
            raise self.cut_short(position)
        raise self.damaged(position, "a field longer than the message that holds it")
