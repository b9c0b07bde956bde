"""Which devices an engine gets: never one that this process was not given."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

from modelreg.registry.errors import NotFoundError, UsageError
from modelreg.registry.manifest import make_manifest
from modelreg.registry.words import Json
from modelreg.runtime.devices import (
    Device,
    Wanted,
    ask_child,
    choose_devices,
    list_devices,
    parse_visible,
    read_wanted,
)
from modelreg_testing.records import make_engine, make_version


def gpu(letter: str, target: str = "sm_90") -> Json:
    return {"index": 0, "uuid": f"GPU-{letter * 8}-0000-0000-0000-000000000000", "target": target}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, None),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("2", ("2",)),
        (" 1, GPU-5fe3 ,MIG-77", ("1", "GPU-5fe3", "MIG-77")),
        ("0,-1,1", ("0",)),  # CUDA heeds none after the first that it does not know
        ("0,,1", ("0",)),
    ],
)
def test_the_visible_devices_are_read_as_cuda_reads_them(text: str | None, words: tuple[str, ...] | None) -> None:
    assert parse_visible(text) == words


def test_a_child_gets_one_word_of_what_its_parent_was_given() -> None:
    asked: list[Mapping[str, str]] = []

    def ask(variables: Mapping[str, str]) -> list[Json]:
        asked.append(variables)
        return [gpu("a"), gpu("b", "sm_80")]

    assert [each.visible for each in list_devices("3,GPU-bbbb", ask)] == ["3", "GPU-bbbb"]
    assert [each.visible for each in list_devices("3,GPU-bbbb,7", ask)] == ["3", "GPU-bbbb"]  # CUDA knows no 7
    assert [each.visible for each in list_devices(None, ask)] == ["0", "1"]
    assert list_devices("", ask) == ()
    assert asked == [{}, {}, {}]
    found = list_devices("3,GPU-bbbb", ask)
    assert [(each.name, each.target, each.number) for each in found] == [("GPU 0", "sm_90", 0), ("GPU 1", "sm_80", 1)]


def test_each_mig_instance_is_asked_about_alone() -> None:
    def ask(variables: Mapping[str, str]) -> list[Json]:
        word = variables["CUDA_VISIBLE_DEVICES"]
        return [] if word == "MIG-gone" else [gpu(word[-1])]

    found = list_devices("MIG-a,MIG-gone,MIG-b,MIG-b", ask)
    assert [each.visible for each in found] == ["MIG-a", "MIG-b"]
    assert [each.uuid[:12] for each in found] == ["MIG-aaaaaaaa", "MIG-bbbbbbbb"]


ENGINE = make_manifest(make_version(), {"cpu": make_engine(1)}).engines[0]
DEVICES = (
    Device(name="GPU 0", target="sm_90", uuid="GPU-aaaa", number=0, visible="0"),
    Device(name="GPU 1", target="sm_80", uuid="GPU-bbbb", number=1, visible="1"),
    Device(name="GPU 2", target="sm_90", uuid="GPU-cccc", number=2, visible="2"),
)


def test_devices_that_the_engine_does_not_suit_are_left_out_and_named() -> None:
    engine = ENGINE._replace(target="sm_90")
    suited, left = choose_devices(DEVICES, "all", engine)
    assert [each.number for each in suited] == [0, 2]
    assert left == ((DEVICES[1], "the engine is for sm_90, and this is sm_80"),)
    anywhere = engine._replace(target="sm_80", hardware_compatibility="AMPERE_PLUS")
    assert len(choose_devices(DEVICES, "all", anywhere)[0]) == 3


def test_devices_are_named_by_number_or_by_the_beginning_of_a_uuid() -> None:
    engine = ENGINE._replace(target="sm_90")
    assert choose_devices(DEVICES, [2, "GPU-aa", 2], engine)[0] == (DEVICES[2], DEVICES[0])
    for wrong in (3, "GPU-dd", ""):
        with pytest.raises(UsageError, match="sees no device"):
            choose_devices(DEVICES, [wrong], engine)
    with pytest.raises(NotFoundError, match=r"for sm_90, and not for GPU 1 \(sm_80\)"):
        choose_devices(DEVICES, [1], engine)
    with pytest.raises(NotFoundError, match="this host has no GPU"):
        choose_devices((), "all", engine)


def test_a_child_answers_what_it_sees() -> None:
    assert isinstance(ask_child(sys.executable)({"CUDA_VISIBLE_DEVICES": ""}), list)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [((), None), (("all",), "all"), (("0", "GPU-5fe3", "MIG-77"), [0, "GPU-5fe3", "MIG-77"])],
)
def test_devices_are_read_from_words(words: tuple[str, ...], wanted: Wanted) -> None:
    assert read_wanted(words) == wanted


@pytest.mark.parametrize("words", [("first",), ("all", "0"), ("-1",), ("²",), ("",)])
def test_a_word_that_is_no_device_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="is no device"):
        read_wanted(words)
