"""The release manifest: the immutable list of what a channel serves, one engine per target. Pure.

It holds no times and no database ids, so that the same choice of engines always gives the same digest.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from modelreg.registry.contents import Signature, StoredFile
from modelreg.registry.digests import canonical_json
from modelreg.registry.errors import IntegrityError
from modelreg.registry.target_order import target_key
from modelreg.registry.words import Backend, Json, Precision

if TYPE_CHECKING:
    from modelreg.registry.records import EngineRecord, VersionRecord

MANIFEST_FORMAT = 1

_DETAILS = ("layers",)
"""What the database keeps of the realised precision, and no server needs: hundreds of layers."""

NO_HARDWARE_COMPATIBILITY = "NONE"
"""TensorRT's name for an engine that runs on the architecture it was built on, and nowhere else."""


class RequiredPlugin(NamedTuple):
    """A library of plugins that a plan cannot be loaded without: its file name and SHA-256."""

    name: str
    digest: str


class ReleasedEngine(NamedTuple):
    """
    One engine of a release; `files[0]` is the plan, its path relative to the release's folder.

    Attributes:
        gpu: The GPU it was built on; empty where it was built without one.
        cuda: The version of CUDA that its backend was made for; empty for the CPU, and where it is not known.
        hardware_compatibility: TensorRT's level: `NONE`, `AMPERE_PLUS` or `SAME_COMPUTE_CAPABILITY`.
        version_compatible: Whether newer versions of TensorRT load it too.
        plugins: The libraries of plugins that must be loaded before it; they lie beside the plan.
        plan_targets: All that its plan was compiled for, where that is more than its target.
    """

    target: str
    backend: Backend
    backend_version: str
    precision: Precision
    recipe_digest: str
    realised: Json
    gpu: str
    driver: str
    cuda: str
    files: tuple[StoredFile, ...]
    hardware_compatibility: str = NO_HARDWARE_COMPATIBILITY
    version_compatible: bool = False
    plugins: tuple[RequiredPlugin, ...] = ()
    plan_targets: tuple[str, ...] = ()

    @property
    def plan(self) -> StoredFile:
        """Return the file that the backend loads."""
        return self.files[0]

    def to_json(self) -> Json:
        """Return the engine as JSON; what is as usual is left out, so that earlier releases keep their digests."""
        body: Json = {
            "target": self.target,
            "backend": str(self.backend),
            "backend_version": self.backend_version,
            "precision": str(self.precision),
            "recipe": self.recipe_digest,
            "realised": self.realised,
            "gpu": self.gpu,
            "driver": self.driver,
            "cuda": self.cuda,
            "plan": self.plan.path,
            "files": [file.to_json() for file in self.files],
        }
        if self.hardware_compatibility != NO_HARDWARE_COMPATIBILITY:
            body["hardware_compatibility"] = self.hardware_compatibility
        if self.version_compatible:
            body["version_compatible"] = True
        if self.plugins:
            body["plugins"] = [plugin._asdict() for plugin in self.plugins]
        if self.plan_targets:
            body["plan_targets"] = list(self.plan_targets)
        return body


class Manifest(NamedTuple):
    """What one release consists of."""

    model: str
    version: int
    source_digest: str
    signature: Signature
    engines: tuple[ReleasedEngine, ...]

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """Return every file of every engine."""
        return tuple(file for engine in self.engines for file in engine.files)

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the targets that this release serves, in the order in which people read them."""
        return tuple(engine.target for engine in self.listed)

    @property
    def listed(self) -> tuple[ReleasedEngine, ...]:
        """Return the engines in the order in which people read their targets; the document has them by name."""
        return tuple(sorted(self.engines, key=lambda engine: target_key(engine.target)))

    def to_bytes(self) -> bytes:
        """Return the document whose SHA-256 is the release's identity."""
        body = {
            "format": MANIFEST_FORMAT,
            "model": self.model,
            "version": self.version,
            "source": self.source_digest,
            "signature": self.signature.to_json(),
            "engines": [engine.to_json() for engine in self.engines],
        }
        return canonical_json(body) + b"\n"


def make_manifest(version: VersionRecord, engines: dict[str, EngineRecord]) -> Manifest:
    """Return the manifest that serves `engines` (target -> engine) of `version`, targets in order of name."""
    return Manifest(
        model=version.model,
        version=version.number,
        source_digest=version.source.digest,
        signature=version.source.signature,
        engines=tuple(_released(target, engines[target]) for target in sorted(engines)),
    )


def _released(target: str, engine: EngineRecord) -> ReleasedEngine:
    """
    Return an engine as it is released.

    What decides where it loads stands in the recipe: the flag `VERSION_COMPATIBLE`, and in its `build` part
    `hardware_compatibility`, by TensorRT's name, `plugins` with names and digests, and `plan_targets`.
    """
    build: Json = engine.recipe.get("build", {})
    return ReleasedEngine(
        target=target,
        backend=engine.toolchain.backend,
        backend_version=engine.toolchain.version,
        precision=engine.precision,
        recipe_digest=engine.recipe_digest,
        realised={key: found for key, found in engine.realised.items() if key not in _DETAILS},
        gpu=engine.target.gpu,
        driver=engine.target.driver,
        # Not the target's: that is the newest CUDA of the driver it was built with, which says nothing of the plan.
        cuda=str(engine.toolchain.details.get("cuda") or ""),
        hardware_compatibility=build.get("hardware_compatibility") or NO_HARDWARE_COMPATIBILITY,
        version_compatible="VERSION_COMPATIBLE" in engine.recipe.get("flags", ()),
        plugins=_read_plugins(build),
        plan_targets=tuple(build.get("plan_targets", ())),
        files=tuple(file._replace(path=f"{target}/{file.path}") for file in engine.files),
    )


def _read_plugins(body: Json) -> tuple[RequiredPlugin, ...]:
    return tuple(RequiredPlugin(name=each["name"], digest=each["digest"]) for each in body.get("plugins", ()))


def parse_manifest(data: bytes, *, where: str) -> Manifest:
    """
    Return the manifest in `data`, whose digest the caller has checked.

    Raises:
        IntegrityError: It is of a format this program does not know, or not a manifest; `where` is named.
    """
    try:
        body: dict[str, Any] = json.loads(data)
        if body["format"] != MANIFEST_FORMAT:
            raise IntegrityError(
                f"release {where} has format {body['format']!r}, this modelreg knows {MANIFEST_FORMAT}",
                hint="It was written by a newer modelreg; upgrade this one.",
            )
        return Manifest(
            model=body["model"],
            version=body["version"],
            source_digest=body["source"],
            signature=Signature.from_json(body["signature"]),
            engines=tuple(_parse_engine(engine) for engine in body["engines"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise IntegrityError(f"release {where} cannot be read: {error!r}") from None


def _parse_engine(body: Json) -> ReleasedEngine:
    return ReleasedEngine(
        target=body["target"],
        backend=Backend(body["backend"]),
        backend_version=body["backend_version"],
        precision=Precision(body["precision"]),
        recipe_digest=body["recipe"],
        realised=body["realised"],
        gpu=body["gpu"],
        driver=body["driver"],
        cuda=body["cuda"],
        hardware_compatibility=body.get("hardware_compatibility", NO_HARDWARE_COMPATIBILITY),
        version_compatible=body.get("version_compatible", False),
        plugins=_read_plugins(body),
        plan_targets=tuple(body.get("plan_targets", ())),
        files=tuple(StoredFile.from_json(file) for file in body["files"]),
    )
