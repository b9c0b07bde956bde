from __future__ import annotations

from typing import Any

import pytest

from modelreg.registry.toolchains.answers import AnswerError, keep_sound, read_backends, read_facts, read_version
from modelreg.registry.words import Backend

FACTS: dict[str, Any] = {
    "python_version": "3.10.12",
    "platform": "linux-x86_64",
    "module": "tensorrt",
    "cuda": "",
    "targets": ["sm_86", "sm_120"],
}


def test_a_whole_answer_is_read_and_what_nobody_asked_for_is_not_kept() -> None:
    assert read_backends({"backends": ["tensorrt", "onnxruntime"]}) == [Backend.TENSORRT, Backend.ONNXRUNTIME]
    assert read_version({"version": "8.6.0.12"}) == "8.6.0.12"
    assert read_facts({**FACTS, "backend": "tensorrt", "version": "8.6.0", "odd": 1}, Backend.TENSORRT) == FACTS
    assert read_facts({**FACTS, "targets": []}, Backend.TENSORRT)["targets"] == []


@pytest.mark.parametrize("given", [None, 7, "tensorrt", ["evil"], [["tensorrt"]], [None], {"tensorrt": 1}])
def test_backends_are_a_list_of_those_there_are(given: object) -> None:
    with pytest.raises(AnswerError, match="no list of backends"):
        read_backends({"backends": given})


@pytest.mark.parametrize("given", [None, 5, "", "8.6\n.0", "8.6\x1b[2J", "1" * 201, ["8"]])
def test_a_version_is_a_short_text_on_one_line(given: object) -> None:
    with pytest.raises(AnswerError, match="no version"):
        read_version({"version": given})


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("python_version", None),
        ("python_version", "3.10\n"),
        ("platform", 3),
        ("module", ["tensorrt"]),
        ("cuda", {}),
        ("targets", None),
        ("targets", 7),
        ("targets", "sm_86"),
        ("targets", [86]),
        ("targets", ["sm_86\n"]),
        ("targets", ["sm_86"] * 101),
    ],
)
def test_a_fact_of_another_kind_is_named_and_left_out_of_kept_ones(name: str, given: object) -> None:
    odd = {**FACTS, name: given}
    with pytest.raises(AnswerError, match=f"no usable {name}"):
        read_facts(odd, Backend.TENSORRT)
    assert keep_sound(odd) == {key: value for key, value in FACTS.items() if key != name}


def test_onnxruntime_answers_with_providers_instead_of_targets() -> None:
    facts = {**{key: value for key, value in FACTS.items() if key != "targets"}, "providers": ["CPUExecutionProvider"]}
    assert read_facts(facts, Backend.ONNXRUNTIME) == facts
    with pytest.raises(AnswerError, match="no usable providers"):
        read_facts(FACTS, Backend.ONNXRUNTIME)


def test_of_what_is_no_object_nothing_is_kept() -> None:
    assert keep_sound([1]) == {}
    assert keep_sound({"package": "onnxruntime"}) == {"package": "onnxruntime"}
