"""The records of a bundle: a version, and what was built of it and judged, without a database's numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from modelreg.registry.contents import Signature, StoredFile, list_files
from modelreg.registry.digests import canonical_json, json_digest, sha256_hex
from modelreg.registry.errors import IntegrityError, InvalidReferenceError
from modelreg.registry.records import (
    EngineRecord,
    GateResult,
    GoldenSetRecord,
    SourceInfo,
    TargetRecord,
    ToolchainRecord,
    ValidationRecord,
    VersionRecord,
)
from modelreg.registry.references import check_name
from modelreg.registry.schema import from_microseconds, to_microseconds
from modelreg.registry.storage.rules import check_digest, check_release_files
from modelreg.registry.words import Backend, EngineStatus, Json, Precision, Verdict

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A variant of the source, by the digest of the recipe that made it."""

    recipe_digest: str
    files: tuple[StoredFile, ...]
    details: Json
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseOrigin:
    """The release that a channel served where the bundle was written."""

    digest: str
    channel: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """
    A version with what belongs to it.

    Ids of the records are places in these tuples: an engine's id is its index, a validation's engine is one.
    """

    version: VersionRecord
    golden: GoldenSetRecord | None
    variants: tuple[Variant, ...]
    engines: tuple[EngineRecord, ...]
    validations: tuple[ValidationRecord, ...]
    release: ReleaseOrigin | None

    def digests(self) -> set[str]:
        """Return every blob that the records name."""
        source = self.version.source
        found = {file.digest for file in source.files} | {source.digest}
        found.update(file.digest for variant in self.variants for file in variant.files)
        for engine in self.engines:
            found.update(file.digest for file in engine.files)
            found.update(filter(None, (engine.log_digest, engine.realised.get("timing_cache"))))
        found.update(validation.report_digest for validation in self.validations)
        if self.golden is not None:
            found.add(self.golden.digest)
        if self.release is not None:
            found.add(self.release.digest)
        return found

    def to_bytes(self) -> bytes:
        """Return the records as they stand in the bundle."""
        body = {
            "format": FORMAT,
            "version": _version_json(self.version),
            "golden_set": None if self.golden is None else _golden_json(self.golden),
            "variants": [_variant_json(each) for each in self.variants],
            "engines": [_engine_json(each) for each in self.engines],
            "validations": [_validation_json(each) for each in self.validations],
            "release": None
            if self.release is None
            else {
                "sha256": self.release.digest,
                "channel": self.release.channel,
                "generation": self.release.generation,
            },
        }
        return canonical_json(body) + b"\n"


def parse_slice(body: dict[str, Any]) -> Slice:
    """
    Return the records in a document, every one checked for itself and against the others.

    Raises:
        IntegrityError: A record is none, or contradicts another.
    """
    try:
        if body["format"] != FORMAT:
            raise IntegrityError(f"the bundle's records have format {body['format']!r}, this modelreg knows {FORMAT}")
        version = _read_version(body["version"])
        golden = body["golden_set"]
        release = body["release"]
        engines = [_read_engine(each, index, version) for index, each in enumerate(body["engines"])]
        found = Slice(
            version=version,
            golden=None if golden is None else _read_golden(golden),
            variants=tuple(_read_variant(each) for each in body["variants"]),
            engines=tuple(engines),
            validations=tuple(_read_validation(each, index) for index, each in enumerate(body["validations"])),
            release=None
            if release is None
            else ReleaseOrigin(
                digest=check_digest(release["sha256"]),
                channel=check_name(release["channel"], what="channel"),
                generation=_number(release["generation"]),
            ),
        )
        if canonical_json(body) + b"\n" != found.to_bytes():
            raise IntegrityError("the bundle's records have fields that no record has")
        for fault in _faults(found):
            raise IntegrityError(f"the bundle's records contradict each other: {fault}")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, InvalidReferenceError) as error:
        raise IntegrityError(f"the bundle's records cannot be read: {str(error) or error!r}") from None
    return found


def _faults(found: Slice) -> Iterator[str]:
    source = found.version.source
    alone = len(source.files) == 1
    identity = source.files[0].digest if alone and source.files else sha256_hex(list_files(source.files))
    if not source.files or identity != source.digest:
        yield "the source's digest is not that of its files"
    check_release_files(source.files)
    for engine in found.engines:
        check_release_files(engine.files)
        if not engine.files:
            yield f"engine {engine.id} has no files"
        if json_digest(engine.recipe) != engine.recipe_digest:
            yield f"the recipe of engine {engine.id} is not that of its digest"
    for variant in found.variants:
        check_release_files(variant.files)
    for validation in found.validations:
        if not 0 <= validation.engine_id < len(found.engines):
            yield f"validation {validation.id} is of no engine"
        if validation.verdict is Verdict.PASS and not validation.gates:
            yield f"validation {validation.id} passed without a gate"


def _number(value: Any) -> int:
    if type(value) is not int or not 1 <= value < 2**31:
        raise ValueError(f"{value!r} is no number from 1 on")
    return value


def _text(value: Any, longest: int = 1 << 20) -> str:
    if not isinstance(value, str) or len(value) > longest or "\0" in value:
        raise ValueError(f"{str(value)[:80]!r} is no text")
    value.encode()
    return value


def _object(value: Any) -> Json:
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:80]!r} is no object")
    return value


def _made(record: Any) -> Json:
    return {"created_at": to_microseconds(record.created_at), "created_by": record.created_by}


def _read_made(body: Json) -> dict[str, Any]:
    return {"created_at": from_microseconds(body["created_at"]), "created_by": _text(body["created_by"], 255)}


def _files(body: Json) -> tuple[StoredFile, ...]:
    return tuple(StoredFile.from_json(file) for file in body["files"])


def _version_json(version: VersionRecord) -> Json:
    source = version.source
    return {
        "model": version.model,
        "number": version.number,
        "message": version.message,
        "tags": version.tags,
        **_made(version),
        "source": {
            "sha256": source.digest,
            "files": [file.to_json() for file in source.files],
            "signature": source.signature.to_json(),
            "opsets": source.opsets,
            "ir_version": source.ir_version,
            "producer": source.producer,
            "node_counts": source.node_counts,
            "parameter_bytes": source.parameter_bytes,
            "unbuildable": list(source.unbuildable),
            "warnings": list(source.warnings),
        },
    }


def _read_version(body: Json) -> VersionRecord:
    source = body["source"]
    return VersionRecord(
        id=0,
        model=check_name(_text(body["model"], 128)),
        number=_number(body["number"]),
        message=_text(body["message"]),
        tags={_text(key): _text(value) for key, value in body["tags"].items()},
        **_read_made(body),
        source=SourceInfo(
            digest=check_digest(source["sha256"]),
            files=_files(source),
            signature=Signature.from_json(source["signature"]),
            opsets=_object(source["opsets"]),
            ir_version=_number(source["ir_version"]),
            producer=_text(source["producer"]),
            node_counts=_object(source["node_counts"]),
            parameter_bytes=source["parameter_bytes"],
            unbuildable=tuple(map(_text, source["unbuildable"])),
            warnings=tuple(map(_text, source["warnings"])),
        ),
    )


def _golden_json(golden: GoldenSetRecord) -> Json:
    return {
        "sha256": golden.digest,
        "samples": golden.samples,
        "origin": golden.origin,
        "created_at": to_microseconds(golden.created_at),
    }


def _read_golden(body: Json) -> GoldenSetRecord:
    return GoldenSetRecord(
        id=0,
        version_id=0,
        digest=check_digest(body["sha256"]),
        samples=_number(body["samples"]),
        origin=_object(body["origin"]),
        created_at=from_microseconds(body["created_at"]),
    )


def _variant_json(variant: Variant) -> Json:
    files = [file.to_json() for file in variant.files]
    return {"recipe": variant.recipe_digest, "files": files, "details": variant.details, **_made(variant)}


def _read_variant(body: Json) -> Variant:
    return Variant(
        recipe_digest=check_digest(body["recipe"]),
        files=_files(body),
        details=_object(body["details"]),
        **_read_made(body),
    )


def _engine_json(engine: EngineRecord) -> Json:
    target, toolchain = engine.target, engine.toolchain
    return {
        "target": {
            "name": target.name,
            "gpu": target.gpu,
            "sm_count": target.sm_count,
            "driver": target.driver,
            "cuda": target.cuda,
        },
        "toolchain": {
            "name": toolchain.name,
            "backend": str(toolchain.backend),
            "version": toolchain.version,
            "python": toolchain.python,
            "details": toolchain.details,
        },
        "precision": str(engine.precision),
        "recipe": engine.recipe,
        "recipe_digest": engine.recipe_digest,
        "variant": engine.variant_digest,
        "files": [file.to_json() for file in engine.files],
        "realised": engine.realised,
        "build_s": engine.build_s,
        "log": engine.log_digest,
        **_made(engine),
    }


def _read_engine(body: Json, index: int, version: VersionRecord) -> EngineRecord:
    target, toolchain = body["target"], body["toolchain"]
    return EngineRecord(
        id=index,
        version_id=0,
        model=version.model,
        version=version.number,
        target=TargetRecord(
            id=0,
            name=check_name(_text(target["name"], 64), what="target"),
            gpu=_text(target["gpu"], 128),
            sm_count=target["sm_count"],
            driver=_text(target["driver"], 64),
            cuda=_text(target["cuda"], 64),
        ),
        toolchain=ToolchainRecord(
            id=0,
            name=_text(toolchain["name"], 128),
            backend=Backend(toolchain["backend"]),
            version=_text(toolchain["version"], 64),
            python=_text(toolchain["python"]),
            details=_object(toolchain["details"]),
        ),
        precision=Precision(body["precision"]),
        recipe=_object(body["recipe"]),
        recipe_digest=check_digest(body["recipe_digest"]),
        variant_digest=check_digest(body["variant"]) if body["variant"] else "",
        status=EngineStatus.BUILT,
        files=_files(body),
        realised=_object(body["realised"]),
        build_s=float(body["build_s"]),
        log_digest=check_digest(body["log"]) if body["log"] else "",
        error="",
        **_read_made(body),
    )


def _validation_json(validation: ValidationRecord) -> Json:
    return {
        "engine": validation.engine_id,
        "golden_set": validation.golden_digest,
        "policy_digest": validation.policy_digest,
        "policy": validation.policy,
        "verdict": str(validation.verdict),
        "gates": [gate.to_json() for gate in validation.gates],
        "report": validation.report_digest,
        "host": validation.host,
        **_made(validation),
    }


def _read_validation(body: Json, index: int) -> ValidationRecord:
    engine = body["engine"]
    if type(engine) is not int:
        raise ValueError(f"{engine!r} is no engine's place")
    return ValidationRecord(
        id=index,
        engine_id=engine,
        golden_digest=check_digest(body["golden_set"]),
        policy_digest=check_digest(body["policy_digest"]),
        policy=_object(body["policy"]),
        verdict=Verdict(body["verdict"]),
        gates=tuple(GateResult.from_json(gate) for gate in body["gates"]),
        report_digest=check_digest(body["report"]),
        host=_object(body["host"]),
        **_read_made(body),
    )
