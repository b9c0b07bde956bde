"""Which engine fills a cell already, and whether its bytes are still those that were built."""

from __future__ import annotations

from dataclasses import replace

from modelreg.builders.planning import CellRequest, PreparedCell, find_existing, prepare_cell
from modelreg.registry.database import Database
from modelreg.registry.errors import IntegrityError
from modelreg.registry.records import EngineRecord
from modelreg.registry.storage.interface import Storage


def find_reusable(prepared: PreparedCell, *, database: Database, storage: Storage) -> EngineRecord | None:
    """Return the engine that fills a cell already, if its bytes are there and no rebuild is asked for."""
    existing = None if prepared.request.rebuild else find_existing(prepared, database)
    if existing is None or not all(storage.keep_blob(file.digest) for file in existing.files):
        return None
    return existing


def renew_damaged(request: CellRequest, *, database: Database, storage: Storage) -> tuple[CellRequest, str]:
    """
    Return the request, with `rebuild` where a damaged engine would be reused, and what is damaged, empty if nothing.

    Every byte of the engine is read, once: ask before the cell is filled, not while it is.
    """
    if request.rebuild:
        return request, ""
    engine = find_reusable(prepare_cell(request), database=database, storage=storage)
    for file in engine.files if engine is not None else ():
        try:
            storage.verify_blob(file.digest)
        except IntegrityError as error:
            assert engine is not None
            return replace(request, rebuild=True), f"engine {engine.id} is damaged and is built again: {error}"
    return request, ""
