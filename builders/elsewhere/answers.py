"""What comes back of a cell that was built elsewhere: small JSON; plan, log and caches are in the store."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from modelreg.builders.filling import MadeCell
from modelreg.registry import errors
from modelreg.registry.contents import StoredFile
from modelreg.registry.errors import BuildError, ModelregError
from modelreg.registry.words import Json

PROTOCOL = 1
"""Raised when what is sent to workers, or what comes back, changes its meaning."""

_KINDS: tuple[type[ModelregError], ...] = (
    errors.PrecisionError,
    errors.CellRefusedError,
    errors.ToolchainError,
    errors.WorkerError,
    errors.BuildError,
    errors.GoldenSetError,
    errors.UsageError,
    errors.IntegrityError,
    errors.NotFoundError,
    errors.StorageError,
)
"""What an error is on the other side, the most particular first."""


def own_version() -> Json:
    """Return which modelreg this is; both sides must be the same."""
    return {"modelreg": importlib.metadata.version("modelreg"), "protocol": PROTOCOL}


def describe_skew(theirs: Json, *, where: str, here: str = "here") -> str:
    """Return how another modelreg differs from this one, naming both, or an empty string."""
    ours = own_version()
    if {name: theirs.get(name) for name in ours} == ours:
        return ""
    said = [f"modelreg {each.get('modelreg')} (protocol {each.get('protocol')})" for each in (theirs, ours)]
    return f"{where} has {said[0]}, {said[1]} is {here}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    How the build of one cell ended.

    Attributes:
        made: What was made, or None.
        error: Why nothing was, or None.
        log: The log in the store, or None where none was written.
        calibration_cache: The ranges of an implicit calibration, to be kept by the user; at most one file.
    """

    made: MadeCell | None = None
    error: ModelregError | None = None
    log: StoredFile | None = None
    calibration_cache: tuple[StoredFile, ...] = ()

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {
            "made": None if self.made is None else self.made.to_json(),
            "error": None if self.error is None else _error_json(self.error),
            "log": None if self.log is None else self.log.to_json(),
            "calibration_cache": [file.to_json() for file in self.calibration_cache],
        }

    @classmethod
    def from_json(cls, body: Json) -> Answer:
        """Read back what `to_json` wrote."""
        return cls(
            made=None if body["made"] is None else MadeCell.from_json(body["made"]),
            error=None if body["error"] is None else _error(body["error"]),
            log=None if body["log"] is None else StoredFile.from_json(body["log"]),
            calibration_cache=tuple(StoredFile.from_json(file) for file in body["calibration_cache"]),
        )


def _error_json(error: ModelregError) -> Json:
    kind = next((kind for kind in _KINDS if isinstance(error, kind)), BuildError)
    return {"kind": kind.__name__, "message": str(error), "hint": error.hint()}


def _error(body: Json) -> ModelregError:
    kind = next((kind for kind in _KINDS if kind.__name__ == body["kind"]), BuildError)
    return kind(body["message"], hint=body["hint"])
