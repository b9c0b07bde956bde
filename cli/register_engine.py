"""`modelreg register-engine`: a plan that was built elsewhere becomes an engine, neither loaded nor validated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.cells import engine_document, explain_import
from modelreg.cli.context import Invocation, Registry
from modelreg.cli.next_steps import print_next
from modelreg.cli.options import (
    dry_run_option,
    list_option,
    make_command,
    message_option,
    read_message,
    read_precision,
    read_reference,
    read_targets,
)
from modelreg.cli.progress import interrupted_by_signals
from modelreg.cli.render import print_document, print_line, print_warning, short, size
from modelreg.cli.versions import find_version
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.registry.imported_plans import ImportedEngine, ImportRequest, OfferedPlan
    from modelreg.registry.records import EngineRecord
    from modelreg.registry.words import Json, Precision


@make_command(
    "register-engine",
    help_line="Take in a plan that was built elsewhere.",
    examples="""
    modelreg register-engine lenet:1 lenet.plan --precision fp16 --toolchain rtx17
    modelreg register-engine resnet50:1 r50.plan --precision int8 --target sm_90 --recipe-note "trtexec on the H200 box"
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@click.argument("plan", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--precision", type=read_precision, required=True, metavar="P", help="What it was built in: its header cannot tell."
)
@click.option("--toolchain", metavar="NAME", help="What loads it (default: the only one of the version that built it).")
@list_option(
    "--target",
    "targets",
    type=read_targets,
    metavar="T,...",
    help="What it is for, such as sm_90; needed for TensorRT, and where the header names several.",
)
@click.option(
    "--recipe-note", type=read_message, default="", metavar="TEXT", help="Where it comes from; kept in the recipe."
)
@message_option
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    reference: ModelReference,
    plan: Path,
    precision: Precision,
    toolchain: str | None,
    targets: tuple[str, ...],
    recipe_note: str,
    message: str,
    dry_run: bool,
) -> None:
    """Register FILE, a plan of TensorRT or TensorRT-RTX, as an engine of REF.

    A plan is code. Its header alone is read: what built it, and for TensorRT-RTX its targets. That it was built from
    REF, and in which precision, is taken on your word until `validate` has compared it with the golden set; promote
    refuses it before. Prefer to build from the ONNX. The same plan twice is one engine.
    """
    from modelreg.registry.imported_plans import (
        ImportRequest,
        choose_targets,
        choose_toolchain,
        inspect_plan,
        require_possible,
    )
    from modelreg.registry.toolchains.catalogue import list_toolchains

    registry = invocation.open_registry()
    registry.open()
    version = find_version(registry, reference)
    offered = inspect_plan(plan)
    require_possible(offered, precision)
    with registry.database.read() as connection:
        known = list_toolchains(connection)
    request = ImportRequest(
        version=version,
        targets=choose_targets(offered, targets),
        precision=precision,
        toolchain=choose_toolchain(offered, known, toolchain),
        origin=recipe_note,
        message=message,
    )
    if dry_run:
        _preview(invocation, registry, offered, request)
        return
    outcomes = _import(invocation, registry, offered, request)
    if invocation.as_json:
        print_document({"engines": [_document(each) for each in outcomes], "header": _header(offered)})
        return
    for each in outcomes:
        _print(each)
    print_next(registry, version)


def _import(
    invocation: Invocation, registry: Registry, offered: OfferedPlan, request: ImportRequest
) -> list[ImportedEngine]:
    from modelreg.registry.imported_plans import record_imports, store_plan

    registry.require_writable()
    with interrupted_by_signals():
        with invocation.reporter().counting_bytes(
            f"storing {offered.file.name}", total=offered.file.size_bytes
        ) as tell:
            stored = store_plan(offered, registry.storage, progress=tell)
        with registry.database.write() as connection:
            outcomes = record_imports(connection, offered, request, stored, actor=registry.actor)
    for each in outcomes:
        _warn_of_twins(registry, request, each.engine.target.name, stored.digest)
    return outcomes


def _find_same(registry: Registry, request: ImportRequest, target: str, digest: str) -> list[EngineRecord]:
    from modelreg.registry.engines import list_engines
    from modelreg.registry.imported_plans import find_same

    with registry.database.read() as connection:
        known = list_engines(connection, version_id=request.version.id)
    return find_same(known, request, target=target, digest=digest)


def _warn_of_twins(registry: Registry, request: ImportRequest, target: str, digest: str) -> None:
    """Say where the same plan is registered in another precision: one of the two is wrong."""
    for twin in _find_same(registry, request, target, digest):
        if twin.precision is not request.precision:
            print_warning(f"engine {twin.id} is the same plan, registered as {twin.precision}")


def _preview(invocation: Invocation, registry: Registry, offered: OfferedPlan, request: ImportRequest) -> None:
    from modelreg.registry.digests import file_digest
    from modelreg.registry.imported_plans import import_recipe

    digest = file_digest(offered.file.path)
    recipe = import_recipe(offered, request, digest=digest, actor=registry.actor)
    planned = []
    for target in request.targets:
        same = _find_same(registry, request, target, digest)
        already = same[0].id if same and same[0].precision is request.precision else None
        planned.append({"target": target, "already": already, "plan": digest, "recipe": recipe})
    if invocation.as_json:
        print_document({"dry_run": True, "engines": planned, "header": _header(offered)})
        return
    for each in planned:
        cell = f"{request.version.reference} {each['target']} {request.precision}"
        if each["already"] is None:
            print_line(f"would register {cell}, {offered.built_by}, plan {short(digest)}, {_size(offered)}")
        else:
            print_line(f"{cell} is registered already: engine {each['already']} has this plan")


def _document(outcome: ImportedEngine) -> Json:
    return {"created": outcome.created, **engine_document(outcome.engine)}


def _header(offered: OfferedPlan) -> Json:
    header = offered.header
    return {"backend": str(header.backend), "version": header.version, "targets": list(header.targets)}


def _size(offered: OfferedPlan) -> str:
    return size(offered.file.size_bytes)


def _print(outcome: ImportedEngine) -> None:
    engine = outcome.engine
    how = "registered" if outcome.created else "has this plan already"
    made = f"{engine.toolchain.backend} {engine.toolchain.version}"
    cell = f"{engine.model}:{engine.version} {engine.target.name} {engine.precision}"
    print_line(f"engine {engine.id} {how}: {cell}, {made}, plan {short(engine.plan_digest)}, {size(engine.size_bytes)}")
    if told := explain_import(engine):
        print_line(f"  {told}")
