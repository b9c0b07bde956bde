"""A session's calls on pretended memory: when a graph is captured and replayed, and what is pinned and given back."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.toolchains import shared
from modelreg.registry.toolchains.trt_session import PlanRunError, Session
from modelreg_testing.pretend_cuda import PretendCuda, PretendEngine, pretend_tensorrt

LOG = types.SimpleNamespace(product="TensorRT", say_errors=lambda: "")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> PretendCuda:
    made = PretendCuda()
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", made)
    return made


@pytest.fixture
def engine(cuda: PretendCuda) -> PretendEngine:
    return PretendEngine(cuda)


@pytest.fixture
def session(cuda: PretendCuda, engine: PretendEngine) -> Iterator[Session]:
    made = Session(pretend_tensorrt(engine), LOG, b"", host_code=False, cuda_graphs=True)
    yield made
    made.close()
    assert cuda.alive == {}


def ask(session: Session, rows: int, number: float = 1.0) -> NDArray[Any]:
    sent = np.full((rows, 3), number, np.float32)
    found: NDArray[Any] = session.run({"x": sent})["y"]
    np.testing.assert_array_equal(found, sent * 2)
    return found


def test_a_shape_that_repeats_is_replayed(session: Session, engine: PretendEngine) -> None:
    for number in range(5):
        ask(session, 2, number)
    assert (session.replayed, engine.enqueued) == (4, 2)  # a plain run, and the one that was recorded


def test_after_each_change_of_shape_one_run_is_no_replay(session: Session, engine: PretendEngine) -> None:
    for rows in (2, 2, 9, 9, 2, 2, 2, 9, 9):  # the pretended context refuses a replay at another shape than it was left
        ask(session, rows)
    assert session.replayed == 5
    assert engine.enqueued == 4 + 3  # 2, 9 and 2 again, whose buffers have moved


def test_graphs_are_kept_for_the_last_eight_shapes(session: Session, cuda: PretendCuda) -> None:
    ask(session, 16)  # the largest first, so that no buffer moves afterwards
    for rows in range(1, 13):
        ask(session, rows)
        ask(session, rows)
    assert sum(isinstance(each, list) for each in cuda.alive.values()) == 8
    calls = cuda.calls.count("cudaStreamBeginCapture")
    ask(session, 12)
    for rows in (5, 5):
        ask(session, rows)
    assert cuda.calls.count("cudaStreamBeginCapture") == calls


def test_what_cannot_be_captured_runs_as_ever(session: Session, engine: PretendEngine, cuda: PretendCuda) -> None:
    engine.can_capture = False
    for number in range(4):
        ask(session, 2, number)
    assert session.replayed == 0
    assert cuda.calls.count("cudaStreamBeginCapture") == 1  # it is not tried at every call
    cuda.refused.add("cudaGraphInstantiate")
    engine.can_capture = True
    for number in range(3):
        ask(session, 3, number)
    assert session.replayed == 0


def test_a_request_that_fails_leaves_the_next_one_right(session: Session) -> None:
    ask(session, 2)
    ask(session, 2)
    with pytest.raises(PlanRunError, match="no profile covers"):
        session.run({"x": np.zeros((17, 3), np.float32)})
    ask(session, 2)
    session.bind({"x": np.zeros((4, 3), np.float32)})
    session.enqueue()
    ask(session, 2)
    ask(session, 2)


def test_without_graphs_every_run_is_enqueued(cuda: PretendCuda, engine: PretendEngine) -> None:
    session = Session(pretend_tensorrt(engine), LOG, b"", host_code=False)
    for rows in (1, 1, 16, 1):
        ask(session, rows)
    assert (session.replayed, engine.enqueued) == (0, 4)
    session.close()
    assert cuda.alive == {}


def test_shared_memory_is_pinned_as_it_grows_and_let_go(
    cuda: PretendCuda, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    arenas = shared.make_arenas()
    assert arenas is not None
    monkeypatch.setattr(shared, "current", arenas)

    def pinned() -> int:
        return sum(isinstance(key, tuple) for key in cuda.alive)

    first = ask(session, 2)
    assert arenas.answers.place(first) == 0  # the device wrote it where the parent reads it
    assert pinned() == 0
    arenas.answers.start()
    ask(session, 2)
    assert pinned() == 1
    arenas.requests.start()
    sent = arenas.requests.empty((3, 3), np.float32)
    sent[...] = 5
    for size in (1 << 20, 8 << 20):
        arenas.requests.empty((size,), np.uint8)
        assert session.run({"x": sent})["y"].tolist() == [[10.0] * 3] * 3
        assert pinned() == 2
    cuda.refused.add("cudaHostRegister")
    arenas.requests.empty((32 << 20,), np.uint8)
    ask(session, 2)
    ask(session, 2)
    assert cuda.calls.count("cudaHostRegister") == 4  # and none after it was refused
    arenas.close()


def test_a_device_that_answers_with_errors_alone_is_lost(cuda: PretendCuda, session: Session) -> None:
    assert not session.device.is_lost()
    cuda.refused.add("cudaDeviceSynchronize")
    assert session.device.is_lost()
