from __future__ import annotations

import pytest

from modelreg.registry import releases
from modelreg_testing.cli import Shop, run_cli


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ok\udcff", r"it has a byte that is no UTF-8, '\udcff'"),
        ("red\x1b[31m", r"it has a control character, '\x1b'"),
        ("\x00", r"it has a control character, '\x00'"),
        ("a\rb", r"it has a control character, '\r'"),
        ("\x9b", r"it has a control character, '\x9b'"),
        ("x" * 10_001, "it has 10001 characters, 10000 are allowed"),
    ],
)
def test_a_message_that_cannot_be_kept_is_refused(text: str, told: str) -> None:
    refused = run_cli("promote", "lenet:1", "--to", "production", "--message", text)
    assert refused.code == 2
    assert told in refused.err
    assert "--message" in refused.err


@pytest.mark.parametrize(
    "tag", ["k=" + "x" * 256, "k" * 256 + "=x", "k=\udcff", "k\udcff=x", "k=\x07"]
)  # a key, then a value
def test_a_tag_that_cannot_be_kept_is_refused(tag: str) -> None:
    refused = run_cli("register", "lenet", "model.onnx", "--tag", tag)
    assert refused.code == 2
    assert "--tag" in refused.err
    assert "it has " in refused.err


def test_long_messages_of_several_lines_are_kept_whole(shop: Shop) -> None:
    shop.add_version()
    message = "first line\n\tsecond line: \u00fc \U0001f600\n"
    message += "x" * (10_000 - len(message))
    assert shop.cli("promote", "lenet:1", "--to", "production", "-m", message).code == 0
    with shop.database() as database, database.read() as connection:
        (activation,) = releases.list_activations(connection, channel_id=1)
    assert activation.message == message
