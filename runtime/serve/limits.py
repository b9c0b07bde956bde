"""What a server puts up with. Values."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    The limits of a server.

    Attributes:
        max_body_bytes: The largest body, as it comes and when it is unpacked.
        memory_bytes: What all bodies that are here at a time may have together.
        concurrency: Requests of one model that are on its engine at a time.
        max_queue: Requests of one model that may wait for that.
        request_timeout_s: When a request is given up, from its first byte on; a client may ask for less.
        read_timeout_s: How long a client may take for its headers, for its body, and between two requests.
        max_connections: Connections at a time.
    """

    max_body_bytes: int = 64 * MIB
    memory_bytes: int = 1024 * MIB
    concurrency: int = 4
    max_queue: int = 128
    request_timeout_s: float = 60.0
    read_timeout_s: float = 30.0
    max_connections: int = 1000
