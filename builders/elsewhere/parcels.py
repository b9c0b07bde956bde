"""What a cell is as JSON: packed on the registry's host, unpacked where it is built. Files travel through the store."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from modelreg.builders.interface import BuildOptions, CalibrationOptions, Cell, ToolchainSpec
from modelreg.builders.materials import KnownMaterials
from modelreg.builders.planning import CellRequest, PreparedCell
from modelreg.builders.profiles import ProfileShapes, Shapes
from modelreg.builders.trt_options import TacticSources, TensorRTOptions
from modelreg.registry.contents import Signature, StoredFile
from modelreg.registry.records import SourceInfo, VersionRecord
from modelreg.registry.storage.interface import Storage
from modelreg.registry.words import Backend, Json, Precision

CALIBRATION_CACHE, TIMING_CACHE = "calibration_cache", "timing_cache"
_CACHES = (CALIBRATION_CACHE, TIMING_CACHE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """
    A cell to build elsewhere.

    Attributes:
        store_url: Where its files are, and where those that are made go.
        request: The cell as the registry's host knows it; its paths mean nothing elsewhere.
        recipe_digest: What it must come to where it is built.
        known: What the database knows of its materials.
        files: The files that its options name, by what they are for.
    """

    store_url: str
    request: CellRequest
    recipe_digest: str
    known: KnownMaterials
    files: dict[str, list[StoredFile]]

    @classmethod
    def pack(cls, prepared: PreparedCell, known: KnownMaterials, storage: Storage) -> Parcel:
        """Put the files that a cell's options name into the store, and return what builds it."""
        options = prepared.request.options
        tensorrt = options.tensorrt
        paths: dict[str, Sequence[Path]] = {"plugins": tensorrt.plugins}
        if prepared.calibration is not None:
            paths["calibration"] = [prepared.calibration.path]
        for name in _CACHES:
            path = getattr(tensorrt, name)
            paths[name] = [path] if path is not None and path.exists() else []
        return cls(
            store_url=storage.url,
            request=prepared.request,
            recipe_digest=prepared.recipe.digest,
            known=known,
            files={name: [_store(path, storage) for path in listed] for name, listed in paths.items()},
        )

    def to_json(self) -> Json:
        """Return it as JSON."""
        cell, options = self.request.cell, self.request.options
        spec = cell.toolchain
        return {
            "store": self.store_url,
            "version": _version_json(cell.version),
            "target": cell.target,
            "precision": str(cell.precision),
            "toolchain": {
                "name": spec.name,
                "backend": str(spec.backend),
                "version": spec.version,
                "python": spec.python,
            },
            "options": _options_json(options),
            "recipe_digest": self.recipe_digest,
            "known": self.known.to_json(),
            "files": {name: [file.to_json() for file in files] for name, files in self.files.items()},
        }

    @classmethod
    def from_json(cls, body: Json) -> Parcel:
        """Read back what `to_json` wrote."""
        given = body["toolchain"]
        spec = ToolchainSpec(
            name=given["name"], backend=Backend(given["backend"]), version=given["version"], python=given["python"]
        )
        cell = Cell(
            version=_version(body["version"]),
            target=body["target"],
            precision=Precision(body["precision"]),
            toolchain=spec,
        )
        return cls(
            store_url=body["store"],
            request=CellRequest(cell=cell, options=_options(body["options"])),
            recipe_digest=body["recipe_digest"],
            known=KnownMaterials.from_json(body["known"]),
            files={name: [StoredFile.from_json(file) for file in files] for name, files in body["files"].items()},
        )

    def unpack(self, storage: Storage, folder: Path, toolchain: ToolchainSpec) -> CellRequest:
        """
        Fetch its files into `folder`, and return the request as it is here, with the toolchain that is here.

        Raises:
            NotFoundError: A file is gone from the store.
            IntegrityError: A file does not match its digest.
        """
        for name, files in self.files.items():
            for file in files:
                (folder / name).mkdir(exist_ok=True)
                storage.fetch_blob(file.digest, folder / name / file.path)
        options = self.request.options
        cell = dataclasses.replace(self.request.cell, toolchain=toolchain)
        return CellRequest(cell=cell, options=self._options_in(folder, options))

    def _options_in(self, folder: Path, options: BuildOptions) -> BuildOptions:
        plugins = tuple(folder / "plugins" / file.path for file in self.files["plugins"])
        calibration = options.calibration
        if calibration is not None:
            named = [folder / "calibration" / file.path for file in self.files.get("calibration", ())]
            calibration = dataclasses.replace(calibration, path=named[0] if named else calibration.path)
        tensorrt = dataclasses.replace(
            options.tensorrt,
            plugins=plugins,
            timing_cache=self._cache_in(folder, TIMING_CACHE, options.tensorrt.timing_cache),
            calibration_cache=self._cache_in(folder, CALIBRATION_CACHE, options.tensorrt.calibration_cache),
        )
        return dataclasses.replace(options, calibration=calibration, tensorrt=tensorrt)

    @staticmethod
    def _cache_in(folder: Path, name: str, given: Path | None) -> Path | None:
        if given is None:
            return None
        (folder / name).mkdir(exist_ok=True)
        return folder / name / given.name


def _store(path: Path, storage: Storage) -> StoredFile:
    blob = storage.put_file(path)
    return StoredFile(path=path.name, digest=blob.digest, size_bytes=blob.size_bytes)


def _version_json(version: VersionRecord) -> Json:
    source = version.source
    return {
        **{name: getattr(version, name) for name in ("id", "model", "number", "message", "created_by", "tags")},
        "created_at": version.created_at.isoformat(),
        "source": {
            **source._asdict(),
            "files": [file.to_json() for file in source.files],
            "signature": source.signature.to_json(),
        },
    }


def _version(body: Json) -> VersionRecord:
    given = body["source"]
    source = SourceInfo(
        **{
            **given,
            "files": tuple(StoredFile.from_json(file) for file in given["files"]),
            "signature": Signature.from_json(given["signature"]),
            "unbuildable": tuple(given["unbuildable"]),
            "warnings": tuple(given["warnings"]),
        }
    )
    return VersionRecord(**{**body, "created_at": datetime.fromisoformat(body["created_at"]), "source": source})


def _options_json(options: BuildOptions) -> Json:
    body = dataclasses.asdict(options)
    body["profiles"] = [_profile_json(profile) for profile in options.profiles]
    body["tensorrt"]["memory_pools"] = dict(options.tensorrt.memory_pools)
    body["tensorrt"]["plugins"] = []
    for part, name in (*((body["tensorrt"], name) for name in _CACHES), (body["calibration"] or {}, "path")):
        if part.get(name) is not None:
            part[name] = part[name].name  # where it lies is nobody's business elsewhere
    return body


def _profile_json(profile: ProfileShapes) -> Json:
    points = {"min": profile.min, "opt": profile.opt, "max": profile.max}
    return {point: {name: list(shape) for name, shape in shapes.items()} for point, shapes in points.items()}


def _options(body: Json) -> BuildOptions:
    tensorrt = dict(body["tensorrt"])
    sources = tensorrt["tactic_sources"]
    tensorrt["tactic_sources"] = None if sources is None else TacticSources(**_tuples(sources, "on", "off"))
    for name in _CACHES:
        tensorrt[name] = None if tensorrt[name] is None else Path(tensorrt[name])
    calibration = body["calibration"]
    if calibration is not None:
        calibration = CalibrationOptions(**{**calibration, "path": Path(calibration["path"])})
    return BuildOptions(
        **{
            **_tuples(body, "nodes_to_exclude", "op_types_to_exclude"),
            "profiles": tuple(
                ProfileShapes(**{point: _shapes(shapes) for point, shapes in profile.items()})
                for profile in body["profiles"]
            ),
            "calibration": calibration,
            "tensorrt": TensorRTOptions(**_tuples(tensorrt, "plugins")),
        }
    )


def _tuples(body: Json, *names: str) -> dict[str, Any]:
    return {**body, **{name: tuple(body[name]) for name in names}}


def _shapes(body: Json) -> Shapes:
    return {name: tuple(shape) for name, shape in body.items()}
