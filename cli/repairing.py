"""The repair of one cell: look where its error is born, try sets of nodes, build the smallest that passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.cli.evaluation import describe_load, fetch_files
from modelreg.cli.layer_views import fetch_source
from modelreg.cli.repair_cost import Cost, time_in_turns
from modelreg.cli.repair_trials import Bench, Budget, Judged, Notebook
from modelreg.registry.errors import GateFailedError, WorkerStartError
from modelreg.registry.scratch import scratch_folder

if TYPE_CHECKING:
    from modelreg.builders.making import Trial
    from modelreg.builders.planning import CellRequest
    from modelreg.cli.context import Registry
    from modelreg.cli.progress import Reporter
    from modelreg.config.policy import Policy
    from modelreg.registry.records import EngineRecord, GoldenSetRecord, VersionRecord
    from modelreg.registry.tensor_sets import TensorSet
    from modelreg.registry.words import Json
    from modelreg.runtime.runner import WorkerRunner
    from modelreg.validators.layers.comparison import LayerReport
    from modelreg.validators.layers.search import SearchResult

_LOOKED_AT = 32


@dataclass
class Repair:
    """
    What is known of a repair so far.

    Attributes:
        unrepaired: What the policy makes of the cell as it is.
        layers: Where its error is born; None where it passes.
        suspects: The nodes that may be kept in a high precision, the likeliest first.
        result: What the search came to.
        fp32_size_bytes: What the cell takes in FP32, which a repair is to stay below.
    """

    unrepaired: Judged
    layers: LayerReport | None = None
    suspects: tuple[str, ...] = ()
    result: SearchResult | None = None
    trials: list[Judged] = field(default_factory=list)
    fp32_size_bytes: int = 0


class Workplace:
    """Where a repair is done: the golden set, the policy, and how often something may be tried."""

    def __init__(
        self,
        registry: Registry,
        reporter: Reporter,
        base: CellRequest,
        *,
        policy: Policy,
        record: GoldenSetRecord,
        golden: TensorSet,
        budget: Budget,
        notebook: Notebook,
    ) -> None:
        self._registry, self._reporter, self._base = registry, reporter, base
        self._bench = Bench(registry=registry, base=base, policy=policy, golden=golden, record=record)
        self._budget, self._notebook = budget, notebook

    def look(self) -> Repair:
        """
        Judge the cell as it is, and rank its nodes by where the error is born.

        Raises:
            GateFailedError: FP32 itself fails the policy: no precision of any node helps. Or the cell cannot be built
                or run here as it is, or FP32 cannot: nothing is known of any node then.
        """
        found: list[LayerReport] = []

        def look_inside(trial: Trial, _engine: EngineRecord) -> None:
            found.append(self._compare(trial))

        with self._reporter.step(f"judging {self._base.cell.name} as it is"):
            unrepaired = self._judge(self._base, then=look_inside)
        if unrepaired.passed:
            return Repair(unrepaired=unrepaired)
        size_bytes = self._require_fp32()
        suspects = self._rank(found[0])
        return Repair(unrepaired=unrepaired, layers=found[0], suspects=suspects, fp32_size_bytes=size_bytes)

    def search(self, repair: Repair) -> None:
        """Try sets of nodes until a smallest one passes, or the budget is spent."""
        from modelreg.validators.layers.search import OutOfBudgetError, find_smallest

        def passes(nodes: frozenset[str]) -> bool:
            known = self._notebook.trials.get(nodes)
            if known is None:
                if self._budget.is_spent:
                    raise OutOfBudgetError
                self._budget.used += 1
                with self._reporter.step(f"trial {self._budget.used}: keeping {_say_nodes(sorted(nodes))}") as tell:
                    known = self._bench.judge(self._bench.request(nodes), nodes)
                    tell(1.0, known.say())
                self._notebook.add(known)
            return known.passed

        repair.result = find_smallest(repair.suspects, passes)
        repair.trials = list(self._notebook.trials.values())

    def request(self, nodes: frozenset[str]) -> CellRequest:
        """Return the repaired cell."""
        return self._bench.request(nodes)

    def measure_cost(self, engine: EngineRecord, inputs: dict[str, object], *, fp32_size_bytes: int) -> Cost:
        """Return what the repaired engine costs beside the unrepaired one, which is built once more for that."""
        from modelreg.builders.making import make_trial
        from modelreg.cli.repair_trials import as_engine

        registry, cell = self._registry, self._base.cell
        with (
            self._reporter.step("timing it in turns with the engine before the repair"),
            scratch_folder("repair") as folder,
            make_trial(
                self._base, database=registry.database, storage=registry.storage, progress=lambda _part, _doing: None
            ) as trial,
        ):
            before = as_engine(trial, actor=registry.actor)
            plan = fetch_files(engine.files, registry.storage, Path(folder))
            openers = (
                lambda: _open(trial.plan.result.files[0], before, cell.version),
                lambda: _open(plan, engine, cell.version),
            )
            samples = max((len(array) for array in inputs.values() if getattr(array, "ndim", 0)), default=1)  # type: ignore[arg-type]
            return Cost(
                size_bytes=(before.size_bytes, engine.size_bytes),
                latency_ms=time_in_turns(openers, inputs) if inputs else None,  # type: ignore[arg-type]
                samples=samples,
                fp32_size_bytes=fp32_size_bytes,
            )

    def _require_fp32(self) -> int:
        """Return the size of the cell in FP32, which has to pass."""
        from modelreg.registry.words import Precision

        sizes: list[int] = []

        def note_size(_trial: Trial, engine: EngineRecord) -> None:
            sizes.append(engine.size_bytes)

        cell = replace(self._base.cell, precision=Precision.FP32)
        options = replace(self._base.options, nodes_to_exclude=(), op_types_to_exclude=(), calibration=None)
        with self._reporter.step(f"judging {cell.name} by the policy of {self._base.cell.precision}"):
            judged = self._judge(replace(self._base, cell=cell, options=options), then=note_size)
        if not judged.passed:
            raise GateFailedError(
                f"no set of nodes can repair {self._base.cell.name}: FP32 itself fails the policy ({judged.reason})",
                hint="The export, the golden set or the policy is wrong; `modelreg validate --layers` names the layer.",
            )
        return sizes[0]

    def _judge(self, request: CellRequest, *, then: Callable[[Trial, EngineRecord], None]) -> Judged:
        """Return what the policy makes of a cell without repair, which must be built and run for that."""
        name = self._base.cell.name
        which = "it" if request.cell.precision is self._base.cell.precision else request.cell.precision.upper()
        try:
            judged = self._bench.judge(request, frozenset(), then=then)
        except WorkerStartError as error:
            raise GateFailedError(
                f"{name} cannot be repaired: {which} cannot be run on this host: {error}", hint=error.hint()
            ) from error
        if not judged.was_judged:
            raise GateFailedError(
                f"{name} cannot be repaired: {which} is not judged: {judged.reason}",
                hint="A repair needs engines that are built and run; no gate failed, and the model is not to blame.",
            )
        return judged

    def _compare(self, trial: Trial) -> LayerReport:
        """Look inside a trial; where TensorRT chooses precisions by itself, inside the same precision for the CPU."""
        from modelreg.builders.backends import embedded_toolchain
        from modelreg.builders.making import make_trial
        from modelreg.builders.trt_options import TensorRTOptions

        if trial.variant is not None:
            return self._compare_variant(trial)
        cell = replace(self._base.cell, target="cpu", toolchain=embedded_toolchain())
        options = replace(self._base.options, profiles=(), tensorrt=TensorRTOptions())
        with make_trial(
            replace(self._base, cell=cell, options=options),
            database=self._registry.database,
            storage=self._registry.storage,
            progress=lambda _part, _doing: None,
        ) as similar:
            return self._compare_variant(similar)

    def _compare_variant(self, trial: Trial) -> LayerReport:
        from modelreg.runtime.layer_runner import LayerRunner
        from modelreg.validators.layers.comparison import compare_layers, layer_limit_db

        cell, policy = self._base.cell, self._bench.policy
        kind = (trial.prepared.recipe.variant or {}).get("kind")
        with scratch_folder("repair") as name:
            source = fetch_source(cell.version, self._registry, Path(name) / "source")
            candidate = trial.variant or fetch_source(cell.version, self._registry, Path(name) / "candidate")
            with LayerRunner(source, candidate, rounded=kind == "fp16") as runner:
                self._tensors = list(runner.tensors)
                return compare_layers(
                    version=cell.version,
                    golden=self._bench.golden,
                    source=runner,
                    candidate=runner,
                    isolating=runner,
                    limit_db=layer_limit_db(policy, cell.precision),
                    overrides={},
                    every_node=True,
                    most=_LOOKED_AT,
                )

    def _rank(self, report: LayerReport) -> tuple[str, ...]:
        from modelreg.builders.exclusions import excludable_nodes
        from modelreg.validators.layers.suspects import rank_nodes

        request = self._bench.request(frozenset())
        names = excludable_nodes(request, self._registry.storage)
        tensors = [{**each, "node": names.get(each["name"], each["node"])} for each in self._tensors]
        renamed = {old["node"]: new["node"] for old, new in zip(self._tensors, tensors, strict=True)}
        allowed = set(names.values())
        return rank_nodes(
            [renamed[name] for name in report.diagnosis.ranking],
            tensors,
            precision=self._base.cell.precision,
            can_exclude=lambda node: node["node"] in allowed,
        )


def _open(plan: Path, engine: EngineRecord, version: VersionRecord) -> WorkerRunner:
    from modelreg.runtime.runner import WorkerRunner

    spec = engine.toolchain
    return WorkerRunner(plan, backend=spec.backend, python=spec.python, gpu=describe_load(engine, version))


def _say_nodes(nodes: Sequence[str]) -> str:
    return (
        nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes ({', '.join(nodes[:3])}{', …' if len(nodes) > 3 else ''})"
    )


@contextmanager
def open_golden(registry: Registry, record: GoldenSetRecord) -> Iterator[TensorSet]:
    """Yield a golden set of the registry."""
    from modelreg.registry.tensor_sets import open_tensor_set

    with scratch_folder("golden") as folder:
        path = Path(folder) / "golden.safetensors"
        registry.storage.fetch_blob(record.digest, path)
        with open_tensor_set(path) as golden:
            yield golden


def notebook_path(registry: Registry, base: CellRequest, *, record: GoldenSetRecord, policy: Policy) -> Path:
    """Return where the trials of a repair are kept: another recipe, golden set or policy has another file."""
    from modelreg.builders.planning import prepare_cell
    from modelreg.registry.digests import json_digest

    spec = base.cell.toolchain
    key: Json = {
        "source": base.cell.version.source.digest,
        "recipe": prepare_cell(base).recipe.digest,
        "golden": record.digest,
        "policy": policy.digest,
        "toolchain": [spec.name, spec.version, spec.python],
        "target": base.cell.target,
    }
    return registry.home.path / "repairs" / f"{json_digest(key)[:32]}.json"
