from __future__ import annotations

import pytest

from modelreg.registry.toolchains.exits import describe_exit


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "exited with code 3 without an answer"),
        (-11, "was killed by SIGSEGV"),
        (-99, "was killed by signal 99"),
    ],
)
def test_exit_codes_read_as_words(code: int, text: str) -> None:
    assert describe_exit(code) == text
