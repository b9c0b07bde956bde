from __future__ import annotations

from pathlib import Path

import pytest

from modelreg.registry.errors import IntegrityError
from modelreg.registry.plans import (
    HEADER_BYTES,
    PlanHeader,
    disagreement,
    is_same_version,
    parse_plan_header,
    read_plan_header,
)
from modelreg.registry.words import Backend
from modelreg_testing.plans import RTX_BITS, rtx_plan, tensorrt_plan

TRT, RTX = Backend.TENSORRT, Backend.TENSORRT_RTX

# The first 64 bytes of LeNet in FP32 for sm_86, built by TensorRT-RTX 1.7.1.116; the plan has 407,092 bytes.
RECORDED = bytes.fromhex(
    "7674727400000000020000000000000034360600000000000107017476747274"
    "040000000000000000000000000000000000000000000000d8c6030000000000"
)
RECORDED_TABLE = bytes.fromhex(
    "4e474e45000000007000000000000000e36e0200000000005448475700000000586f020000000000d8c6030000000000"
)


def parse(plan: bytes) -> PlanHeader:
    return parse_plan_header(plan[:HEADER_BYTES], size_bytes=len(plan), where="model.plan")


@pytest.mark.parametrize("version", ["8.6.0.12", "10.13.3.9", "11.4.0.106"])
def test_tensorrt_says_its_version_and_no_target(version: str) -> None:
    assert parse(tensorrt_plan(version)) == PlanHeader(backend=TRT, version=version)


@pytest.mark.parametrize("target", RTX_BITS)
def test_rtx_says_version_and_target(target: str) -> None:
    plan = rtx_plan("1.6.1.120", target, weights=b"12345")
    assert parse(plan) == PlanHeader(backend=RTX, version="1.6.1.120", targets=(target,), weight_bytes=5)


def test_a_recorded_header_is_read() -> None:
    head = RECORDED + RECORDED_TABLE
    header = parse_plan_header(head, size_bytes=407_092, where="model.plan")
    assert header == PlanHeader(backend=RTX, version="1.7.1.116", targets=("sm_86",), weight_bytes=247_512)


def test_a_plan_for_several_targets_names_them_all() -> None:
    plan = bytearray(rtx_plan("1.7.1.116", "sm_86"))
    plan[32] = 0x7E
    assert parse(bytes(plan)).targets == ("sm_80", "sm_86", "sm_89", "sm_120", "sm_121", "bit6")


@pytest.mark.parametrize("plan", [rtx_plan("1.7.1.116", "sm_86"), tensorrt_plan("10.3.0.26")], ids=["rtx", "trt"])
def test_a_plan_cut_inside_its_header_is_truncated(plan: bytes) -> None:
    smallest = 28 if plan[:1] == b"f" else 64
    for length in range(4, smallest):
        with pytest.raises(IntegrityError, match=f"model.plan is truncated: it has {length} bytes"):
            parse(plan[:length])
    for length in range(4):
        with pytest.raises(IntegrityError, match="is no TensorRT plan"):
            parse(plan[:length])


def test_an_rtx_plan_cut_anywhere_is_truncated() -> None:
    plan = rtx_plan("1.7.1.116", "sm_86")
    for length in range(64, len(plan)):
        with pytest.raises(IntegrityError, match=rf"truncated: its header says {len(plan)} bytes"):
            parse(plan[:length])
    with pytest.raises(IntegrityError, match="is damaged: its header says"):
        parse(plan + b"more")


def test_a_flipped_bit_of_what_the_header_says_is_noticed() -> None:
    """What means nothing known (bytes 36 to 63), and the sections themselves, are the digest's to protect."""
    plan = rtx_plan("1.7.1.116", "sm_86")
    for position in [*range(36), *range(64, 68)]:
        for bit in range(8):
            damaged = bytearray(plan)
            damaged[position] ^= 1 << bit
            try:
                header = parse(bytes(damaged))
            except IntegrityError:
                continue
            assert disagreement(header, backend=RTX, version="1.7.1.116", target="sm_86"), (position, bit)


@pytest.mark.parametrize("position", [79, 87, 72])
def test_a_section_outside_the_file_is_damage(position: int) -> None:
    damaged = bytearray(rtx_plan("1.7.1.116", "sm_86"))
    damaged[position] = 0 if position == 72 else 0xFF
    with pytest.raises(IntegrityError, match="section b'NGNE' lies outside the file"):
        parse(bytes(damaged))


@pytest.mark.parametrize(
    ("header", "fact"),
    [
        (PlanHeader(backend=TRT, version="1.7.1.116"), "its header is of tensorrt, not of tensorrt-rtx"),
        (PlanHeader(backend=RTX, version="1.6.1.120", targets=("sm_86",)), "tensorrt-rtx 1.6.1.120, not 1.7.1.116"),
        (PlanHeader(backend=RTX, version="1.7.1.116", targets=("sm_89",)), "its header says sm_89, not sm_86"),
        (PlanHeader(backend=RTX, version="1.7.1.116", targets=("sm_86", "sm_89")), "says sm_86, sm_89, not sm_86"),
        (PlanHeader(backend=RTX, version="1.7.1.116"), "names no target"),
        (PlanHeader(backend=RTX, version="1.7.1.116", targets=("sm_86",)), ""),
    ],
)
def test_a_header_that_disagrees_says_in_what(header: PlanHeader, fact: str) -> None:
    found = disagreement(header, backend=RTX, version="1.7.1.116", target="sm_86")
    assert (fact in found) if fact else found == ""


def test_tensorrt_headers_know_no_target() -> None:
    header = PlanHeader(backend=TRT, version="8.6.0.12")
    assert disagreement(header, backend=TRT, version="8.6.0", target="sm_90") == ""


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("8.6.0.12", "8.6.0", True),
        ("8.6.0.12", "8.6.0.12.post1", True),
        ("1.7.1.116", "1.7.1.117", False),
        ("10.3.0.26", "1.3.0.26", False),
        ("", "1.2", False),
        ("x.y", "1.2", False),
    ],
)
def test_versions_agree_in_the_numbers_that_both_have(one: str, other: str, same: bool) -> None:
    assert is_same_version(one, other) is same
    assert is_same_version(other, one) is same


def test_other_files_are_no_plans(tmp_path: Path) -> None:
    for data in (b"", b"\x08\x07", b"ONNX" * 100, bytes(64)):
        (tmp_path / "model.plan").write_bytes(data)
        with pytest.raises(IntegrityError, match=r"model\.plan is no TensorRT plan"):
            read_plan_header(tmp_path / "model.plan")


def test_headers_of_a_format_not_known_are_refused() -> None:
    plan = bytearray(tensorrt_plan("10.3.0.26"))
    plan[4] = 1
    with pytest.raises(IntegrityError, match="unknown format"):
        parse(bytes(plan))
    plan = bytearray(rtx_plan("1.7.1.116", "sm_86"))
    plan[64:68] = b"XXXX"
    with pytest.raises(IntegrityError, match="no engine section"):
        parse(bytes(plan))


RECORDED_86 = bytes.fromhex(
    "66747274000000000100000000000000dc560000000000000806000c00000000"
    "4e474e4500000000380000000000000099560000000000007074727400000000"
)
"""The first 64 bytes of a plan that TensorRT 8.6.0 built on an H200, 22,236 bytes in all."""


def test_a_recorded_tensorrt_header_states_version_and_size() -> None:
    assert parse_plan_header(RECORDED_86, size_bytes=22_236, where="p").version == "8.6.0.12"
    with pytest.raises(IntegrityError, match="p is truncated: its header says 22236 bytes, the file has 22235"):
        parse_plan_header(RECORDED_86, size_bytes=22_235, where="p")
    with pytest.raises(IntegrityError, match="p is damaged: its header says 22236 bytes, the file has 22237"):
        parse_plan_header(RECORDED_86, size_bytes=22_237, where="p")


RECORDED_ON_AN_H200 = {
    ("lenet fp32", 737044): "66747274000000000100000000000000143f0b00000000000806000c00000000"
    "4e474e45000000003800000000000000d83e0b00000000007074727400000000",
    ("resnet18 fp32", 68058516): "66747274000000000100000000000000947d0e04000000000806000c00000000"
    "4e474e45000000003800000000000000587d0e04000000007074727400000000",
    ("lenet fp16", 579188): "6674727400000000010000000000000074d60800000000000806000c00000000"
    "4e474e4500000000380000000000000031d60800000000007074727400000000",
    ("resnet18 fp16", 24740084): "66747274000000000100000000000000f4807901000000000806000c00000000"
    "4e474e45000000003800000000000000b5807901000000007074727400000000",
    ("lenet int8", 494276): "66747274000000000100000000000000c48a0700000000000806000c00000000"
    "4e474e45000000003800000000000000828a0700000000007074727400000000",
}
"""The first 64 bytes of plans that TensorRT 8.6.0 built in the GPU run, by name and size of the whole plan."""


@pytest.mark.parametrize(("plan", "head"), RECORDED_ON_AN_H200.items(), ids=lambda value: value[0])
def test_every_plan_of_the_gpu_run_states_its_version_and_its_size(plan: tuple[str, int], head: str) -> None:
    name, size_bytes = plan
    assert parse_plan_header(bytes.fromhex(head), size_bytes=size_bytes, where=name).version == "8.6.0.12"
    with pytest.raises(IntegrityError, match="is truncated"):
        parse_plan_header(bytes.fromhex(head), size_bytes=size_bytes - 1, where=name)
