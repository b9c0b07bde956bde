"""Plans that were built elsewhere: their header is read, nothing is loaded, and each becomes an engine like any other.

What a header cannot tell (the precision, and for TensorRT the target) is taken on the word of who imports it, and
stands in the recipe as that. The engine is built, and never validated before somebody does it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from modelreg.registry.contents import StoredFile
from modelreg.registry.digests import json_digest
from modelreg.registry.engines import ensure_target, list_engines, record_engine
from modelreg.registry.errors import IntegrityError, NotFoundError, SourceError, UsageError
from modelreg.registry.events import append_event
from modelreg.registry.plans import HEADER_BYTES, PlanHeader, is_same_version, parse_plan_header, starts_plan
from modelreg.registry.records import EngineRecord, ToolchainRecord, VersionRecord
from modelreg.registry.sources.local_files import (
    FileIdentity,
    LocalFile,
    open_regular,
    require_unchanged,
    shown,
    unreadable,
)
from modelreg.registry.storage.interface import Progress, Storage, no_progress
from modelreg.registry.words import Backend, EngineStatus, Json, Precision

_PLAN_NAME = "model.plan"
_GPU = re.compile(r"sm_[1-9]\d{1,2}")
_WANTED_FILE = "Name the plan itself, as a regular file that you may read."
_ADD_TOOLCHAIN = "Add one with: modelreg toolchain add NAME --python PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedPlan:
    """A plan as it was looked at: its file, its first bytes, and what they say."""

    file: LocalFile
    head: bytes
    header: PlanHeader

    @property
    def built_by(self) -> str:
        """Return the backend and version that built it."""
        return f"{self.header.backend} {self.header.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """
    What is said of a plan beside its header.

    Attributes:
        version: What it was built from.
        targets: What its engines are for, one each.
        precision: What was asked of its arithmetic.
        toolchain: What loads it; of the version that built it.
        origin: Where it comes from, in words; part of the recipe.
        message: Why it is imported; part of the event.
    """

    version: VersionRecord
    targets: tuple[str, ...]
    precision: Precision
    toolchain: ToolchainRecord
    origin: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedEngine:
    """The engine of an imported plan, and whether it is new."""

    engine: EngineRecord
    created: bool


def inspect_plan(path: Path) -> OfferedPlan:
    """
    Return what a file says of itself, without loading it.

    Raises:
        SourceError: It is not there, cannot be read, or is a link, a device or a folder.
        IntegrityError: It is no plan, or not a whole one.
    """
    if path.is_symlink():
        raise SourceError(f"{shown(path)} is a link, not a file", hint="Name the file that it leads to.")
    head, identity = _read_head(path)
    if path.suffix.lower() == ".onnx" and not starts_plan(head):
        raise SourceError(
            f"{shown(path.name)} is an ONNX, and only plans of TensorRT and TensorRT-RTX are taken in",
            hint="Keep an ONNX as a version with `modelreg register NAME FILE`; `modelreg build` makes its engines.",
        )
    header = parse_plan_header(head, size_bytes=identity.size_bytes, where=shown(path.name))
    if header.backend is Backend.TENSORRT_RTX and not header.targets:
        raise IntegrityError(f"{shown(path.name)} is damaged: its header names no target", hint="Fetch it again.")
    return OfferedPlan(file=LocalFile(name=path.name, path=path, identity=identity), head=head, header=header)


def _read_head(path: Path) -> tuple[bytes, FileIdentity]:
    try:
        opened, identity = open_regular(path)
        with opened:
            return opened.read(HEADER_BYTES), identity
    except SourceError as error:
        error.advise(_WANTED_FILE)
        raise
    except OSError as error:
        failed = unreadable(path, error)
        failed.advise(_WANTED_FILE)
        raise failed from error


def require_possible(plan: OfferedPlan, precision: Precision) -> None:
    """
    Refuse a precision that no plan of this backend has.

    Raises:
        UsageError: TensorRT-RTX chooses nothing: its networks are strongly typed.
    """
    if plan.header.backend is Backend.TENSORRT_RTX and precision is Precision.BEST:
        raise UsageError(
            f"a plan of {plan.header.backend} is never {precision}: its network is strongly typed, nothing is chosen",
            hint="Name the precision that its network is typed in, for example fp16.",
        )


def choose_targets(plan: OfferedPlan, wanted: Sequence[str]) -> tuple[str, ...]:
    """
    Return the targets that a plan is imported for: those wanted, else the one that its header names.

    Raises:
        UsageError: The header names none or several and none is wanted, or not what is wanted.
    """
    named, name = plan.header.targets, shown(plan.file.name)
    known = tuple(target for target in named if _GPU.fullmatch(target))
    strange = [target for target in wanted if not _GPU.fullmatch(target)]
    if strange:
        raise UsageError(f"a plan of {plan.header.backend} is for a GPU, and {strange[0]!r} is none such as sm_90")
    alien = [target for target in wanted if named and target not in named]
    if alien:
        raise UsageError(f"{name} is not for {', '.join(alien)}: its header says {', '.join(named)}")
    if wanted:
        return tuple(dict.fromkeys(wanted))
    if not named:
        raise UsageError(
            f"{name} does not say which GPU it is for: a plan of {plan.header.backend} has no target in its header",
            hint="Say it with --target, for example sm_90.",
        )
    if named != known[:1]:
        raise UsageError(f"{name} is for {', '.join(known or named)}", hint="Say with --target which are meant.")
    return known


def choose_toolchain(plan: OfferedPlan, known: Sequence[ToolchainRecord], name: str | None) -> ToolchainRecord:
    """
    Return the registered toolchain of the version that built a plan: the one named, or the only one.

    Raises:
        NotFoundError: There is none.
        UsageError: The one named has another backend or version, or several fit and none is named.
    """
    fitting = [each for each in known if _fits(each, plan.header)]
    if name is not None:
        record = next((each for each in known if each.name == name), None)
        names = ", ".join(each.name for each in fitting)
        hint = f"Of that version: {names}." if names else _ADD_TOOLCHAIN
        if record is None:
            raise NotFoundError(f"there is no toolchain {name!r}", hint=hint)
        if record not in fitting:
            other = f"{record.backend} {record.version}"
            raise UsageError(
                f"{shown(plan.file.name)} was built by {plan.built_by}, and toolchain {name!r} has {other}", hint=hint
            )
        return record
    if not fitting:
        raise NotFoundError(
            f"no toolchain has {plan.built_by}, which built {shown(plan.file.name)}", hint=_ADD_TOOLCHAIN
        )
    if len(fitting) > 1:
        names = ", ".join(each.name for each in fitting)
        raise UsageError(f"several toolchains have {plan.built_by}: {names}", hint="Name one with --toolchain.")
    return fitting[0]


def _fits(toolchain: ToolchainRecord, header: PlanHeader) -> bool:
    return toolchain.backend is header.backend and is_same_version(toolchain.version, header.version)


def import_recipe(plan: OfferedPlan, request: ImportRequest, *, digest: str, actor: str) -> Json:
    """Return the recipe of an imported plan: that it is one, what its header says, and who says the rest."""
    header = plan.header
    build: Json = {
        "imported": {
            "plan": digest,
            "file": shown(plan.file.name),
            "origin": request.origin,
            "by": actor,
            "header": {
                "backend": str(header.backend),
                "version": header.version,
                "targets": list(header.targets),
                "weight_bytes": header.weight_bytes,
            },
        }
    }
    if len(header.targets) > 1:
        build["plan_targets"] = list(header.targets)
    return {
        "precision": str(request.precision),
        "backend": str(header.backend),
        "flags": [],
        "variant": None,
        "build": build,
    }


def read_import(recipe: Json) -> Json | None:
    """Return what the recipe of an imported engine says of its origin, or None for one that was built here."""
    found: Json | None = recipe.get("build", {}).get("imported")
    return found


def find_same(
    engines: Sequence[EngineRecord], request: ImportRequest, *, target: str, digest: str
) -> list[EngineRecord]:
    """Return the engines of a target that have this very plan, those of the requested precision first."""
    same = [
        engine
        for engine in engines
        if engine.plan_digest == digest
        and not engine.is_swept
        and engine.target.name == target
        and _is_of(engine, request.toolchain)
    ]
    return sorted(same, key=lambda engine: engine.precision is not request.precision)


def _is_of(engine: EngineRecord, toolchain: ToolchainRecord) -> bool:
    ours = engine.toolchain
    return (ours.name, ours.backend, ours.version) == (toolchain.name, toolchain.backend, toolchain.version)


def store_plan(plan: OfferedPlan, storage: Storage, *, progress: Progress = no_progress) -> StoredFile:
    """
    Store the bytes of a plan, and hold them to what was looked at.

    Raises:
        SourceError: The file changed meanwhile.
        StorageError: The store cannot be written.
    """
    require_unchanged(plan.file)
    blob = storage.put_file(plan.file.path, progress=progress)
    require_unchanged(plan.file)
    with storage.open_blob(blob.digest) as stored:
        if stored.read(HEADER_BYTES) != plan.head:
            raise SourceError(f"{shown(plan.file.path)} changed while it was being registered")
    return StoredFile(path=_PLAN_NAME, digest=blob.digest, size_bytes=blob.size_bytes)


def record_imports(
    connection: sa.Connection, plan: OfferedPlan, request: ImportRequest, stored: StoredFile, *, actor: str
) -> list[ImportedEngine]:
    """Add an engine for each target; one that has this plan in the same precision already is given back."""
    known = list_engines(connection, version_id=request.version.id)
    recipe = import_recipe(plan, request, digest=stored.digest, actor=actor)
    outcomes: list[ImportedEngine] = []
    for target in request.targets:
        same = find_same(known, request, target=target, digest=stored.digest)
        if same and same[0].precision is request.precision:
            outcomes.append(ImportedEngine(engine=same[0], created=False))
            continue
        engine = record_engine(
            connection,
            version=request.version,
            target=ensure_target(connection, name=target),
            toolchain=request.toolchain,
            precision=request.precision,
            recipe=recipe,
            recipe_digest=json_digest(recipe),
            variant_digest="",
            status=EngineStatus.BUILT,
            files=(stored,),
            realised=_unknown(plan.header),
            build_s=0.0,
            log_digest="",
            error="",
            actor=actor,
        )
        details = {**recipe["build"]["imported"], "engine": engine.id, "target": target, "message": request.message}
        append_event(
            connection, kind="engine.imported", subject=request.version.reference, details=details, actor=actor
        )
        outcomes.append(ImportedEngine(engine=engine, created=True))
    return outcomes


def _unknown(header: PlanHeader) -> Json:
    """Return what is known of the arithmetic of a plan that was never loaded."""
    return {
        "unknown": "until validated",
        "checked": {
            "inputs": "none",
            "shapes": [],
            "runs": 0,
            "reason": "imported, and never loaded",
            "weight_bytes": header.weight_bytes,
        },
    }
