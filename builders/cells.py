"""Filling a cell: from the stored source to a recorded engine.

No network, hashing or build happens inside a database transaction: what is slow goes before, the record is last.
A cell that failed leaves one engine row `failed` with its log, and nothing else.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelreg.builders.executors import CellExecutor, LocalExecutor
from modelreg.builders.filling import MadeCell, end_log, write_head
from modelreg.builders.interface import OnProgress
from modelreg.builders.materials import CellFiles, KnownMaterials
from modelreg.builders.planning import CellPlan, CellRequest, PreparedCell, find_existing, plan_cells, prepare_cell
from modelreg.builders.reusing import find_reusable
from modelreg.registry import engines
from modelreg.registry.blobs import record_blob
from modelreg.registry.database import Database
from modelreg.registry.errors import BuildError, ModelregError
from modelreg.registry.records import EngineRecord
from modelreg.registry.scratch import scratch_folder
from modelreg.registry.storage.interface import Storage
from modelreg.registry.words import BlobKind, EngineStatus, Json

__all__ = ["CellOutcome", "CellPlan", "CellRequest", "build_cell", "plan_cells", "prepare_cell"]

_HERE = LocalExecutor()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOutcome:
    """A filled cell: its engine, whether it was there already, and which one of the same recipe it replaces."""

    engine: EngineRecord
    reused: bool
    replaces: int | None = None
    warnings: tuple[str, ...] = ()


def build_cell(
    request: CellRequest,
    *,
    database: Database,
    storage: Storage,
    progress: OnProgress,
    actor: str,
    executor: CellExecutor = _HERE,
) -> CellOutcome:
    """
    Fill one cell: reuse the engine of the same recipe, or have it built by the executor and record it.

    Raises:
        BuildError: Refused (nothing is recorded) or failed (a failed engine with its log is recorded).
        KeyboardInterrupt: Passed on, after the cell is recorded as failed.
    """
    prepared = prepare_cell(request)
    existing = find_reusable(prepared, database=database, storage=storage)
    if existing is not None:
        return CellOutcome(engine=existing, reused=True, warnings=prepared.warnings)
    replaced = find_existing(prepared, database) if request.rebuild else None
    known = KnownMaterials.look_up(request.cell.version, database, recipe=prepared.recipe)
    began = time.monotonic()
    with scratch_folder("build") as folder:
        files = CellFiles.create(folder)
        write_head(files.log, prepared)
        try:
            made = executor.make(prepared, files, known, storage, progress)
            engine = _record(prepared, database, storage, files.log, began, made=made, error="", actor=actor)
        except BaseException as error:
            # A full disk may be what failed: the first error counts, not that it could not be recorded.
            with contextlib.suppress(ModelregError, OSError):
                reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or repr(error)
                with contextlib.suppress(OSError):
                    end_log(files.log, reason)
                _record(prepared, database, storage, files.log, began, made=None, error=reason, actor=actor)
            raise
    replaces = None if replaced is None else replaced.id
    return CellOutcome(engine=engine, reused=False, replaces=replaces, warnings=prepared.warnings)


def _record(
    prepared: PreparedCell,
    database: Database,
    storage: Storage,
    log: Path,
    began: float,
    *,
    made: MadeCell | None,
    error: str,
    actor: str,
) -> EngineRecord:
    cell, recipe = prepared.request.cell, prepared.recipe
    spec = cell.toolchain
    stored_log = storage.put_file(log)
    build_s = time.monotonic() - began if made is None else made.build_s
    with database.write() as connection:
        target = engines.ensure_target(connection, name=cell.target, **_describe_gpu(made))
        toolchain = engines.ensure_toolchain(
            connection,
            name=spec.name,
            backend=spec.backend,
            version=spec.version,
            python=spec.python,
            details=spec.details,
            actor=actor,
        )
        record_blob(connection, digest=stored_log.digest, size_bytes=stored_log.size_bytes, kind=BlobKind.LOG)
        for file in made.timing_cache if made is not None else ():
            kind = BlobKind.TIMING_CACHE
            record_blob(connection, digest=file.digest, size_bytes=file.size_bytes, kind=kind)
        if made is not None and made.variant_files:
            first = engines.record_variant(
                connection,
                source_digest=cell.version.source.digest,
                recipe_digest=recipe.variant_digest,
                files=made.variant_files,
                details=recipe.variant or {},
                actor=actor,
            )
            if first != made.variant_files:
                raise BuildError(
                    "another build made the same variant with other bytes at the same time",
                    hint="Build again: its variant is then reused.",
                )
        return engines.record_engine(
            connection,
            version=cell.version,
            target=target,
            toolchain=toolchain,
            precision=cell.precision,
            recipe=recipe.body,
            recipe_digest=recipe.digest,
            variant_digest="" if made is None else made.variant_digest,
            status=EngineStatus.FAILED if made is None else EngineStatus.BUILT,
            files=() if made is None else made.files,
            realised={} if made is None else _say_timing_cache(made),
            build_s=build_s,
            log_digest=stored_log.digest,
            error=error,
            actor=actor,
        )


def _describe_gpu(made: MadeCell | None) -> dict[str, Any]:
    """Return the particulars of the GPU that a plan was built on, where it was built on one."""
    if made is None or not made.gpu:
        return {}
    gpu = made.gpu
    return {"gpu": gpu["name"], "sm_count": gpu["sm_count"], "driver": gpu["driver"], "cuda": gpu["cuda"]}


def _say_timing_cache(made: MadeCell) -> Json:
    caches = [file.digest for file in made.timing_cache]
    return {**made.realised, "timing_cache": caches[0]} if caches else made.realised
