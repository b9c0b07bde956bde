"""gzip and deflate, of bodies that come and of those that go. Pure."""

from __future__ import annotations

import gzip
import zlib

from modelreg.runtime.serve.problems import InvalidRequestError, TooLargeError, UnknownEncodingError

_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_WORTHWHILE_BYTES = 1024
_LEVEL = 1
"""The weights of a network hardly compress; more than the fastest level is time lost."""


def check_encoding(encoding: str) -> str | None:
    """Return how a body is compressed, None for not at all; raises UnknownEncodingError."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding not in _WINDOW_BITS:
        raise UnknownEncodingError(f"the content encoding {encoding[:40]!r} is none of gzip, deflate")
    return encoding


def unpack(body: bytes, encoding: str, *, limit_bytes: int) -> bytes:
    """
    Return what a body has inside; what goes beyond the limit is never unpacked.

    Raises:
        TooLargeError: It is more than the limit.
        InvalidRequestError: It is damaged, or something follows.
    """
    stream = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        found = stream.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise InvalidRequestError(f"the body is no {encoding}: {error}") from None
    if len(found) > limit_bytes:
        raise TooLargeError(f"the body is larger than {limit_bytes} bytes when it is unpacked")
    if not stream.eof or stream.unused_data:
        raise InvalidRequestError(f"the body is no whole {encoding}, or something follows it")
    return found


def choose_encoding(accepted: str, size_bytes: int) -> str | None:
    """Return how to compress a response of this size for a client that accepts this; None for not at all."""
    if not accepted or size_bytes < _WORTHWHILE_BYTES:
        return None
    wanted = {
        name.strip().lower(): quality for name, _, quality in (part.partition(";") for part in accepted.split(","))
    }
    return next((name for name in _WINDOW_BITS if name in wanted and not _is_zero(wanted[name])), None)


def _is_zero(quality: str) -> bool:
    name, _, value = quality.replace(" ", "").partition("=")
    return name == "q" and not value.strip("0.")


def pack(body: bytes, encoding: str) -> bytes:
    """Return a body compressed."""
    return gzip.compress(body, _LEVEL, mtime=0) if encoding == "gzip" else zlib.compress(body, _LEVEL)
