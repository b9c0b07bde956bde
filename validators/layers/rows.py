"""Which layers are compared: the modules of the reference, or every node of the ONNX. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from modelreg.registry.words import Json
from modelreg.validators.activations import KeptActivations
from modelreg.validators.golden import OUTPUT
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
    gone |= {match.activation: match.reason for match in matches if not match.tensor}
    found = [match for match in matches if match.tensor]
    places = {match.activation: _place(match.tensor, tensors, seen) for match in found}
    taken: dict[str, str] = {}
    for match in sorted(found, key=lambda match: places[match.activation][1]):  # what is there as it is comes first
        tensor, through_relu = places[match.activation]
        if not tensor:
            gone[match.activation] = "fused into another layer of the candidate"
        elif tensor in taken:
            gone[match.activation] = f"one with {taken[tensor]} in the candidate"
        else:
            taken[tensor] = match.activation
            rows.append(
                Row(
                    name=match.activation,
                    tensor=tensor,
                    node=made[match.tensor]["node"],
                    op=made[match.tensor]["op"],
                    inputs=(),
                    activation=by_name[match.activation],
                    through_relu=through_relu,
                )
            )
    order = {each["name"]: index for index, each in enumerate(tensors)}
    return _connect(sorted(rows, key=lambda row: order[row.tensor]), tensors), gone


def node_rows(tensors: Sequence[Json], seen: Collection[str], *, also: Collection[str] = ()) -> list[Row]:
    """Return a row for every node that computes and that the candidate still has; `also` names tensors to add."""
    makers = {each["name"]: each for each in tensors}
    rows = []
    for each in tensors:
        if each["name"] not in seen or (each["op"] in _SHAPING and each["name"] not in also):
            continue
        before = makers.get(each["inputs"][0])
        is_drawn = each["op"] == "Relu" and before is not None and before["name"] not in seen
        maker = before if is_drawn and before is not None else each
        rows.append(
            Row(
                name=maker["node"],
                tensor=each["name"],
                node=maker["node"],
                op=maker["op"],
                inputs=(),
                through_relu=is_drawn,
            )
        )
    unique: dict[str, Row] = {}
    for row in rows:  # a node with several outputs is compared by its first
        unique.setdefault(row.name, row)
    return _connect(list(unique.values()), tensors)


def output_rows(
    rows: Sequence[Row],
    tensors: Sequence[Json],
    outputs: Collection[str],
    seen: Collection[str],
    *,
    golden: Collection[str] = (),
    settled: Collection[str] = (),
) -> list[Row]:
    """
    Return the rows with one for each output of the model that has none.

    An output that is a module's tensor has a row of its own too unless the module gives what the golden set has under
    the output's name: exchanged outputs are right in every module.

    Args:
        rows: Those of the modules.
        tensors: What the ONNX's nodes make.
        outputs: The names of its outputs.
        seen: What the candidate has.
        golden: The outputs that are compared with what the golden set has; the source in FP32 is asked for others.
        settled: The outputs that are the same as their module's activation.
    """
    known = {row.tensor: row for row in rows}
    names = {row.name for row in rows}
    more = [
        Row(
            name=OUTPUT + each["name"] if each["name"] in names else each["name"],
            tensor=each["name"],
            node=each["node"],
            op=each["op"],
            inputs=(),
            output=each["name"] in golden,
        )
        for each in tensors
        if each["name"] in outputs
        and each["name"] in seen
        and (each["name"] not in known or (each["name"] in golden and each["name"] not in settled))
    ]
    connected = _connect([*rows, *(row for row in more if row.tensor not in known)], tensors)
    same = [replace(row, inputs=(known[row.tensor].name,)) for row in more if row.tensor in known]
    return [*connected, *same]


def _place(tensor: str, tensors: Sequence[Json], seen: Collection[str]) -> tuple[str, bool]:
    """Return where the candidate has a tensor, and whether only behind a Relu that was drawn into its layer."""
    if tensor in seen:
        return tensor, False
    behind = _behind_relu(tensor, tensors)
    return behind if behind in seen else "", True


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
