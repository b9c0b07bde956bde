"""`modelreg register`: an ONNX becomes a version, with what the reference says of it as its golden set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, Registry
from modelreg.cli.golden_replacing import Replaced, find_replaced, print_replaced, replaced_document
from modelreg.cli.golden_sources import GoldenSource, PreparedGolden, prepare_golden
from modelreg.cli.next_steps import print_next
from modelreg.cli.options import (
    dry_run_option,
    make_command,
    message_option,
    positive_number,
    read_bytes,
    read_model_name,
    read_tag,
    read_words,
    whole_number,
)
from modelreg.cli.progress import Reporter, interrupted_by_signals
from modelreg.cli.render import count, print_document, print_line, print_warning, short, size
from modelreg.cli.versions import say_samples, source_document, version_document
from modelreg.registry.errors import NotFoundError
from modelreg.registry.references import ModelReference
from modelreg.registry.scratch import scratch_folder

if TYPE_CHECKING:
    from modelreg.registry.records import GoldenSetRecord, VersionRecord
    from modelreg.registry.sources.inspect import InspectedSource


@make_command(
    "register",
    help_line="Register an ONNX model as a new version.",
    examples="""
    modelreg register lenet lenet.onnx --golden golden.safetensors -m "first"
    modelreg register lenet lenet.onnx --reference model.py:LeNet --weights lenet.safetensors --inputs digits.npz
    modelreg register lenet lenet.onnx --reference model.py:LeNet --inputs digits.npz --activations all
    """,
)
@click.argument("name", type=read_model_name, metavar="NAME")
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL.onnx")
@click.option(
    "--golden",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A golden set: .safetensors or .npz with input.NAME, output.NAME, label.",
)
@click.option(
    "--reference",
    metavar="FILE.py:NAME",
    help="The PyTorch model that says what is right, run once. FILE is executed; or a .pt or .pt2 archive.",
)
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Weights of the reference: safetensors, or a .pt of plain tensors.",
)
@click.option(
    "--inputs", metavar="FILE", help="Inputs for the reference: .npz, .npy, .safetensors or FILE.py:iterator."
)
@click.option(
    "--activations",
    type=read_words,
    is_flag=False,
    flag_value="all",
    metavar="[all|GLOB,...]",
    help="Keep what the reference's modules give too: every leaf (all), or those whose names match.",
)
@click.option(
    "--activation-bytes",
    type=read_bytes,
    metavar="N",
    help="What activations may take, for example 64M; samples and elements are chosen to fit.  [default: 256M]",
)
@click.option("--seed", type=whole_number(0), help="Seed of the reference.  [default: 0]")
@click.option(
    "--timeout",
    type=positive_number,
    metavar="S",
    help="Seconds that the reference may take (default: the registry's setting).",
)
@message_option
@click.option("--tag", "tags", type=read_tag, multiple=True, metavar="KEY=VALUE", help="A tag; may be repeated.")
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    name: str,
    model: Path,
    golden: Path | None,
    reference: str | None,
    weights: Path | None,
    inputs: str | None,
    activations: tuple[str, ...] | None,
    activation_bytes: int | None,
    seed: int | None,
    timeout: float | None,
    message: str,
    tags: tuple[tuple[str, str], ...],
    dry_run: bool,
) -> None:
    """Register MODEL.onnx, with its external data, as a version of NAME.

    The same bytes give the same version back. With --reference or --golden, the version gets a golden set: inputs
    and the outputs that every engine is compared with. Everything is checked before anything is written: what ONNX's
    checker refuses, and nodes whose inputs cannot go together by its shape inference, are refused; declared shapes that
    are wrong, and what some backends do not take, are warned of. With -v, what the reference prints is shown.
    """
    wanted = GoldenSource(
        golden=golden,
        reference=reference,
        weights=weights,
        inputs=inputs,
        activations=activations or (),
        activation_bytes=activation_bytes,
        seed=seed,
        timeout_s=timeout,
    )
    wanted.check()
    from modelreg.registry.sources.inspect import inspect_source

    registry = invocation.open_registry()
    registry.open()
    reporter = invocation.reporter()
    inspected = inspect_source(model)
    if not dry_run:
        registry.require_writable()
    with interrupted_by_signals(), scratch_folder("register") as folder:
        prepared = prepare_golden(
            wanted,
            inspected,
            Path(folder),
            reporter,
            timeout_s=registry.home.settings.build_timeout_s,
            verbose=invocation.verbose,
        )
        known = _find_known(registry, name, inspected) if dry_run or prepared is not None else None
        _require_replaceable(registry, known, prepared, message=message)
        if dry_run:
            _print_preview(invocation, known, name, inspected, prepared)
            return
        recorded = _record(registry, reporter, name, inspected, prepared, message=message, tags=dict(tags))
    version = recorded.version
    for warning in version.source.warnings:
        print_warning(warning)
    unheard = tags or (message and recorded.replaced is None)
    if not recorded.created and unheard:
        print_warning(f"{version.reference} keeps its own message and tags: it was registered before")
    _print_registered(invocation, registry, recorded)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """What a registration came to: the version, whether it is new, its golden set, and the one that gave way."""

    version: VersionRecord
    created: bool
    golden: GoldenSetRecord | None
    replaced: Replaced | None = None


def _record(
    registry: Registry,
    reporter: Reporter,
    name: str,
    inspected: InspectedSource,
    prepared: PreparedGolden | None,
    *,
    message: str,
    tags: dict[str, str],
) -> _Recorded:
    """Store the bytes, then record version and golden set in one transaction."""
    from modelreg.registry import golden_sets, validations, versions
    from modelreg.registry.sources.ingest import ingest_source

    total = inspected.size_bytes + (prepared.path.stat().st_size if prepared else 0)
    with reporter.counting_bytes(f"storing {name}", total=total) as progress:
        source = ingest_source(inspected, registry.storage, progress=progress)
        blob = None if prepared is None else registry.storage.put_file(prepared.path, progress=progress)
    with registry.database.write() as connection:
        version, created = versions.register_version(
            connection, model=name, source=source, message=message, tags=tags, actor=registry.actor
        )
        before = golden_sets.newest_golden_set(connection, version_id=version.id)
        if prepared is None or blob is None:
            return _Recorded(version=version, created=created, golden=before)
        golden = golden_sets.add_golden_set(
            connection,
            version=version,
            digest=blob.digest,
            size_bytes=blob.size_bytes,
            samples=prepared.samples,
            origin=prepared.origin,
            actor=registry.actor,
            message=message,
        )
        newest = validations.newest_validations(connection, version_id=version.id)
    replaced = find_replaced(before, golden, newest.values())
    return _Recorded(version=version, created=created, golden=golden, replaced=replaced)


def _require_replaceable(
    registry: Registry, known: VersionRecord | None, prepared: PreparedGolden | None, *, message: str
) -> None:
    """Refuse a golden set that would replace another one without a reason, before any of it is stored."""
    from modelreg.registry.digests import file_digest
    from modelreg.registry.golden_sets import require_replaceable

    if known is not None and prepared is not None:
        digest = file_digest(prepared.path)
        with registry.database.read() as connection:
            require_replaceable(connection, version=known, digest=digest, message=message)


def _find_known(registry: Registry, name: str, inspected: InspectedSource) -> VersionRecord | None:
    """Return the version that these bytes are already."""
    from modelreg.registry.sources.ingest import hash_source
    from modelreg.registry.versions import get_version

    reference = ModelReference(model=name, digest=hash_source(inspected))
    with registry.database.read() as connection:
        try:
            return get_version(connection, reference)
        except NotFoundError:
            return None


def _print_preview(
    invocation: Invocation,
    known: VersionRecord | None,
    name: str,
    inspected: InspectedSource,
    prepared: PreparedGolden | None,
) -> None:
    if invocation.as_json:
        samples = None if prepared is None else prepared.samples
        print_document(
            {
                "dry_run": True,
                "model": name,
                "already": None if known is None else known.reference,
                "source": source_document(inspected),
                "golden_samples": samples,
            }
        )
        return
    for warning in inspected.warnings:
        print_warning(warning)
    golden = "no golden set"
    if prepared is not None:
        golden = f"a golden set of {say_samples(prepared.samples, prepared.contents)}"
    what = f"would register {name}" if known is None else f"is registered already as {known.reference}"
    print_line(f"{what}: {count(len(inspected.files), 'file')}, {size(inspected.size_bytes)}, {golden}")


def _print_registered(invocation: Invocation, registry: Registry, recorded: _Recorded) -> None:
    version, golden, replaced = recorded.version, recorded.golden, recorded.replaced
    if invocation.as_json:
        body = version_document(version, golden)
        print_document({"created": recorded.created, "replaced": replaced_document(replaced, golden), **body})
        return
    stored = sum(file.size_bytes for file in version.source.files)
    how = "registered" if recorded.created else "is registered already"
    print_line(f"{version.reference} {how}: sha256:{short(version.source.digest)}, {size(stored)}")
    if golden is None:
        print_line("  no golden set: nothing can be validated until one is given with --golden or --reference")
    else:
        print_line(f"  golden set {short(golden.digest)}, {say_samples(golden.samples, golden.contents)}")
        if replaced is not None:
            print_replaced(replaced, golden, reference=version.reference)
    for reason in version.source.unbuildable:
        print_line(f"  cannot be built: {reason}")
    print_next(registry, version)
