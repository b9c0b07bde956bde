"""Doing a benchmark: which engines, each in a process of its own, batch after batch, beside rivals, and keeping it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelreg.cli.context import Registry
from modelreg.cli.render import print_warning
from modelreg.registry.errors import ModelregError, NotFoundError, UsageError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.registry.records import EngineRecord, VersionRecord
    from modelreg.registry.words import Json, Precision
    from modelreg.runtime.latency import Measurement
    from modelreg.runtime.runner import Timing, WorkerRunner
    from modelreg.validators.pairing import PairedLatency, Timed
    from modelreg.validators.pytorch_timing import PyTorchModel, Variant

DEFAULT_BATCHES = (1, 8, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """An engine and the version that it is of."""

    version: VersionRecord
    engine: EngineRecord

    @property
    def name(self) -> str:
        """Return what it is called."""
        return f"{self.version.reference} engine {self.engine.id} ({self.engine.target.name} {self.engine.precision})"

    @property
    def device(self) -> str:
        """Return where PyTorch must run to be compared with it."""
        return "cpu" if self.engine.target.name == "cpu" else "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which engines of a version or channel are meant."""

    precisions: Sequence[Precision]
    targets: Sequence[str]


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


def choose_sides(registry: Registry, reference: ModelReference, choice: Choice) -> list[Side]:
    """
    Return the built engines of a version that this host runs; of a channel, those that it serves.

    Raises:
        NotFoundError: There is none of that kind.
    """
    from modelreg.cli.comparing import read_active
    from modelreg.cli.versions import read_version
    from modelreg.registry import engines
    from modelreg.runtime.host import describe_host
    from modelreg.runtime.suitability import why_not_here

    if reference.channel is not None:
        active = read_active(registry, reference.model, reference.channel)
        plans = {each.plan.digest for each in active.manifest.engines}
        version = active.version
        found = [each for each in active.engines if each.files and each.plan_digest in plans]
    else:
        with registry.database.read() as connection:
            version = read_version(connection, reference)
            found = [each for each in engines.current_engines(connection, version_id=version.id) if each.files]
    host = describe_host()
    chosen = [
        Side(version=version, engine=each)
        for each in found
        if not each.is_swept
        and (not choice.precisions or each.precision in choice.precisions)
        and (not choice.targets or each.target.name in choice.targets)
        and not why_not_here(each.target.name, level=each.hardware_compatibility, host=host)
    ]
    if not chosen:
        raise NotFoundError(f"{reference} has no engine of that kind that this host runs", hint="Run `modelreg show`.")
    return chosen


def match_others(sides: Sequence[Side], others: Sequence[Side], *, reference: ModelReference) -> dict[int, Side]:
    """
    Return by engine the one of another version or channel with the same target and precision. Pure.

    Raises:
        NotFoundError: An engine has none.
    """
    found = {}
    for side in sides:
        wanted = (side.engine.target.name, side.engine.precision)
        same = [each for each in others if (each.engine.target.name, each.engine.precision) == wanted]
        if not same:
            raise NotFoundError(f"{reference} has no {wanted[0]} {wanted[1]} engine to compare with")
        found[side.engine.id] = same[0]
    return found


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

        result, before = EngineResult(side=side), read_clocks()
        other = self._request.others.get(side.engine.id)
        with ExitStack() as stack:
            runner = stack.enter_context(self._open(side))
            against = None if other is None else stack.enter_context(self._open(other))
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
        result.clocks = {"before": before, "after": read_clocks()}
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
        log = self._folder / f"pytorch-{device}.log"
        return PyTorchModel(
            request.pytorch, weights=request.weights, device=device, threads=request.threads, log_path=log
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


def make_random_inputs(version: VersionRecord, batch: int) -> Mapping[str, Any]:
    """
    Return random inputs of so many samples, in the signature's order.

    Raises:
        UsageError: Other axes than the first are free, or an input has no numbers.
    """
    from modelreg.runtime.warming import make_inputs

    signature = version.source.signature
    shapes: dict[str, list[int]] = {}
    for spec in signature.inputs:
        axes = spec.shape
        if axes is None or any(not isinstance(axis, int) for axis in axes[1:]):
            raise UsageError(f"input {spec.name!r} of {version.reference} has free axes beside the batch")
        shapes[spec.name] = [
            batch if index == 0 and not isinstance(axis, int) else int(axis or 0) for index, axis in enumerate(axes)
        ]
    inputs = make_inputs(signature, shapes)
    if inputs is None:
        raise UsageError(f"{version.reference} takes inputs that are no numbers")
    return inputs


def keep_result(registry: Registry, result: EngineResult, request: Request, *, host: Json) -> None:
    """Keep what an engine took: its runs as blobs, then figures and comparisons as rows with an event."""
    from modelreg.cli.bench_documents import pair_document
    from modelreg.registry.benchmarks import Measured, record_benchmarks
    from modelreg.registry.tensor_sets import write_tensor_set
    from modelreg.runtime.latency import thin_out

    rows = []
    with tempfile.TemporaryDirectory(prefix="modelreg-bench-") as folder:
        for measured in result.measured:
            path = Path(folder) / f"batch-{measured.batch}.safetensors"
            arrays = {str(boundary): thin_out(times) for boundary, times in measured.samples.items()}
            about = {"plan": result.side.engine.plan_digest, "batch": str(measured.batch), "unit": "ms"}
            write_tensor_set(path, arrays, about | {"queries": str(measured.shown.runs)})
            stored = registry.storage.put_file(path)
            pairs = [each for each in result.pairs if each.latency.samples == measured.batch]
            rows.append(
                Measured(
                    batch=measured.batch,
                    boundary=str(measured.shown.boundary),
                    figures=measured.figures(),
                    comparisons=[pair_document(pair) for pair in pairs],
                    samples_digest=stored.digest,
                    samples_bytes=stored.size_bytes,
                )
            )
        with registry.database.write() as connection:
            record_benchmarks(
                connection,
                engine=result.side.engine,
                measured=rows,
                settings=request.settings,
                clocks=result.clocks,
                host=host,
                actor=registry.actor,
            )
