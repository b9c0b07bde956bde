"""Take every case through the product: register, build with ONNX Runtime in its worker, validate.

    python -m fault_corpus.campaign [--seeds 10] [--jobs 2] [--only WORD] [--write docs/gate-check.md]

A fault is caught where any of the three refuses it; a healthy engine that is refused is a false alarm.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import onnx

from fault_corpus.activations import with_activations
from fault_corpus.cases import Case, Fault, VariantRequest, healthy_case, model_of, plant
from fault_corpus.catalogue import FAULTS, HEALTHY_PRECISIONS, NETWORKS, controls
from fault_corpus.layer_check import NamedLayer, check_layer
from fault_corpus.places import TRAINED, is_there
from fault_corpus.table import LEAST_RIGHT, share_right, summarise, to_markdown
from modelreg.builders import making
from modelreg.builders.variants import VariantWorker
from modelreg.registry.tensor_sets import write_tensor_set
from modelreg.registry.words import Json, Precision
from modelreg_testing.cli import CliResult, run_cli


@dataclass(frozen=True)
class Measured:
    """What one gate measured, and its limit."""

    value: float
    comparison: str
    limit: float

    def or_worse(self, other: Measured) -> Measured:
        """Return the one that is nearer to its limit, or further beyond."""
        is_worse = other.value < self.value if self.comparison == ">=" else other.value > self.value
        return other if is_worse else self


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """
    What became of one case.

    Attributes:
        stage: Where it was refused: `register`, `build` or `validate`; empty where everything passed.
        gates: The gates that failed.
        measured: By gate what was measured, the worst of its outputs, and the limit.
        layer: What the comparison of layers named, which is nothing in a healthy engine; None where no node was
            planted, or no engine came of it.
        said: What the user is told.
    """

    stage: str
    gates: tuple[str, ...]
    said: str
    seconds: float
    measured: Mapping[str, Measured] = field(default_factory=dict)
    layer: NamedLayer | None = None

    @property
    def passed(self) -> bool:
        """Return whether nothing refused it."""
        return not self.stage

    @property
    def by(self) -> str:
        """Return what refused it, as short as it can be said."""
        return ", ".join(self.gates) if self.gates else self.stage


@dataclass(frozen=True)
class Where:
    """
    What builds and runs the engines of a case.

    Attributes:
        python: An interpreter with TensorRT; empty for ONNX Runtime on the CPU.
        words: What every `build` says of it.
    """

    python: str = ""
    words: tuple[str, ...] = ()


class Bench:
    """A folder with a registry for each case: equal sources share their variants, and so would the faults in them."""

    def __init__(self, folder: Path, where: Where = Where()) -> None:
        self._folder = folder
        self._where = where

    def try_fault(self, fault: Fault, name: str) -> Outcome:
        """Do the same with a fault; where a node was planted, compare the layers too, and say whether that is named."""
        case = plant(fault)
        if not fault.layer:
            return self.try_case(case, name)
        healthy = model_of(fault.network, 0)
        reference = deepcopy(case.model) if fault.is_network_right else healthy
        outcome, result = self._try(with_activations(case, reference), name, more=("--layers",))
        if result is None:
            return outcome
        (validation,) = result.document["validations"]
        return replace(outcome, layer=check_layer(healthy, fault.layer, validation["layers"]))

    def try_healthy(self, case: Case, name: str) -> Outcome:
        """Do the same with an engine that nothing is wrong with; no layer may be named either."""
        outcome, result = self._try(with_activations(case, case.model), name, more=("--layers",))
        if result is None:
            return outcome
        (validation,) = result.document["validations"]
        named = validation["layers"].get("first_bad", "not compared")
        return replace(outcome, layer=NamedLayer(name=named, is_right=not named))

    def try_case(self, case: Case, name: str) -> Outcome:
        """Register, build and validate in a registry of its own; stop where it is refused."""
        return self._try(case, name)[0]

    def _try(self, case: Case, name: str, *, more: Sequence[str] = ()) -> tuple[Outcome, CliResult | None]:
        """Return what became of a case, and what `validate` said where it came to that."""
        began = time.monotonic()
        self._home = self._folder / f"{name}-home"
        made = run_cli("init", home=self._home)
        if made.code:
            raise RuntimeError(made.err)
        if self._where.python:
            added = self._cli("toolchain", "add", "trt", "--python", self._where.python)
            if added.code:
                raise RuntimeError(added.err)
        stage, result = self._take_through(case, name, more)
        found = _gates(result) if stage in ("", "validate") else []
        bad = [gate["gate"] for gate in found if gate["outcome"] in ("fail", "error")]
        said = (result.err.strip() or result.out.strip()).splitlines()
        outcome = Outcome(
            stage=stage,
            gates=tuple(dict.fromkeys(bad)),
            said=said[-1] if said else "",
            seconds=time.monotonic() - began,
            measured=_worst(found),
        )
        return outcome, result if stage in ("", "validate") else None

    def _take_through(self, case: Case, name: str, more: Sequence[str]) -> tuple[str, CliResult]:
        place = self._folder / name
        place.mkdir()
        onnx.save(case.model, place / "model.onnx")
        write_tensor_set(place / "golden.safetensors", case.golden, case.metadata)
        write_tensor_set(place / "calibration.safetensors", {f"input.{case.input}": case.calibration}, {})
        if case.policy:
            policies = self._home / "policies" / name
            policies.mkdir(parents=True)
            (policies / f"{case.precision}.toml").write_text(case.policy)
        words: list[Any] = ["register", name, place / "model.onnx", "--golden", place / "golden.safetensors"]
        result = self._cli(*words)
        if result.code:
            return "register", result
        samples = ("--calibration", place / "calibration.safetensors") if str(case.precision) == "int8" else ()
        with _faulty_converter(case):
            wanted = f"fp16,{case.precision}" if case.with_sibling else case.precision
            more_words = (*samples, *case.options, *self._where.words)
            result = self._cli("build", f"{name}:1", "--precision", wanted, *more_words)
        if result.code:
            return "build", result
        result = self._cli("validate", f"{name}:1", "--precision", case.precision, "--json", *more)
        return ("validate" if result.code else ""), result

    def _cli(self, *words: object) -> CliResult:
        result = run_cli(*words, home=self._home)
        if result.code not in (0, 1, 3):
            raise RuntimeError(f"{words[:2]} ended with {result.code}: {result.err}")
        return result


def _gates(result: CliResult) -> list[Json]:
    (validation,) = result.document["validations"]
    gates: list[Json] = validation["gates"]
    return gates


def _worst(gates: Sequence[Json]) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for gate in gates:
        if isinstance(gate["measured"], float | int) and gate["limit"] is not None:
            new = Measured(float(gate["measured"]), str(gate["comparison"]), float(gate["limit"]))
            found[gate["gate"]] = new if gate["gate"] not in found else new.or_worse(found[gate["gate"]])
    return found


@contextmanager
def _faulty_converter(case: Case) -> Iterator[None]:
    """Let the child that makes variants do its work, then do what a faulty one would have done."""
    if case.change_variant is None and case.change_settings is None:
        yield
        return

    class Faulty(VariantWorker):
        def make(self, source: Path, target: Path, *, variant: Any, **more: Any) -> tuple[Path, ...]:
            used = variant if case.change_settings is None else case.change_settings(variant)
            made = super().make(source, target, variant=used, **more)
            if case.change_variant is not None:
                again = super().make
                case.change_variant(
                    VariantRequest(
                        source=source,
                        target=target,
                        make_again=lambda other, place: again(other, place, variant=used, **more),
                    )
                )
            return made

    with mock.patch.object(making, "VariantWorker", Faulty):
        yield


@dataclass(frozen=True)
class Job:
    """One case to try, as a process can be told: a fault or a control by its name, or a healthy engine."""

    name: str
    healthy: tuple[str, Precision, int] | None = None
    is_control: bool = False
    where: Where = Where()
    with_layers: bool = True

    def run(self, folder: Path) -> Outcome:
        """Try it in a folder."""
        bench = Bench(folder, self.where)
        if self.healthy is not None:
            network, precision, seed = self.healthy
            case = replace(healthy_case(network, precision, seed), with_sibling=precision is Precision.INT8)
            return (bench.try_healthy if self.with_layers else bench.try_case)(case, _model_name(self.name))
        if self.is_control:
            return bench.try_healthy(dict(controls())[self.name], _model_name(self.name))
        fault = next(fault for fault in FAULTS if fault.name == self.name)
        if not self.with_layers:
            return bench.try_case(plant(fault), _model_name(self.name))
        return bench.try_fault(fault, _model_name(self.name))


def healthy_jobs(seeds: Sequence[int]) -> list[Job]:
    """Return a job for each healthy engine, and for what looks like a fault and is none."""
    jobs = [
        Job(f"{network}-{precision}-seed{seed}", healthy=(network, precision, seed))
        for seed in seeds
        for network in NETWORKS
        for precision in HEALTHY_PRECISIONS
    ]
    return [*jobs, *(Job(name, is_control=True) for name, _ in controls())]


def run_jobs(jobs: Sequence[Job], folder: Path, *, processes: int) -> Iterator[Outcome]:
    """Yield what became of each job, in their order; several processes run them."""
    context = multiprocessing.get_context("spawn")  # ONNX Runtime has threads, which a fork would lose
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        yield from pool.map(_run, jobs, [folder] * len(jobs))


def _run(job: Job, folder: Path) -> Outcome:
    return job.run(folder)


def train_missing(seeds: int) -> None:
    """Train the networks of the seeds that are not there yet, in a process of its own: PyTorch is large."""
    missing = [seed for seed in range(seeds) if not all(is_there(network, seed) for network in NETWORKS)]
    if missing:
        words = ["--seeds", ",".join(map(str, missing)), "--out", str(TRAINED)]
        subprocess.run([sys.executable, "-m", "fault_corpus.making", *words], check=True)


def _model_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text)


def main(arguments: list[str]) -> int:
    """Run the campaign and print its table; return 0 if every fault is caught and nothing healthy refused."""
    parser = argparse.ArgumentParser(description="Take planted faults and healthy engines through the gates.")
    parser.add_argument("--seeds", type=int, default=10, help="healthy engines of so many seeds (default: 10)")
    parser.add_argument("--jobs", type=int, default=1, help="cases at the same time (default: 1)")
    parser.add_argument("--only", default="", help="only faults whose name has this word, and nothing healthy")
    parser.add_argument("--write", type=Path, help="write the table as Markdown")
    given = parser.parse_args(arguments)
    faults = [fault for fault in FAULTS if given.only in fault.name]
    if not given.only:
        train_missing(given.seeds)
    with tempfile.TemporaryDirectory(prefix="gate-check-") as folder:
        caught = []
        jobs = [Job(fault.name) for fault in faults]
        for fault, outcome in zip(faults, run_jobs(jobs, Path(folder), processes=given.jobs), strict=True):
            caught.append((fault, outcome))
            _print(
                f"{'MISSED' if outcome.passed else 'caught':7} {fault.name:60} {outcome.seconds:5.1f} s  {outcome.by}"
                + _say_layer(fault, outcome)
            )
        healthy = []
        if not given.only:
            jobs = healthy_jobs(range(given.seeds))
            for job, outcome in zip(jobs, run_jobs(jobs, Path(folder), processes=given.jobs), strict=True):
                healthy.append((job.name, outcome))
                _print(
                    f"{'passed' if outcome.passed else 'ALARM':7} {job.name:60} {outcome.seconds:5.1f} s  "
                    f"{outcome.by} {'' if outcome.passed else outcome.said}"
                    + ("" if outcome.layer is None or outcome.layer.is_right else f"  [NAMED {outcome.layer.name}]")
                )
    _print(summarise(caught, healthy))
    if given.write:
        given.write.write_text(to_markdown(caught, healthy, seeds=given.seeds))
    is_good = all(not outcome.passed for _, outcome in caught) and all(outcome.passed for _, outcome in healthy)
    return 0 if is_good and share_right([outcome for _, outcome in caught]) >= LEAST_RIGHT else 1


def _say_layer(fault: Fault, outcome: Outcome) -> str:
    if outcome.layer is None:
        return ""
    named = outcome.layer.name or "no layer"
    return f"  [{named}]" if outcome.layer.is_right else f"  [WRONG: {named} for {fault.layer}: {outcome.layer.reason}]"


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
