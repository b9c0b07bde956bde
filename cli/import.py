"""`modelreg import`: a bundle from another registry is verified whole, and then taken in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, Registry
from modelreg.cli.options import dry_run_option, make_command
from modelreg.cli.progress import interrupted_by_signals
from modelreg.cli.render import count, print_document, print_line, print_note, print_warning, short, size

if TYPE_CHECKING:
    from modelreg.registry.bundles.checking import CheckedBundle
    from modelreg.registry.bundles.importing import ImportOutcome
    from modelreg.registry.words import Json


def _read_digest(value: str) -> str:
    found = value.strip().lower().removeprefix("sha256:")
    if re.fullmatch(r"[0-9a-f]{64}", found) is None:
        raise click.BadParameter(f"{value[:80]!r} is no SHA-256 of 64 hex digits")
    return found


@make_command(
    "import",
    help_line="Take in a bundle of another registry.",
    examples="""
    modelreg import resnet50.tar.gz --dry-run
    modelreg import resnet50.tar.gz --sha256 4be1c0...
    modelreg promote resnet50:7 --to production
    """,
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--sha256", "digest", type=_read_digest, metavar="DIGEST", help="Refuse FILE unless it has this digest.")
@dry_run_option
@click.pass_obj
def command(invocation: Invocation, *, file: Path, digest: str | None, dry_run: bool) -> None:
    """Take in FILE, which `modelreg export bundle` wrote.

    All of it is verified before anything is written: digests, sizes, records, the ONNX itself; exit 6 if something is
    not as it says. A version keeps its number if that is free here; the same source is the same version. Verdicts come
    along and count as here reached on the day they were; nothing is promoted. Digests tell that FILE is whole, not who
    wrote it: give the --sha256 that `export` printed. Importing FILE again changes nothing.
    """
    from modelreg.registry.bundles.checking import check_bundle
    from modelreg.registry.scratch import scratch_folder

    registry = invocation.open_registry()
    registry.open()
    if not dry_run:
        registry.require_writable()
    with interrupted_by_signals(), scratch_folder("import") as scratch:
        with invocation.reporter().counting_bytes(f"verifying {file.name}") as tell:
            bundle = check_bundle(file, scratch=scratch, expected_digest=digest or "", progress=tell)
        outcome = _preview(registry, bundle) if dry_run else _import(invocation, registry, bundle, scratch)
    if invocation.as_json:
        print_document({"dry_run": dry_run, **_document(bundle, outcome)})
        return
    _print(bundle, outcome, dry_run=dry_run)


def _preview(registry: Registry, bundle: CheckedBundle) -> ImportOutcome:
    from modelreg.registry.bundles.importing import preview_import

    with registry.database.read() as connection:
        return preview_import(connection, bundle)


def _import(invocation: Invocation, registry: Registry, bundle: CheckedBundle, scratch: Path) -> ImportOutcome:
    from modelreg.registry.bundles.importing import record_import, store_blobs

    with invocation.reporter().counting_bytes(f"storing {bundle.path.name}", total=bundle.listing.size_bytes) as tell:
        store_blobs(bundle, registry.storage, scratch, progress=tell)
    with registry.database.write() as connection:
        return record_import(connection, bundle, actor=registry.actor)


def _document(bundle: CheckedBundle, outcome: ImportOutcome) -> Json:
    release = bundle.slice.release
    return {
        "path": str(bundle.path),
        "sha256": bundle.digest,
        "reference": outcome.reference,
        "offered": outcome.offered,
        "new_version": outcome.new_version,
        "golden_set": outcome.golden_set,
        "engines": [{"engine": engine, "new": is_new} for engine, is_new in outcome.engines],
        "verdicts_added": outcome.verdicts_added,
        "verdicts_kept_out": outcome.verdicts_kept_out,
        "variants_added": outcome.variants_added,
        "release": None if release is None else release.digest,
        "changed": outcome.changed,
    }


def _print(bundle: CheckedBundle, outcome: ImportOutcome, *, dry_run: bool) -> None:
    print_line(f"{bundle.path.name}: verified, {count(len(bundle.listing.blobs), 'blob')}, {size(bundle.size_bytes)}")
    if not outcome.changed:
        print_line(f"{outcome.reference} has all of it already, nothing to do")
    else:
        did = "would be imported" if dry_run else "imported"
        state = "new" if outcome.new_version else "known by its source"
        new = sum(is_new for _, is_new in outcome.engines)
        engines = f"{count(new, 'new engine')} of {len(outcome.engines)}"
        verdicts = count(outcome.verdicts_added, "new verdict")
        print_line(f"{outcome.reference} {did} ({state}): {engines}, {verdicts}, golden set {outcome.golden_set}")
    if outcome.reference != outcome.offered:
        why = "that number is taken here" if outcome.new_version else "this registry has the same source so"
        print_note(f"{outcome.offered} is {outcome.reference} here: {why}")
    if outcome.golden_set == "kept":
        print_warning(f"{outcome.reference} has another golden set here, which stays: verdicts against it alone count")
    if outcome.verdicts_kept_out:
        kept = count(outcome.verdicts_kept_out, "verdict")
        print_warning(f"{kept} left out: what is known of the engine here is newer")
    release = bundle.slice.release
    if release is not None:
        print_note(f"it was release {short(release.digest)} of {release.channel}, generation {release.generation}")
    if outcome.changed and not dry_run:
        print_note(f"next: modelreg promote {outcome.reference} --to CHANNEL")
