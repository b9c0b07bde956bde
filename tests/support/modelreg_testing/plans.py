"""Bytes that begin as TensorRT's plans do. Real ones are built where TensorRT-RTX is installed."""

from __future__ import annotations

import struct

RTX_BITS = {"sm_75": 1, "sm_80": 2, "sm_86": 4, "sm_89": 8, "sm_120": 16, "sm_121": 32}


def tensorrt_plan(version: str, *, body: bytes = b"body") -> bytes:
    """Return a plan of TensorRT as its header goes: magic, zero, and the version at byte 24."""
    return b"ftrt" + bytes(20) + bytes(int(number) for number in version.split(".")) + body


def rtx_plan(version: str, target: str, *, body: bytes = b"engine", weights: bytes = b"weights") -> bytes:
    """Return a plan of TensorRT-RTX as decoded from real ones: header, section table, engine and weights."""
    start = 64 + 2 * 24
    total = start + len(body) + len(weights)
    numbers = bytes(int(number) for number in version.split("."))
    head = b"vtrt" + bytes(4) + struct.pack("<QQ", 2, total) + numbers + b"vtrt"
    head += struct.pack("<I", RTX_BITS[target]) + bytes(20) + struct.pack("<Q", len(weights))
    table = b"NGNE" + bytes(4) + struct.pack("<QQ", start, len(body))
    table += b"THGW" + bytes(4) + struct.pack("<QQ", start + len(body), len(weights))
    assert len(head) == 64
    return head + table + body + weights
