from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from modelreg.registry.digests import json_digest, sha256_hex
from modelreg.registry.engines import current_engines, list_engines
from modelreg.registry.errors import IntegrityError, ModelregError, NotFoundError, SourceError, UsageError
from modelreg.registry.events import verify_chain
from modelreg.registry.imported_plans import (
    ImportedEngine,
    ImportRequest,
    OfferedPlan,
    choose_targets,
    choose_toolchain,
    inspect_plan,
    read_import,
    record_imports,
    store_plan,
)
from modelreg.registry.records import ToolchainRecord
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.words import Backend, EngineStatus, Precision
from modelreg_testing.plans import rtx_plan, tensorrt_plan
from modelreg_testing.records import ORT, TRT
from modelreg_testing.registry import add_engine, add_toolchain, add_version, make_database

RTX = ToolchainRecord(id=3, name="rtx17", backend=Backend.TENSORRT_RTX, version="1.7.1.116", python="/p", details={})


def offer(folder: Path, data: bytes, *, name: str = "net.plan") -> OfferedPlan:
    path = folder / name
    path.write_bytes(data)
    return inspect_plan(path)


def several(*bits: int) -> bytes:
    """Return a plan of TensorRT-RTX for several architectures."""
    plan = bytearray(rtx_plan("1.7.1.116", "sm_86"))
    plan[32] = sum(1 << bit for bit in bits)
    return bytes(plan)


def test_a_plan_is_known_by_its_header(tmp_path: Path) -> None:
    plan = offer(tmp_path, rtx_plan("1.7.1.116", "sm_86"))
    assert (plan.built_by, plan.header.targets, plan.file.name) == ("tensorrt-rtx 1.7.1.116", ("sm_86",), "net.plan")


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b"", "net.plan is no TensorRT plan"),
        (b"\x08\x07ONNX" * 20, "net.plan is no TensorRT plan"),
        (tensorrt_plan("8.6.0.12")[:27], "net.plan is truncated"),
        (rtx_plan("1.7.1.116", "sm_86")[:-1], "net.plan is truncated"),
        (rtx_plan("1.7.1.116", "sm_86") + b"x", "net.plan is damaged"),
        (several(), "net.plan is damaged: its header names no target"),
        (b"ftrt\x01" + tensorrt_plan("8.6.0.12")[5:], "unknown format"),
    ],
)
def test_what_is_no_whole_plan_is_refused(tmp_path: Path, data: bytes, fact: str) -> None:
    with pytest.raises(IntegrityError, match=fact):
        offer(tmp_path, data)


def test_links_folders_devices_and_sockets_are_refused_without_being_opened(tmp_path: Path) -> None:
    plan = tmp_path / "net.plan"
    plan.write_bytes(tensorrt_plan("8.6.0.12"))
    (tmp_path / "link").symlink_to(plan)
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name, kind in (("link", "a link"), ("pipe", "a named pipe"), ("socket", "a socket"), (".", "a folder")):
            with pytest.raises(SourceError, match=f"is {kind}, not a file"):
                inspect_plan(tmp_path / name)
    with pytest.raises(SourceError, match="is a device, not a file"):
        inspect_plan(Path("/dev/zero"))
    with pytest.raises(SourceError, match="does not exist"):
        inspect_plan(tmp_path / "absent")


@pytest.mark.parametrize(
    ("data", "wanted", "targets"),
    [
        (rtx_plan("1.7.1.116", "sm_86"), (), ("sm_86",)),
        (rtx_plan("1.7.1.116", "sm_86"), ("sm_86",), ("sm_86",)),
        (several(1, 2, 3, 6), ("sm_89", "sm_80", "sm_89"), ("sm_89", "sm_80")),
        (tensorrt_plan("8.6.0.12"), ("sm_90", "sm_80"), ("sm_90", "sm_80")),
    ],
)
def test_targets_come_from_the_header_or_from_the_user_where_it_does_not_decide(
    tmp_path: Path, data: bytes, wanted: tuple[str, ...], targets: tuple[str, ...]
) -> None:
    assert choose_targets(offer(tmp_path, data), wanted) == targets


@pytest.mark.parametrize(
    ("data", "wanted", "fact", "hint"),
    [
        (tensorrt_plan("8.6.0.12"), (), "does not say which GPU it is for", "--target"),
        (tensorrt_plan("8.6.0.12"), ("cpu",), "'cpu' is none such as sm_90", ""),
        (tensorrt_plan("8.6.0.12"), ("sm_9000",), "'sm_9000' is none", ""),
        (rtx_plan("1.7.1.116", "sm_86"), ("sm_86", "sm_89"), "net.plan is not for sm_89: its header says sm_86", ""),
        (several(2, 3, 6), (), "net.plan is for sm_86, sm_89", "--target"),
        (several(2, 6), (), "net.plan is for sm_86", "--target"),
        (several(7), (), "net.plan is for bit7", "--target"),
        (several(7), ("bit7",), "'bit7' is none such as sm_90", ""),
    ],
)
def test_targets_that_are_left_open_or_wrong_are_refused(
    tmp_path: Path, data: bytes, wanted: tuple[str, ...], fact: str, hint: str
) -> None:
    with pytest.raises(UsageError) as raised:
        choose_targets(offer(tmp_path, data), wanted)
    assert fact in str(raised.value)
    assert hint in raised.value.hint()


def test_the_toolchain_is_the_one_named_or_the_only_one_of_the_version(tmp_path: Path) -> None:
    plan = offer(tmp_path, tensorrt_plan("8.6.0.12"))
    short = replace(TRT, name="short", version="8.6.0")
    assert choose_toolchain(plan, [ORT, TRT, RTX], None) is TRT
    assert choose_toolchain(plan, [TRT, short], "short") is short


TWO = replace(TRT, name="two")


@pytest.mark.parametrize(
    ("known", "name", "error"),
    [
        (
            [ORT, RTX],
            None,
            (NotFoundError, "no toolchain has tensorrt 8.6.0.12, which built", "toolchain add"),
        ),
        ([RTX], "trt", (NotFoundError, "there is no toolchain 'trt'", "toolchain add")),
        ([TRT], "other", (NotFoundError, "there is no toolchain 'other'", "Of that version: trt.")),
        ([RTX, TRT], "rtx17", (UsageError, "toolchain 'rtx17' has tensorrt-rtx 1.7.1.116", "Of that version: trt.")),
        (
            [replace(TRT, version="8.6.1.6")],
            "trt",
            (UsageError, "was built by tensorrt 8.6.0.12, and toolchain 'trt' has tensorrt 8.6.1.6", "toolchain add"),
        ),
        ([TRT, TWO], None, (UsageError, "several toolchains have tensorrt 8.6.0.12: trt, two", "--toolchain")),
    ],
)
def test_a_toolchain_of_another_version_is_refused(
    tmp_path: Path, known: list[ToolchainRecord], name: str | None, error: tuple[type[ModelregError], str, str]
) -> None:
    kind, fact, hint = error
    plan = offer(tmp_path, tensorrt_plan("8.6.0.12"))
    with pytest.raises(kind) as raised:
        choose_toolchain(plan, known, name)
    assert fact in str(raised.value)
    assert hint in raised.value.hint()


class Desk:
    """A registry with a version and a toolchain, at which plans are imported."""

    def __init__(self, folder: Path) -> None:
        self.storage = LocalStorage.create(folder / "store")
        self.database = make_database(folder)
        with self.database.write() as connection:
            self.version = add_version(connection)
            self.toolchain = add_toolchain(connection)

    def take(self, plan: OfferedPlan, *targets: str, actor: str = "ada@lab", **said: object) -> list[ImportedEngine]:
        request = ImportRequest(
            version=self.version,
            targets=targets or ("sm_86",),
            toolchain=self.toolchain,
            **{"precision": Precision.FP16, **said},  # type: ignore[arg-type]
        )
        stored = store_plan(plan, self.storage)
        with self.database.write() as connection:
            return record_imports(connection, plan, request, stored, actor=actor)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.database.close()


def test_an_imported_plan_is_a_built_engine_that_says_where_it_comes_from(desk: Desk, tmp_path: Path) -> None:
    data = rtx_plan("1.7.1.116", "sm_86")
    (made,) = desk.take(offer(tmp_path, data), origin="trtexec on a bench", message="faster")
    engine = made.engine
    assert (made.created, engine.status, engine.target.name) == (True, EngineStatus.BUILT, "sm_86")
    assert (engine.plan_digest, engine.files[0].path) == (sha256_hex(data), "model.plan")
    assert desk.storage.read_blob(engine.plan_digest) == data
    assert engine.recipe == {
        "precision": "fp16",
        "backend": "tensorrt-rtx",
        "flags": [],
        "variant": None,
        "build": {
            "imported": {
                "plan": sha256_hex(data),
                "file": "net.plan",
                "origin": "trtexec on a bench",
                "by": "ada@lab",
                "header": {
                    "backend": "tensorrt-rtx",
                    "version": "1.7.1.116",
                    "targets": ["sm_86"],
                    "weight_bytes": 7,
                },
            }
        },
    }
    assert engine.recipe_digest == json_digest(engine.recipe)
    assert engine.realised["unknown"] == "until validated"
    assert engine.realised["checked"]["runs"] == 0
    with desk.database.read() as connection:
        assert list_engines(connection, version_id=desk.version.id) == [engine]
        assert verify_chain(connection).broken_at is None


def test_the_same_plan_again_is_the_same_engine_whoever_brings_it(desk: Desk, tmp_path: Path) -> None:
    data = rtx_plan("1.7.1.116", "sm_86")
    (first,) = desk.take(offer(tmp_path, data))
    (again,) = desk.take(offer(tmp_path, data, name="copy.plan"), actor="bob@lab", origin="found")
    assert (again.created, again.engine) == (False, first.engine)
    (other,) = desk.take(offer(tmp_path, data), precision=Precision.INT8)
    assert other.created


def test_a_plan_for_several_targets_is_an_engine_for_each_that_is_named(desk: Desk, tmp_path: Path) -> None:
    plan = offer(tmp_path, several(2, 3, 6))
    made = desk.take(plan, "sm_86", "sm_89")
    assert [each.engine.target.name for each in made] == ["sm_86", "sm_89"]
    assert made[0].engine.recipe["build"]["plan_targets"] == ["sm_86", "sm_89", "bit6"]
    assert len({each.engine.plan_digest for each in made}) == 1
    later = desk.take(plan, "sm_86", "sm_89")
    assert [each.created for each in later] == [False, False]


def test_two_imported_plans_of_one_cell_do_not_hide_each_other(desk: Desk, tmp_path: Path) -> None:
    desk.take(offer(tmp_path, rtx_plan("1.7.1.116", "sm_86")))
    desk.take(offer(tmp_path, rtx_plan("1.7.1.116", "sm_86", body=b"other!")))
    with desk.database.read() as connection:
        assert len(current_engines(connection, version_id=desk.version.id)) == 2


def test_a_file_that_changes_while_it_is_stored_is_refused(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = offer(tmp_path, rtx_plan("1.7.1.116", "sm_86"))
    plan.file.path.write_bytes(rtx_plan("1.7.1.116", "sm_89"))
    with pytest.raises(SourceError, match="changed while it was being registered"):
        desk.take(plan)
    # A clock too coarse to tell: the stored bytes are compared with what was looked at.
    monkeypatch.setattr("modelreg.registry.imported_plans.require_unchanged", lambda _file: None)
    with pytest.raises(SourceError, match="changed while it was being registered"):
        desk.take(plan)
    with desk.database.read() as connection:
        assert list_engines(connection, version_id=desk.version.id) == []


def test_a_name_that_is_no_text_is_kept_as_one_can_read_it(desk: Desk, tmp_path: Path) -> None:
    name = os.fsdecode(b"net\xff.plan")
    (made,) = desk.take(offer(tmp_path, rtx_plan("1.7.1.116", "sm_86"), name=name))
    origin = read_import(made.engine.recipe)
    assert origin is not None
    assert origin["file"].isascii()


def test_what_was_built_here_has_no_origin(desk: Desk) -> None:
    with desk.database.write() as connection:
        built = add_engine(connection, desk.version)
    assert read_import(built.recipe) is None
