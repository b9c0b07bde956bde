from __future__ import annotations

import json

import pytest

from modelreg.cli.render import (
    clean,
    count,
    number,
    one_line,
    print_document,
    print_line,
    print_note,
    print_text,
    print_warning,
    short,
    shorten_digests,
    size,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (137.0, "137"),
        (137.253, "137.3"),
        (1.01947e-07, "1.019e-07"),
        (0.99996, "0.99996"),
        (0.99, "0.99"),
        (0.9999999, "1"),
        (-0.995, "-0.995"),
        (1e300, "1e+300"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_measurements_are_short_but_a_cosine_below_one_stays_below_one(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 20, "5.0 MiB"), (3 << 30, "3.0 GiB"), (2 << 40, "2.0 TiB")],
)
def test_sizes_are_in_binary_units(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


def test_digests_are_shortened_to_twelve_digits() -> None:
    assert short("0123456789abcdef" * 4) == "0123456789ab"
    assert short("") == "-"


def test_a_digest_in_a_sentence_is_shortened_and_one_in_a_path_is_not() -> None:
    digest = "0123456789abcdef" * 4
    assert shorten_digests(f"blob {digest}, or {digest}: gone") == "blob 0123456789ab, or 0123456789ab: gone"
    for whole in (f"/store/01/{digest}", f"{digest}/model.onnx", f"lenet@sha256:{digest}", digest + "0"):
        assert shorten_digests(whole) == whole


def test_one_thing_is_one() -> None:
    assert [count(number, "file") for number in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


def test_control_characters_are_written_out() -> None:
    assert clean("a\x1b]0;x\x07\nb") == "a\\x1b]0;x\\x07\nb"
    assert one_line("a\n  b\tc") == "a b c"


def test_a_line_end_inside_a_name_does_not_begin_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("version 8.6\n.0 of a\x1b[2J")
    print_text("a log\nof two lines\x07")
    print_warning("node a\nb")
    print_note("node a\nb")
    printed = capsys.readouterr()
    assert printed.out == "version 8.6\\n.0 of a\\x1b[2J\na log\nof two lines\\x07\n"
    assert printed.err == "modelreg: warning: node a b\nnode a b\n"


def test_a_document_has_a_schema_and_no_number_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    print_document({"name": "größer"})
    text = capsys.readouterr().out
    assert text.isascii()
    assert json.loads(text) == {"schema": 1, "name": "größer"}
    with pytest.raises(ValueError, match="JSON compliant"):
        print_document({"measured": float("nan")})
