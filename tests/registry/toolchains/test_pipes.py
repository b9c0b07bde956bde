from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from modelreg.registry.toolchains.pipes import interrupted_by
from modelreg.registry.toolchains.process import Worker
from modelreg_testing.workers import write_faults


def test_a_thread_that_waits_for_a_child_can_be_interrupted(tmp_path: Path) -> None:
    stop, caught = threading.Event(), []

    def work() -> None:
        with interrupted_by(stop), Worker.start(sys.executable, write_faults(tmp_path), log_path=tmp_path / "log") as w:
            try:
                w.call("hang", {}, timeout_s=60)
            except KeyboardInterrupt as interrupt:
                caught.append(interrupt)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)
    began = time.monotonic()
    stop.set()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert time.monotonic() - began < 5
    assert len(caught) == 1


def test_the_event_concerns_its_own_block_and_thread_alone(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    module = write_faults(tmp_path)
    with interrupted_by(stop), pytest.raises(KeyboardInterrupt):
        Worker.start(sys.executable, module, log_path=tmp_path / "log")
    with Worker.start(sys.executable, module, log_path=tmp_path / "log") as worker:
        assert worker.call("echo", {}, timeout_s=30)[0]["names"] == []
