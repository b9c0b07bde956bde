"""The closed sets of words that records, documents and the command line use.

Enums are stored by name, never by number: TensorRT renumbered its flags between releases.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

Json = dict[str, Any]


class Word(str, Enum):
    """A closed set of words; prints as the word (`StrEnum` needs Python 3.11)."""

    def __str__(self) -> str:
        return str(self.value)


class Precision(Word):
    """What a user asks of an engine's arithmetic."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"
    BEST = "best"


class Backend(Word):
    """What loads a plan."""

    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"
    TENSORRT_RTX = "tensorrt-rtx"


class EngineStatus(Word):
    """How a build ended."""

    BUILT = "built"
    FAILED = "failed"


class GateOutcome(Word):
    """What one gate found; only `pass` is a pass."""

    PASS = "pass"  # noqa: S105 - a verdict, no secret
    FAIL = "fail"
    ERROR = "error"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"


class Verdict(Word):
    """What a policy makes of all gates of one validation."""

    PASS = "pass"  # noqa: S105 - a verdict, no secret
    FAIL = "fail"
    ERROR = "error"


class ActivationKind(Word):
    """Why a channel moved."""

    PROMOTE = "promote"
    ROLLBACK = "rollback"


class OperationState(Word):
    """Where an intent stands; `prepared` and `unknown` are open."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class BlobKind(Word):
    """What a blob holds."""

    SOURCE = "source"
    EXTERNAL_DATA = "external-data"
    VARIANT = "variant"
    PLAN = "plan"
    LOG = "log"
    REPORT = "report"
    GOLDEN = "golden"
    CALIBRATION = "calibration"
    MANIFEST = "manifest"
    TIMING_CACHE = "timing-cache"
    SAMPLES = "samples"
