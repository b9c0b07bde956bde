"""Where cells are built: on this host, or elsewhere. One contract suite holds every executor to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from modelreg.builders.filling import MadeCell, make_cell
from modelreg.builders.interface import OnProgress
from modelreg.builders.materials import CellFiles, KnownMaterials
from modelreg.builders.planning import PreparedCell
from modelreg.registry.storage.interface import Storage


class CellExecutor(Protocol):
    """Builds cells; what it makes is in the store. Several threads may ask for a cell each at the same time."""

    def require_ready(self, cells: Sequence[PreparedCell], storage: Storage) -> None:
        """
        Find out, before anything is built, what would keep all of these cells from being built.

        Raises:
            BuildError: Says what.
        """
        ...

    def make(
        self, prepared: PreparedCell, files: CellFiles, known: KnownMaterials, storage: Storage, progress: OnProgress
    ) -> MadeCell:
        """
        Build one cell; whatever comes of it, its log is in `files.log` then.

        Raises:
            BuildError: A step was refused or failed, or the plan did not become the precision.
            WorkerError: A process that worked on it crashed, hung, or spoke garbage.
            KeyboardInterrupt: After every process that worked on it was ended, or told to.
        """
        ...


class LocalExecutor:
    """Builds in child processes of this one, on the thread that asks."""

    def require_ready(self, cells: Sequence[PreparedCell], storage: Storage) -> None:
        """Accept everything: whatever is missing here was seen when the cells were prepared."""

    def make(
        self, prepared: PreparedCell, files: CellFiles, known: KnownMaterials, storage: Storage, progress: OnProgress
    ) -> MadeCell:
        """Build one cell."""
        return make_cell(prepared, files, known, storage, progress)
