"""How a version's source and an engine are looked into: what is fetched, and what runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.cli.evaluation import fetch_files
from modelreg.registry.errors import NotFoundError

if TYPE_CHECKING:
    from modelreg.cli.context import Registry
    from modelreg.registry.records import EngineRecord, VersionRecord
    from modelreg.runtime.layer_runner import LayerRunner
    from modelreg.validators.layers.interface import CandidateView, IsolatingView, SourceView


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerViews:
    """The source, the candidate, and what runs the candidate's layers alone: `own` says how faithfully."""

    source: SourceView
    candidate: CandidateView
    isolating: IsolatingView | None
    own: str


def fetch_source(version: VersionRecord, registry: Registry, folder: Path) -> Path:
    """Fetch the ONNX of a version with its external data; return it."""
    from modelreg.registry.sources.ingest import materialise_source

    folder.mkdir(parents=True)
    return materialise_source(version.source, registry.storage, folder)


def fetch_variant(engine: EngineRecord, version: VersionRecord, registry: Registry, folder: Path) -> Path | None:
    """
    Fetch the variant that an engine was built from; return it, or None for one that was built from its source.

    Raises:
        NotFoundError: It is gone, or the engine was built elsewhere.
    """
    from modelreg.builders.recipe import variant_recipe_digest
    from modelreg.registry.engines import find_variant

    if "variant" not in engine.recipe:
        raise NotFoundError(
            f"engine {engine.id} was built elsewhere, and what was done to its layers is not known",
            hint=f"Build it here: modelreg build {version.reference} --precision {engine.precision}.",
        )
    if engine.recipe["variant"] is None:
        return None
    with registry.database.read() as connection:
        files = find_variant(
            connection, source_digest=version.source.digest, recipe_digest=variant_recipe_digest(engine.recipe)
        )
    if not files:
        raise NotFoundError(
            f"the variant of engine {engine.id} is gone",
            hint=f"Run `modelreg build {version.reference} --precision {engine.precision} --rebuild`.",
        )
    return fetch_files(files, registry.storage, folder)


@contextmanager
def open_source(version: VersionRecord, registry: Registry, folder: Path) -> Iterator[LayerRunner]:
    """Yield the source alone."""
    from modelreg.runtime.layer_runner import LayerRunner

    with LayerRunner(fetch_source(version, registry, folder / "source")) as runner:
        yield runner


@contextmanager
def open_views(engine: EngineRecord, version: VersionRecord, registry: Registry, folder: Path) -> Iterator[LayerViews]:
    """
    Yield what looks into an engine and its source.

    Raises:
        NotFoundError: What the engine was built from is gone.
        RunError: A graph cannot be loaded.
    """
    from modelreg.registry.words import Backend
    from modelreg.runtime.layer_runner import LayerRunner

    source = fetch_source(version, registry, folder / "source")
    variant = fetch_variant(engine, version, registry, folder / "candidate")
    candidate = variant or fetch_source(version, registry, folder / "candidate")
    is_half = engine.recipe["variant"] is not None and engine.recipe["variant"]["kind"] == "fp16"
    with LayerRunner(source, candidate, rounded=is_half) as runner:
        if engine.toolchain.backend is Backend.ONNXRUNTIME:
            yield LayerViews(source=runner, candidate=runner, isolating=runner, own="exact")
            return
        from modelreg.cli.gpu_layers import open_gpu_layers

        names = [each["name"] for each in runner.tensors]
        with open_gpu_layers(
            engine,
            version,
            registry,
            folder / "gpu",
            model=candidate,
            source=source,
            names=names,
            outputs=runner.outputs,
        ) as layers:
            # Without a variant, TensorRT chose the precisions itself, and nothing else can do the same.
            alone = None if variant is None else runner
            yield LayerViews(source=runner, candidate=layers, isolating=alone, own="simulated")
