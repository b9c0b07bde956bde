from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from modelreg.config.toml import read_toml
from modelreg.registry.errors import ConfigError, StorageError


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_shortage_of_the_system_is_no_mistake_of_the_caller(tmp_path: Path) -> None:
    # Found by the fault campaign: it was exit 2, as if the command line were wrong.
    path = tmp_path / "config.toml"
    path.write_text("[store]\n")
    read_toml(path)  # imports what it needs
    with no_more_files(), pytest.raises(StorageError, match="Too many open files") as caught:
        read_toml(path)
    assert caught.value.exit_code == 1
    assert "ulimit -n" in caught.value.hint()


def test_a_file_that_is_not_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file") as caught:
        read_toml(tmp_path / "config.toml")
    assert caught.value.exit_code == 2
