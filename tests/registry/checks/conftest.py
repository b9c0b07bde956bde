from __future__ import annotations

from pathlib import Path

import pytest

from modelreg_testing.cli import Shop


@pytest.fixture
def shop(in_memory: Path) -> Shop:
    made = Shop(in_memory)
    for word in (1, 2):
        made.add_version(word=word)
    return made
