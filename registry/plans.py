"""What a TensorRT plan says about itself in its first bytes, read without loading it. Pure but for one read.

TensorRT's part is what its own `trtexec --getPlanVersionOnly` reads, and the size as plans of 8.6.0 state it.
TensorRT-RTX's layout is not documented; it was decoded from plans of 1.4 to 1.7, and a plan that does not keep to it
is refused. A header tells for what a plan was made. That nobody changed the plan since, its digest alone tells.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from modelreg.registry.errors import IntegrityError
from modelreg.registry.regular_files import fault_of
from modelreg.registry.words import Backend

HEADER_BYTES = 4096
"""As much of a plan as `parse_plan_header` looks at, or all of a smaller one."""

_TENSORRT, _RTX = b"ftrt", b"vtrt"
_ENGINE, _WEIGHTS = b"NGNE", b"THGW"
_RTX_HEADER_BYTES = 64
_TENSORRT_TABLE = 32
"""Where the first section of a TensorRT 8.6 plan is described."""
_SECTION_BYTES = 24
_MAX_SECTIONS = 64
_RTX_TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_120", "sm_121")
"""The target of each bit of the mask, from the lowest; bits above are set by default and mean nothing known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanHeader:
    """
    What a plan's header says.

    Attributes:
        backend: `tensorrt` or `tensorrt-rtx`.
        version: The four numbers of the version that built it.
        targets: What it was compiled for; empty for TensorRT, whose header does not say.
        weight_bytes: The bytes of its weights as stored; None where the header does not say.
    """

    backend: Backend
    version: str
    targets: tuple[str, ...] = ()
    weight_bytes: int | None = None


def read_plan_header(path: Path) -> PlanHeader:
    """
    Return what the plan at `path` says about itself.

    Raises:
        IntegrityError: It is no plan, or not a whole one, or no file: a pipe is not even opened.
    """
    if fault := fault_of(path):
        raise IntegrityError(f"{path.name} is {fault}", hint="Fetch or build it again.")
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    return parse_plan_header(head, size_bytes=path.stat().st_size, where=path.name)


def starts_plan(head: bytes) -> bool:
    """Return whether bytes begin as a plan does."""
    return head[:4] in (_TENSORRT, _RTX)


def parse_plan_header(head: bytes, *, size_bytes: int, where: str) -> PlanHeader:
    """
    Return what a plan says about itself.

    Args:
        head: Its first `HEADER_BYTES` bytes, or all of a smaller one.
        size_bytes: The size of the whole plan.
        where: What errors call it.

    Raises:
        IntegrityError: It is no plan, or not a whole one.
    """
    magic = head[:4]
    if not starts_plan(head):
        raise IntegrityError(f"{where} is no TensorRT plan: it starts with {magic!r}", hint="Build it again.")
    smallest = 28 if magic == _TENSORRT else _RTX_HEADER_BYTES
    if len(head) < smallest:
        raise _truncated(where, f"it has {size_bytes} bytes, its header alone {smallest}")
    if head[4:8] != bytes(4):
        raise IntegrityError(f"{where} is a plan of an unknown format", hint="It may be of a newer TensorRT.")
    version = ".".join(str(number) for number in head[24:28])
    if magic == _TENSORRT:
        _check_tensorrt_size(head, size_bytes, where)
        return PlanHeader(backend=Backend.TENSORRT, version=version)
    sections = _read_sections(head, size_bytes, where)
    (mask,) = struct.unpack_from("<I", head, 32)
    return PlanHeader(
        backend=Backend.TENSORRT_RTX,
        version=version,
        targets=_read_mask(mask),
        weight_bytes=sections.get(_WEIGHTS, 0),
    )


def _check_tensorrt_size(head: bytes, size_bytes: int, where: str) -> None:
    """Hold a TensorRT plan to the size it states, where its header is laid out as in 8.6: that is not documented."""
    if head[_TENSORRT_TABLE : _TENSORRT_TABLE + 4] != _ENGINE:
        return
    (total,) = struct.unpack_from("<Q", head, 16)
    if size_bytes < total:
        raise _truncated(where, f"its header says {total} bytes, the file has {size_bytes}")
    if size_bytes > total:
        raise IntegrityError(f"{where} is damaged: its header says {total} bytes, the file has {size_bytes}")


def _read_mask(mask: int) -> tuple[str, ...]:
    names = dict(enumerate(_RTX_TARGETS))
    return tuple(names.get(bit, f"bit{bit}") for bit in range(32) if mask & (1 << bit))


def _read_sections(head: bytes, size_bytes: int, where: str) -> dict[bytes, int]:
    """Return the bytes of each section of an RTX plan, after all that is known of its layout was checked."""
    sections, total = struct.unpack_from("<QQ", head, 8)
    if total != size_bytes:
        fact = f"its header says {total} bytes, the file has {size_bytes}"
        raise _truncated(where, fact) if size_bytes < total else IntegrityError(f"{where} is damaged: {fact}")
    end = _RTX_HEADER_BYTES + sections * _SECTION_BYTES
    if head[28:32] != _RTX or not 0 < sections <= _MAX_SECTIONS or end > min(len(head), total):
        raise IntegrityError(f"{where} is damaged: its header is not that of a TensorRT-RTX plan")
    found = [_read_section(head, index) for index in range(sections)]
    if _ENGINE not in (tag for tag, _, _ in found):
        raise IntegrityError(f"{where} is damaged: it has no engine section")
    for tag, offset, length in found:
        if offset < end or offset + length > total:
            raise IntegrityError(f"{where} is damaged: its section {tag!r} lies outside the file")
    return {tag: length for tag, _, length in found}


def _read_section(head: bytes, index: int) -> tuple[bytes, int, int]:
    start = _RTX_HEADER_BYTES + index * _SECTION_BYTES
    offset, length = struct.unpack_from("<QQ", head, start + 8)
    return head[start : start + 4], offset, length


def _truncated(where: str, fact: str) -> IntegrityError:
    return IntegrityError(f"{where} is truncated: {fact}", hint="Fetch or build it again.")


def disagreement(
    header: PlanHeader, *, backend: Backend, version: str, target: str, targets: tuple[str, ...] = ()
) -> str:
    """
    Return what a plan's header says other than expected, or an empty string.

    Args:
        header: What the plan says.
        backend: What loads it.
        version: What built it.
        target: What it is for.
        targets: All that it is for, where it was compiled for several.
    """
    if header.backend is not backend:
        return f"its header is of {header.backend}, not of {backend}"
    if not is_same_version(header.version, version):
        return f"its header says {backend} {header.version}, not {version}"
    expected = targets or (target,)
    if header.targets and header.targets != expected:
        return f"its header says {', '.join(header.targets)}, not {', '.join(expected)}"
    if backend is Backend.TENSORRT_RTX and not header.targets:
        return "its header names no target"
    return ""


def is_same_version(one: str, other: str) -> bool:
    """Return whether two versions agree in every number that both have: some packages leave out the build number."""
    first, second = ([number for number in each.split(".") if number.isdigit()] for each in (one, other))
    shared = min(len(first), len(second), 4)
    return shared > 0 and first[:shared] == second[:shared]
