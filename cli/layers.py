"""`modelreg layers`: which tensor of the ONNX is which module of the reference, and saying it otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelreg.cli.context import Invocation, Registry
from modelreg.cli.layer_views import open_source
from modelreg.cli.options import dry_run_option, make_command, message_option, read_reference, whole_number
from modelreg.cli.progress import interrupted_by_signals
from modelreg.cli.render import count, number, print_document, print_line
from modelreg.cli.tables import Column, print_table
from modelreg.cli.versions import find_version
from modelreg.registry.errors import ConfigError, NotFoundError, UsageError
from modelreg.registry.references import ModelReference
from modelreg.registry.scratch import scratch_folder

if TYPE_CHECKING:
    from modelreg.registry.records import GoldenSetRecord, VersionRecord
    from modelreg.validators.activations import KeptActivations
    from modelreg.validators.layers.mapping import Match

_SHAPE = 'Write a table [layers] with lines such as "layer1.0.conv1" = "/layer1/conv1/Conv_output_0".'


@make_command(
    "layers",
    help_line="Show which module of the reference is which tensor.",
    examples="""
    modelreg layers lenet:1
    modelreg layers lenet:1 --write layers.toml
    modelreg layers lenet:1 --map layers.toml -m "the exporter renamed the head"
    """,
)
@click.argument("reference", type=read_reference, metavar="REF")
@click.option(
    "--map",
    "table",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Keep this table with the version: .toml or .json; the newest one counts.",
)
@click.option("--write", type=click.Path(path_type=Path), metavar="FILE", help="Write the table as one to edit (TOML).")
@click.option(
    "--samples", type=whole_number(1), default=4, show_default=True, metavar="N", help="The samples that are compared."
)
@message_option
@dry_run_option
@click.pass_obj
def command(
    invocation: Invocation,
    *,
    reference: ModelReference,
    table: Path | None,
    write: Path | None,
    samples: int,
    message: str,
    dry_run: bool,
) -> None:
    """Show which tensor of REF's ONNX is which module of its PyTorch reference, and how that was found.

    By the exporter's metadata where there are some, confirmed by values; else by the values of the ONNX in FP32; behind
    a fault, where no value agrees, by shape and order. `validate --layers` compares by this table. It
    needs a golden set with activations.
    """
    registry = invocation.open_registry()
    registry.open()
    version = find_version(registry, reference)
    given = None if table is None else read_table(table)
    if given is not None and not dry_run:
        registry.require_writable_database()
    with interrupted_by_signals():
        kept, matches = _match(invocation, registry, version, given, samples=samples)
    is_new = given is not None and not dry_run and _keep(registry, version, given, message)
    if write is not None:
        write_table(write, matches)
    if invocation.as_json:
        print_document(
            {
                "model": version.model,
                "version": version.number,
                "dry_run": dry_run,
                "recorded": is_new,
                "layers": [match.to_json() for match in matches],
                "left_out": dict(kept.left_out),
            }
        )
        return
    _print(matches, kept, no_color=invocation.no_color)
    if given is not None:
        verb = "would keep" if dry_run else "keeps" if is_new else "has already"
        print_line(f"{version.reference} {verb} a table of {count(len(given), 'layer')}")


def _match(
    invocation: Invocation, registry: Registry, version: VersionRecord, given: dict[str, str] | None, *, samples: int
) -> tuple[KeptActivations, tuple[Match, ...]]:
    from modelreg.registry.layer_maps import read_layer_map
    from modelreg.registry.tensor_sets import open_tensor_set
    from modelreg.validators.activations import read_kept
    from modelreg.validators.golden import check_golden
    from modelreg.validators.layers.mapping import match_layers
    from modelreg.validators.layers.units import choose_units

    record = _golden_of(registry, version)
    with registry.database.read() as connection:
        overrides = read_layer_map(connection, version) if given is None else given
    with scratch_folder("layers") as name:
        path = Path(name) / "golden.safetensors"
        registry.storage.fetch_blob(record.digest, path)
        with open_tensor_set(path) as golden:
            checked = check_golden(golden, version.source.signature)
            kept = read_kept(golden, samples=checked.samples)
            if kept is None:
                raise NotFoundError(
                    f"the golden set of {version.reference} has no activations",
                    hint="Register the same ONNX again with --reference FILE.py:NAME --activations all and --message.",
                )
            units = choose_units(golden, checked, version.source.signature, kept, most=samples)
            with (
                invocation.reporter().step(f"matching the layers of {version.reference}"),
                open_source(version, registry, Path(name)) as source,
            ):
                return kept, match_layers(kept, units, source, overrides)


def _golden_of(registry: Registry, version: VersionRecord) -> GoldenSetRecord:
    from modelreg.registry.golden_sets import newest_golden_set

    with registry.database.read() as connection:
        record = newest_golden_set(connection, version_id=version.id)
    if record is None:
        raise NotFoundError(
            f"{version.reference} has no golden set",
            hint="Register the same file again with --reference FILE.py:NAME --activations all.",
        )
    return record


def _keep(registry: Registry, version: VersionRecord, given: dict[str, str], message: str) -> bool:
    from modelreg.registry.layer_maps import record_layer_map

    with registry.database.write() as connection:
        return record_layer_map(connection, version, given, message=message, actor=registry.actor)


def read_table(path: Path) -> dict[str, str]:
    """
    Read a mapping table: TOML with a table `layers`, or the same in JSON.

    Raises:
        ConfigError: It cannot be read, or is no such table.
    """
    import json

    from modelreg.config.toml import read_toml

    if path.suffix == ".json":
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path} is no JSON: {error}") from error
    else:
        body = read_toml(path)
    layers = body.get("layers") if isinstance(body, dict) else None
    if not isinstance(layers, dict) or not all(isinstance(value, str) for value in layers.values()):
        raise ConfigError(f"{path} has no table of layers", hint=_SHAPE)
    return {str(name): value for name, value in layers.items()}


def write_table(path: Path, matches: tuple[Match, ...]) -> None:
    """
    Write the table as TOML; a layer without a tensor is a comment.

    Raises:
        UsageError: The file is there already, or cannot be written.
    """
    import json

    lines = [
        "# Which tensor of the ONNX is which module of the reference; an empty one takes the module out.",
        "[layers]",
    ]
    for match in matches:
        line = f"{json.dumps(match.activation)} = {json.dumps(match.tensor)}"
        lines.append(f"{line}  # {match.how}" if match.tensor else f"# {line}  # {match.reason}")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _print(matches: tuple[Match, ...], kept: KeptActivations, *, no_color: bool) -> None:
    columns = (
        Column(header="MODULE", folds=True),
        Column(header="KIND"),
        Column(header="TENSOR", folds=True),
        Column(header="FOUND BY"),
        Column(header="ERROR", right=True),
        Column(header="NOTE", folds=True),
    )
    rows = [
        (m.activation, m.kind, m.tensor or "-", m.how, number(m.error) if _is_number(m.error) else "-", m.reason)
        for m in matches
    ]
    print_table(columns, rows, no_color=no_color)
    found = sum(bool(match.tensor) for match in matches)
    print_line(f"{found} of {count(len(matches), 'layer')} found; {kept.unit}s kept: {len(kept.units)}")
    for name, reason in kept.left_out.items():
        print_line(f"not captured: {name}: {reason}")


def _is_number(error: float | None) -> bool:
    import math

    return error is not None and math.isfinite(error)
