from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelreg.registry.errors import WorkerError
from modelreg.registry.toolchains.process import Worker, WorkerDiedError, WorkerJobError

NAMES = ("ORT_DISABLE_TELEMETRY", "TMPDIR", "EXTRA")
JOBS = textwrap.dedent(
    """
    import os, signal, tempfile


    def variables(request, arrays, report):
        return {name: os.environ.get(name) for name in request["names"]}


    def litter(request, arrays, report):
        handle, path = tempfile.mkstemp()
        os.close(handle)
        if request.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        return {"path": path}


    JOBS = {"variables": variables, "litter": litter}
    """
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
def module(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.py"
    path.write_text(JOBS)
    return path


@pytest.fixture
def worker(temporary: Path, module: Path, tmp_path: Path) -> Iterator[Worker]:
    del temporary
    with Worker.start(sys.executable, module, log_path=tmp_path / "log") as started:
        yield started


@pytest.mark.parametrize("inherited", [None, "", "0"])
def test_a_worker_has_telemetry_off_whatever_its_parent_says(
    temporary: Path, module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inherited: str | None
) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    if inherited is not None:
        monkeypatch.setenv("ORT_DISABLE_TELEMETRY", inherited)
    with Worker.start(sys.executable, module, log_path=tmp_path / "log", env={"EXTRA": "x"}) as worker:
        found, _ = worker.call("variables", {"names": NAMES}, timeout_s=30)
        assert found["ORT_DISABLE_TELEMETRY"] == "1"
        assert found["EXTRA"] == "x"
        assert Path(found["TMPDIR"]).parent == temporary
    assert os.environ.get("ORT_DISABLE_TELEMETRY") == inherited


def test_temporary_files_go_when_the_worker_is_closed(worker: Worker, temporary: Path) -> None:
    answer, _ = worker.call("litter", {}, timeout_s=30)
    assert Path(answer["path"]).parent.parent == temporary
    worker.close()
    assert list(temporary.iterdir()) == []
    worker.kill()  # once more does no harm


def test_temporary_files_go_when_the_worker_dies(worker: Worker, temporary: Path) -> None:
    with pytest.raises(WorkerDiedError):
        worker.call("litter", {"dies": True}, timeout_s=30)
    assert list(temporary.iterdir()) == []


def test_a_worker_that_does_not_start_leaves_nothing(temporary: Path, tmp_path: Path) -> None:
    module = tmp_path / "broken.py"
    module.write_text("import tempfile\ntempfile.mkstemp()\nimport no_such_backend\n")
    with pytest.raises(WorkerJobError, match="no_such_backend"):
        Worker.start(sys.executable, module, log_path=tmp_path / "log")
    with pytest.raises(WorkerError, match="cannot start the interpreter /no/python") as caught:
        Worker.start("/no/python", module, log_path=tmp_path / "log")
    assert "`modelreg toolchain" not in caught.value.hint()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_parent_left_goes_with_the_next_worker(temporary: Path, module: Path, tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import os, signal, sys
        from pathlib import Path
        from modelreg.registry.toolchains.process import Worker
        worker = Worker.start(sys.executable, Path({str(module)!r}), log_path=Path({str(tmp_path / "log")!r}))
        worker.call("litter", {{}}, timeout_s=30)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    assert len(list(temporary.iterdir())) == 1
    with Worker.start(sys.executable, module, log_path=tmp_path / "log"):
        assert len(list(temporary.iterdir())) == 1
    assert list(temporary.iterdir()) == []
