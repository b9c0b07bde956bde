"""Timing for the GPU run: PyTorch, our runner and a bare TensorRT loop, taking turns."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from modelreg.registry.toolchains.process import Worker
from modelreg.registry.words import Backend
from modelreg.runtime.runner import GpuLoad, Timing, WorkerRunner
from modelreg_testing.checkout import ROOT

Json = dict[str, Any]
Timer = Callable[[], list[float]]
"""Returns the milliseconds of each run of one turn."""

ROUNDS = 5
TIMING = Timing(warmup_ms=50.0, duration_s=0.15, iterations=64)
_WAIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan in a file, with what is needed to run it."""

    path: Path
    digest: str
    version: str
    target: str
    python: str


def take_turns(timers: dict[str, Timer], *, rounds: int = ROUNDS) -> Json:
    """
    Let every timer run in turn, several times; a change of clocks or load then meets all of them alike.

    Returns:
        By name: `median_ms` (of all runs), `p99_ms`, `runs`, and `rounds_ms`, the median of each turn.
    """
    found: dict[str, list[list[float]]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            found[name].append(timer())
    return {name: _describe(turns) for name, turns in found.items()}


def _describe(turns: list[list[float]]) -> Json:
    every = [run for turn in turns for run in turn]
    return {
        "median_ms": statistics.median(every),
        "p99_ms": float(np.percentile(every, 99)),
        "runs": len(every),
        "rounds_ms": [statistics.median(turn) for turn in turns],
    }


def paired_ratio(one: Json, other: Json) -> float:
    """Return how much longer `one` takes than `other`: the median of the rounds' ratios."""
    pairs = zip(one["rounds_ms"], other["rounds_ms"], strict=True)
    return statistics.median(float(a / b) for a, b in pairs)


@contextmanager
def tensorrt_timers(plan: Plan, log: Path) -> Iterator[Callable[[Json], dict[str, Timer]]]:
    """
    Yield what makes the timers of a plan for inputs: our runner, without and with a CUDA graph, and a bare loop.

    Both run in the toolchain's interpreter, in two processes that live until the end.
    """
    gpu = GpuLoad(digest=plan.digest, version=plan.version, built_for=(plan.target,), target=plan.target)
    job, timing = ROOT / "tests" / "gpu" / "bare_trt.py", asdict(TIMING)
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(
            WorkerRunner(plan.path, backend=Backend.TENSORRT, python=plan.python, log_path=log, gpu=gpu)
        )
        bare = stack.enter_context(Worker.start(plan.python, job, log_path=log.with_suffix(".bare.log")))
        bare.call("load", {"path": str(plan.path)}, timeout_s=_WAIT_S)

        def make(inputs: Json) -> dict[str, Timer]:
            return {
                "runner": lambda: _as_list(runner.bench(inputs, TIMING)),
                "bare": lambda: _as_list(bare.call("bench", timing, inputs, timeout_s=_WAIT_S)[1]["gpu_ms"]),
                "runner_graph": lambda: _as_list(runner.bench(inputs, replace(TIMING, cuda_graph=True))),
            }

        yield make


def _as_list(samples: Any) -> list[float]:
    return [float(sample) for sample in samples]


@contextmanager
def onnxruntime_timers(plan: Plan, log: Path) -> Iterator[Callable[[Json], dict[str, Timer]]]:
    """Yield the same for a rehearsal on the CPU, where only our runner is timed, and from outside."""
    with WorkerRunner(plan.path, backend=Backend.ONNXRUNTIME, log_path=log) as runner:

        def make(inputs: Json) -> dict[str, Timer]:
            return {"runner": lambda: [_wall_ms(lambda: runner.run(inputs)) for _ in range(3)]}

        yield make


def torch_timers(make_net: Callable[[], Any], images: Any, *, device: str) -> dict[str, Timer]:
    """
    Return the timers of PyTorch eager: FP32 without TF32, FP16, and FP16 channels-last; on the CPU FP32 alone.

    Args:
        make_net: Gives the module with its weights, in evaluation mode.
        images: A batch, NumPy, float32.
        device: `cuda` or `cpu`.
    """
    import torch

    batch = torch.from_numpy(images).to(device)
    single = make_net().to(device)
    if device == "cpu":
        without_gradients = torch.inference_mode()(single)
        return {"torch_fp32": lambda: [_wall_ms(lambda: without_gradients(batch)) for _ in range(3)]}
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    half = make_net().to(device).half()
    last = make_net().to(device).half().to(memory_format=torch.channels_last)
    halves = batch.half()
    lasts = halves.to(memory_format=torch.channels_last)
    return {
        "torch_fp32": lambda: _cuda_ms(torch, lambda: single(batch)),
        "torch_fp16": lambda: _cuda_ms(torch, lambda: half(halves)),
        "torch_fp16_channels_last": lambda: _cuda_ms(torch, lambda: last(lasts)),
    }


def _cuda_ms(torch: Any, run: Callable[[], Any]) -> list[float]:
    """Return the milliseconds between two events around each run, which are enqueued without waiting."""
    samples: list[float] = []
    with torch.inference_mode():
        began = time.monotonic()
        while (time.monotonic() - began) * 1000 < TIMING.warmup_ms:
            run()
            torch.cuda.synchronize()
        began = time.monotonic()
        while len(samples) < TIMING.iterations or time.monotonic() - began < TIMING.duration_s:
            pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(16)]
            for first, second in pairs:
                first.record()
                run()
                second.record()
            torch.cuda.synchronize()
            samples += [first.elapsed_time(second) for first, second in pairs]
    return samples


def _wall_ms(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1000
