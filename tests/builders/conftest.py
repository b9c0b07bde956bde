from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from modelreg_testing.workshop import Workshop


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    opened = Workshop.open(tmp_path)
    yield opened
    opened.database.close()
