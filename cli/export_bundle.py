"""`modelreg export bundle`: a version with all that belongs to it in one file, for a registry out of reach."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation
from modelreg.cli.options import dry_run_option, make_command, read_reference
from modelreg.cli.progress import interrupted_by_signals
from modelreg.cli.render import count, print_document, print_line, size
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.registry.bundles.collecting import BundleContents
    from modelreg.registry.words import Json


@make_command(
    "bundle",
    help_line="Write a version with its engines and verdicts to one file.",
    examples="""
    modelreg export bundle resnet50@production --into resnet50.tar.gz
    modelreg export bundle resnet50:7 --into resnet50-7.tar --dry-run
    modelreg import resnet50.tar.gz
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@click.option(
    "--into",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="FILE.tar, or FILE.tar.gz to have it compressed.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@dry_run_option
@click.pass_obj
def bundle(invocation: Invocation, *, reference: ModelReference, file: Path, force: bool, dry_run: bool) -> None:
    """Write REF to FILE: the version, its source, golden set, variants, engines, verdicts, reports and logs.

    NAME@CHANNEL is the active release with its engines; NAME:VERSION all engines that count. The same content gives
    the same bytes. Where other registries cannot be reached, carry FILE over and run `modelreg import`.
    """
    from modelreg.registry.bundles.collecting import collect, require_present
    from modelreg.registry.bundles.writing import check_destination, write_bundle

    registry = invocation.open_registry()
    registry.open()
    check_destination(file, replace=force)
    contents = collect(registry.database, registry.storage, reference)
    require_present(contents, registry.storage)
    written = None
    if not dry_run:
        with (
            interrupted_by_signals(),
            invocation.reporter().counting_bytes(f"writing {file}", total=contents.listing.size_bytes) as tell,
        ):
            written = write_bundle(contents, registry.storage, file, replace=force, progress=tell)
    if invocation.as_json:
        told = {"sha256": written.digest, "size_bytes": written.size_bytes} if written else {}
        print_document({"dry_run": dry_run, "path": str(file), **told, **_document(contents)})
        return
    found = contents.slice
    what = ", ".join(
        (
            count(len(found.engines), "engine"),
            count(len(found.validations), "verdict"),
            "a golden set" if found.golden else "no golden set",
            count(len(contents.listing.blobs), "blob"),
        )
    )
    if written is None:
        print_line(f"{file} would hold {found.version.reference}: {what}, {size(contents.listing.size_bytes)}")
        return
    print_line(f"{file}: {found.version.reference}, {what}, {size(written.size_bytes)}")
    print_line(f"sha256 {written.digest}")


def _document(contents: BundleContents) -> Json:
    found = contents.slice
    return {
        "model": found.version.model,
        "version": found.version.number,
        "release": None if found.release is None else found.release.digest,
        "channel": None if found.release is None else found.release.channel,
        "generation": None if found.release is None else found.release.generation,
        "golden_set": None if found.golden is None else found.golden.digest,
        "engines": len(found.engines),
        "verdicts": len(found.validations),
        "policies": sorted({each.policy_digest for each in found.validations}),
        "blobs": [
            {"sha256": blob.digest, "size": blob.size_bytes, "kind": str(blob.kind)} for blob in contents.listing.blobs
        ],
    }
