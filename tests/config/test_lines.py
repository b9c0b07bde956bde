from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelreg.config import settings
from modelreg.config.lines import find_lines

DOCUMENT = """\
top = 1
# [comment]
[limits]   # of time
build_timeout_s = 1

lock_timeout_s = 2
[promote . "preference"]
"sm_90" = [
  # a comment, and a list over lines
  "fp16",
]
text = '''
[not.a.table]
inside = 3
'''
[channels]
production.targets = ["cpu"]
staging = { targets = [] }
[[many]]
x = 1
"""


def test_every_key_has_the_line_where_it_begins() -> None:
    assert find_lines(DOCUMENT) == {
        "top": 1,
        "limits": 3,
        "limits.build_timeout_s": 4,
        "limits.lock_timeout_s": 6,
        "promote.preference": 7,
        "promote.preference.sm_90": 8,
        "promote.preference.text": 12,
        "channels": 16,
        "channels.production": 17,
        "channels.production.targets": 17,
        "channels.staging": 18,
        "channels.staging.targets": 18,
        "many": 19,
        "many.x": 20,
    }


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing"])
def test_a_document_without_keys_has_no_lines(text: str) -> None:
    assert find_lines(text) == {}


def test_of_a_document_that_ends_in_the_middle_what_stands_before_is_found() -> None:
    assert find_lines("a = 1\nb = [\n") == {"a": 1}


def test_the_shipped_defaults_are_found_where_they_stand() -> None:
    text = Path(settings.__file__).with_name("settings.toml").read_text(encoding="utf-8")
    lines = text.splitlines()
    found = find_lines(text)
    assert len(found) > 10
    for name, number in found.items():
        assert name.rpartition(".")[2] in lines[number - 1]


@given(st.lists(st.sampled_from(["", "# x", "  "]), max_size=5), st.lists(st.sampled_from(["", "# y"]), max_size=5))
def test_blank_lines_and_comments_move_a_key_and_nothing_else(before: list[str], between: list[str]) -> None:
    text = "\n".join([*before, "[a]", *between, "b = 1"])
    assert find_lines(text) == {"a": len(before) + 1, "a.b": len(before) + len(between) + 2}
