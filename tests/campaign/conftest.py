from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from modelreg_testing.campaign.homes import Template, make_template

if TYPE_CHECKING:
    from modelreg_testing.s3_server import S3Server

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def memory() -> Iterator[Path]:
    """Give a folder whose fsync costs nothing where there is one, for all of the campaign; others may look into it."""
    with tempfile.TemporaryDirectory(
        dir=SHARED_MEMORY if SHARED_MEMORY.exists() else None, prefix="modelreg-campaign-"
    ) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELREG_ACTOR", "campaign")
    monkeypatch.delenv("MODELREG_HOME", raising=False)


@pytest.fixture(scope="session")
def local(memory: Path) -> Template:
    return make_template(memory / "local" / "template", None)


@pytest.fixture(scope="session")
def remote(memory: Path, s3_server: S3Server) -> Template:
    return make_template(memory / "s3" / "template", s3_server)
