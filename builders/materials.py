"""The local files of one build: what is fetched from the store, and what goes into it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelreg.builders.recipe import Recipe
from modelreg.registry import engines, golden_sets
from modelreg.registry.contents import StoredFile
from modelreg.registry.database import Database
from modelreg.registry.errors import IntegrityError, ModelregError
from modelreg.registry.records import SourceInfo, VersionRecord
from modelreg.registry.storage.interface import Storage
from modelreg.registry.words import Json

if TYPE_CHECKING:
    from modelreg.builders.interface import Array

_TRIED_ROWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMaterials:
    """
    What the database knows of a cell before it is built; whoever builds it needs the store alone.

    Attributes:
        variant: The variant that the same recipe made before; empty where none did.
        golden_digest: The newest golden set, or an empty string.
        golden_samples: How many samples that has.
    """

    variant: tuple[StoredFile, ...] = ()
    golden_digest: str = ""
    golden_samples: int = 0

    @classmethod
    def look_up(cls, version: VersionRecord, database: Database, *, recipe: Recipe | None = None) -> KnownMaterials:
        """Ask the database; without a recipe, not for a variant."""
        with database.read() as connection:
            golden = golden_sets.newest_golden_set(connection, version_id=version.id)
            variant = None
            if recipe is not None and recipe.variant is not None:
                variant = engines.find_variant(
                    connection, source_digest=version.source.digest, recipe_digest=recipe.variant_digest
                )
        return cls(
            variant=variant or (),
            golden_digest="" if golden is None else golden.digest,
            golden_samples=0 if golden is None else golden.samples,
        )

    def to_json(self) -> Json:
        """Return it as JSON."""
        variant = [file.to_json() for file in self.variant]
        return {"variant": variant, "golden": self.golden_digest, "samples": self.golden_samples}

    @classmethod
    def from_json(cls, body: Json) -> KnownMaterials:
        """Read back what `to_json` wrote."""
        variant = tuple(StoredFile.from_json(file) for file in body["variant"])
        return cls(variant=variant, golden_digest=body["golden"], golden_samples=body["samples"])


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFiles:
    """The folders of one build, gone when it ends."""

    source: Path
    variant: Path
    plan: Path
    golden: Path
    log: Path

    @classmethod
    def create(cls, folder: Path) -> CellFiles:
        """Lay the folders out."""
        made = cls(
            source=folder / "source",
            variant=folder / "variant",
            plan=folder / "plan",
            golden=folder / "golden",
            log=folder / "build.log",
        )
        for each in (made.source, made.variant, made.plan):
            each.mkdir()
        return made

    def materialise_source(self, source: SourceInfo, storage: Storage) -> Path:
        """Fetch the source and its external data, verified; return the ONNX."""
        from modelreg.registry.sources.ingest import materialise_source  # noqa: PLC0415 - imports onnx

        return materialise_source(source, storage, self.source)

    def fetch_variant(self, known: tuple[StoredFile, ...], storage: Storage) -> tuple[StoredFile, ...]:
        """Fetch the variant that this recipe made before; return its files, none where none is there and whole."""
        if not all(storage.has_blob(file.digest) for file in known):
            return ()
        try:
            for file in known:
                storage.fetch_blob(file.digest, self.variant / file.path)
        except IntegrityError as error:  # made again, the same bytes take the place of the damaged ones
            for file in known:
                (self.variant / file.path).unlink(missing_ok=True)
            with self.log.open("a") as log:
                log.write(f"the variant made before is damaged and is made again: {error}\n")
            return ()
        return known

    def store(self, paths: Sequence[Path], storage: Storage) -> tuple[StoredFile, ...]:
        """Put files into the store; return them as records in the same order."""
        stored = []
        for path in paths:
            info = storage.put_file(path)
            stored.append(StoredFile(path=path.name, digest=info.digest, size_bytes=info.size_bytes))
        return tuple(stored)


def golden_inputs(version: VersionRecord, known: KnownMaterials, storage: Storage, path: Path) -> dict[str, Array]:
    """
    Return the first samples of the newest golden set, as many as the model takes at once.

    Empty when there is no golden set, or when it does not fit: the plan is then tried on random inputs.
    """
    from modelreg.registry.tensor_sets import open_tensor_set  # noqa: PLC0415 - imports NumPy

    if not known.golden_digest:
        return {}
    fixed = [spec.shape[0] for spec in version.source.signature.inputs if spec.shape]
    rows = next((length for length in fixed if isinstance(length, int)), _TRIED_ROWS)
    with contextlib.suppress(ModelregError, ValueError, KeyError):
        storage.fetch_blob(known.golden_digest, path)
        with open_tensor_set(path) as tensors:
            count = min(rows, known.golden_samples)
            names = [spec.name for spec in version.source.signature.inputs]
            inputs: dict[str, Array] = {name: tensors.read(f"input.{name}", 0, count) for name in names}
            return inputs if rows in (count, _TRIED_ROWS) else {}
    return {}
