"""`modelreg export onnx`: the ONNX of a version, as it was registered or as a precision's engine was built from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, Registry
from modelreg.cli.options import dry_run_option, make_command, read_precision, read_reference
from modelreg.cli.progress import interrupted_by_signals
from modelreg.cli.render import print_document, print_line, short, size
from modelreg.cli.versions import find_version
from modelreg.registry.errors import NotFoundError, UsageError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.registry.contents import StoredFile
    from modelreg.registry.records import VersionRecord
    from modelreg.registry.words import Precision


@make_command(
    "onnx",
    help_line="Write a version's ONNX, or a precision's variant.",
    examples="""
    modelreg export onnx resnet50:7 --into ./resnet50
    modelreg export onnx resnet50@production --precision int8 --into ./resnet50-int8
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@click.option(
    "--into",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="A folder that is new or empty; the model becomes DIR/model.onnx, its external data lies beside it.",
)
@click.option(
    "--precision", type=read_precision, metavar="P", help="The variant that the newest engine of P was built from."
)
@dry_run_option
@click.pass_obj
def onnx(
    invocation: Invocation, *, reference: ModelReference, folder: Path, precision: Precision | None, dry_run: bool
) -> None:
    """Write the ONNX of REF with its external data, byte by byte what was registered.

    With --precision it is the variant: casts or Q/DQ nodes are in it, as some engine of that precision was built.
    """
    registry = invocation.open_registry()
    version = find_version(registry, reference)
    files, what = (version.source.files, "source") if precision is None else _variant(registry, version, precision)
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not a new or empty folder", hint="Name another one.")
    if not dry_run:
        _write(invocation, registry, files, folder)
    path = folder / "model.onnx"
    if invocation.as_json:
        body = {"model": version.model, "version": version.number, "what": what, "path": str(path)}
        print_document({"dry_run": dry_run, **body, "files": [file.to_json() for file in files]})
        return
    did = "would be written" if dry_run else "written"
    print_line(f"{path}: {what} of {version.reference} {did}, {size(sum(file.size_bytes for file in files))}")
    for file in files:
        print_line(f"  {file.path:<20} {size(file.size_bytes):>10}  {short(file.digest)}")


def _variant(registry: Registry, version: VersionRecord, precision: Precision) -> tuple[tuple[StoredFile, ...], str]:
    """Return the files of the newest engine's variant, or the source's where that precision converts nothing."""
    from modelreg.registry.digests import json_digest
    from modelreg.registry.engines import find_variant, list_engines
    from modelreg.registry.words import EngineStatus

    with registry.database.read() as connection:
        attempts = list_engines(connection, version_id=version.id)
        built = [each for each in attempts if each.precision is precision and each.status is EngineStatus.BUILT]
        if not built:
            raise NotFoundError(
                f"{version.reference} has no {precision} engine, so no variant of it was made",
                hint=f"Run `modelreg build {version.reference} --precision {precision}`.",
            )
        part = built[-1].recipe.get("variant")
        if not part:
            return version.source.files, f"source (engine {built[-1].id} was built from it unchanged)"
        files = find_variant(connection, source_digest=version.source.digest, recipe_digest=json_digest(part))
    if files is None:
        raise NotFoundError(
            f"the variant that engine {built[-1].id} was built from is not kept",
            hint="Build it again in this registry.",
        )
    return files, f"{precision} variant (of engine {built[-1].id})"


def _write(invocation: Invocation, registry: Registry, files: tuple[StoredFile, ...], folder: Path) -> None:

    from modelreg.runtime.pull_place import folder_errors
    from modelreg.runtime.staging import fill_folder, move_into_place, staged_folder

    named = (files[0]._replace(path="model.onnx"), *files[1:])
    total = sum(file.size_bytes for file in files)
    with (
        interrupted_by_signals(),
        invocation.reporter().counting_bytes(f"writing {folder}", total=total) as tell,
        folder_errors(folder),
    ):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with staged_folder(folder.parent) as staged:
            fill_folder(staged, named, registry.storage, progress=tell)
            move_into_place(staged, folder)
