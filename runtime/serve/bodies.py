"""Reading a request's body: no further than the limit, no longer than its time, and not more than memory has room."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from modelreg.runtime.serve.compression import check_encoding, unpack
from modelreg.runtime.serve.limits import Limits
from modelreg.runtime.serve.problems import (
    GoneError,
    InvalidRequestError,
    NoRoomError,
    SlowClientError,
    TooLargeError,
)

Receive = Callable[[], Awaitable[Any]]
_ALIGNMENT = 16
_DISCARDED_BYTES = 1 << 20
_DISCARDED_S = 1.0


class Memory:
    """How much of the bodies' memory is left; of one event loop."""

    def __init__(self, size_bytes: int) -> None:
        self.left_bytes = size_bytes

    @contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """Give what takes bytes until the end of the block; it raises NoRoomError where there are none."""
        taken = 0

        def take(size_bytes: int) -> None:
            nonlocal taken
            if size_bytes > self.left_bytes:
                raise NoRoomError("the bodies of other requests fill the memory that they may")
            self.left_bytes -= size_bytes
            taken += size_bytes

        try:
            yield take
        finally:
            self.left_bytes += taken


class Body:
    """
    The body of one request.

    Attributes:
        size_bytes: What came of it.
        is_complete: Whether it was read to its end; if not, the connection cannot be used again.
    """

    def __init__(self, receive: Receive, headers: Mapping[str, str], limits: Limits) -> None:
        self.size_bytes = 0
        self.is_complete = False
        self._receive = receive
        self._headers = headers
        self._limits = limits

    async def read(self, take: Callable[[int], None]) -> tuple[bytes, int, int | None]:
        """
        Return the body, where in it the JSON begins, and how long that is (None: to the end).

        What is before the JSON is nothing: it puts the first binary tensor where memory is aligned, without a copy.

        Raises:
            RequestError: It is too large, too slow, or not what its headers say.
        """
        length = _read_length(self._headers.get("content-length"), "Content-Length")
        header_length = _read_length(
            self._headers.get("inference-header-content-length"), "Inference-Header-Content-Length"
        )
        encoding = check_encoding(self._headers.get("content-encoding", ""))
        limit_bytes = self._limits.max_body_bytes
        if length is not None and length > limit_bytes:
            raise _too_large(limit_bytes)
        padding = 0 if header_length is None else -header_length % _ALIGNMENT
        chunks = [bytes(padding)] if padding and encoding is None else []
        await self._collect_in_time(chunks, take)
        body = b"".join(chunks)
        if encoding is None:
            return body, padding, header_length
        unpacked = await asyncio.to_thread(unpack, body, encoding, limit_bytes=limit_bytes)
        take(len(unpacked))
        return unpacked, 0, header_length

    async def _collect_in_time(self, chunks: list[bytes], take: Callable[[int], None]) -> None:
        """Collect the body. A timer, since `wait_for` takes a task of its own, which costs as much as all the rest."""
        task, is_over = asyncio.current_task(), False
        assert task is not None

        def give_up() -> None:
            nonlocal is_over
            is_over = True
            task.cancel()

        timer = asyncio.get_running_loop().call_later(self._limits.read_timeout_s, give_up)
        try:
            await self._collect(chunks, take)
        except asyncio.CancelledError:
            if not is_over:
                raise
            if sys.version_info >= (3, 11):
                task.uncancel()
            raise SlowClientError(f"the body did not come within {self._limits.read_timeout_s:g} s") from None
        finally:
            timer.cancel()

    async def _collect(self, chunks: list[bytes], take: Callable[[int], None]) -> None:
        async for chunk in self._chunks():
            if self.size_bytes > self._limits.max_body_bytes:
                raise _too_large(self._limits.max_body_bytes)
            take(len(chunk))
            chunks.append(chunk)

    async def _chunks(self) -> Any:
        while not self.is_complete:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise GoneError("the client went away before its body was here")
            chunk = message.get("body", b"")
            self.size_bytes += len(chunk)
            self.is_complete = not message.get("more_body", False)
            yield chunk

    async def discard(self) -> None:
        """Read a small rest: the client, which may still send, hears the answer then, and the connection lives on."""
        length = _length_or_none(self._headers.get("content-length"))
        if length is not None and length <= min(_DISCARDED_BYTES, self._limits.max_body_bytes):
            await self.read_rest()

    async def read_rest(self) -> None:
        """
        Read what the client still sends and drop it, for a moment.

        A socket that is closed over unread bytes resets the connection, and the reset overtakes the answer: a client
        that writes its whole body first would hear of a reset instead of why it was refused.
        """
        if self.is_complete or (self._expects_word and not self.size_bytes):
            return
        try:
            await asyncio.wait_for(self._read_rest(), _DISCARDED_S)
        except (asyncio.TimeoutError, GoneError):
            return

    @property
    def _expects_word(self) -> bool:
        """Whether the client sends nothing before it is told to: reading would tell it."""
        return "100-continue" in self._headers.get("expect", "").lower()

    async def _read_rest(self) -> None:
        async for _ in self._chunks():
            pass


def _too_large(limit_bytes: int) -> TooLargeError:
    return TooLargeError(f"the body is larger than {limit_bytes} bytes")


def _read_length(value: str | None, name: str) -> int | None:
    length = _length_or_none(value)
    if value is not None and length is None:
        raise InvalidRequestError(f"{name} is {value[:40]!r}, which is no number of bytes")
    return length


def _length_or_none(value: str | None) -> int | None:
    return int(value) if value is not None and value.isascii() and value.isdigit() and len(value) < 20 else None
