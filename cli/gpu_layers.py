"""Looking between the layers of an engine of TensorRT, on its GPU, through plans that are built to show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.cli.evaluation import describe_load, fetch_files

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from modelreg.cli.context import Registry
    from modelreg.registry.records import EngineRecord, VersionRecord
    from modelreg.registry.words import Json
    from modelreg.runtime.runner import WorkerRunner

    Array = NDArray[np.generic]

_WHOLE: Json = {"low": None, "high": None}


class GpuLayers:
    """Tapped plans of one engine; one is loaded at a time."""

    def __init__(self, engine: EngineRecord, version: VersionRecord, plans: Mapping[Path, Sequence[str]]) -> None:
        self._engine, self._version = engine, version
        self._plans = {name: plan for plan, names in plans.items() for name in names}
        self._stack = ExitStack()
        self._loaded: Path | None = None
        self._runner: WorkerRunner | None = None

    @property
    def seen(self) -> Mapping[str, Json]:
        """Return the tensors that a plan shows."""
        return dict.fromkeys(self._plans, _WHOLE)

    def run_candidate(
        self, names: Sequence[str], inputs: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, tuple[int, int]]]:
        """Return values between layers; how many are cut off is not to be seen."""
        found: dict[str, Array] = {}
        for plan in dict.fromkeys(self._plans[name] for name in names):
            here = [name for name in names if self._plans[name] == plan]
            found |= self._load(plan).show(here, inputs)
        return found, dict.fromkeys(names, (0, 0))

    def close(self) -> None:
        """End the child."""
        self._stack.close()

    def _load(self, plan: Path) -> WorkerRunner:
        from modelreg.registry.contents import StoredFile
        from modelreg.registry.digests import file_digest
        from modelreg.runtime.runner import WorkerRunner

        if self._loaded != plan or self._runner is None:
            self._stack.close()
            file = StoredFile(path=plan.name, digest=file_digest(plan), size_bytes=plan.stat().st_size)
            tapped = replace(self._engine, files=(file, *self._engine.files[1:]))
            gpu = describe_load(tapped, self._version)
            spec = self._engine.toolchain
            self._runner = self._stack.enter_context(
                WorkerRunner(plan, backend=spec.backend, python=spec.python, gpu=gpu)
            )
            self._loaded = plan
        return self._runner


@contextmanager
def open_gpu_layers(
    engine: EngineRecord,
    version: VersionRecord,
    registry: Registry,
    folder: Path,
    *,
    model: Path,
    source: Path,
    names: Sequence[str],
    outputs: Sequence[str],
) -> Iterator[GpuLayers]:
    """
    Yield an engine's values between its layers.

    Raises:
        BuildError: The plan that shows them cannot be built.
    """
    from modelreg.builders.tapped import build_tapped, tap_parts

    place = folder / "served"
    place.mkdir(parents=True)
    fetch_files(engine.files, registry.storage, place)
    plugins = tuple(place / file.path for file in engine.files[1:])
    inside = [name for name in names if name not in outputs]
    how, parts = tap_parts(engine, inside)
    plans: dict[Path, Sequence[str]] = {}
    for number, part in enumerate(parts):
        target = folder / f"tapped-{number}"
        target.mkdir()
        built = build_tapped(
            engine,
            version,
            model=model,
            source=source,
            plugins=plugins,
            names=part,
            tapped_as=how,
            folder=target,
            timeout_s=registry.home.settings.build_timeout_s,
            on_progress=lambda _part, _doing: None,
        )
        plans[built.files[0]] = [*built.taps, *(outputs if number == 0 else ())]
    layers = GpuLayers(engine, version, plans)
    try:
        yield layers
    finally:
        layers.close()
