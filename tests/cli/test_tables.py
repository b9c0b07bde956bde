from __future__ import annotations

import io
from contextlib import redirect_stdout

import pytest

from modelreg.cli.table_widths import fit_widths, fold, text_width
from modelreg.cli.tables import Column, print_table


@pytest.fixture(autouse=True)
def narrow_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")


class Screen(io.StringIO):
    """A standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def lines_on_screen(*rows: tuple[str, ...]) -> list[str]:
    with redirect_stdout(Screen()) as screen:
        print_table(COLUMNS, rows, no_color=True)
    return screen.getvalue().splitlines()


COLUMNS = (Column(header="ID", right=True), Column(header="NAME"), Column(header="WHY", folds=True))


def test_columns_are_aligned_and_nothing_trails(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [("1", "a", ""), ("20", "bcd", "x")])
    assert capsys.readouterr().out == "ID  NAME  WHY\n 1  a\n20  bcd   x\n"


def test_a_long_cell_folds_under_itself_within_the_screen() -> None:
    lines = lines_on_screen(("1", "abcdef", "the quick brown fox jumps over"))
    assert lines == [
        "ID  NAME    WHY",
        " 1  abcdef  the quick brown",
        "            fox jumps over",
    ]
    assert max(map(len, lines)) <= 30


def test_a_word_or_a_path_is_never_broken_even_beyond_the_screen() -> None:
    path = "/srv/models/.modelreg/store/blobs/sha256/ab"
    assert lines_on_screen(("1", "abcdef", f"see {path} there")) == [
        "ID  NAME    WHY",
        " 1  abcdef  see",
        f"            {path}",
        "            there",
    ]


def test_what_is_no_terminal_gets_one_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [("1", "abcdef", "the quick brown fox jumps over the lazy dog")])
    assert capsys.readouterr().out.splitlines()[1] == " 1  abcdef  the quick brown fox jumps over the lazy dog"


def test_columns_that_do_not_fold_keep_their_width_even_beyond_the_screen() -> None:
    widths = fit_widths(COLUMNS, [("1", "x" * 40, "the quick brown fox")], width=30)
    assert widths == [1, 40, 8]


def test_the_widest_column_gives_way_first() -> None:
    columns = (Column(header="A", folds=True), Column(header="B", folds=True))
    assert fit_widths(columns, [("x" * 10, "y y " * 7 + "yy")], width=32) == [10, 20]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("abc", ["abc"]),
        ("abcdefghij", ["abcdefghij"]),
        ("ab cd ef", ["ab cd", "ef"]),
        ("a abcdefg b", ["a", "abcdefg", "b"]),
        ("漢字 漢字", ["漢字", "漢字"]),
    ],
)
def test_text_is_broken_at_spaces_alone(text: str, lines: list[str]) -> None:
    assert fold(text, width=5) == lines


def test_wide_characters_take_two_columns_and_marks_none() -> None:
    assert text_width("漢a") == 3
    assert text_width("e\u0301") == 1


def test_control_characters_are_shown_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    print_table((Column(header="A"),), [("\x1b[31mred\nx",)])
    assert capsys.readouterr().out == "A\n\\x1b[31mred x\n"


@pytest.mark.parametrize(("no_color", "environment"), [(True, ""), (False, "1")])
def test_colour_is_left_out_when_it_is_not_wanted(
    no_color: bool, environment: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", environment)
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda _stream, color: color is False)
    print_table((Column(header="A"),), [("fail",)], no_color=no_color)
    assert "\x1b" not in capsys.readouterr().out


def test_verdicts_are_coloured_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda _stream, color: color is False)
    print_table((Column(header="A"),), [("fail",), ("other",)])
    assert capsys.readouterr().out == "\x1b[1mA\x1b[0m\n\x1b[31mfail\x1b[0m\nother\n"
