from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from modelreg.builders.backends import embedded_toolchain
from modelreg.builders.elsewhere.answers import Answer, describe_skew, own_version
from modelreg.builders.elsewhere.parcels import Parcel
from modelreg.builders.elsewhere.site import answer_greeting, build_parcel, find_toolchain, read_toolchains
from modelreg.builders.interface import ToolchainSpec
from modelreg.builders.materials import KnownMaterials
from modelreg.builders.planning import prepare_cell
from modelreg.registry.errors import (
    BuildError,
    CellRefusedError,
    ModelregError,
    PrecisionError,
    StorageError,
    ToolchainError,
    UsageError,
)
from modelreg.registry.words import Backend, Precision
from modelreg_testing.onnx_models import conv_net
from modelreg_testing.toolchains import pretend_backend, pretend_python
from modelreg_testing.workshop import Workshop

TRT = ToolchainSpec(name="trt103", backend=Backend.TENSORRT, version="10.3.0", python="/nowhere/python")


def parcel(workshop: Workshop) -> Parcel:
    prepared = prepare_cell(workshop.request(workshop.register(conv_net()), Precision.FP16))
    return Parcel.pack(prepared, KnownMaterials(), workshop.storage)


def build(wanted: Parcel) -> Answer:
    answer = build_parcel(wanted, worker="w", progress=lambda *_: None)
    return Answer.from_json(json.loads(json.dumps(answer.to_json())))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        (" trt86=/opt/trt86 , rtx=/opt/a=b,", {"trt86": "/opt/trt86", "rtx": "/opt/a=b"}),
    ],
)
def test_toolchains_are_read_from_the_variable(text: str, found: dict[str, str]) -> None:
    assert read_toolchains({"MODELREG_TOOLCHAINS": text}) == found


@pytest.mark.parametrize("text", ["trt86", "=python", "trt86=", "a=b,c"])
def test_an_odd_variable_is_an_error_that_says_the_form(text: str) -> None:
    with pytest.raises(ToolchainError, match="which is not NAME=PYTHON"):
        read_toolchains({"MODELREG_TOOLCHAINS": text})


@pytest.mark.parametrize("name", ["onnx-elsewhere", f"onnxruntime-{embedded_toolchain().version}"])
def test_a_toolchain_is_found_by_its_name_or_by_its_version(name: str) -> None:
    wanted = replace(embedded_toolchain(), name="onnx-elsewhere", python="/nowhere/python")
    found = find_toolchain(wanted, {"MODELREG_TOOLCHAINS": f"{name}={sys.prefix}"}, worker="w")
    assert (found.name, found.version) == (wanted.name, wanted.version)
    assert found.python.startswith(sys.prefix)


def test_without_the_variable_the_registered_place_is_looked_at() -> None:
    wanted = replace(embedded_toolchain(), name="mine")
    assert find_toolchain(wanted, {}, worker="w").python == sys.executable
    with pytest.raises(ToolchainError, match="worker w does not say where its toolchain trt103 is") as caught:
        find_toolchain(TRT, {}, worker="w")
    assert "MODELREG_TOOLCHAINS=trt103=PYTHON (or tensorrt-10.3.0=PYTHON)" in caught.value.hint()


def test_another_version_than_registered_is_named_with_both(tmp_path: Path) -> None:
    python = pretend_python(tmp_path, {"tensorrt_rtx": pretend_backend("9.9.9", targets=(86,))})
    wanted = ToolchainSpec(name="rtx", backend=Backend.TENSORRT_RTX, version="1.4.0", python="/nowhere")
    with pytest.raises(ToolchainError) as caught:
        find_toolchain(wanted, {"MODELREG_TOOLCHAINS": f"rtx={python}"}, worker="w")
    assert f"worker w has tensorrt-rtx 9.9.9 as rtx ({python}), and tensorrt-rtx 1.4.0 is registered" in str(
        caught.value
    )


def test_our_own_onnxruntime_must_be_the_same_too() -> None:
    with pytest.raises(ToolchainError, match=r"and onnxruntime 0\.1 is registered"):
        find_toolchain(replace(embedded_toolchain(), version="0.1"), {}, worker="w")


def test_another_recipe_is_refused_with_the_tools_that_make_it(workshop: Workshop) -> None:
    answer = build(replace(parcel(workshop), recipe_digest="00" * 32))
    assert answer.made is None
    assert str(answer.error).startswith("worker w would build another recipe (it has onnx ")


def test_a_store_that_is_not_there_comes_back_as_an_error(workshop: Workshop) -> None:
    answer = build(replace(parcel(workshop), store_url=str(workshop.folder / "elsewhere")))
    assert isinstance(answer.error, StorageError)
    assert answer.log is None


def test_a_fault_of_ours_comes_back_as_an_error_with_its_traceback(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modelreg.builders.elsewhere import site

    def broken(*_: object) -> None:
        raise LookupError("odd\nthing")

    monkeypatch.setattr(site, "make_cell", broken)
    answer = build(parcel(workshop))
    assert str(answer.error) == "worker w: LookupError: odd thing"
    assert answer.log is not None
    assert "Traceback" in workshop.storage.read_blob(answer.log.digest).decode()


def test_a_greeting_says_which_modelreg_and_leaves_a_note(workshop: Workshop) -> None:
    nonce = workshop.storage.put_bytes(b"who is there").digest
    body = {"version": own_version(), "store": workshop.storage.url, "nonce": nonce}
    answer = answer_greeting(body)
    assert answer["version"] == own_version()
    assert workshop.storage.read_blob(answer["note"]).startswith(b"who is there")
    assert "reason" in answer_greeting({**body, "nonce": "00" * 32})
    assert "note" not in answer_greeting({**body, "version": {"modelreg": "9", "protocol": 1}})


def test_skew_names_both_versions() -> None:
    ours = own_version()
    assert describe_skew(ours, where="worker w") == ""
    said = describe_skew({"modelreg": "9.9", "protocol": 7}, where="worker w")
    assert said == f"worker w has modelreg 9.9 (protocol 7), modelreg {ours['modelreg']} (protocol 1) is here"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PrecisionError("x", hint="y"), PrecisionError),
        (CellRefusedError("x", hint="y"), CellRefusedError),
        (UsageError("x", hint="y"), UsageError),
        (ModelregError("x", hint="y"), BuildError),
    ],
)
def test_errors_keep_their_kind_and_their_hint(error: ModelregError, kind: type[ModelregError]) -> None:
    found = Answer.from_json(json.loads(json.dumps(Answer(error=error).to_json()))).error
    assert type(found) is kind
    assert (str(found), found.hint()) == ("x", "y")
