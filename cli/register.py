"""`modelreg register`: an ONNX becomes a version, with what the reference says of it as its golden set."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, Registry
from modelreg.cli.options import dry_run_option, make_command, message_option, read_model_name, read_tag
from modelreg.cli.progress import Reporter, interrupted_by_sigterm
from modelreg.cli.render import count, print_document, print_line, print_note, print_warning, short, size
from modelreg.cli.versions import source_document, version_document
from modelreg.registry.errors import UsageError

if TYPE_CHECKING:
    from modelreg.registry.records import GoldenSetRecord, VersionRecord
    from modelreg.registry.sources.inspect import InspectedSource
    from modelreg.registry.words import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    """Where the golden set comes from: a file, or a PyTorch reference with its inputs."""

    golden: Path | None
    reference: str | None
    weights: Path | None
    inputs: str | None
    activations: bool
    seed: int | None

    def check(self) -> None:
        """Refuse options that contradict each other."""
        if self.golden is not None and self.reference is not None:
            raise UsageError("--golden and --reference exclude each other")
        if self.reference is not None and self.inputs is None:
            raise UsageError(
                "--reference needs --inputs", hint="Give an npz, npy or safetensors file, or FILE.py:iterator."
            )
        belonging = {
            "--weights": self.weights is not None,
            "--inputs": self.inputs is not None,
            "--activations": self.activations,
            "--seed": self.seed is not None,
        }
        if self.reference is None and any(belonging.values()):
            given = next(name for name, is_given in belonging.items() if is_given)
            raise UsageError(f"{given} belongs to --reference", hint="Add --reference FILE.py:factory.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Golden:
    """A checked golden set in its canonical form, not yet stored."""

    path: Path
    samples: int
    origin: Json


@make_command(
    "register",
    help_line="Register an ONNX model as a new version.",
    examples="""
    modelreg register lenet lenet.onnx --golden golden.safetensors -m "first"
    modelreg register lenet lenet.onnx --reference model.py:LeNet --weights lenet.safetensors --inputs digits.npz
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
@click.option("--activations", is_flag=True, help="Keep every layer's output of the reference too.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the reference.  [default: 0]")
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
    activations: bool,
    seed: int | None,
    message: str,
    tags: tuple[tuple[str, str], ...],
    dry_run: bool,
) -> None:
    """Register MODEL.onnx, with its external data, as a version of NAME.

    The same bytes give the same version back. With --reference or --golden, the version gets a golden set: inputs
    and the outputs that every engine is compared with. Everything is checked before anything is written.
    """
    wanted = _Reference(
        golden=golden, reference=reference, weights=weights, inputs=inputs, activations=activations, seed=seed
    )
    wanted.check()
    from modelreg.registry.sources.inspect import inspect_source

    registry = invocation.open_registry()
    registry.open()
    reporter = invocation.reporter()
    inspected = inspect_source(model)
    with interrupted_by_sigterm(), tempfile.TemporaryDirectory(prefix="modelreg-register-") as folder:
        prepared = _prepare_golden(wanted, inspected, Path(folder), reporter)
        if dry_run:
            _print_preview(invocation, name, inspected, prepared)
            return
        version, created, kept = _record(
            registry, reporter, name, inspected, prepared, message=message, tags=dict(tags)
        )
    for warning in version.source.warnings:
        print_warning(warning)
    if not created and (message or tags):
        print_warning(f"{version.reference} keeps its own message and tags: it was registered before")
    _print_registered(invocation, version, created=created, golden=kept)


def _prepare_golden(wanted: _Reference, inspected: InspectedSource, folder: Path, reporter: Reporter) -> _Golden | None:
    """Check the golden set, or make it, before anything is stored."""
    path = folder / "golden.safetensors"
    if wanted.golden is not None:
        return _take_golden(wanted.golden, inspected, path)
    if wanted.reference is None:
        return None
    from modelreg.validators.torch_reference import capture_reference

    assert wanted.inputs is not None
    done = 0
    with reporter.step("running the reference") as tell:

        def add(samples: int) -> None:
            nonlocal done
            done += samples
            tell(None, f"{done} samples")

        origin = capture_reference(
            reference=wanted.reference,
            weights=wanted.weights,
            inputs=wanted.inputs,
            signature=inspected.signature,
            seed=wanted.seed or 0,
            activations=wanted.activations,
            destination=path,
            progress=add,
        )
    return _Golden(path=path, samples=origin["samples"], origin=origin)


def _take_golden(source: Path, inspected: InspectedSource, path: Path) -> _Golden:
    from modelreg.registry.tensor_sets import open_tensor_set
    from modelreg.validators.golden import check_golden, write_golden

    with open_tensor_set(source) as tensors:
        checked = check_golden(tensors, inspected.signature)
        write_golden(tensors, path)
    return _Golden(path=path, samples=checked.samples, origin={"kind": "file", "file": source.name})


def _record(
    registry: Registry,
    reporter: Reporter,
    name: str,
    inspected: InspectedSource,
    prepared: _Golden | None,
    *,
    message: str,
    tags: dict[str, str],
) -> tuple[VersionRecord, bool, GoldenSetRecord | None]:
    """Store the bytes, then record version and golden set in one transaction."""
    from modelreg.registry import versions
    from modelreg.registry.sources.ingest import ingest_source

    total = inspected.size_bytes + (prepared.path.stat().st_size if prepared else 0)
    with reporter.counting_bytes(f"storing {name}", total=total) as progress:
        source = ingest_source(inspected, registry.storage, progress=progress)
        blob = None if prepared is None else registry.storage.put_file(prepared.path, progress=progress)
    with registry.database.write() as connection:
        version, created = versions.register_version(
            connection, model=name, source=source, message=message, tags=tags, actor=registry.actor
        )
        if prepared is None or blob is None:
            return version, created, versions.newest_golden_set(connection, version_id=version.id)
        golden = versions.add_golden_set(
            connection,
            version=version,
            digest=blob.digest,
            size_bytes=blob.size_bytes,
            samples=prepared.samples,
            origin=prepared.origin,
            actor=registry.actor,
            message=message,
        )
    return version, created, golden


def _print_preview(invocation: Invocation, name: str, inspected: InspectedSource, prepared: _Golden | None) -> None:
    if invocation.as_json:
        samples = None if prepared is None else prepared.samples
        print_document(
            {"dry_run": True, "model": name, "source": source_document(inspected), "golden_samples": samples}
        )
        return
    for warning in inspected.warnings:
        print_warning(warning)
    golden = "no golden set" if prepared is None else f"a golden set of {prepared.samples} samples"
    print_line(f"would register {name}: {count(len(inspected.files), 'file')}, {size(inspected.size_bytes)}, {golden}")


def _print_registered(
    invocation: Invocation, version: VersionRecord, *, created: bool, golden: GoldenSetRecord | None
) -> None:
    if invocation.as_json:
        print_document({"created": created, **version_document(version, golden)})
        return
    stored = sum(file.size_bytes for file in version.source.files)
    how = "registered" if created else "is registered already"
    print_line(f"{version.reference} {how}: sha256:{short(version.source.digest)}, {size(stored)}")
    if golden is None:
        print_line("  no golden set: nothing can be validated until one is given with --golden or --reference")
    else:
        print_line(f"  golden set {short(golden.digest)}, {golden.samples} samples")
    for reason in version.source.unbuildable:
        print_line(f"  cannot be built: {reason}")
    if not version.source.unbuildable:
        print_note(f"next: modelreg build {version.reference} --precision fp32")
