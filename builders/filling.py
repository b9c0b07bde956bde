"""What comes of a cell that was built: files that are in the store, and what is recorded of them. No database here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from modelreg.builders.interface import OnProgress
from modelreg.builders.making import make_plan
from modelreg.builders.materials import CellFiles, KnownMaterials
from modelreg.builders.planning import PreparedCell
from modelreg.registry.contents import StoredFile
from modelreg.registry.digests import json_digest
from modelreg.registry.regular_files import write_whole
from modelreg.registry.storage.interface import Storage
from modelreg.registry.words import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCell:
    """
    A cell whose files are in the store, not yet recorded.

    Attributes:
        files: The plan first.
        variant_files: What was built in place of the source, the ONNX first; empty where the source itself was.
        variant_digest: The digest of the variant, or of the source.
        realised: What became of the precision, and how the plan was tried.
        gpu: The GPU that it was built on, empty for what needs none.
        timing_cache: The timings of the build, at most one file.
        build_s: Seconds from the first file that was fetched to the last one stored.
    """

    files: tuple[StoredFile, ...]
    variant_files: tuple[StoredFile, ...]
    variant_digest: str
    realised: Json
    gpu: Json = field(default_factory=dict)
    timing_cache: tuple[StoredFile, ...] = ()
    build_s: float

    def to_json(self) -> Json:
        """Return it as JSON."""
        return {
            "files": [file.to_json() for file in self.files],
            "variant_files": [file.to_json() for file in self.variant_files],
            "variant_digest": self.variant_digest,
            "realised": self.realised,
            "gpu": self.gpu,
            "timing_cache": [file.to_json() for file in self.timing_cache],
            "build_s": self.build_s,
        }

    @classmethod
    def from_json(cls, body: Json) -> MadeCell:
        """Read back what `to_json` wrote."""
        return cls(
            files=_files(body["files"]),
            variant_files=_files(body["variant_files"]),
            variant_digest=body["variant_digest"],
            realised=body["realised"],
            gpu=body["gpu"],
            timing_cache=_files(body["timing_cache"]),
            build_s=body["build_s"],
        )


def write_head(log: Path, prepared: PreparedCell) -> None:
    """Begin the log of a build: which cell, how its precision was translated, and what was warned of."""
    lines = [f"cell: {prepared.request.cell}", *prepared.translation.steps, *prepared.warnings]
    log.write_text("".join(f"{line}\n" for line in lines))


def end_log(log: Path, reason: str) -> None:
    """End the log of a build that failed with why: what a child said last is seldom the reason."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"\nfailed: {reason}\n")


def make_cell(
    prepared: PreparedCell, files: CellFiles, known: KnownMaterials, storage: Storage, progress: OnProgress
) -> MadeCell:
    """
    Build the plan of a cell in child processes, and put it into the store with all that belongs to it.

    Raises:
        BuildError: A step was refused or failed, or the plan did not become the precision.
        WorkerError: A child crashed, hung, or spoke garbage.
    """
    began = time.monotonic()
    cell, options = prepared.request.cell, prepared.request.options
    plan = make_plan(prepared, files, known, storage, progress)
    result, stored = plan.result, plan.stored
    progress(0.98, "storing")
    if prepared.recipe.variant is not None and not stored:
        stored = files.store(plan.made, storage)
    timing_cache = files.store([result.timing_cache], storage) if result.timing_cache else ()
    if result.timing_cache and options.tensorrt.timing_cache:
        write_whole(options.tensorrt.timing_cache, result.timing_cache.read_bytes())
    return MadeCell(
        files=files.store(result.files, storage),
        variant_files=stored,
        variant_digest=_variant_digest(stored) or cell.version.source.digest,
        realised=plan.realised,
        gpu=result.gpu,
        timing_cache=timing_cache,
        build_s=time.monotonic() - began,
    )


def _files(listed: Sequence[Json]) -> tuple[StoredFile, ...]:
    return tuple(StoredFile.from_json(file) for file in listed)


def _variant_digest(files: Sequence[StoredFile]) -> str:
    """Return the digest of a variant: of its one file, else of the listing of all."""
    if len(files) < 2:
        return files[0].digest if files else ""
    return json_digest([file.to_json() for file in files])
