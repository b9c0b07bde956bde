"""How an engine is run for its validation: the plan as saved, and for FP16 of ONNX Runtime with real rounding too."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.registry.errors import IntegrityError, NotFoundError

if TYPE_CHECKING:
    from modelreg.cli.context import Registry
    from modelreg.registry.contents import StoredFile
    from modelreg.registry.records import EngineRecord, VersionRecord
    from modelreg.registry.storage.interface import Storage
    from modelreg.runtime.runner import GpuLoad
    from modelreg.validators.interface import EvaluationPass, Runner

RANGE_SAMPLES = 256
"""How many samples show how INT8 uses its ranges: the shares of values that a gate asks for need no more."""


def fetch_files(files: Sequence[StoredFile], storage: Storage, folder: Path) -> Path:
    """
    Fetch the files of an engine or a variant side by side, verified; return the first.

    Raises:
        IntegrityError: A blob is damaged, or a path leaves the folder.
    """
    for file in files:
        path = folder / file.path
        if not path.resolve().is_relative_to(folder.resolve()):
            raise IntegrityError(f"file {file.path!r} would lie outside its folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.fetch_blob(file.digest, path)
    return folder / files[0].path


def make_passes(
    engine: EngineRecord, plan: Path, version: VersionRecord, registry: Registry, folder: Path
) -> list[EvaluationPass]:
    """Return every way in which the engine must satisfy its policy."""
    from modelreg.registry.words import Backend, Precision
    from modelreg.runtime.runner import WorkerRunner
    from modelreg.validators.interface import EvaluationPass

    toolchain = engine.toolchain
    gpu = describe_load(engine, version)
    passes = [
        EvaluationPass(
            name="plan",
            open_runner=lambda: WorkerRunner(plan, backend=toolchain.backend, python=toolchain.python, gpu=gpu),
        )
    ]
    if toolchain.backend is Backend.ONNXRUNTIME and engine.precision is Precision.FP16:
        # The plan computes in FP32 between casts, or without them: an overflow of real FP16 would not show.
        variant = _fetch_variant(engine, version, registry, folder / "variant")
        passes.append(
            EvaluationPass(
                name="rounded", open_runner=lambda: WorkerRunner(variant, backend=toolchain.backend, mode="rounded")
            )
        )
    if engine.precision is Precision.INT8 and (files := _find_variant(engine, version, registry)):
        place = folder / "variant"  # fetched when it is run: that it is lost concerns these gates alone
        clips = any(op.rpartition(".")[2] == "Clip" for op in version.source.node_counts)
        passes.append(
            EvaluationPass(
                name="ranges",
                open_runner=lambda: WorkerRunner(
                    fetch_files(files, registry.storage, place),
                    backend=Backend.ONNXRUNTIME,
                    mode="ranged",
                    absorbs_clips=clips,
                ),
                looks_inside=True,
                samples=RANGE_SAMPLES,
            )
        )
    return passes


def open_source(version: VersionRecord, registry: Registry, folder: Path) -> AbstractContextManager[Runner]:
    """Return the source of a version, loaded in ONNX Runtime on the CPU, whatever the engine was built with."""
    from modelreg.registry.words import Backend
    from modelreg.runtime.runner import WorkerRunner

    place = folder / "source"
    files = version.source.files
    path = place / files[0].path if place.exists() else fetch_files(files, registry.storage, place)
    return WorkerRunner(path, backend=Backend.ONNXRUNTIME)


def describe_load(engine: EngineRecord, version: VersionRecord) -> GpuLoad | None:
    """Return what is needed to load an engine on a GPU, or None for one of ONNX Runtime."""
    from modelreg.registry.words import Backend
    from modelreg.runtime.host import describe_host
    from modelreg.runtime.runner import GpuLoad
    from modelreg.runtime.suitability import find_target

    if engine.toolchain.backend is Backend.ONNXRUNTIME:
        return None
    return GpuLoad(
        digest=engine.plan_digest,
        version=engine.toolchain.version,
        built_for=tuple(engine.recipe.get("build", {}).get("plan_targets", ())) or (engine.target.name,),
        target=find_target(engine.target.name, level=engine.hardware_compatibility, host=describe_host()),
        host_code="VERSION_COMPATIBLE" in engine.recipe.get("flags", ()),
        output_types={spec.name: spec.dtype for spec in version.source.signature.outputs},
    )


def _fetch_variant(engine: EngineRecord, version: VersionRecord, registry: Registry, folder: Path) -> Path:
    files = _find_variant(engine, version, registry)
    if not files:
        raise NotFoundError(
            f"the FP16 variant of engine {engine.id} is gone",
            hint=f"Run `modelreg build {version.reference} --precision fp16 --rebuild`.",
        )
    return fetch_files(files, registry.storage, folder)


def _find_variant(engine: EngineRecord, version: VersionRecord, registry: Registry) -> tuple[StoredFile, ...] | None:
    from modelreg.builders.recipe import variant_recipe_digest
    from modelreg.registry.engines import find_variant

    if not engine.recipe.get("variant"):
        return None
    with registry.database.read() as connection:
        return find_variant(
            connection, source_digest=version.source.digest, recipe_digest=variant_recipe_digest(engine.recipe)
        )
