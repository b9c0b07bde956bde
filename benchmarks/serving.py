"""What a served model costs beside the bare session of ONNX Runtime, in this process and in a child; taken in turns.

The child's part is wall time: its work is done elsewhere.

python benchmarks/serving.py [--rounds 41]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from modelreg.registry.words import Backend
from modelreg.runtime.engines import Engine, OrtEngine, WorkerEngine
from modelreg.runtime.lending import Lender, Placed, Seat
from modelreg.runtime.runner import WorkerRunner
from modelreg.runtime.serving import Answer

ROOT = Path(__file__).resolve().parents[1]


_CLOCKS = {"bare": time.thread_time, "served": time.thread_time, "child": time.perf_counter}


class Served:
    """What `ActiveModel.infer` does around an engine, with nothing that follows a channel."""

    def __init__(self, engine: Engine) -> None:
        from modelreg.runtime.active import ActiveModel

        self._model: Any = object.__new__(ActiveModel)
        self._model._wait_s = 1.0
        lender: Lender[Engine, Any] = Lender()
        lender.swap(Placed(Seat(engine), _Label()))
        self._model._lender = lender

    def __call__(self, inputs: dict[str, Any]) -> Answer:
        answer: Answer = self._model.infer(inputs)
        return answer


class _Label:
    served: Any = None


def time_calls(call: Callable[[], object], number: int, clock: Callable[[], float] = time.thread_time) -> float:
    """Return microseconds a call: CPU time of this thread, which does all the work here: less noise of the host."""
    began = clock()
    for _ in range(number):
        call()
    return (clock() - began) / number * 1e6


def measure(name: str, plan: Path, shape: tuple[int, ...], input_name: str, *, rounds: int) -> None:
    inputs = {input_name: np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    engine = OrtEngine(plan, target="cpu", threads=1)
    session: Any = engine.session  # the same one: two sessions of one plan differ by more than what is measured here
    with WorkerRunner(plan, backend=Backend.ONNXRUNTIME, threads=1) as runner:
        here, child = Served(engine), Served(WorkerEngine(runner))
        calls: dict[str, Callable[[], object]] = {
            "bare": lambda: session.run(None, inputs),
            "served": lambda: here(inputs),
            "child": lambda: child(inputs),
        }
        number = max(3, int(20_000 / time_calls(calls["bare"], 5)))
        turns = []
        for number_of_turn in range(rounds):
            order = ("bare", "served") if number_of_turn % 2 else ("served", "bare")
            turns.append({each: time_calls(calls[each], number, _CLOCKS[each]) for each in order})
        for turn in turns:  # apart: another process at work leaves nothing of the caches
            turn["child"] = time_calls(calls["child"], 5, _CLOCKS["child"])
    bare = statistics.median(turn["bare"] for turn in turns)
    print(f"{name:<24} batch {shape[0]:>3}   bare {bare:10.1f} us", end="")
    for each in ("served", "child"):
        more = statistics.median(turn[each] - turn["bare"] for turn in turns)
        ratio = statistics.median(turn[each] / turn["bare"] for turn in turns)
        print(f"   {each} {more:+9.1f} us {ratio:6.3f} x", end="")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    rounds = parser.parse_args().rounds
    from onnx import TensorProto, helper, save

    with tempfile.TemporaryDirectory() as folder:
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "nothing", ends[:1], ends[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        save(model, f"{folder}/nothing.onnx")
        measure("a model of nothing", Path(folder) / "nothing.onnx", (1, 3), "x", rounds=rounds)
    lenet = ROOT / "examples" / "lenet" / "lenet-v1.onnx"
    for batch in (1, 32):
        measure("LeNet", lenet, (batch, 1, 28, 28), "image", rounds=rounds)


if __name__ == "__main__":
    main()
