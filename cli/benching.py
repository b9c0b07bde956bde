"""Doing a benchmark: each engine in a process of its own, batch after batch, alone and in turns with its rivals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelreg.cli.bench_choosing import Side, make_random_inputs
from modelreg.cli.context import Registry
from modelreg.cli.render import print_warning
from modelreg.registry.errors import ModelregError

if TYPE_CHECKING:
    from modelreg.registry.words import Json
    from modelreg.runtime.latency import Measurement
    from modelreg.runtime.runner import Timing, WorkerRunner
    from modelreg.validators.pairing import PairedLatency, Timed
    from modelreg.validators.pytorch_timing import PyTorchModel, Variant

PYTORCH_LOG = "pytorch.log"
"""In the folder of a run: what a PyTorch reference prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be timed, how, and beside what."""

    sides: Sequence[Side]
    others: Mapping[int, Side]
    """By engine: the one of `--vs`."""
    batches: Sequence[int]
    timing: Timing
    threads: int | None
    pytorch: str | None
    weights: Path | None

    @property
    def settings(self) -> Json:
        """Return how it was timed, as it is kept."""
        return {**asdict(self.timing), "threads": self.threads}


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerRow:
    """What PyTorch took."""

    variant: Variant
    info: Json
    measured: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An engine beside another one, or beside a variant of PyTorch, in turns."""

    first: Side
    second: Side | tuple[Variant, Json]
    latency: PairedLatency


@dataclass(slots=True, kw_only=True)
class EngineResult:
    """What became of one engine, with the clocks before and after."""

    side: Side
    measured: list[Measurement] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    clocks: Json = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Results:
    """Everything that was measured."""

    engines: list[EngineResult] = field(default_factory=list)
    eager: list[EagerRow] = field(default_factory=list)

    @property
    def pairs(self) -> list[Pair]:
        """Return every comparison."""
        return [pair for each in self.engines for pair in each.pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One engine at one batch size, loaded and with its inputs."""

    side: Side
    runner: WorkerRunner
    inputs: Mapping[str, Any]
    batch: int


class Benchmark:
    """One run of `bench`: processes are opened as they are needed, and all are ended at the end."""

    def __init__(self, registry: Registry, request: Request, folder: Path) -> None:
        self._registry, self._request, self._folder = registry, request, folder
        self._eager_timed: set[tuple[str, Variant, int]] = set()

    def run(self, *, keep: Callable[[EngineResult], None], tell: Callable[[str], None]) -> Results:
        """
        Time every engine at every batch size; what cannot be timed is warned of.

        Args:
            keep: Called with each engine's result as soon as it is whole.
            tell: Called with what is timed next.
        """
        results = Results()
        with ExitStack() as stack:
            models: dict[str, PyTorchModel] = {}
            for side in self._request.sides:
                if self._request.pytorch is not None and side.device not in models:
                    models[side.device] = stack.enter_context(self._open_pytorch(side.device))
                result = self._run_engine(side, results, models.get(side.device), tell)
                if result.measured:
                    results.engines.append(result)
                    keep(result)
        return results

    def _run_engine(
        self, side: Side, results: Results, model: PyTorchModel | None, tell: Callable[[str], None]
    ) -> EngineResult:
        from modelreg.runtime.clocks import read_clocks

        result = EngineResult(side=side)
        other = self._request.others.get(side.engine.id)
        with ExitStack() as stack:
            runner = stack.enter_context(self._open(side))
            against = None if other is None else stack.enter_context(self._open(other))
            result.clocks["before"] = read_clocks()
            for batch in self._request.batches:
                tell(f"{side.name}, batch {batch}")
                turn = _Turn(side=side, runner=runner, inputs=make_random_inputs(side.version, batch), batch=batch)
                try:
                    result.measured.append(runner.measure(turn.inputs, self._request.timing, batch=batch))
                    if other is not None and against is not None:
                        result.pairs.append(self._beside(turn, other, self._turns(against)))
                    if model is not None:
                        result.pairs += self._beside_pytorch(turn, model, results)
                except ModelregError as error:
                    print_warning(f"{side.name} at batch {batch}: {error}")
            result.clocks["after"] = read_clocks()  # while the process lives: an idle GPU slows down at once
        return result

    def _beside(self, turn: _Turn, second: Side | tuple[Variant, Json], rival: Timed) -> Pair:
        from modelreg.validators.pairing import time_in_turns

        latency = time_in_turns(self._turns(turn.runner), rival, turn.inputs, samples=turn.batch)
        return Pair(first=turn.side, second=second, latency=latency)

    def _beside_pytorch(self, turn: _Turn, model: PyTorchModel, results: Results) -> Iterator[Pair]:
        """Yield an engine beside each variant that is a rival of its precision; time each of these once alone, too."""
        from modelreg.validators.pytorch_timing import choose_variants

        for variant in choose_variants(turn.side.engine.precision, device=model.device):
            if (model.device, variant, turn.batch) not in self._eager_timed:
                results.eager.append(self._time_eager(model, variant, turn.inputs, turn.batch))
                self._eager_timed.add((model.device, variant, turn.batch))
            yield self._beside(turn, (variant, model.info), model.rival(variant))

    def _time_eager(self, model: PyTorchModel, variant: Variant, inputs: Mapping[str, Any], batch: int) -> EagerRow:
        from modelreg.runtime.latency import Boundary, measure

        timing = self._request.timing
        wanted = {name: getattr(timing, name) for name in ("warmup_ms", "duration_s", "iterations")}
        told, times = model.bench(variant, inputs, wanted)
        samples = {Boundary(name): each for name, each in times.items()}
        measured = measure(samples, batch=batch, wall_s=float(told.pop("wall_s")), told=told)
        return EagerRow(variant=variant, info=model.info, measured=measured)

    def _turns(self, runner: WorkerRunner) -> Timed:
        return Turns(runner=runner, cuda_graph=self._request.timing.cuda_graph)

    def _open_pytorch(self, device: str) -> PyTorchModel:
        from modelreg.validators.pytorch_timing import PyTorchModel

        request = self._request
        assert request.pytorch is not None
        return PyTorchModel(
            request.pytorch,
            weights=request.weights,
            device=device,
            threads=request.threads,
            log_path=self._folder / PYTORCH_LOG,
        )

    def _open(self, side: Side) -> WorkerRunner:
        from modelreg.cli.evaluation import describe_load, fetch_files
        from modelreg.runtime.runner import WorkerRunner

        place = self._folder / f"engine-{side.engine.id}"
        engine = side.engine
        if not place.exists():
            fetch_files(engine.files, self._registry.storage, place)
        return WorkerRunner(
            place / engine.files[0].path,
            backend=engine.toolchain.backend,
            python=engine.toolchain.python,
            threads=self._request.threads,
            gpu=describe_load(engine, side.version),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """A runner as one side of a comparison, with a CUDA graph where the measurement has one."""

    runner: WorkerRunner
    cuda_graph: bool

    def time_block(self, inputs: Mapping[str, Any]) -> float:
        """Return the median milliseconds of a few runs."""
        return self.runner.time_block(inputs, cuda_graph=self.cuda_graph)
