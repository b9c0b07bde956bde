"""Trials of a repair: engines that are built, judged and forgotten; what they came to is kept, to be taken up again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.cli.evaluation import describe_load
from modelreg.cli.render import limit
from modelreg.registry.errors import BuildError, ConfigError, WorkerStartError

if TYPE_CHECKING:
    from modelreg.builders.making import Trial
    from modelreg.builders.planning import CellRequest
    from modelreg.cli.context import Registry
    from modelreg.config.policy import Policy
    from modelreg.registry.records import EngineRecord, GateResult, GoldenSetRecord
    from modelreg.registry.tensor_sets import TensorSet
    from modelreg.registry.words import Json
    from modelreg.validators.interface import EvaluationPass

_SCHEMA = 1
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """
    What one trial came to, and why it failed.

    Attributes:
        was_judged: Whether it was built, and passed or failed a gate: what could not be run says nothing of a policy.
    """

    nodes: tuple[str, ...]
    passed: bool
    reason: str
    was_judged: bool = True

    def say(self) -> str:
        """Return what came of it, in words."""
        if self.passed:
            return "passes"
        return f"fails: {self.reason}" if self.was_judged else f"is not judged: {self.reason}"

    def to_json(self) -> Json:
        """Return the trial as JSON."""
        return {"nodes": list(self.nodes), "passed": self.passed, "reason": self.reason}


@dataclass
class Notebook:
    """The trials so far, in a file that a later run goes on from."""

    path: Path | None
    trials: dict[frozenset[str], Judged] = field(default_factory=dict)
    taken_up: int = 0

    @classmethod
    def open(cls, path: Path | None) -> Notebook:
        """
        Read what an interrupted run has left.

        Raises:
            ConfigError: The file is damaged.
        """
        book = cls(path)
        if path is None or not path.exists():
            return book
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            for each in body["trials"] if body["schema"] == _SCHEMA else ():
                judged = Judged(nodes=tuple(each["nodes"]), passed=bool(each["passed"]), reason=str(each["reason"]))
                book.trials[frozenset(judged.nodes)] = judged
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} cannot be read: {error}", hint="Remove it, and the repair begins anew."
            ) from error
        book.taken_up = len(book.trials)
        return book

    def add(self, judged: Judged) -> None:
        """Remember a trial, on disk at once."""
        from modelreg.registry.regular_files import write_whole

        self.trials[frozenset(judged.nodes)] = judged
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            kept = [each.to_json() for each in self.trials.values() if each.was_judged]  # the others are tried again
            body = {"schema": _SCHEMA, "trials": kept}
            write_whole(self.path, json.dumps(body, indent=1).encode())

    def forget(self) -> None:
        """Remove the file: the repair is done."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What every trial of one repair shares."""

    registry: Registry
    base: CellRequest
    policy: Policy
    golden: TensorSet
    record: GoldenSetRecord

    def request(self, nodes: frozenset[str]) -> CellRequest:
        """Return the cell with these nodes kept in a high precision, beside those that the user names."""
        options = self.base.options
        names = tuple(sorted({*options.nodes_to_exclude, *nodes}))
        return replace(self.base, options=replace(options, nodes_to_exclude=names))

    def judge(
        self, request: CellRequest, nodes: frozenset[str], *, then: Callable[[Trial, EngineRecord], None] | None = None
    ) -> Judged:
        """
        Build a cell without recording it, and return what the policy makes of it; `then` sees it, if it was judged.

        Raises:
            WorkerStartError: What runs it could not be started on this host: it may be built, and is not judged.
        """
        from modelreg.builders.making import make_trial

        registry = self.registry
        names = tuple(sorted(nodes))
        try:
            with make_trial(
                request, database=registry.database, storage=registry.storage, progress=lambda _part, _doing: None
            ) as trial:
                engine = as_engine(trial, actor=registry.actor)
                judged = self._verdict(trial, engine, names)
                if then is not None and judged.was_judged:
                    then(trial, engine)
                return judged
        except WorkerStartError:
            raise
        except BuildError as error:
            return Judged(nodes=names, passed=False, reason=f"not built: {error}", was_judged=False)

    def _verdict(self, trial: Trial, engine: EngineRecord, nodes: tuple[str, ...]) -> Judged:
        from modelreg.validators.validation import validate_engine

        outcome = validate_engine(
            engine=engine,
            version=trial.prepared.request.cell.version,
            golden=self.golden,
            golden_digest=self.record.digest,
            policy=self.policy,
            passes=trial_passes(trial, engine),
        )
        return Judged(
            nodes=nodes,
            passed=outcome.verdict == "pass",
            reason=explain_failures(outcome.gates),
            was_judged=outcome.verdict == "pass" or any(gate.outcome == "fail" for gate in outcome.gates),
        )


def explain_failures(gates: tuple[GateResult, ...]) -> str:
    """Return the gates that failed or could not be run, in short; where there are none, those that were skipped."""
    bad = [gate for gate in gates if gate.outcome in ("fail", "error")]
    bad = bad or [gate for gate in gates if gate.outcome == "skipped"]
    said = []
    for gate in bad[:_SHOWN]:
        has_numbers = gate.measured is not None and gate.limit is not None
        demand = f"limit {gate.comparison} {limit(gate.limit)}"
        found = f" {gate.measured:.4g}, {demand}" if has_numbers else f": {gate.reason}"
        said.append(f"{gate.gate} of {gate.subject}{found}")
    return "; ".join(said) + (f"; {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else "")


def trial_passes(trial: Trial, engine: EngineRecord) -> list[EvaluationPass]:
    """Return every way in which a trial must satisfy the policy, as an engine must."""
    from modelreg.registry.words import Backend, Precision
    from modelreg.runtime.runner import WorkerRunner
    from modelreg.validators.interface import EvaluationPass

    cell, plan = trial.prepared.request.cell, trial.plan.result.files[0]
    backend, python = cell.toolchain.backend, cell.toolchain.python
    gpu = describe_load(engine, cell.version)
    passes = [
        EvaluationPass(name="plan", open_runner=lambda: WorkerRunner(plan, backend=backend, python=python, gpu=gpu))
    ]
    variant = trial.variant
    if backend is Backend.ONNXRUNTIME and cell.precision is Precision.FP16 and variant is not None:
        passes.append(
            EvaluationPass(name="rounded", open_runner=lambda: WorkerRunner(variant, backend=backend, mode="rounded"))
        )
    return passes


def as_engine(trial: Trial, *, actor: str) -> EngineRecord:
    """Return a trial as the record that it never gets."""
    from modelreg.registry.clock import utc_now
    from modelreg.registry.contents import StoredFile
    from modelreg.registry.digests import file_digest
    from modelreg.registry.records import EngineRecord, TargetRecord, ToolchainRecord
    from modelreg.registry.words import EngineStatus

    cell, recipe = trial.prepared.request.cell, trial.prepared.recipe
    spec = cell.toolchain
    files = tuple(
        StoredFile(path=path.name, digest=file_digest(path), size_bytes=path.stat().st_size)
        for path in trial.plan.result.files
    )
    return EngineRecord(
        id=0,
        version_id=cell.version.id,
        model=cell.version.model,
        version=cell.version.number,
        target=TargetRecord(id=0, name=cell.target),
        precision=cell.precision,
        toolchain=ToolchainRecord(
            id=0,
            name=spec.name,
            backend=spec.backend,
            version=spec.version,
            python=spec.python,
            details=spec.details,
        ),
        recipe=recipe.body,
        recipe_digest=recipe.digest,
        variant_digest="",
        status=EngineStatus.BUILT,
        files=files,
        realised=trial.plan.realised,
        build_s=trial.build_s,
        log_digest="",
        error="",
        created_at=utc_now(),
        created_by=actor,
    )


@dataclass
class Budget:
    """How many trials, and how long, a repair may take."""

    trials: int
    limit_s: float | None
    began: float = field(default_factory=time.monotonic)
    used: int = 0

    @property
    def is_spent(self) -> bool:
        """Return whether no further trial may begin."""
        return self.used >= self.trials or (self.limit_s is not None and time.monotonic() - self.began >= self.limit_s)
