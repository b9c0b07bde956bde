"""`modelreg export triton`: a release becomes a version of a model in a Triton model repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, Registry
from modelreg.cli.options import (
    dry_run_option,
    list_option,
    make_command,
    read_precision,
    read_reference,
    read_targets,
    read_whole_numbers,
    whole_number,
)
from modelreg.cli.progress import interrupted_by_signals
from modelreg.cli.render import print_document, print_line, print_note, print_text, short, size
from modelreg.registry.errors import UsageError
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.registry.promotion import PromotionRequest
    from modelreg.registry.words import Json, Precision
    from modelreg.runtime.triton.releases import ExportedRelease
    from modelreg.runtime.triton.repository import ExportPlan

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def _read_name(value: str) -> str:
    if _NAME.fullmatch(value) is None:
        raise click.BadParameter(f"{value[:80]!r} is no name of a folder: letters, digits, '.', '_' and '-'")
    return value


@make_command(
    "triton",
    help_line="Write a release into a Triton model repository.",
    examples="""
    modelreg export triton resnet50@production --into /srv/models
    modelreg export triton resnet50@production --into /srv/models --target sm_86,sm_90 --max-delay-us 500
    modelreg export triton lenet:1 --into ./models --precision int8 --name lenet-int8 --dry-run
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@click.option(
    "--into",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="The model repository; made if it is not there.",
)
@click.option("--name", type=_read_name, metavar="NAME", help="What Triton calls it (default: the model's name).")
@list_option("--target", "targets", type=read_targets, metavar="T,...", help="Export these targets alone.")
@click.option("--precision", type=read_precision, metavar="P", help="Of a version: take engines of this precision.")
@click.option("--max-batch", type=whole_number(1), metavar="N", help="Largest batch (default: what the profiles take).")
@list_option(
    "--preferred-batch",
    "preferred",
    type=read_whole_numbers,
    metavar="N,...",
    help="Preferred batch sizes (default: the optima of the profiles).",
)
@click.option(
    "--max-delay-us",
    type=whole_number(0),
    default=100,
    show_default=True,
    metavar="N",
    help="How long a request may wait for a batch.",
)
@click.option(
    "--instances", type=whole_number(1), default=1, show_default=True, metavar="N", help="Instances on each device."
)
@click.option(
    "--version-policy",
    default="latest:1",
    show_default=True,
    metavar="P",
    help="What Triton serves: latest:N, all, or specific:1,3.",
)
@click.option("--no-warm-up", is_flag=True, help="Write no warm-up; else every profile runs before Triton is ready.")
@dry_run_option
@click.pass_obj
def triton(
    invocation: Invocation,
    *,
    reference: ModelReference,
    folder: Path,
    name: str | None,
    targets: tuple[str, ...],
    precision: Precision | None,
    max_batch: int | None,
    preferred: tuple[int, ...],
    max_delay_us: int,
    instances: int,
    version_policy: str,
    no_warm_up: bool,
    dry_run: bool,
) -> None:
    """Write REF as the next version of a model in the Triton model repository DIR.

    NAME@CHANNEL is the release that is active; NAME:VERSION is what a promotion would make of it, so its engines have
    to pass their gates. What a Triton server would refuse is refused before anything is written. The release that the
    newest version holds is not written twice.
    """
    from modelreg.runtime.triton.configuration import ServingOptions, make_configuration
    from modelreg.runtime.triton.engines import choose_targets, describe_needs, place_engines
    from modelreg.runtime.triton.repository import carry_out, make_mark, plan_export, read_entry

    registry = invocation.open_registry()
    release = _find_release(registry, reference, targets=targets, precision=precision)
    chosen = release.serve(choose_targets(release.manifest, targets))
    placed = place_engines(chosen)
    options = ServingOptions(
        max_batch=max_batch,
        preferred_batches=preferred,
        max_delay_us=max_delay_us,
        instances=instances,
        version_policy=version_policy,
        warms_up=not no_warm_up,
    )
    model_name = name or reference.model
    configuration = make_configuration(
        model_name, release.manifest.signature, placed, options, parameters=release.parameters
    )
    noted = {**release.document(), "files": [file.to_json() for file in placed.files]}
    plan = plan_export(
        read_entry(folder, model_name),
        configuration,
        mark=make_mark(configuration, release=noted),
        files=placed.files,
    )
    if not dry_run:
        with (
            interrupted_by_signals(),
            invocation.reporter().counting_bytes(f"exporting {reference}", total=plan.size_bytes) as tell,
        ):
            carry_out(plan, registry.storage, progress=tell)
    needs = describe_needs(chosen)
    if invocation.as_json:
        print_document({"dry_run": dry_run, **_document(plan, release, needs)})
        return
    _print(plan, release, dry_run=dry_run, verbose=invocation.verbose)
    for need in needs:
        print_note(f"note: {need}")


def _find_release(
    registry: Registry, reference: ModelReference, *, targets: tuple[str, ...], precision: Precision | None
) -> ExportedRelease:
    from modelreg.registry.engines import list_engines
    from modelreg.registry.manifest import parse_manifest
    from modelreg.registry.standings import read_plan
    from modelreg.registry.storage.rules import no_pointer
    from modelreg.registry.versions import get_version
    from modelreg.runtime.triton.releases import active_release, planned_release

    if reference.channel is None:
        if reference == ModelReference(model=reference.model):
            raise UsageError(
                f"{reference} names neither a version nor a channel", hint=f"Write {reference}@CHANNEL or :VERSION."
            )
        with registry.database.read() as connection:
            plan = read_plan(connection, reference, (), _request(registry, reference, targets, precision))
        return planned_release(plan)
    if precision is not None:
        raise UsageError("--precision belongs to a version: a release has one engine for each target")
    pointer = registry.storage.read_pointer(reference.model, reference.channel)
    if pointer is None:
        raise no_pointer(reference.model, reference.channel)
    manifest = parse_manifest(registry.storage.read_manifest(pointer.release), where=pointer.release)
    with registry.database.read() as connection:
        version = get_version(connection, ModelReference(model=pointer.model, version=pointer.version))
        return active_release(pointer, manifest, list_engines(connection, version_id=version.id))


def _request(
    registry: Registry, reference: ModelReference, targets: tuple[str, ...], precision: Precision | None
) -> PromotionRequest:
    from modelreg.cli.policies_in_force import policies_in_force
    from modelreg.registry.promotion import PromotionRequest

    policies = policies_in_force(registry.home, registry.database, model=reference.model)
    return PromotionRequest(
        preference=registry.home.settings.preference_for,
        targets=targets,
        precision=precision,
        accepts=policies.object_to,
    )


def _document(plan: ExportPlan, release: ExportedRelease, needs: list[str]) -> Json:
    return {
        **release.document(),
        "path": str(plan.folder),
        "triton_version": plan.version,
        "written": plan.is_new,
        "config_written": plan.is_new or plan.changes_config,
        "files": [file.to_json() for file in plan.files],
        "config": plan.config,
        "needs": needs,
    }


def _print(plan: ExportPlan, release: ExportedRelease, *, dry_run: bool, verbose: bool) -> None:
    did = "would be written" if dry_run else "written"
    if plan.is_new:
        print_line(f"{plan.folder}: release {short(release.digest)} {did}, {size(plan.size_bytes)}")
        for file in plan.files:
            print_line(f"  {file.path:<20} {size(file.size_bytes):>10}  {short(file.digest)}")
    elif plan.changes_config:
        print_line(f"{plan.folder}: release {short(release.digest)} is there already, config.pbtxt {did}")
    else:
        print_line(f"{plan.folder}: release {short(release.digest)} is there already, nothing to do")
    if dry_run or verbose:
        print_text(plan.config.rstrip("\n"))
