"""What a command leaves behind when it is done, when its terminal closes, and when it is told to stop."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from modelreg.cli.progress import HangUp
from modelreg.registry.engines import list_engines
from modelreg.registry.references import ModelReference
from modelreg.registry.versions import get_version
from modelreg_testing import onnx_models
from modelreg_testing.cli import Shop

MODELREG = (sys.executable, "-m", "modelreg.cli")
# ONNX Runtime keeps quiet by itself where one of these is set.
_QUIET = (
    *("CI", "TF_BUILD", "GITHUB_ACTIONS", "GITLAB_CI", "CIRCLECI", "TRAVIS", "JENKINS_URL", "CODEBUILD_BUILD_ID"),
    *("BUILDKITE", "TEAMCITY_VERSION", "APPVEYOR", "BITBUCKET_BUILD_NUMBER", "ORT_RUNNING_UNIT_TESTS"),
    "ORT_DISABLE_TELEMETRY",
)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder for temporary files of this process and of those it starts."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture
def registered(shop: Shop, tmp_path: Path) -> Shop:
    path = onnx_models.save(onnx_models.mlp(), tmp_path / "mlp.onnx")
    assert shop.cli("register", "mlp", path).code == 0
    return shop


def errors_of_attempts(shop: Shop) -> list[str]:
    with shop.database() as database, database.read() as connection:
        version = get_version(connection, ModelReference(model="mlp"))
        return [engine.error for engine in list_engines(connection, version_id=version.id)]


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def signal_at_work(number: int, temporary: Path) -> threading.Thread:
    """Send a signal to this process as soon as a worker of its build lives."""

    def send() -> None:
        if wait_for(lambda: any(temporary.glob("modelreg-worker-*"))):
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_build_leaves_nothing_outside_the_registry(
    registered: Shop, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, here = tmp_path / "user", tmp_path / "here"
    for folder in (user, here):
        folder.mkdir()
    for name in (*_QUIET, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(user))
    words = ("build", "mlp", "--precision", "fp32,fp16")
    done = subprocess.run([*MODELREG, "--home", str(registered.path), *words], cwd=here, check=False)
    assert done.returncode == 0
    assert errors_of_attempts(registered) == ["", ""]
    # ONNX Runtime with telemetry on leaves `.ses` in the first and a device id with a queue of events in the second.
    assert [path for folder in (temporary, user, here) for path in folder.rglob("*")] == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGHUP, 129)])
def test_a_signal_in_a_build_leaves_a_failed_cell_and_no_files(
    registered: Shop, temporary: Path, number: int, code: int
) -> None:
    sender = signal_at_work(number, temporary)
    done = registered.cli("build", "mlp")
    sender.join()
    assert done.code == code
    assert done.err.rstrip().endswith("modelreg: error: interrupted")
    assert errors_of_attempts(registered) == ["interrupted"]
    assert list(temporary.iterdir()) == []
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_closed_terminal_ends_a_build_in_order(registered: Shop, temporary: Path) -> None:
    master, slave = os.openpty()
    # The leader of a new session gets the first terminal that it opens as its own.
    command = shlex.join([*MODELREG, "--home", str(registered.path), "build", "mlp", "--json"])
    child = subprocess.Popen(
        ["/bin/sh", "-c", f'exec <"$0" >"$0" 2>"$0"; exec {command}', os.ttyname(slave)], start_new_session=True
    )
    try:
        assert wait_for(lambda: any(temporary.glob("modelreg-worker-*")))
    finally:
        os.close(slave)
        os.close(master)
    assert child.wait(timeout=60) == HangUp.exit_code == 129
    assert errors_of_attempts(registered) == ["interrupted"]
    assert list(temporary.iterdir()) == []


def test_a_build_under_nohup_outlives_its_terminal(registered: Shop, temporary: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        sender = signal_at_work(signal.SIGHUP, temporary)
        assert registered.cli("build", "mlp").code == 0
        sender.join()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert errors_of_attempts(registered) == [""]
