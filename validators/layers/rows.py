"""Which layers are compared: the modules of the reference, or every node of the ONNX. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from modelreg.registry.words import Json
from modelreg.validators.activations import KeptActivations
from modelreg.validators.layers.mapping import Match
from modelreg.validators.layers.measuring import Row

_SHAPING = ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Shape", "Expand", "Slice", "Gather")


def module_rows(
    kept: KeptActivations, matches: Sequence[Match], tensors: Sequence[Json], seen: Collection[str]
) -> tuple[list[Row], dict[str, str]]:
    """Return a row for each module that the candidate still has, in the ONNX's order, and why others are not there."""
    by_name = {each.name: each for each in kept.activations}
    made = {each["name"]: each for each in tensors}
    rows, gone = [], dict(kept.left_out)
    taken: set[str] = set()
    for match in matches:
        if not match.tensor:
            gone[match.activation] = match.reason
            continue
        tensor, through_relu = match.tensor, False
        if tensor not in seen:
            tensor, through_relu = _behind_relu(match.tensor, tensors), True
        if tensor not in seen:
            gone[match.activation] = "fused into another layer of the candidate"
        elif tensor in taken:
            gone[match.activation] = f"the same tensor as another layer, {tensor}"
        else:
            taken.add(tensor)
            node = made[match.tensor]
            rows.append(
                Row(
                    name=match.activation,
                    tensor=tensor,
                    node=node["node"],
                    op=node["op"],
                    inputs=(),
                    activation=by_name[match.activation],
                    through_relu=through_relu,
                )
            )
    order = {each["name"]: index for index, each in enumerate(tensors)}
    return _connect(sorted(rows, key=lambda row: order[row.tensor]), tensors), gone


def node_rows(tensors: Sequence[Json], seen: Collection[str], *, also: Collection[str] = ()) -> list[Row]:
    """Return a row for every node that computes and that the candidate still has; `also` names tensors to add."""
    rows = [
        Row(name=each["node"], tensor=each["name"], node=each["node"], op=each["op"], inputs=())
        for each in tensors
        if each["name"] in seen and (each["op"] not in _SHAPING or each["name"] in also)
    ]
    unique: dict[str, Row] = {}
    for row in rows:  # a node with several outputs is compared by its first
        unique.setdefault(row.name, row)
    return _connect(list(unique.values()), tensors)


def output_rows(
    rows: Sequence[Row], tensors: Sequence[Json], outputs: Collection[str], seen: Collection[str]
) -> list[Row]:
    """Return the rows with one for each output of the model that has none."""
    known = {row.tensor for row in rows}
    more = [
        Row(name=each["name"], tensor=each["name"], node=each["node"], op=each["op"], inputs=())
        for each in tensors
        if each["name"] in outputs and each["name"] in seen and each["name"] not in known
    ]
    return _connect([*rows, *more], tensors)


def _behind_relu(tensor: str, tensors: Sequence[Json]) -> str:
    readers = [each for each in tensors if tensor in each["inputs"]]
    return str(readers[0]["name"]) if len(readers) == 1 and readers[0]["op"] == "Relu" else ""


def _connect(rows: Sequence[Row], tensors: Sequence[Json]) -> list[Row]:
    """Return the rows with the rows that each of them reads, through whatever lies between."""
    owners = {row.tensor: row.name for row in rows}
    reached: dict[str, tuple[str, ...]] = {}
    inputs: dict[str, tuple[str, ...]] = {}
    for each in tensors:
        before: Mapping[str, None] = {}
        for name in each["inputs"]:
            before = {**before, **dict.fromkeys(reached.get(name, ()))}
        if each["name"] in owners:
            inputs[each["name"]] = tuple(before)
            reached[each["name"]] = (owners[each["name"]],)
        else:
            reached[each["name"]] = tuple(before)
    return [replace(row, inputs=inputs.get(row.tensor, ())) for row in rows]
