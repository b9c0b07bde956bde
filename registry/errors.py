"""The error tree: the message is the fact, `hint()` the next step, the class carries the exit code.

A caller's mistake in code is `ValueError` or `RuntimeError` and never in this tree: it deserves a traceback.
"""

from __future__ import annotations

from collections.abc import Sequence


class ModelregError(Exception):
    """Something a user can understand and act on."""

    exit_code = 1
    default_hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self._hint = hint

    def hint(self) -> str:
        """Return what to do next, or an empty string."""
        return self.default_hint if self._hint is None else self._hint

    def advise(self, sentence: str) -> None:
        """Add a sentence to the hint, where more is known than where the error was raised."""
        self._hint = " ".join(part for part in (self.hint(), sentence) if part)

    def details(self) -> dict[str, object]:
        """Return machine-readable particulars for `--json`."""
        return {}


class UsageError(ModelregError):
    """The command line or a file given on it is not usable."""

    exit_code = 2


class InvalidReferenceError(UsageError):
    """A model reference cannot be parsed."""


class ConfigError(UsageError):
    """A settings or policy file is wrong."""


class NotFoundError(ModelregError):
    """A model, version, channel, engine or blob does not exist."""


class HomeNotFoundError(NotFoundError):
    """There is no registry here or above."""

    default_hint = "Run `modelreg init`, or name one with --home or MODELREG_HOME."


class SourceError(ModelregError):
    """A file offered to `register` is not a source we can keep."""


class GoldenSetError(ModelregError):
    """A golden or calibration set does not fit the model."""


class ReferenceModelError(ModelregError):
    """The PyTorch reference could not be loaded or run."""


class MissingDependencyError(ModelregError):
    """An optional library is not installed. `instead` says how to do without it, where one can."""

    def __init__(self, library: str, *, extra: str, instead: str = "") -> None:
        install = f"Install it with: pip install '.[{extra}]' in a checkout, else pip install 'modelreg[{extra}]'"
        super().__init__(f"{library} is not installed", hint=f"{install}; or {instead}" if instead else install)


class BuildError(ModelregError):
    """A cell could not be built."""


class PrecisionError(BuildError):
    """The engine did not become the precision that was asked for."""


class CellRefusedError(BuildError):
    """A cell that no toolchain here can build; the other cells are not concerned."""


class WorkerError(BuildError):
    """A worker process crashed, hung, or spoke garbage."""


class WorkerStartError(WorkerError):
    """What was to run an engine could not be started on this host; nothing of the engine was tried."""


class ToolchainError(WorkerError):
    """A toolchain's interpreter is gone, has no backend, or one that cannot be used."""


class GateFailedError(ModelregError):
    """A gate failed, or a release lacks engines that pass."""

    exit_code = 3

    def __init__(self, message: str, *, missing: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.missing = tuple(missing)

    def details(self) -> dict[str, object]:
        """Return what is missing, one entry a line."""
        return {"missing": list(self.missing)}


class ConflictError(ModelregError):
    """Somebody else was first; nothing was changed."""

    exit_code = 4


class ActivationConflictError(ConflictError):
    """Another process moved the channel first."""

    def __init__(self, place: str, *, expected: int, found: int, holder: str = "") -> None:
        by = f", moved by {holder}" if holder else ""
        super().__init__(
            f"{place} is at generation {found}, expected {expected}{by}",
            hint=f"Run `modelreg history {place}` to see what changed, and try again if it is still wanted.",
        )
        self.expected = expected
        self.found = found

    def details(self) -> dict[str, object]:
        """Return both generations."""
        return {"expected_generation": self.expected, "found_generation": self.found}


class BusyError(ConflictError):
    """A lock or the database stayed busy for the whole timeout."""

    default_hint = "Another modelreg command is at work; try again when it is done."


class ActivationUnknownError(ModelregError):
    """A swap may or may not have happened: an error came after the commit point, or its answer was lost."""

    exit_code = 5
    default_hint = "Run `modelreg doctor`: it reads the pointer and settles the outcome."


class IntegrityError(ModelregError):
    """A digest, a chain or a reference does not match."""

    exit_code = 6
    default_hint = "Run `modelreg verify` to list what is damaged."


class ForeignReleaseError(IntegrityError):
    """The store serves a release of a version that this database does not have."""


class StorageError(ModelregError):
    """The store could not be read or written (disk full, read-only, no permission)."""


class StoreAbsentError(StorageError):
    """There is no store at that place."""


class StoreFormatError(StorageError):
    """There is a store, and the file that says so cannot be read."""

    default_hint = "Run `modelreg doctor`: `--fix` writes it again if all else there is that of a store."


class DatabaseError(ModelregError):
    """The database could not be read or written, or has another schema."""


class CommitUnknownError(DatabaseError):
    """A change was lost sight of while it was being made permanent: it may be there, or not."""

    exit_code = 5
    default_hint = "Look with `modelreg show` or `modelreg list`, then run the command again: it finds what is there."


class SchemaVersionError(DatabaseError):
    """The database's schema revision is not the one this program knows."""
