from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from modelreg.registry.database import Database
    from modelreg_testing.postgresql import PostgresServer
    from modelreg_testing.s3_server import S3Server

# CI must give the same answer for the same commit; elsewhere every run tries other examples.
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")

# Tests import ONNX Runtime too; what they start must not rely on this (docs/decisions/0011-no-telemetry.md).
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# A test run under nohup, or as a shell's background job, inherits ignored signals, and so would what it starts.
for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Run a real S3 server for all tests of this process that ask for one, and set the credentials for it.

    MODELREG_TEST_S3_ENDPOINT names one that is running, with a bucket `models`; the credentials are the user's then.
    """
    from modelreg.registry.storage import s3_check
    from modelreg_testing.s3_server import ENVIRONMENT, FOREIGN, SHORT_CHECK, S3Server, seaweedfs

    if endpoint := os.environ.get("MODELREG_TEST_S3_ENDPOINT"):
        yield S3Server(endpoint)
        return
    with pytest.MonkeyPatch.context() as patch:
        for name in FOREIGN:
            patch.delenv(name, raising=False)
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        for name, number in SHORT_CHECK.items():
            patch.setattr(s3_check, name, number)
        with (
            tempfile.TemporaryDirectory(dir=_memory(), prefix="modelreg-s3-") as folder,
            seaweedfs(Path(folder)) as server,
        ):
            yield server


def _memory() -> Path | None:
    """Return a place where a server's data costs no disk, or None, for the system's own, where it is too small."""
    is_roomy = os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free >= 4 << 30
    return SHARED_MEMORY if is_roomy else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Run a real PostgreSQL server for all tests of this process that ask for one.

    MODELREG_TEST_POSTGRESQL names the folder of other programs than those that `find_programs` finds.
    """
    from modelreg_testing.postgresql import postgresql

    programs = os.environ.get("MODELREG_TEST_POSTGRESQL")
    with (
        tempfile.TemporaryDirectory(dir=_memory(), prefix="modelreg-postgresql-") as folder,
        postgresql(Path(folder), programs=Path(programs) if programs else None) as server,
    ):
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Give an open, empty database of each kind."""
    from modelreg_testing.registry import make_database

    if request.param == "sqlite":
        with make_database(tmp_path) as database:
            yield database
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        with server.registry() as database:
            yield database


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """Give where a registry's database is: in its folder (None), or on a server."""
    if request.param == "sqlite":
        yield None
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        with server.registry() as database:
            from modelreg_testing.registry import url_of

            yield url_of(database)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """Give a folder whose fsync costs nothing where there is one: what a rename shows does not depend on the disk."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY, prefix="modelreg-test-") as folder:
        yield Path(folder)
