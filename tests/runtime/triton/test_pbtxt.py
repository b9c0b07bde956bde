from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modelreg.runtime.triton.pbtxt import Word, entries, format_message
from modelreg_testing.triton import messages, parse

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(name=TEXTS, key=TEXTS, value=TEXTS)
def test_any_text_comes_back_as_it_was(name: str, key: str, value: str) -> None:
    text = format_message({"name": name, "parameters": entries({key: {"string_value": value}})})
    assert text.isascii()
    config = parse(text)
    assert config.name == name
    assert {each: body.string_value for each, body in config.parameters.items()} == {key: value}


def test_numbers_words_lists_and_messages_are_what_protobuf_reads() -> None:
    config = parse(
        format_message(
            {
                "max_batch_size": 8,
                "input": [{"name": "x", "data_type": Word("TYPE_FP16"), "dims": [-1, 3], "reshape": {"shape": []}}],
                "dynamic_batching": {"preferred_batch_size": [], "preserve_ordering": True},
                "version_policy": {"all": {}},
            }
        )
    )
    assert config.max_batch_size == 8
    assert config.input[0].data_type == messages().TYPE_FP16
    assert list(config.input[0].dims) == [-1, 3]
    assert config.input[0].HasField("reshape")
    assert config.dynamic_batching.preserve_ordering is True
    assert list(config.dynamic_batching.preferred_batch_size) == []
    assert config.version_policy.HasField("all")
