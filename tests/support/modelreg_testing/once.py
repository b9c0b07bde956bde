"""What takes long to make is made once for a whole run, also where pytest-xdist runs it in several processes."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` has filled, in this process or another one of the run; nobody changes it after."""
    # Under pytest-xdist, the folder above the base folder belongs to the run; else it is shared with other runs.
    is_shared = "PYTEST_XDIST_WORKER" in os.environ
    place = factory.getbasetemp().parent if is_shared else factory.getbasetemp()
    folder, done = place / f"once-{name}", place / f"once-{name}.done"
    with (place / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a try that failed
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
