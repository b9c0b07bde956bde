"""Live answers beside a reference: a wrong engine is found, a right one is not, and no request waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modelreg.registry.errors import NotFoundError
from modelreg.registry.words import Precision
from modelreg.runtime.monitoring.parity import Dropped, OnlineParity, find_limit_db
from modelreg.runtime.monitoring.references import FileReference, FunctionReference, Reference
from modelreg.runtime.runner import RunError
from modelreg.runtime.serving import ServedEngine
from modelreg_testing.monitoring import engine
from modelreg_testing.serving import adder, eventually

Array = NDArray[Any]
Arrays = Mapping[str, Array]
X: dict[str, Array] = {"x": np.ones((2, 3), np.float32)}
ALL: dict[str, Any] = {"share": 1.0, "max_per_s": 1e9, "queue_size": 1000}


def answer(number: float) -> dict[str, Array]:
    return {"y": X["x"] + np.float32(number)}


class Gated:
    """A source whose references answer when they are let, and that notes what was opened and closed."""

    def __init__(self) -> None:
        self.open_gate = threading.Event()
        self.opened: list[int] = []
        self.closed: list[int] = []
        self.fails = 0
        self.error: Exception = RuntimeError()

    def open(self, served: ServedEngine) -> Reference:
        self.opened.append(served.generation)
        return _GatedReference(self, served.generation)


class _GatedReference:
    def __init__(self, source: Gated, generation: int) -> None:
        self._source, self._generation = source, generation

    def run(self, inputs: Arrays) -> Arrays:
        self._source.open_gate.wait()
        if self._source.fails:
            self._source.fails -= 1
            raise self._source.error
        return {"y": inputs["x"] + np.float32(self._generation)}

    def close(self) -> None:
        self._source.closed.append(self._generation)


@pytest.fixture
def gated() -> Iterator[Gated]:
    source = Gated()
    yield source
    source.open_gate.set()


def served(generation: int, **changes: Any) -> Any:
    return engine(generation, release=f"{generation:064x}", **changes)


def test_each_answer_is_compared_with_the_reference_of_its_own_generation(gated: Gated) -> None:
    gated.open_gate.set()
    parity = OnlineParity(gated, **ALL)
    parity.start()
    for _ in range(20):
        for generation in (1, 2):  # as during a swap, when both answer
            parity.offer(served(generation), X, answer(generation))
    eventually(lambda: parity.compared == 40)
    parity.stop()
    assert [(each.served.generation, each.difference.max_abs) for each in parity.found()] == [(1, 0.0), (2, 0.0)]
    assert sorted(gated.opened) == sorted(gated.closed) == [1, 2]


def test_a_request_never_waits_and_what_does_not_fit_is_dropped_and_counted(gated: Gated) -> None:
    parity = OnlineParity(gated, share=1.0, max_per_s=1e9, queue_size=4)
    parity.start()
    for _ in range(100):
        parity.offer(served(1), X, answer(1))  # the reference stands still, and this returns
    assert 95 <= parity.dropped[Dropped.QUEUE] <= 96
    gated.open_gate.set()
    eventually(lambda: parity.compared + parity.dropped[Dropped.QUEUE] == 100)
    parity.stop()


def test_what_is_offered_is_copied_so_the_caller_may_write_over_it(gated: Gated) -> None:
    parity = OnlineParity(gated, **ALL)
    parity.start()
    inputs, outputs = {"x": X["x"].copy()}, answer(1)
    parity.offer(served(1), inputs, outputs)
    inputs["x"][:] = outputs["y"][:] = 99
    gated.open_gate.set()
    eventually(lambda: parity.compared == 1)
    parity.stop()
    assert [each.difference.max_abs for each in parity.found()] == [0.0]


def test_only_a_share_is_taken_and_only_so_many_a_second(gated: Gated) -> None:
    gated.open_gate.set()
    parity = OnlineParity(gated, share=0.1, max_per_s=1e9, queue_size=10_000, seed=1)
    parity.start()
    for _ in range(5000):
        parity.offer(served(1), X, answer(1))
    eventually(lambda: parity.compared + sum(parity.dropped.values()) >= 400)
    parity.stop()
    assert 400 <= parity.compared + sum(parity.dropped.values()) <= 600
    rare = OnlineParity(gated, share=1.0, max_per_s=0.001)
    rare.start()
    for _ in range(50):
        rare.offer(served(1), X, answer(1))
    rare.stop()
    assert rare.dropped[Dropped.RATE] == 49


def test_a_wrong_engine_is_found_after_a_few_answers_and_a_right_one_is_not(gated: Gated) -> None:
    gated.open_gate.set()
    parity = OnlineParity(gated, **ALL)
    parity.start()
    half = np.float32(1) + np.float32(2**-11)  # what FP16 rounds away
    for number in range(20):
        parity.offer(served(1, precision=Precision.FP16), X, {"y": answer(1)["y"] * half})
        if number >= 13:
            parity.offer(served(2, precision=Precision.INT8), X, {"y": answer(2)["y"] * np.float32(0.5)})
    eventually(lambda: parity.compared == 27)
    (right,) = parity.facts(served(1, precision=Precision.FP16))
    assert right.sqnr_db is not None
    assert right.sqnr_db > right.limit_db == 34
    (wrong,) = parity.facts(served(2, precision=Precision.INT8))
    assert wrong.sqnr_db is None  # of seven answers nothing is said
    parity.offer(served(2, precision=Precision.INT8), X, {"y": answer(2)["y"] * np.float32(0.5)})
    eventually(lambda: parity.compared == 28)
    (wrong,) = parity.facts(served(2, precision=Precision.INT8))
    assert wrong.sqnr_db == pytest.approx(6.02, abs=0.01)
    assert wrong.limit_db == 12
    parity.stop()


def test_a_reference_that_crashes_is_opened_again_and_costs_its_answers_alone(gated: Gated) -> None:
    gated.open_gate.set()
    parity = OnlineParity(gated, **ALL)
    parity.start()
    parity.offer(served(1), X, answer(1))
    eventually(lambda: parity.compared == 1)
    gated.error, gated.fails = RuntimeError("the reference crashed"), 1
    parity.offer(served(1), X, answer(1))
    eventually(lambda: parity.dropped[Dropped.FAILED] == 1)
    assert "the reference crashed" in parity.problem
    parity.offer(served(1), X, answer(1))
    eventually(lambda: parity.compared == 2)
    parity.stop()
    assert (gated.opened, parity.problem) == ([1, 1], "")


def test_a_reference_that_never_answers_is_not_started_again_and_again(gated: Gated) -> None:
    gated.open_gate.set()
    gated.error, gated.fails = RuntimeError("the reference crashed"), 100
    parity = OnlineParity(gated, **ALL)
    parity.start()
    for _ in range(50):
        parity.offer(served(1), X, answer(1))
    eventually(lambda: sum(parity.dropped.values()) == 50)
    parity.stop()
    assert gated.opened == gated.closed == [1]
    assert (parity.dropped[Dropped.FAILED], parity.dropped[Dropped.NO_REFERENCE]) == (1, 49)


def test_inputs_that_a_reference_refuses_do_not_end_it(gated: Gated) -> None:
    gated.open_gate.set()
    gated.error, gated.fails = RunError("the plan cannot be run"), 3
    parity = OnlineParity(gated, **ALL)
    parity.start()
    for _ in range(5):
        parity.offer(served(1), X, answer(1))
    eventually(lambda: parity.compared == 2)
    parity.stop()
    assert (gated.opened, parity.dropped[Dropped.FAILED]) == ([1], 3)


def test_an_answer_of_another_shape_or_name_is_counted_as_failed(gated: Gated) -> None:
    gated.open_gate.set()
    parity = OnlineParity(gated, **ALL)
    parity.start()
    parity.offer(served(1), X, {"y": np.ones((1, 3), np.float32)})
    parity.offer(served(1), X, {"z": np.ones((2, 3), np.float32)})
    eventually(lambda: parity.dropped[Dropped.FAILED] == 2)
    parity.stop()


def test_a_release_without_a_reference_is_asked_about_once_in_a_while(gated: Gated) -> None:
    asked = []

    class Refusing:
        def open(self, served: ServedEngine) -> Reference:
            asked.append(served.generation)
            raise NotFoundError("there is none")

    parity = OnlineParity(Refusing(), **ALL)
    parity.start()
    for _ in range(10):
        parity.offer(served(1), X, answer(1))
    eventually(lambda: parity.dropped[Dropped.NO_REFERENCE] == 10)
    parity.stop()
    assert asked == [1]
    assert "has no reference: NotFoundError: there is none" in parity.problem


def test_what_is_too_large_to_copy_is_left(gated: Gated) -> None:
    parity = OnlineParity(gated, **ALL)
    parity.start()
    parity.offer(served(1), {"x": np.broadcast_to(np.float32(0), (1 << 25, 1))}, {})
    assert parity.dropped[Dropped.SIZE] == 1
    parity.stop()


def test_memory_is_bounded_over_many_generations(gated: Gated) -> None:
    gated.open_gate.set()
    parity = OnlineParity(gated, **ALL)
    parity.start()
    for generation in range(1, 21):
        parity.offer(served(generation), X, answer(generation))
        eventually(lambda: parity.compared == generation)  # noqa: B023 - asked before the next
    assert {each.served.generation for each in parity.found()} == {18, 19, 20}
    parity.stop()
    assert sorted(gated.closed) == list(range(1, 21))


def test_nothing_is_taken_before_it_starts_or_after_it_ended(gated: Gated) -> None:
    parity = OnlineParity(gated, **ALL)
    parity.offer(served(1), X, answer(1))
    parity.start()
    parity.stop()
    parity.stop()
    parity.offer(served(1), X, answer(1))
    assert (parity.compared, gated.opened, sum(parity.dropped.values())) == (0, [], 0)


def test_a_file_is_run_in_a_child_for_its_versions_alone(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(adder(1))
    source = FileReference(tmp_path / "model.onnx", versions=[1])
    reference = source.open(engine(1, version=1))
    np.testing.assert_array_equal(reference.run(X)["y"], answer(1)["y"])
    reference.close()
    with pytest.raises(NotFoundError, match="is the reference of version 1, and version 2 is served"):
        source.open(engine(2, version=2))


def test_a_function_is_a_reference_for_its_versions_alone() -> None:
    source = FunctionReference(lambda inputs: {"y": inputs["x"] * 2}, versions=range(1, 5))
    reference = source.open(engine(1, version=4))
    np.testing.assert_array_equal(reference.run(X)["y"], X["x"] * 2)
    reference.close()
    with pytest.raises(NotFoundError, match="the function is the reference of version 1, 2, 3, 4"):
        source.open(engine(1, version=5))


def test_limits_are_those_of_the_shipped_policies_slices() -> None:
    assert [find_limit_db(each) for each in (Precision.FP32, Precision.FP16, Precision.INT8)] == [80, 34, 12]
    assert all(find_limit_db(each) > 0 for each in Precision)


@pytest.mark.parametrize("wrong", [{"share": 1.5}, {"share": -0.1}, {"max_per_s": 0}])
def test_a_share_that_is_none_is_refused(gated: Gated, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be sampled"):
        OnlineParity(gated, **wrong)
