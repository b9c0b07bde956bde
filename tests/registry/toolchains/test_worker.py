from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from modelreg.registry.toolchains import worker
from modelreg.registry.toolchains.worker import FrameError, read_frame, write_frame
from modelreg_testing.workers import write_faults


def test_a_frame_comes_back_as_it_was_written() -> None:
    stream = io.BytesIO()
    arrays = {"a": np.arange(6, dtype=">i2").reshape(2, 3), "b": np.zeros((0, 2), np.float16)}
    write_frame(stream, {"kind": "x", "é": None}, arrays)
    stream.seek(0)
    frame = read_frame(stream)
    assert frame is not None
    assert frame[0] == {"kind": "x", "é": None}
    np.testing.assert_array_equal(frame[1]["a"], arrays["a"])
    assert frame[1]["b"].shape == (0, 2)
    assert read_frame(stream) is None


def test_a_header_has_a_limit_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MAX_HEADER_BYTES", 50)
    with pytest.raises(FrameError, match="more than 50"):
        write_frame(io.BytesIO(), {"x": "y" * 60})
    with pytest.raises(FrameError, match="no line end within 51 bytes"):
        read_frame(io.BytesIO(b"z" * 1000))


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\n",
        b"nonsense\n",
        b"[" * 1_000_000 + b"\n",
        b"7\n",
        b'{"arrays": 1}\n',
        b'{"arrays": [1]}\n',
        b'{"arrays": [{"name": "x", "dtype": "<f4", "shape": 3, "nbytes": 4}]}\n',
        b'{"arrays": [{"name": "x", "dtype": "<f4", "shape": ["a"], "nbytes": 4}]}\n',
        b'{"arrays": [{"name": "x", "dtype": "|O", "shape": [1], "nbytes": 8}]}\n',
        b'{"arrays": [{"name": "x", "dtype": "nonsense", "shape": [1], "nbytes": 8}]}\n',
        b'{"arrays": [{"name": "x", "dtype": "<f4", "shape": [2], "nbytes": 4}]}\n',
        b'{"arrays": [{"name": "x", "dtype": "<f4", "shape": [2], "nbytes": 8}]}\nshort',
        b'{"arrays": [{"name": "x", "dtype": "|u1", "shape": [1000000000000000000], "nbytes": 1000000000000000000}]}\n',
    ],
)
def test_what_is_no_frame_is_refused(line: bytes) -> None:
    with pytest.raises(FrameError):
        read_frame(io.BytesIO(line))


def test_an_array_of_objects_is_never_written() -> None:
    with pytest.raises(FrameError, match="cannot travel"):
        write_frame(io.BytesIO(), {}, {"x": np.array([None])})


def test_a_worker_whose_parent_is_another_ends_at_once(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(worker.__file__)), str(write_faults(tmp_path))]
    ended = subprocess.run(
        command,
        stdin=subprocess.PIPE,
        capture_output=True,
        env={**os.environ, "MODELREG_WORKER_PARENT": "1"},
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, b"")


def test_the_worker_needs_the_standard_library_alone(tmp_path: Path) -> None:
    module = tmp_path / "plain.py"
    module.write_text("import sys\nJOBS = {'modules': lambda request, arrays, report: sorted(sys.modules)}\n")
    ended = subprocess.run(
        [sys.executable, "-S", str(Path(worker.__file__)), str(module)],
        input=b'{"job": "modules"}\n',
        capture_output=True,
        check=True,
    )
    _ready, answer, _ = ended.stdout.split(b"\n")
    assert b"numpy" not in answer
    ours = answer.replace(b'"modelreg_job"', b"").replace(b'"modelreg"', b"")  # the job, and our offered package
    assert b'"modelreg' not in ours


def test_a_file_that_is_no_python_is_an_answer(tmp_path: Path) -> None:
    other = tmp_path / "jobs.txt"
    other.write_text("JOBS = {}")
    ended = subprocess.run(
        [sys.executable, str(Path(worker.__file__)), str(other)], capture_output=True, input=b"", check=False
    )
    assert ended.returncode == 1
    assert b"cannot load" in ended.stdout
