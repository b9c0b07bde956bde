"""A release with all that Triton must know of it: its manifest from the store, its recipes from the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import ForeignReleaseError
from modelreg.registry.manifest import Manifest, ReleasedEngine, make_manifest
from modelreg.registry.pointers import Pointer
from modelreg.registry.promotion import PromotionPlan, require_complete
from modelreg.registry.records import EngineRecord
from modelreg.registry.words import Json
from modelreg.runtime.triton.engines import ServedEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRelease:
    """
    What is exported.

    Attributes:
        digest: The release's; of a version that was never promoted, the one that it would have.
        channel: Where it is active; empty for a version.
        generation: The channel's; None for a version.
    """

    manifest: Manifest
    digest: str
    records: tuple[EngineRecord, ...]
    channel: str = ""
    generation: int | None = None

    def serve(self, engines: Sequence[ReleasedEngine]) -> tuple[ServedEngine, ...]:
        """
        Return engines of the release with their recipes.

        Raises:
            ForeignReleaseError: The database does not know one of them.
        """
        return tuple(ServedEngine(engine=engine, recipe=self._find(engine).recipe) for engine in engines)

    def _find(self, engine: ReleasedEngine) -> EngineRecord:
        key = (engine.target, engine.recipe_digest, engine.plan.digest)
        for record in reversed(self.records):
            if (record.target.name, record.recipe_digest, record.plan_digest) == key:
                return record
        raise ForeignReleaseError(
            f"the database does not know the engine of {engine.target} in release {self.digest[:12]}",
            hint="Its profiles are needed; `modelreg doctor` says what the store knows more.",
        )

    @property
    def parameters(self) -> dict[str, str]:
        """Return what the configuration says of the release."""
        found = {
            "modelreg.model": self.manifest.model,
            "modelreg.version": str(self.manifest.version),
            "modelreg.release": f"sha256:{self.digest}",
            "modelreg.source": f"sha256:{self.manifest.source_digest}",
        }
        if self.generation is not None:
            found |= {"modelreg.channel": self.channel, "modelreg.generation": str(self.generation)}
        return found

    def document(self) -> Json:
        """Return which release it is."""
        return {
            "model": self.manifest.model,
            "version": self.manifest.version,
            "release": self.digest,
            "channel": self.channel or None,
            "generation": self.generation,
        }


def active_release(pointer: Pointer, manifest: Manifest, records: Sequence[EngineRecord]) -> ExportedRelease:
    """Return the release that a channel serves."""
    return ExportedRelease(
        manifest=manifest,
        digest=pointer.release,
        records=tuple(records),
        channel=pointer.channel,
        generation=pointer.generation,
    )


def planned_release(plan: PromotionPlan) -> ExportedRelease:
    """
    Return the release that a promotion of a version would make.

    Raises:
        GateFailedError: A target has no engine that passes.
    """
    require_complete(plan)
    manifest = make_manifest(plan.version, plan.engines)
    return ExportedRelease(
        manifest=manifest, digest=sha256_hex(manifest.to_bytes()), records=tuple(plan.engines.values())
    )
