"""How a version is found by its reference, and how it is written as JSON; commands share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelreg.cli.render import count, print_note
from modelreg.registry.clock import iso

if TYPE_CHECKING:
    import sqlalchemy as sa

    from modelreg.cli.context import Registry
    from modelreg.registry.records import GoldenContents, GoldenSetRecord, SourceInfo, VersionRecord
    from modelreg.registry.references import ModelReference
    from modelreg.registry.sources.inspect import InspectedSource
    from modelreg.registry.words import Json


def find_version(registry: Registry, reference: ModelReference) -> VersionRecord:
    """Return the version that a reference means, saying which where it names none."""
    with registry.database.read() as connection:
        return read_version(connection, reference)


def read_version(connection: sa.Connection, reference: ModelReference) -> VersionRecord:
    """Return the same in a transaction that is open."""
    from modelreg.registry.versions import get_version

    version = get_version(connection, reference)
    if str(reference) == reference.model:
        print_note(f"{reference} means {version.reference}, the newest")
    return version


def say_samples(samples: int, contents: GoldenContents | None) -> str:
    """Return what a golden set holds, for example `256 samples, labels, 3 slices, 12 layers`."""
    return ", ".join((count(samples, "sample"), *say_contents(contents)))


def say_contents(contents: GoldenContents | None) -> list[str]:
    """Return what a golden set holds beside its samples, a word or two each; nothing where that is not known."""
    if contents is None:
        return []
    labels = "labels" if contents.labels == 1 else f"{contents.labels} arrays of labels"
    found = (
        (contents.labels, labels),
        (contents.slices, count(contents.slices, "slice")),
        (contents.layers, count(contents.layers, "layer")),
    )
    return [words for number_of, words in found if number_of]


def source_document(source: SourceInfo | InspectedSource) -> Json:
    """Return what is known of a source from its graph."""
    return {
        "signature": source.signature.to_json(),
        "opsets": source.opsets,
        "ir_version": source.ir_version,
        "producer": source.producer,
        "node_counts": source.node_counts,
        "parameter_bytes": source.parameter_bytes,
        "unbuildable": list(source.unbuildable),
        "warnings": list(source.warnings),
    }


def version_document(version: VersionRecord, golden: GoldenSetRecord | None) -> Json:
    """Return a version with its source and golden set."""
    source = version.source
    return {
        "model": version.model,
        "version": version.number,
        "message": version.message,
        "tags": version.tags,
        "created_at": iso(version.created_at),
        "created_by": version.created_by,
        "source": {
            "sha256": source.digest,
            "files": [file.to_json() for file in source.files],
            **source_document(source),
        },
        "golden_set": None
        if golden is None
        else {"sha256": golden.digest, "samples": golden.samples, "origin": golden.origin},
    }
