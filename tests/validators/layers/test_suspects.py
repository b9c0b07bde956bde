from __future__ import annotations

from modelreg.registry.words import Json, Precision
from modelreg.validators.layers.suspects import rank_nodes


def chain(*nodes: tuple[str, str]) -> list[Json]:
    """Return a chain of nodes (name, op)."""
    names = ["x", *(f"{name}.out" for name, _ in nodes)]
    return [
        {"name": names[index + 1], "node": name, "op": op, "inputs": [names[index]]}
        for index, (name, op) in enumerate(nodes)
    ]


LENET = chain(("c1", "Conv"), ("r1", "Relu"), ("s2", "AveragePool"), ("c3", "Conv"), ("r3", "Relu"), ("fc", "Gemm"))


def rank(ranking: list[str], precision: Precision = Precision.INT8, *, only: str = "") -> tuple[str, ...]:
    return rank_nodes(ranking, LENET, precision=precision, can_exclude=lambda node: not only or node["op"] in only)


def test_int8_looks_at_what_makes_the_values_that_a_layer_quantises() -> None:
    assert rank(["r3"])[:2] == ("c3", "c1")  # the Relu is one with c3, and c1 makes what it takes
    assert set(rank(["r3"])) == {"c1", "r1", "s2", "c3", "r3", "fc"}


def test_fp16_looks_at_who_reads_what_overflows() -> None:
    assert rank(["c3"], Precision.FP16)[:3] == ("c3", "r3", "s2")


def test_nodes_that_never_become_the_precision_are_no_suspects() -> None:
    assert rank(["r3", "c1"], only="Conv Gemm") == ("c3", "c1", "fc")


def test_a_name_that_is_not_there_is_passed_over() -> None:
    assert rank(["gone", "fc"])[0] == "fc"
