"""A checked bundle is taken in: blobs first, then every record in one transaction with one event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from modelreg.registry import engines, golden_sets, validations
from modelreg.registry.blobs import record_blob
from modelreg.registry.bundles.checking import CheckedBundle, opened_bundle
from modelreg.registry.bundles.listing import blob_name
from modelreg.registry.bundles.slices import Slice, Variant
from modelreg.registry.database import insert_row
from modelreg.registry.errors import IntegrityError
from modelreg.registry.events import append_event
from modelreg.registry.records import EngineRecord, GoldenSetRecord, ValidationRecord, VersionRecord
from modelreg.registry.schema import engine, golden_set, toolchain, validation, variant
from modelreg.registry.storage.failures import storage_error
from modelreg.registry.storage.interface import Progress, Storage, no_progress
from modelreg.registry.version_rows import find_by_number, find_by_source
from modelreg.registry.versions import adopt_version
from modelreg.registry.words import Json

_FIND_TOOLCHAIN = sa.select(toolchain.c.id).where(
    toolchain.c.name == sa.bindparam("name"),
    toolchain.c.backend == sa.bindparam("backend"),
    toolchain.c.version == sa.bindparam("version"),
    toolchain.c.python == sa.bindparam("python"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOutcome:
    """
    What an import does, or would do.

    Attributes:
        reference: What the version is called here.
        offered: What it was called where the bundle was written.
        new_version: Whether the version is new here; otherwise its source was known.
        golden_set: `added`, `known`, `none`, or `kept`: another one is here and stays.
        engines: What became of each engine: its id here, and whether it is new; the id of a new one is None in a
            preview.
        verdicts_added: How many verdicts are new here.
        verdicts_kept_out: How many are older than what is known of their engine here.
        variants_added: How many variants are new here.
    """

    reference: str
    offered: str
    new_version: bool
    golden_set: str
    engines: tuple[tuple[int | None, bool], ...]
    verdicts_added: int
    verdicts_kept_out: int
    variants_added: int

    @property
    def changed(self) -> bool:
        """Return whether anything is new here."""
        added = self.verdicts_added or self.variants_added or any(is_new for _, is_new in self.engines)
        return bool(added or self.new_version or self.golden_set == "added")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What of a bundle is new here."""

    version: VersionRecord | None
    number: int
    golden: GoldenSetRecord | None
    golden_set: str
    known_engines: Mapping[int, EngineRecord] = field(default_factory=dict)
    validations: tuple[ValidationRecord, ...] = ()
    kept_out: int = 0
    variants: tuple[Variant, ...] = ()


def store_blobs(bundle: CheckedBundle, storage: Storage, scratch: Path, *, progress: Progress = no_progress) -> None:
    """
    Put every blob of a checked bundle into a store, each by way of a file in `scratch`.

    A failure leaves whole blobs that nothing refers to, which a later import finds or `gc` removes.

    Raises:
        IntegrityError: The file is no longer the one that was checked.
    """
    place, release = scratch / "blob", bundle.slice.release
    try:
        with opened_bundle(bundle.path, progress=progress) as (archive, listing, _):
            if listing != bundle.listing:
                raise IntegrityError(f"{bundle.path.name} changed while it was imported")
            for blob in listing.blobs:
                with place.open("wb") as file:
                    found = archive.copy(blob_name(blob.digest), blob.size_bytes, file.write)
                # A release's manifest is evidence, and no blob of ours: a promotion here makes its own.
                is_ours = release is None or blob.digest != release.digest
                if found != blob.digest or (is_ours and storage.put_file(place).digest != blob.digest):
                    raise IntegrityError(f"{bundle.path.name} changed while it was imported")
            archive.require_end()
    except OSError as error:
        raise storage_error(error, bundle.path, what="bundle") from error


def preview_import(connection: sa.Connection, bundle: CheckedBundle) -> ImportOutcome:
    """Return what an import would do now; nothing is written."""
    found = bundle.slice
    plan = _plan(connection, found)
    ids = tuple(
        (plan.known_engines[index].id, False) if index in plan.known_engines else (None, True)
        for index in range(len(found.engines))
    )
    return _outcome(found, plan, reference=f"{found.version.model}:{plan.number}", engines=ids)


def record_import(connection: sa.Connection, bundle: CheckedBundle, *, actor: str) -> ImportOutcome:
    """
    Add what is new of a bundle whose blobs are stored, with one event; none where nothing is new.

    Args:
        connection: In a writing transaction.
        bundle: Checked.
        actor: Who imports; the records keep who made them, and when.

    Raises:
        IntegrityError: A blob is known here with another size.
    """
    found = bundle.slice
    plan = _plan(connection, found)
    version = plan.version or adopt_version(connection, found.version, actor=actor)
    for blob in bundle.listing.blobs:
        if found.release is None or blob.digest != found.release.digest:
            record_blob(connection, digest=blob.digest, size_bytes=blob.size_bytes, kind=blob.kind)
    if plan.golden is not None:
        _insert_golden(connection, plan.golden, version, actor=actor)
    for each in plan.variants:
        _insert_variant(connection, each, version)
    ids = []
    for index, record in enumerate(found.engines):
        known = plan.known_engines.get(index)
        ids.append((known.id, False) if known else (_insert_engine(connection, record, version), True))
    for judged in plan.validations:
        _insert_validation(connection, judged, engine_id=ids[judged.engine_id][0])
    outcome = _outcome(found, plan, reference=version.reference, engines=tuple(ids))
    if outcome.changed:
        details = {
            "bundle": bundle.digest,
            "offered": outcome.offered,
            "source": version.source.digest,
            "new_version": outcome.new_version,
            "golden_set": outcome.golden_set,
            "engines": [number for number, is_new in ids if is_new],
            "verdicts": outcome.verdicts_added,
            "variants": outcome.variants_added,
            "release": None if found.release is None else found.release.digest,
        }
        append_event(connection, kind="bundle.imported", subject=version.reference, details=details, actor=actor)
    return outcome


def _outcome(
    found: Slice, plan: _Plan, *, reference: str, engines: tuple[tuple[int | None, bool], ...]
) -> ImportOutcome:
    return ImportOutcome(
        reference=reference,
        offered=found.version.reference,
        new_version=plan.version is None,
        golden_set=plan.golden_set,
        engines=engines,
        verdicts_added=len(plan.validations),
        verdicts_kept_out=plan.kept_out,
        variants_added=len(plan.variants),
    )


def _plan(connection: sa.Connection, found: Slice) -> _Plan:
    """Return what is new: a version by its source, an engine by its cell, recipe and plan, a verdict by its age."""
    offered = found.version
    version = find_by_source(connection, model=offered.model, digest=offered.source.digest)
    variants = tuple(each for each in found.variants if not _has_variant(connection, each, offered))
    if version is None:
        return _Plan(
            version=None,
            number=_free_number(connection, offered),
            golden=found.golden,
            golden_set="none" if found.golden is None else "added",
            validations=found.validations,
            variants=variants,
        )
    known = _match_engines(found, engines.list_engines(connection, version_id=version.id))
    newest = validations.newest_validations(connection, version_id=version.id)
    added, kept_out = [], 0
    for judged in found.validations:
        here = newest.get(known[judged.engine_id].id) if judged.engine_id in known else None
        if here is None or here.created_at < judged.created_at:
            added.append(judged)
        elif here.report_digest != judged.report_digest:
            kept_out += 1
    golden, golden_set = _judge_golden(found, golden_sets.newest_golden_set(connection, version_id=version.id))
    return _Plan(
        version=version,
        number=version.number,
        golden=golden,
        golden_set=golden_set,
        known_engines=known,
        validations=tuple(added),
        kept_out=kept_out,
        variants=variants,
    )


def _free_number(connection: sa.Connection, offered: VersionRecord) -> int:
    if find_by_number(connection, model=offered.model, number=offered.number) is None:
        return offered.number
    from modelreg.registry.versions import list_versions  # noqa: PLC0415 - beside the functions that use it

    return list_versions(connection, model=offered.model, limit=1)[0].number + 1


def _judge_golden(found: Slice, here: GoldenSetRecord | None) -> tuple[GoldenSetRecord | None, str]:
    """Return the golden set to add, and what is said of it; one that is here is never replaced by an import."""
    if found.golden is None:
        return None, "none"
    if here is None:
        return found.golden, "added"
    return None, "known" if here.digest == found.golden.digest else "kept"


def _match_engines(found: Slice, here: list[EngineRecord]) -> dict[int, EngineRecord]:
    by_key = {_key(record): record for record in here if record.files}
    return {record.id: by_key[_key(record)] for record in found.engines if _key(record) in by_key}


def _key(record: EngineRecord) -> tuple[str, ...]:
    made = record.toolchain
    cell = (record.target.name, str(record.precision), str(made.backend), made.version)
    return (*cell, record.recipe_digest, *(file.digest for file in record.files))


def _has_variant(connection: sa.Connection, each: Variant, version: VersionRecord) -> bool:
    found = engines.find_variant(connection, source_digest=version.source.digest, recipe_digest=each.recipe_digest)
    return found is not None


def _insert_golden(connection: sa.Connection, golden: GoldenSetRecord, version: VersionRecord, *, actor: str) -> None:
    row = {
        "version_id": version.id,
        "blob_digest": golden.digest,
        "samples": golden.samples,
        "origin": golden.origin,
        "created_at": golden.created_at,
        "created_by": actor,
    }
    insert_row(connection, sa.insert(golden_set), row)


def _insert_variant(connection: sa.Connection, each: Variant, version: VersionRecord) -> None:
    row = {
        "source_digest": version.source.digest,
        "recipe_digest": each.recipe_digest,
        "files": [file.to_json() for file in each.files],
        "details": each.details,
        **_made(each),
    }
    insert_row(connection, sa.insert(variant), row)


def _insert_engine(connection: sa.Connection, record: EngineRecord, version: VersionRecord) -> int:
    target = record.target
    here = engines.ensure_target(
        connection,
        name=target.name,
        gpu=target.gpu,
        sm_count=target.sm_count,
        driver=target.driver,
        cuda=target.cuda,
    )
    row = {
        "version_id": version.id,
        "target_id": here.id,
        "toolchain_id": _ensure_toolchain(connection, record),
        "precision": str(record.precision),
        "recipe": record.recipe,
        "recipe_digest": record.recipe_digest,
        "variant_digest": record.variant_digest,
        "status": str(record.status),
        "files": [file.to_json() for file in record.files],
        "plan_digest": record.plan_digest,
        "realised": record.realised,
        "build_s": record.build_s,
        "log_digest": record.log_digest,
        "error": record.error,
        **_made(record),
    }
    return insert_row(connection, sa.insert(engine), row)


def _ensure_toolchain(connection: sa.Connection, record: EngineRecord) -> int:
    """Note what built an engine. It is not put to use here: its interpreter is on another host."""
    made = record.toolchain
    key: Json = {"name": made.name, "backend": str(made.backend), "version": made.version, "python": made.python}
    known: int | None = connection.execute(_FIND_TOOLCHAIN, key).scalar()
    if known is not None:
        return known
    return insert_row(connection, sa.insert(toolchain), {**key, "details": made.details, **_made(record)})


def _insert_validation(connection: sa.Connection, judged: ValidationRecord, *, engine_id: int | None) -> None:
    row = {
        "engine_id": engine_id,
        "golden_digest": judged.golden_digest,
        "policy_digest": judged.policy_digest,
        "policy": judged.policy,
        "verdict": str(judged.verdict),
        "gates": [gate.to_json() for gate in judged.gates],
        "report_digest": judged.report_digest,
        "host": judged.host,
        **_made(judged),
    }
    insert_row(connection, sa.insert(validation), row)


def _made(record: Any) -> Json:
    return {"created_at": record.created_at, "created_by": record.created_by}
