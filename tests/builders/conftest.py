from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from modelreg.registry.records import VersionRecord
from modelreg_testing.onnx_models import conv_net
from modelreg_testing.workshop import Workshop


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    opened = Workshop.open(tmp_path)
    yield opened
    opened.database.close()


@pytest.fixture
def version(workshop: Workshop) -> VersionRecord:
    return workshop.register(conv_net())
