from __future__ import annotations

from pathlib import Path

import pytest

from modelreg_testing.cli import Shop


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MODELREG_HOME", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MODELREG_ACTOR", "ada@lab")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)
