"""A registry in a folder, in which models are registered and cells are really built."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from modelreg.builders.backends import embedded_toolchain
from modelreg.builders.cells import CellOutcome, CellRequest, build_cell
from modelreg.builders.interface import BuildOptions, CalibrationOptions, Cell, ToolchainSpec
from modelreg.registry import engines, golden_sets, versions
from modelreg.registry.database import Database
from modelreg.registry.records import EngineRecord, VersionRecord
from modelreg.registry.sources.ingest import ingest_source
from modelreg.registry.sources.inspect import inspect_source
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.tensor_sets import write_tensor_set
from modelreg.registry.words import Precision
from modelreg_testing.onnx_models import make_model, save, value, weight
from modelreg_testing.registry import make_database

Array = NDArray[np.generic]


@dataclass
class Workshop:
    """A store, a database, and the progress that builds reported."""

    folder: Path
    storage: LocalStorage
    database: Database
    progress: list[tuple[float | None, str]] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path) -> Workshop:
        """Make an empty registry."""
        return cls(folder, LocalStorage.create(folder / "store"), make_database(folder))

    def register(self, model: onnx.ModelProto | Path, *, name: str = "net") -> VersionRecord:
        """Register a model; a path is taken as it is, external data too."""
        path = model if isinstance(model, Path) else save(model, self.folder / "in" / f"{name}.onnx")
        source = ingest_source(inspect_source(path), self.storage)
        with self.database.write() as connection:
            return versions.register_version(
                connection, model=name, source=source, message="", tags={}, actor="tester"
            )[0]

    def add_golden(self, version: VersionRecord, arrays: dict[str, Array]) -> None:
        """Give a version a golden set."""
        path = self.folder / "golden.safetensors"
        path.unlink(missing_ok=True)
        write_tensor_set(path, arrays, {})
        blob = self.storage.put_file(path)
        with self.database.write() as connection:
            golden_sets.add_golden_set(
                connection,
                version=version,
                digest=blob.digest,
                size_bytes=blob.size_bytes,
                samples=len(next(iter(arrays.values()))),
                origin={},
                actor="tester",
            )

    def calibration(self, arrays: dict[str, Array], **options: object) -> CalibrationOptions:
        """Write a calibration set and return options that name it."""
        path = self.folder / "calibration.safetensors"
        path.unlink(missing_ok=True)
        write_tensor_set(path, arrays, {})
        return CalibrationOptions(path=path, **options)  # type: ignore[arg-type]

    def request(
        self,
        version: VersionRecord,
        precision: Precision,
        *,
        target: str = "cpu",
        toolchain: ToolchainSpec | None = None,
        **options: object,
    ) -> CellRequest:
        """Return a request for a cell on the CPU."""
        cell = Cell(version=version, target=target, precision=precision, toolchain=toolchain or embedded_toolchain())
        return CellRequest(cell=cell, options=BuildOptions(**options))  # type: ignore[arg-type]

    def build(self, version: VersionRecord, precision: Precision, **options: object) -> CellOutcome:
        """Build a cell."""
        return self.fill(self.request(version, precision, **options))  # type: ignore[arg-type]

    def fill(self, request: CellRequest) -> CellOutcome:
        """Build what a request asks for."""
        return build_cell(
            request,
            database=self.database,
            storage=self.storage,
            progress=lambda fraction, message: self.progress.append((fraction, message)),
            actor="tester",
        )

    def engines(self, version: VersionRecord) -> list[EngineRecord]:
        """Return every attempt."""
        with self.database.read() as connection:
            return engines.list_engines(connection, version_id=version.id)

    def fetch(self, files: tuple, folder: str) -> Path:  # type: ignore[type-arg]
        """Lay files out in a new folder; return the first."""
        place = self.folder / folder
        place.mkdir()
        for file in files:
            self.storage.fetch_blob(file.digest, place / file.path)
        return place / str(files[0].path)

    def log_of(self, engine: EngineRecord) -> str:
        """Return the build log."""
        return self.storage.read_blob(engine.log_digest).decode()


def overflowing_net(*, factor: float = 30_000.0) -> onnx.ModelProto:
    """A dense layer, times `factor`, divided by it again: right in FP32, Inf or NaN in FP16 when |value| > 65504."""
    rng = np.random.default_rng(3)
    return make_model(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["hidden"], name="fc1", transB=1),
            helper.make_node("Mul", ["hidden", "up"], ["big"], name="grow"),
            helper.make_node("Mul", ["big", "down"], ["small"], name="shrink"),
            helper.make_node("Gemm", ["small", "w2", "b2"], ["y"], name="fc2", transB=1),
        ],
        inputs=[value("x", ["batch", 8])],
        outputs=[value("y", ["batch", 4])],
        initializers=[
            weight("w", rng.normal(size=(16, 8)).astype(np.float32)),
            weight("b", rng.normal(size=16).astype(np.float32)),
            weight("up", np.array(factor, np.float32)),
            weight("down", np.array(1 / factor, np.float32)),
            weight("w2", rng.normal(size=(4, 16)).astype(np.float32)),
            weight("b2", rng.normal(size=4).astype(np.float32)),
        ],
    )
