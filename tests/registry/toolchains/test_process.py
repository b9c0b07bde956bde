from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.errors import ToolchainError, WorkerError
from modelreg.registry.toolchains import process
from modelreg.registry.toolchains.process import (
    Worker,
    WorkerDiedError,
    WorkerJobError,
    WorkerLogError,
    WorkerProtocolError,
    WorkerTimeoutError,
)
from modelreg.registry.toolchains.shared import make_arenas
from modelreg_testing.toolchains import bare_python
from modelreg_testing.workers import is_alive, wait_until_gone, write_faults


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with Worker.start(sys.executable, write_faults(tmp_path), log_path=tmp_path / "log") as started:
        yield started


def test_arrays_and_json_come_back_as_they_went(worker: Worker) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "float": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.array([1.5, np.inf, np.nan], np.float16),
        "scalar": np.array(7, np.int64),
        "empty": np.zeros((0, 3), np.uint8),
        "strided": np.arange(10, dtype=np.int32)[::2],
        "bool": np.array([True, False]),
    }
    seen: list[tuple[float | None, str]] = []
    body, out = worker.call(
        "echo", {"é": [1, None]}, arrays, timeout_s=30, on_progress=lambda f, m: seen.append((f, m))
    )
    assert body == {"request": {"é": [1, None]}, "names": sorted(arrays)}
    assert seen == [(0.5, "halfway")]
    for name, array in arrays.items():
        assert out[name].dtype == array.dtype
        assert out[name].shape == array.shape
        np.testing.assert_array_equal(out[name], array)


def test_a_big_array_passes_both_pipes(worker: Worker) -> None:
    big = np.random.default_rng(0).integers(0, 255, 5_000_003).astype(np.uint8)
    _, out = worker.call("echo", {}, {"x": big}, timeout_s=30)
    np.testing.assert_array_equal(out["x"], big)


def test_what_a_library_prints_goes_to_the_log(worker: Worker, tmp_path: Path) -> None:
    worker.call("echo", {}, timeout_s=30)
    worker.call("echo", {}, timeout_s=30)
    assert (tmp_path / "log").read_text().count("a library prints this") == 2


def test_an_exception_is_an_answer_and_the_worker_lives_on(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(WorkerJobError, match="the graph\nis odd") as caught:
        worker.call("fail", {}, timeout_s=30)
    assert caught.value.details() == {"type": "OddError", "nodes": ["conv1"]}
    assert "Traceback" in (tmp_path / "log").read_text()
    assert worker.call("echo", {}, timeout_s=30)[0]["names"] == []


def test_an_exception_that_cannot_be_printed_is_an_answer_too(worker: Worker) -> None:
    with pytest.raises(WorkerJobError, match=r"^OddError$"):
        worker.call("fail_oddly", {}, timeout_s=30)
    assert worker.call("echo", {}, timeout_s=30)[0]["request"] == {}


@pytest.mark.parametrize("details", ["5", "null", "[1]", '"words"'])
def test_particulars_that_are_no_object_are_left_out(worker: Worker, details: str) -> None:
    with pytest.raises(WorkerJobError, match="odd") as caught:
        worker.call("garbage", {"text": f'{{"kind":"error","message":"odd","details":{details}}}\n'}, timeout_s=30)
    assert caught.value.remote_details == {}
    worker.kill()  # the job sleeps on


@pytest.mark.parametrize(("given", "fraction"), [('"half"', None), ("NaN", None), ("1" + "0" * 400, None), ("1", 1)])
def test_progress_that_is_no_fraction_is_unknown(worker: Worker, given: str, fraction: float | None) -> None:
    seen: list[tuple[float | None, str]] = []
    text = f'{{"kind":"progress","fraction":{given},"message":7}}\n{{"kind":"result","body":{{}}}}\n'
    worker.call("garbage", {"text": text}, timeout_s=30, on_progress=lambda f, m: seen.append((f, m)))
    assert seen == [(fraction, "7")]
    worker.kill()  # the job sleeps on


def test_an_unknown_job_is_an_exception_too(worker: Worker) -> None:
    with pytest.raises(WorkerJobError, match="no job 'fly'"):
        worker.call("fly", {}, timeout_s=30)


def test_a_segfault_is_named(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(WorkerDiedError, match="killed by SIGSEGV"):
        worker.call("segfault", {}, timeout_s=30)
    assert "Segmentation fault" in (tmp_path / "log").read_text()  # faulthandler shows where


def test_a_child_that_holds_the_pipe_does_not_keep_a_dead_worker_alive(worker: Worker) -> None:
    began = time.monotonic()
    with pytest.raises(WorkerDiedError, match="exited with code 4") as caught:
        worker.call("outlived", {}, timeout_s=30)
    assert caught.value.return_code == 4
    assert time.monotonic() - began < 10


def test_an_exit_is_named_with_its_code_and_last_words(worker: Worker) -> None:
    with pytest.raises(WorkerDiedError, match=r"exited with code 7 .*; its last log line: leaving now"):
        worker.call("leave", {"code": 7}, timeout_s=30)


def test_sys_exit_inside_a_job_is_an_exit(worker: Worker) -> None:
    with pytest.raises(WorkerDiedError, match="exited with code 3"):
        worker.call("exit_inside", {}, timeout_s=30)


def test_a_sigkill_hints_at_memory(worker: Worker) -> None:
    with pytest.raises(WorkerDiedError, match=r"killed by SIGKILL \(perhaps out of memory\)"):
        worker.call("kill", {"signal": int(signal.SIGKILL)}, timeout_s=30)


def test_a_hanging_worker_is_killed_with_what_it_started(worker: Worker) -> None:
    grandchildren: list[int] = []
    with pytest.raises(WorkerTimeoutError, match=r"took longer than 0\.7 s"):
        worker.call("hang", {"child": True}, timeout_s=0.7, on_progress=lambda _, m: grandchildren.append(int(m)))
    assert wait_until_gone(worker.pid)
    assert wait_until_gone(grandchildren[0])


def test_a_worker_that_reads_nothing_cannot_block_the_parent(tmp_path: Path) -> None:
    module = tmp_path / "deaf.py"
    module.write_text("JOBS = {}\n")
    with Worker.start(sys.executable, module, log_path=tmp_path / "log") as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        with pytest.raises(WorkerTimeoutError):
            worker.call("x", {}, {"big": np.zeros(10_000_000, np.uint8)}, timeout_s=0.5)


@pytest.mark.parametrize(
    "text",
    [
        "hello\n",
        "[1, 2]\n",
        '{"kind": "surprise"}\n',
        '{"arrays": 3}\n',
        "x" * 100,
        '{"kind": "result", "body": null}\n',
        '{"kind": "result", "body": [1]}\n',
        '{"kind": "result"}\n',
        "[" * 1_000_000 + "\n",
    ],
    ids=lambda text: text[:40].strip(),
)
def test_garbage_on_the_answer_pipe_ends_the_worker(worker: Worker, text: str) -> None:
    with pytest.raises((WorkerProtocolError, WorkerTimeoutError)):
        worker.call("garbage", {"text": text}, timeout_s=1.5)
    assert wait_until_gone(worker.pid)


@pytest.mark.parametrize(
    "entry",
    [
        '{"name":"x","dtype":"|O","shape":[1],"nbytes":8}',
        '{"name":"x","dtype":"<f4","shape":[2],"nbytes":4}',
        '{"name":"x","dtype":"<f4","shape":[-1],"nbytes":4}',
        '{"name":"x","dtype":"nonsense","shape":[1],"nbytes":4}',
        '{"name":"x","dtype":"|u1","shape":[1000000000000000],"nbytes":1000000000000000}',
        '{"name":["x"],"dtype":"<f4","shape":[1],"nbytes":4}',
        '{"name":"x","dtype":{"a":1},"shape":[1],"nbytes":4}',
        '{"name":"x","dtype":"11111","shape":[1],"nbytes":4}',
        '{"name":"x"}',
        "7",
    ],
)
def test_an_impossible_array_is_garbage(worker: Worker, entry: str) -> None:
    with pytest.raises(WorkerProtocolError, match="garbage"):
        worker.call("garbage", {"text": f'{{"kind":"result","arrays":[{entry}]}}\n'}, timeout_s=5)


def test_an_object_array_cannot_leave_the_worker(worker: Worker) -> None:
    with pytest.raises(WorkerJobError, match="cannot travel"):
        worker.call("odd_array", {}, timeout_s=30)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.array([object()])}, "cannot travel"),
        ({"x": np.zeros(3, "M8[s]")}, "cannot travel"),
        ({"x": [1.0, 2.0]}, "but list"),
        ({7: np.zeros(3)}, "no name"),
        ({"x" * (5 << 20): np.zeros(3)}, "header"),
    ],
    ids=["objects", "dates", "list", "number", "long"],
)
def test_what_cannot_enter_the_worker_is_the_callers_fault_and_the_worker_lives_on(
    worker: Worker, arrays: dict[Any, Any], words: str
) -> None:
    with pytest.raises(WorkerJobError, match=words):
        worker.call("echo", {}, arrays, timeout_s=30)
    assert worker.call("echo", {}, {"x": np.arange(3)}, timeout_s=30)[1]["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("job", ["spam", "spam_busily"])
def test_endless_output_ends_the_worker_and_the_log_stays_small(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    monkeypatch.setattr(process, "MAX_LOG_BYTES", 1 << 20)
    with pytest.raises(WorkerLogError, match="1 MiB of log"):
        worker.call(job, {}, timeout_s=30)
    assert (tmp_path / "log").stat().st_size == 1 << 20
    assert wait_until_gone(worker.pid)


def test_ctrl_c_kills_the_worker_and_is_raised_again(worker: Worker) -> None:
    def interrupt() -> None:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        worker.call("hang", {}, timeout_s=30)
    assert wait_until_gone(worker.pid)


def test_a_call_after_death_says_how_it_died(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGTERM)
    wait_until_gone(worker.pid)
    with pytest.raises(WorkerDiedError, match="SIGTERM"):
        worker.call("echo", {}, {"x": np.zeros(1 << 20, np.uint8)}, timeout_s=30)


def test_kill_nine_of_the_parent_leaves_no_orphan(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        from modelreg.registry.toolchains.process import Worker
        module, log = Path({str(write_faults(tmp_path))!r}), Path({str(tmp_path / "log")!r})
        worker = Worker.start(sys.executable, module, log_path=log)
        print(worker.pid, flush=True)
        worker.call("hang", {{}}, timeout_s=600)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.communicate()
    assert wait_until_gone(pid)


def test_closing_ends_the_worker_by_the_end_of_its_stdin(worker: Worker) -> None:
    began = time.monotonic()
    worker.close()
    assert worker._process.returncode == 0
    assert time.monotonic() - began < 4


def test_a_module_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    module = tmp_path / "broken.py"
    module.write_text("import no_such_backend\n")
    with pytest.raises(WorkerJobError, match="No module named 'no_such_backend'"):
        Worker.start(sys.executable, module, log_path=tmp_path / "log")


def test_an_interpreter_without_numpy_says_so_and_what_to_install(tmp_path: Path) -> None:
    python = str(bare_python(tmp_path, {}))
    with pytest.raises(ToolchainError, match=f"{python} has no NumPy, which faults needs") as caught:
        Worker.start(python, write_faults(tmp_path), log_path=tmp_path / "log", arenas=make_arenas())
    assert caught.value.hint() == f"Install it there: {python} -m pip install numpy"


def test_an_interpreter_that_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"cannot start the interpreter /no/python: No such file"):
        Worker.start("/no/python", write_faults(tmp_path), log_path=tmp_path / "log")


def test_a_program_that_is_no_worker_is_garbage(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho \'{"kind": "hello"}\'\nsleep 60\n')
    program.chmod(0o755)
    with pytest.raises(WorkerProtocolError, match="did not say that it is ready"):
        Worker.start(str(program), write_faults(tmp_path), log_path=tmp_path / "log")


def test_a_start_that_hangs_has_an_end(tmp_path: Path) -> None:
    module = tmp_path / "slow.py"
    module.write_text("import time\ntime.sleep(60)\n")
    with pytest.raises(WorkerTimeoutError):
        Worker.start(sys.executable, module, log_path=tmp_path / "log", timeout_s=0.5)


def test_a_start_has_an_end_however_long_the_job_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_TIMEOUT_S", 0.5)
    module = tmp_path / "slow.py"
    module.write_text("import time\ntime.sleep(60)\n")
    with pytest.raises(WorkerTimeoutError, match=r"took longer than 0\.5 s"):
        Worker.start(sys.executable, module, log_path=tmp_path / "log", timeout_s=3600)


def test_sibling_files_of_the_worker_and_the_module_shadow_nothing(worker: Worker, tmp_path: Path) -> None:
    body, _ = worker.call("paths", {}, timeout_s=30)
    folder = str(Path(process.__file__).parent)
    assert folder not in body["path"]
    assert str(tmp_path) not in body["path"]
    assert body["stdin"] == ""  # a library that reads stdin cannot eat requests


def test_another_interpreter_does_not_get_our_python_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    other = tmp_path / "other-python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    with Worker.start(str(other), write_faults(tmp_path), log_path=tmp_path / "log") as worker:
        assert worker.call("paths", {}, timeout_s=30)[0]["pythonpath"] is None


def test_a_call_after_death_writes_into_nobody_elses_file(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(WorkerDiedError):
        worker.call("segfault", {}, timeout_s=60)
    with ExitStack() as stack:
        files = [stack.enter_context((tmp_path / str(number)).open("wb+")) for number in range(8)]  # the pipes' numbers
        with pytest.raises(WorkerDiedError, match="has ended"):
            worker.call("echo", {"text": "x" * 5000}, timeout_s=60)
        assert [file.seek(0, 2) for file in files] == [0] * 8
