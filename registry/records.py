"""The records of the registry: frozen values, one for each kind of row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import NamedTuple

from modelreg.registry.contents import Signature, StoredFile
from modelreg.registry.words import (
    ActivationKind,
    Backend,
    EngineStatus,
    GateOutcome,
    Json,
    OperationState,
    Precision,
    Verdict,
)

_BRIEF_CHARACTERS = 120


class SourceInfo(NamedTuple):  # and no dataclass: a listing makes 100,000, in a third of the time
    """What `register` learned from an ONNX file without its weights.

    `digest` is the SHA-256 of the ONNX file when it stands alone (what `sha256sum` prints), else the SHA-256 of
    the canonical JSON listing of the model and its external data. `files[0]` is the ONNX itself.
    `unbuildable` lists why no backend can build it (sequence inputs, strings), empty when one can.
    """

    digest: str
    files: tuple[StoredFile, ...]
    signature: Signature
    opsets: dict[str, int]
    ir_version: int
    producer: str
    node_counts: dict[str, int]
    parameter_bytes: int
    unbuildable: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class VersionRecord(NamedTuple):  # as `SourceInfo`
    """One registered version of a model."""

    id: int
    model: str
    number: int
    source: SourceInfo
    message: str
    created_at: datetime
    created_by: str
    tags: dict[str, str]

    @property
    def reference(self) -> str:
        """Return `NAME:VERSION`."""
        return f"{self.model}:{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenContents:
    """What a golden set holds beside inputs and outputs: arrays of labels, slices, and layers with activations."""

    labels: int = 0
    slices: int = 0
    layers: int = 0

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {"labels": self.labels, "slices": self.slices, "layers": self.layers}


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenSetRecord:
    """One golden set of a version; `origin` has its `GoldenContents` as `contents`."""

    id: int
    version_id: int
    digest: str
    samples: int
    origin: Json
    created_at: datetime

    @property
    def contents(self) -> GoldenContents | None:
        """Return what it holds beside inputs and outputs, or None where that was not recorded."""
        found = self.origin.get("contents")
        return None if found is None else GoldenContents(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolchainRecord:
    """An installed backend and the interpreter that has it."""

    id: int
    name: str
    backend: Backend
    version: str
    python: str
    details: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecord:
    """What an engine runs on: `cpu` or `sm_90`, with the device it was built for."""

    id: int
    name: str
    gpu: str = ""
    sm_count: int = 0
    driver: str = ""
    cuda: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """One attempt at a cell; `files` is empty when it failed, and `files[0]` is the plan when it was built.

    `is_swept` says that `modelreg gc` removed the plan since: the record stays, and `build` makes it again.
    """

    id: int
    version_id: int
    model: str
    version: int
    target: TargetRecord
    precision: Precision
    toolchain: ToolchainRecord
    recipe: Json
    recipe_digest: str
    variant_digest: str
    status: EngineStatus
    files: tuple[StoredFile, ...]
    realised: Json
    build_s: float
    log_digest: str
    error: str
    created_at: datetime
    created_by: str
    is_swept: bool = False

    @property
    def plan_digest(self) -> str:
        """Return the digest of the plan, or an empty string for a failed build."""
        return self.files[0].digest if self.files else ""

    @property
    def brief_error(self) -> str:
        """Return why it failed, as short as fits into a table; the log has the whole."""
        text = " ".join(self.error.split())
        return text if len(text) <= _BRIEF_CHARACTERS else f"{text[: _BRIEF_CHARACTERS - 1]}…"

    @property
    def hardware_compatibility(self) -> str:
        """Return the level that it was built at: `NONE` for all but some of TensorRT."""
        return str((self.recipe.get("build") or {}).get("hardware_compatibility") or "NONE")

    @property
    def profiles(self) -> tuple[Json, ...]:
        """Return the shapes that it takes: for each profile, `min`, `opt` and `max` by input; none without profiles."""
        return tuple((self.recipe.get("build") or {}).get("profiles") or ())

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the plan and the files beside it."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One measured rule: `measured` against `limit`, and what came of it.

    `subject` names what was measured (an output, `task`, a layer); `comparison` is `<=` or `>=`.
    `worst_samples` are indices into the golden set, the worst first.
    """

    gate: str
    subject: str
    outcome: GateOutcome
    measured: float | None = None
    comparison: str = "<="
    limit: float | None = None
    reason: str = ""
    worst_samples: tuple[int, ...] = ()

    def to_json(self) -> Json:
        """Return the result as JSON; non-finite numbers become strings, since JSON has none."""
        return {
            "gate": self.gate,
            "subject": self.subject,
            "outcome": str(self.outcome),
            "measured": _finite(self.measured),
            "comparison": self.comparison,
            "limit": _finite(self.limit),
            "reason": self.reason,
            "worst_samples": list(self.worst_samples),
        }

    @classmethod
    def from_json(cls, body: Json) -> GateResult:
        """Read back what `to_json` wrote."""
        return cls(
            gate=body["gate"],
            subject=body["subject"],
            outcome=GateOutcome(body["outcome"]),
            measured=None if body["measured"] is None else float(body["measured"]),
            comparison=body["comparison"],
            limit=None if body["limit"] is None else float(body["limit"]),
            reason=body["reason"],
            worst_samples=tuple(body["worst_samples"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRecord:
    """One run of a policy on an engine against a golden set."""

    id: int
    engine_id: int
    golden_digest: str
    policy_digest: str
    policy: Json
    verdict: Verdict
    gates: tuple[GateResult, ...]
    report_digest: str
    host: Json
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRecord:
    """
    What an engine took at one batch size, on one host, at one time.

    Attributes:
        boundary: What a run is: the one of `figures` that tables show.
        figures: `boundaries` (milliseconds of each, by name), `queries`, `wall_s`, `queries_per_s`, `throughput`.
        comparisons: With what it was timed in turns, and what came of it.
        samples_digest: The blob with the milliseconds of the runs.
        settings: Warm-up, duration, streams, graph, transfers, threads.
        clocks: Of GPU and CPU, before and after.
    """

    id: int
    engine_id: int
    batch: int
    boundary: str
    figures: Json
    comparisons: tuple[Json, ...]
    samples_digest: str
    settings: Json
    clocks: Json
    host: Json
    created_at: datetime
    created_by: str

    @property
    def shown(self) -> Json:
        """Return the milliseconds of the boundary that tables show."""
        found: Json = self.figures["boundaries"][self.boundary]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationRecord:
    """One generation of a channel."""

    channel_id: int
    generation: int
    release_digest: str
    version: int
    kind: ActivationKind
    rolls_back_to: int | None
    actor: str
    message: str
    overridden: tuple[str, ...]
    txn: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRecord:
    """One intent to move a channel."""

    id: int
    txn: str
    kind: ActivationKind
    channel_id: int
    model: str
    channel: str
    expected_generation: int
    release_digest: str
    state: OperationState
    owner: Json
    error: str
    created_at: datetime


def _finite(value: float | None) -> float | str | None:
    return value if value is None or isfinite(value) else str(value)
