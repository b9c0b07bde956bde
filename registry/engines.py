"""Engines, and what they are built from and for: variants, toolchains, targets."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from modelreg.registry.blobs import record_blob
from modelreg.registry.clock import utc_now
from modelreg.registry.contents import StoredFile
from modelreg.registry.database import insert_row
from modelreg.registry.errors import NotFoundError
from modelreg.registry.events import append_event
from modelreg.registry.records import EngineRecord, TargetRecord, ToolchainRecord, VersionRecord
from modelreg.registry.rows import decoding
from modelreg.registry.schema import blob, engine, model, target, toolchain, variant, version
from modelreg.registry.statements import Row, Statement
from modelreg.registry.words import Backend, BlobKind, EngineStatus, Json, Precision

_FIND_TOOLCHAIN = sa.select(toolchain).where(
    toolchain.c.name == sa.bindparam("name"),
    toolchain.c.backend == sa.bindparam("backend"),
    toolchain.c.version == sa.bindparam("version"),
    toolchain.c.python == sa.bindparam("python"),
)
_FIND_TARGET = sa.select(target.c.id).where(
    target.c.name == sa.bindparam("name"),
    target.c.gpu == sa.bindparam("gpu"),
    target.c.sm_count == sa.bindparam("sm_count"),
    target.c.driver == sa.bindparam("driver"),
    target.c.cuda == sa.bindparam("cuda"),
)
_FIND_VARIANT = sa.select(variant.c.files).where(
    variant.c.source_digest == sa.bindparam("source_digest"),
    variant.c.recipe_digest == sa.bindparam("recipe_digest"),
)
_INSERT_TOOLCHAIN = sa.insert(toolchain)
_INSERT_TARGET = sa.insert(target)
_INSERT_VARIANT = sa.insert(variant)
_INSERT_ENGINE = sa.insert(engine)

_SELECT = (
    sa.select(
        engine,
        model.c.name.label("model"),
        version.c.number.label("version"),
        target.c.name.label("target_name"),
        target.c.gpu,
        target.c.sm_count,
        target.c.driver,
        target.c.cuda,
        toolchain.c.name.label("toolchain_name"),
        toolchain.c.backend,
        toolchain.c.version.label("toolchain_version"),
        toolchain.c.python,
        toolchain.c.details,
        blob.c.digest.label("known_plan"),
    )
    .select_from(engine)
    .join(version, version.c.id == engine.c.version_id)
    .join(model, model.c.id == version.c.model_id)
    .join(target, target.c.id == engine.c.target_id)
    .join(toolchain, toolchain.c.id == engine.c.toolchain_id)
    .outerjoin(blob, blob.c.digest == engine.c.plan_digest)
)
_BY_ID = _SELECT.where(engine.c.id == sa.bindparam("engine_id"))
_OF_VERSION = Statement(_SELECT.where(engine.c.version_id == sa.bindparam("of_version")).order_by(engine.c.id))


def ensure_toolchain(
    connection: sa.Connection,
    *,
    name: str,
    backend: Backend,
    version: str,
    python: str,
    details: Json,
    actor: str,
) -> ToolchainRecord:
    """Return the toolchain of that name, backend, exact version and interpreter, added if it is new.

    A new version under the same name is another toolchain: engines say what they were really built with.
    """
    key = {"name": name, "backend": str(backend), "version": version, "python": python}
    with decoding("toolchain"):
        known = connection.execute(_FIND_TOOLCHAIN, key).one_or_none()
    if known is not None:
        return ToolchainRecord(
            id=known.id, name=name, backend=backend, version=version, python=python, details=known.details
        )
    row = {**key, "details": details, "created_at": utc_now(), "created_by": actor}
    toolchain_id = insert_row(connection, _INSERT_TOOLCHAIN, row)
    append_event(connection, kind="toolchain.added", subject=name, details={**key, "details": details}, actor=actor)
    return ToolchainRecord(id=toolchain_id, name=name, backend=backend, version=version, python=python, details=details)


def ensure_target(
    connection: sa.Connection, *, name: str, gpu: str = "", sm_count: int = 0, driver: str = "", cuda: str = ""
) -> TargetRecord:
    """Return the target with exactly these particulars, added if it is new."""
    row: Json = {"name": name, "gpu": gpu, "sm_count": sm_count, "driver": driver, "cuda": cuda}
    target_id = connection.execute(_FIND_TARGET, row).scalar()
    if target_id is None:
        target_id = insert_row(connection, _INSERT_TARGET, row)
    return TargetRecord(id=target_id, **row)


@decoding("variant")
def find_variant(connection: sa.Connection, *, source_digest: str, recipe_digest: str) -> tuple[StoredFile, ...] | None:
    """Return the files of the variant that this recipe makes of this source, or None."""
    key = {"source_digest": source_digest, "recipe_digest": recipe_digest}
    files = connection.execute(_FIND_VARIANT, key).scalar()
    return None if files is None else _stored(files)


def record_variant(
    connection: sa.Connection,
    *,
    source_digest: str,
    recipe_digest: str,
    files: Sequence[StoredFile],
    details: Json,
    actor: str,
) -> tuple[StoredFile, ...]:
    """Note a variant and return its files: the first one noted wins, so that two builders agree on the bytes."""
    known = find_variant(connection, source_digest=source_digest, recipe_digest=recipe_digest)
    if known is not None:
        return known
    _record_blobs(connection, files, kind=BlobKind.VARIANT)
    row = {
        "source_digest": source_digest,
        "recipe_digest": recipe_digest,
        "files": [file.to_json() for file in files],
        "details": details,
        "created_at": utc_now(),
        "created_by": actor,
    }
    connection.execute(_INSERT_VARIANT, row)
    append_event(
        connection,
        kind="variant.made",
        subject=f"sha256:{source_digest}",
        details={"recipe": recipe_digest, "files": row["files"]},
        actor=actor,
    )
    return tuple(files)


def record_engine(
    connection: sa.Connection,
    *,
    version: VersionRecord,
    target: TargetRecord,
    toolchain: ToolchainRecord,
    precision: Precision,
    recipe: Json,
    recipe_digest: str,
    variant_digest: str,
    status: EngineStatus,
    files: Sequence[StoredFile],
    realised: Json,
    build_s: float,
    log_digest: str,
    error: str,
    actor: str,
) -> EngineRecord:
    """
    Add one attempt at a cell; earlier attempts stay.

    Raises:
        ValueError: A built engine has no files, or a failed one has some.
    """
    if bool(files) is not (status is EngineStatus.BUILT):
        raise ValueError(f"a {status} engine with {len(files)} files")
    _record_blobs(connection, files, kind=BlobKind.PLAN)
    shared: Json = {
        "recipe": recipe,
        "recipe_digest": recipe_digest,
        "variant_digest": variant_digest,
        "realised": realised,
        "build_s": build_s,
        "log_digest": log_digest,
        "error": error,
        "created_at": utc_now(),
        "created_by": actor,
    }
    row = {
        **shared,
        "version_id": version.id,
        "target_id": target.id,
        "toolchain_id": toolchain.id,
        "precision": str(precision),
        "status": str(status),
        "files": [file.to_json() for file in files],
        "plan_digest": files[0].digest if files else "",
    }
    engine_id = insert_row(connection, _INSERT_ENGINE, row)
    details = {
        "engine": engine_id,
        "target": target.name,
        "precision": str(precision),
        "toolchain": toolchain.name,
        "backend_version": toolchain.version,
        "plan": row["plan_digest"],
        "recipe": recipe_digest,
        "error": error,
    }
    append_event(connection, kind=f"engine.{status}", subject=version.reference, details=details, actor=actor)
    return EngineRecord(
        id=engine_id,
        version_id=version.id,
        model=version.model,
        version=version.number,
        target=target,
        toolchain=toolchain,
        precision=precision,
        status=status,
        files=tuple(files),
        **shared,
    )


@decoding("engine")
def list_engines(connection: sa.Connection, *, version_id: int) -> list[EngineRecord]:
    """Return every attempt of a version, failed ones too, oldest first."""
    return [_engine(row) for row in _OF_VERSION.rows(connection, of_version=version_id)]


def current_engines(connection: sa.Connection, *, version_id: int) -> list[EngineRecord]:
    """Return what counts of a version's attempts, oldest first.

    That is the newest built engine of each recipe in each cell (target, precision, backend, its version), and a
    failure where nothing was built in that cell afterwards. So another recipe, or a rebuild that fails, never hides
    an engine that works.
    """
    built: dict[tuple[str, ...], EngineRecord] = {}
    failed: dict[tuple[str, ...], EngineRecord] = {}
    for record in list_engines(connection, version_id=version_id):
        toolchain = record.toolchain
        cell = (record.target.name, str(record.precision), str(toolchain.backend), toolchain.version)
        if record.status is EngineStatus.BUILT:
            recipe = (*cell, record.recipe_digest)
            built[recipe] = record
            failed.pop(cell, None)
        else:
            failed[cell] = record
    return sorted((*built.values(), *failed.values()), key=lambda record: record.id)


@decoding("engine")
def get_engine(connection: sa.Connection, engine_id: int) -> EngineRecord:
    """
    Return one engine by its id.

    Raises:
        NotFoundError: There is none.
    """
    row = connection.execute(_BY_ID, {"engine_id": engine_id}).one_or_none()
    if row is None:
        raise NotFoundError(f"there is no engine {engine_id}", hint="`modelreg show NAME:VERSION` lists engines.")
    return _engine(row)


def _record_blobs(connection: sa.Connection, files: Sequence[StoredFile], *, kind: BlobKind) -> None:
    for file in files:
        record_blob(connection, digest=file.digest, size_bytes=file.size_bytes, kind=kind)


def _stored(files: Sequence[Json]) -> tuple[StoredFile, ...]:
    return tuple(StoredFile.from_json(file) for file in files)


def _engine(row: Row) -> EngineRecord:
    return EngineRecord(
        id=row.id,
        version_id=row.version_id,
        model=row.model,
        version=row.version,
        target=TargetRecord(
            id=row.target_id,
            name=row.target_name,
            gpu=row.gpu,
            sm_count=row.sm_count,
            driver=row.driver,
            cuda=row.cuda,
        ),
        precision=Precision(row.precision),
        toolchain=ToolchainRecord(
            id=row.toolchain_id,
            name=row.toolchain_name,
            backend=Backend(row.backend),
            version=row.toolchain_version,
            python=row.python,
            details=row.details,
        ),
        recipe=row.recipe,
        recipe_digest=row.recipe_digest,
        variant_digest=row.variant_digest,
        status=EngineStatus(row.status),
        files=_stored(row.files),
        realised=row.realised,
        build_s=row.build_s,
        log_digest=row.log_digest,
        error=row.error,
        created_at=row.created_at,
        created_by=row.created_by,
        is_swept=row.status == EngineStatus.BUILT.value and row.known_plan is None,
    )
