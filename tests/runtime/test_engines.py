"""Engines that answer, in this process and in a child: whatever an array looks like in memory, and whatever is none."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.errors import WorkerError
from modelreg.registry.words import Backend
from modelreg.runtime import engines
from modelreg.runtime.engines import Engine, OrtEngine, WorkerEngine
from modelreg.runtime.runner import RunError, WorkerRunner
from modelreg_testing.serving import adder, eventually

Array = NDArray[Any]
X = np.arange(30_000, dtype=np.float32).reshape(10_000, 3)


@pytest.fixture(scope="module", params=["in process", "in a child"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp("engine") / "model.onnx"
    path.write_bytes(adder(1))
    opened: Engine
    if request.param == "in process":
        opened = OrtEngine(path, target="cpu", threads=1)
    else:
        opened = WorkerEngine(WorkerRunner(path, backend=Backend.ONNXRUNTIME, threads=1))
    yield opened
    opened.close()


@pytest.mark.parametrize("rows", [0, 2, len(X)])
@pytest.mark.parametrize(
    "laid_out",
    [
        np.asfortranarray,
        lambda x: x[::-1][::-1],
        lambda x: np.repeat(x, 2, axis=0)[::2],
        lambda x: x.astype(">f4"),
        lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
        lambda x: np.frombuffer(b"?" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
    ],
    ids=["fortran", "reversed", "strided", "big-endian", "read-only", "unaligned"],
)
def test_the_layout_of_an_array_changes_no_answer(engine: Engine, laid_out: Any, rows: int) -> None:
    given: Array = laid_out(X[:rows])
    np.testing.assert_array_equal(engine.run({"x": given})["y"], X[:rows] + 1)


@pytest.mark.parametrize(
    "given",
    [X.astype(object), X.astype(str), np.zeros((2, 3), "M8[s]"), np.zeros((2, 3), [("a", "f4")]), X.astype(np.float64)],
    ids=["objects", "strings", "dates", "records", "float64"],
)
def test_what_is_no_input_is_refused_and_the_engine_lives_on(engine: Engine, given: Array) -> None:
    with pytest.raises(RunError):
        engine.run({"x": given})
    np.testing.assert_array_equal(engine.run({"x": X[:1]})["y"], X[:1] + 1)


def test_a_child_that_hangs_holds_up_nobody_who_closes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_CLOSE_S", 0.1)
    (tmp_path / "model.onnx").write_bytes(adder(1))
    opened = WorkerEngine(WorkerRunner(tmp_path / "model.onnx", backend=Backend.ONNXRUNTIME, threads=1))
    os.kill(opened.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(opened.run, {"x": X})
        eventually(opened._lock.locked)
        opened.close()
        with pytest.raises(WorkerError):
            asked.result(timeout=60)
    assert opened.is_gone()
