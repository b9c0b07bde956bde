"""`modelreg diff`: what changed between two versions, or between the releases of two channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, Registry
from modelreg.cli.options import make_command, read_reference
from modelreg.cli.render import print_document, print_line, shorten_digests, size
from modelreg.cli.tables import Column, print_table
from modelreg.cli.versions import read_version
from modelreg.registry.references import ModelReference

if TYPE_CHECKING:
    from modelreg.registry.differences import Difference


@make_command(
    "diff",
    help_line="Compare two versions or two releases.",
    examples="""
    modelreg diff lenet:1 lenet:2
    modelreg diff lenet@production lenet@staging
    """,
)
@click.argument("left", type=read_reference, metavar="A")
@click.argument("right", type=read_reference, metavar="B")
@click.pass_obj
def command(invocation: Invocation, *, left: ModelReference, right: ModelReference) -> None:
    """Compare two versions: source, signature, opset, node counts, engines, gates and sizes.

    Two channels are compared by what they serve. With -v, digests are whole and nothing is left out.
    """
    from modelreg.registry.differences import as_json, compare_facts

    registry = invocation.open_registry()
    served = left.channel is not None and right.channel is not None
    read = _read_release if served else _read_version
    differences = compare_facts(read(registry, left), read(registry, right))
    if invocation.as_json:
        print_document(
            {
                "left": str(left),
                "right": str(right),
                "differences": [
                    {"field": d.field, "left": as_json(d.field, d.left), "right": as_json(d.field, d.right)}
                    for d in differences
                ],
            }
        )
    elif not differences:
        print_line(f"{left} and {right} do not differ")
    else:
        _print(differences, left, right, verbose=invocation.verbose, no_color=invocation.no_color)


def _read_version(registry: Registry, reference: ModelReference) -> dict[str, str]:
    from modelreg.registry import engines, golden_sets, validations
    from modelreg.registry.differences import engine_facts, source_facts
    from modelreg.registry.promotion import EngineStanding

    with registry.database.read() as connection:
        version = read_version(connection, reference)
        built = engines.current_engines(connection, version_id=version.id)
        newest = validations.newest_validations(connection, version_id=version.id)
        golden = golden_sets.newest_golden_set(connection, version_id=version.id)
    standings = [EngineStanding(engine=engine, validation=newest.get(engine.id)) for engine in built]
    compared = {"golden set": golden.digest, "golden samples": str(golden.samples)} if golden else {}
    return {**source_facts(version.source), **compared, **engine_facts(standings)}


def _read_release(registry: Registry, reference: ModelReference) -> dict[str, str]:
    from modelreg.registry.differences import manifest_facts
    from modelreg.registry.manifest import parse_manifest
    from modelreg.registry.suggestions import no_active_release

    assert reference.channel is not None
    pointer = registry.storage.read_pointer(reference.model, reference.channel)
    if pointer is None:
        raise no_active_release(reference.model, reference.channel, served=registry.storage.list_channels())
    manifest = parse_manifest(registry.storage.read_manifest(pointer.release), where=pointer.release[:12])
    return manifest_facts(manifest)


def _print(
    differences: list[Difference], left: ModelReference, right: ModelReference, *, verbose: bool, no_color: bool
) -> None:
    columns = (
        Column(header="WHAT", folds=True),
        Column(header=str(left), folds=True),
        Column(header=str(right), folds=True),
    )
    rows = [
        (d.field, _say(d.field, d.left, verbose=verbose), _say(d.field, d.right, verbose=verbose))
        for d in differences
        if verbose or not (_is_implied(d) or _looks_equal(d))
    ]
    print_table(columns, rows, no_color=no_color)


def _is_implied(difference: Difference) -> bool:
    """Return whether the line only repeats that one side has no such engine; the JSON document has it all."""
    field = difference.field
    is_detail = " gate " in field or field.endswith((" recipe", " backend version", " size", " verdict", " origin"))
    return is_detail and not (difference.left and difference.right)


def _looks_equal(difference: Difference) -> bool:
    """Return whether two sizes are the same in units: a few bytes are no news; -v and the JSON document have them."""
    said = [_say(difference.field, value, verbose=False) for value in (difference.left, difference.right)]
    return _is_size(difference.field) and said[0] == said[1]


def _is_size(field: str) -> bool:
    return field.endswith(("size", "bytes"))


def _say(field: str, value: str, *, verbose: bool) -> str:
    """Return `-` for nothing, of a digest its first digits, and a size in units; when `verbose`, both in full."""
    if value.isdigit() and _is_size(field):
        return f"{int(value):,} B" if verbose else size(int(value))
    return (value if verbose else shorten_digests(value)) or "-"
