"""What a served model costs, and what it keeps: overhead of a call, swaps under load, batching, leaks.

    PYTHONPATH=tests/support python benchmarks/serving.py [--parts overhead swap batching leak] [--seconds 60]

Without more it makes a registry of the example's LeNet for the CPU. With `--store URL --name MODEL@CHANNEL --shape
name:3x224x224 --move COMMAND COMMAND` it measures what is served there, on whatever this host has; the two commands
make another release active, in turns. It prints Markdown, and writes all of it as JSON with `--json FILE`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from modelreg.registry.clock import utc_now
from modelreg.registry.pointers import next_pointer
from modelreg.registry.storage.open import open_storage
from modelreg.registry.words import Backend
from modelreg.runtime.active import ActiveModel
from modelreg.runtime.batches import Batching
from modelreg.runtime.engines import Engine, OrtEngine, WorkerEngine
from modelreg.runtime.lending import Lender, Placed, Seat
from modelreg.runtime.runner import WorkerRunner
from modelreg.runtime.serving import Answer
from modelreg.runtime.trying import ServingOptions
from modelreg_testing.serving import resident_bytes
from modelreg_testing.serving_load import Known, Swaps, describe_swaps, know, run_closed, run_open

Json = dict[str, Any]

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


def measure_call(name: str, plan: Path, shape: tuple[int, ...], input_name: str, *, rounds: int) -> Json:
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
    found: Json = {"what": name, "batch": shape[0], "bare_us": statistics.median(turn["bare"] for turn in turns)}
    for each in ("served", "child"):
        found[f"{each}_more_us"] = statistics.median(turn[each] - turn["bare"] for turn in turns)
        found[f"{each}_ratio"] = statistics.median(turn[each] / turn["bare"] for turn in turns)
    return found


def measure_overhead(rounds: int) -> list[Json]:
    from onnx import TensorProto, helper, save

    found = []
    with tempfile.TemporaryDirectory() as folder:
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "nothing", ends[:1], ends[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        save(model, f"{folder}/nothing.onnx")
        found.append(measure_call("nothing", Path(folder) / "nothing.onnx", (1, 3), "x", rounds=rounds))
    lenet = ROOT / "examples" / "lenet" / "lenet-v1.onnx"
    return found + [measure_call("LeNet", lenet, (batch, 1, 28, 28), "image", rounds=rounds) for batch in (1, 32)]


@dataclass
class Bench:
    """What is served, and how another release of it becomes active."""

    store: str
    name: str
    shape: tuple[str, tuple[int, ...]]
    commands: list[list[str]]
    cache: Path
    options: Json = field(default_factory=dict)
    is_scratch: bool = False

    def serve(self, **changes: Any) -> ActiveModel:
        options = ServingOptions(**{"trial": False, **self.options, **changes})
        return ActiveModel(self.name, store=self.store, cache=self.cache, options=options, interval_s=0.1, lease=False)

    def requests(self, rows: int, number: int = 16) -> list[Json]:
        name, shape = self.shape
        random = np.random.default_rng(7)
        return [{name: random.normal(size=(rows, *shape)).astype(np.float32)} for _ in range(number)]

    def move(self, turn: int) -> None:
        """Make another release active."""
        command = self.commands[turn % len(self.commands)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)}: {done.stderr.strip()}")

    def move_quickly(self, turn: int) -> None:
        """Do the same by the store's own swap where no database minds: a command takes longer than all of a swap."""
        if not self.is_scratch:
            self.move(turn)
            return
        storage = open_storage(self.store)
        model, _, channel = self.name.partition("@")
        current = storage.read_pointer(model, channel)
        assert current is not None
        earlier = (storage.read_history(model, channel, number) for number in range(1, current.generation))
        other = next(each for each in earlier if each.release != current.release)
        pointer = next_pointer(
            current,
            model=model,
            channel=channel,
            release=other.release,
            version=other.version,
            kind=current.kind,
            rolls_back_to=current.generation,
            txn=os.urandom(8).hex(),
            actor="benchmark",
            message="",
            at=utc_now(),
        )
        storage.swap_pointer(pointer, expected=current)

    def know(self, model: ActiveModel, rows: int) -> Known:
        """Ask both releases what they answer; afterwards the one that was active is so again."""
        requests, answers = self.requests(rows), dict[int, Any]()
        for turn in range(2):
            know(model, requests, answers)
            before = model.state().swaps
            self.move(turn)
            model.look_now()
            while model.state().swaps == before:
                time.sleep(0.01)
        return Known(requests=requests, answers=answers)


def measure_swaps(bench: Bench, *, seconds: float, rows: int) -> Json:
    clients = 8
    with bench.serve() as model:
        known = bench.know(model, rows)
        capacity, _ = run_closed(model.infer, known.requests, clients=clients, seconds=min(5.0, seconds / 4))
        rate = 0.8 * capacity
        swaps = Swaps(model, bench.move, number=max(2, round(seconds / 6)), seconds=seconds)
        found = run_open(model.infer, known, rate=rate, clients=clients, seconds=seconds, meanwhile=swaps)
        return describe_swaps(found, swaps, rate=rate, capacity=capacity)


def measure_batching(bench: Bench, *, seconds: float) -> list[Json]:
    """Clients that each ask for one row: alone, and gathered into batches of up to 1 to 32."""
    found = []
    each_s = max(0.5, seconds / 16)
    for clients in (1, 8, 32):
        for size in (None, 1, 2, 4, 8, 16, 32):
            batching = None if size is None else Batching(max_batch=size)
            with bench.serve(batching=batching) as model:
                requests = bench.requests(1)
                run_closed(model.infer, requests, clients=clients, seconds=0.2)
                rate, latencies = run_closed(model.infer, requests, clients=clients, seconds=each_s)
            p50, p99 = (float(np.quantile(latencies, part)) * 1000 for part in (0.5, 0.99))
            found.append({"clients": clients, "max_batch": size, "rows_s": rate, "p50_ms": p50, "p99_ms": p99})
    return found


def measure_leak(bench: Bench, *, swaps: int = 100) -> Json:
    """Memory of this process and of the device before and after many swaps, once the first ten have been."""
    with bench.serve() as model:

        def go(number: int) -> tuple[int, int | None]:
            for turn in range(number):
                before = model.state().swaps
                bench.move_quickly(turn)
                model.look_now()
                while model.state().swaps == before or model.state().retired:
                    time.sleep(0.005)
            engine = model.served.backend
            last = model.state().last_swap
            return resident_bytes(), None if engine is Backend.ONNXRUNTIME or last is None else last.memory_after_bytes

        resident, free = go(10)
        later_resident, later_free = go(swaps)
    device = None if free is None or later_free is None else free - later_free
    return {"swaps": swaps, "resident_bytes": later_resident - resident, "device_bytes": device}


@contextmanager
def lenet() -> Iterator[Bench]:
    """Give a registry with two releases of the example's LeNet for the CPU, the second one active."""
    with tempfile.TemporaryDirectory(prefix="modelreg-bench-") as folder:
        home = Path(folder) / "home"
        modelreg = [sys.executable, "-m", "modelreg.cli", "--home", str(home)]
        example = ROOT / "examples" / "lenet"
        steps: list[list[object]] = [["init"]]
        for number in (1, 2):
            golden = example / f"golden-v{number}.npz"
            steps += [
                ["register", "lenet", example / f"lenet-v{number}.onnx", "--golden", golden],
                ["build", f"lenet:{number}", "--precision", "fp32"],
                ["validate", f"lenet:{number}"],
                ["promote", f"lenet:{number}", "--to", "production"],
            ]
        for step in steps:
            subprocess.run([*modelreg, *map(str, step)], check=True, capture_output=True, cwd=folder)
        commands = [
            [*modelreg, "rollback", "lenet", "--channel", "production"],
            [*modelreg, "promote", "lenet:2", "--to", "production"],
        ]
        yield Bench(
            store=str(home / "store"),
            name="lenet@production",
            shape=("image", (1, 28, 28)),
            commands=commands,
            cache=Path(folder) / "cache",
            options={"threads": 1},
            is_scratch=True,
        )


@contextmanager
def given(arguments: argparse.Namespace) -> Iterator[Bench]:
    name, _, axes = arguments.shape.partition(":")
    with tempfile.TemporaryDirectory(prefix="modelreg-bench-") as folder:
        yield Bench(
            store=arguments.store,
            name=arguments.name,
            shape=(name, tuple(int(axis) for axis in axes.split("x"))),
            commands=[shlex.split(each) for each in arguments.move],
            cache=Path(folder),
            options={"devices": arguments.devices, "instances_per_device": arguments.instances},
        )


def as_table(rows: list[Json]) -> str:
    heads = list(rows[0])
    lines = [heads, ["---"] * len(heads), *([_cell(row[head]) for head in heads] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: object) -> str:
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and value < 1000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["overhead", "swap", "batching", "leak"])
    parser.add_argument("--rounds", type=int, default=41, help="turns of the overhead of a call")
    parser.add_argument("--seconds", type=float, default=60.0, help="of swaps under load; batching takes about as long")
    parser.add_argument("--rows", type=int, default=32, help="rows of a request while swaps go on")
    parser.add_argument("--json", type=Path, help="where all of it goes")
    parser.add_argument("--store", help="a store to serve from, in place of the example's LeNet")
    parser.add_argument("--name", help="NAME@CHANNEL in it")
    parser.add_argument("--shape", help="NAME:AXES of the input without the first axis, such as image:3x224x224")
    parser.add_argument("--move", nargs=2, help="two commands that make another release active, in turns")
    parser.add_argument("--devices", choices=["all"], help="serve on every GPU")
    parser.add_argument("--instances", type=int, default=1, help="instances per device")
    arguments = parser.parse_args()
    body: Json = {"load": os.getloadavg()[0], "cpus": os.cpu_count(), "python": sys.version.split()[0]}
    if "overhead" in arguments.parts:
        body["overhead"] = measure_overhead(arguments.rounds)
        print(as_table(body["overhead"]), flush=True)
    parts: dict[str, Callable[[Bench], Any]] = {
        "swap": lambda bench: [measure_swaps(bench, seconds=arguments.seconds, rows=arguments.rows)],
        "batching": lambda bench: measure_batching(bench, seconds=arguments.seconds),
        "leak": lambda bench: [measure_leak(bench)],
    }
    with given(arguments) if arguments.store else lenet() as bench:
        for name in [part for part in parts if part in arguments.parts]:
            body[name] = parts[name](bench)
            print(f"\n{name}\n\n{as_table(body[name])}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
