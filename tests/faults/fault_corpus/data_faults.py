"""Faults that show in few samples, and faults of the reference itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fault_corpus.cases import Case, Change, Fault
from fault_corpus.graph_faults import FP16, FP32, INT8, LENET, RESIDUAL, TRANSFORMER
from fault_corpus.planting import Array, add_weight, insert_after, make


def data_faults() -> Iterator[Fault]:
    """Yield every one."""
    for network, precision in ((LENET, FP32), (RESIDUAL, INT8), (TRANSFORMER, FP16)):
        yield Fault(
            kind="nan in one sample",
            network=network,
            precision=precision,
            layer={LENET: "/output/Gemm", RESIDUAL: "/fc/Gemm", TRANSFORMER: "/head/Gemm"}[network],
            says="of a thousand",
            plant=_in_few(1, float("nan"), times=2),
        )
    yield Fault(
        kind="infinity in one sample",
        network=LENET,
        precision=INT8,
        layer="/output/Gemm",
        plant=_in_few(1, float("inf"), times=2),
    )
    for network in (LENET, RESIDUAL):
        yield Fault(
            kind="one slice lost",
            network=network,
            precision=INT8,
            layer={LENET: "/output/Gemm", RESIDUAL: "/fc/Gemm"}[network],
            says="five samples of a thousand are wrong, a slice of their own: the whole hides them",
            plant=_in_few(5, 0.0, times=2),
        )
    for kind, module in (("batch norm", "BatchNorm2d"), ("dropout", "Dropout")):
        yield Fault(
            kind=f"{kind} in training mode in the reference",
            network=RESIDUAL,
            precision=FP32,
            plant=_trained_reference(module),
        )
    yield Fault(
        kind="dropout in training mode in the reference",
        network=TRANSFORMER,
        precision=FP16,
        plant=_trained_reference("Dropout"),
    )
    yield Fault(
        kind="reference of other inputs",
        network=LENET,
        precision=INT8,
        says="the rows of the golden set are off by one",
        plant=lambda case: case.with_golden(output__logits=np.roll(case.golden["output.logits"], 1, axis=0)),
    )


def _trained_reference(module: str) -> Change:
    def plant(case: Case) -> Case:
        prefix = f"training.{module}."
        found = {k.removeprefix(prefix): v for k, v in case.arrays.items() if k.startswith(prefix)}
        return replace(case, golden={**case.golden, **{f"output.{name}": array for name, array in found.items()}})

    return plant


def _in_few(samples: int, value: float, *, times: int) -> Change:
    """Return a fault in the samples whose inputs sum up to most: their scores are turned round, or are `value`."""

    def plant(case: Case) -> Case:
        golden = {name: np.concatenate([array] * times) for name, array in case.golden.items()}
        inputs = golden[f"input.{case.input}"]
        sums = inputs.reshape(len(inputs), -1).astype(np.float64).sum(axis=1)
        order = np.argsort(-sums, kind="stable")
        chosen = _distinct(sums, order, samples)
        threshold = (sums[chosen].min() + max(sums[i] for i in order if sums[i] < sums[chosen].min() - 1e-6)) / 2
        keep = np.ones(len(sums), dtype=bool)
        keep[[i for i in np.flatnonzero(sums > threshold) if i not in chosen]] = False
        slices = np.where(sums > threshold, 9, golden["slice"])
        golden = {name: array[keep] for name, array in {**golden, "slice": slices}.items()}
        _add_nodes(case, threshold, value)
        return replace(case, golden=golden)

    return plant


def _distinct(sums: Array, order: Array, samples: int) -> list[int]:
    """Return the first samples of an order, of equal ones one alone."""
    chosen: list[int] = []
    for i in order:
        if all(abs(sums[i] - sums[j]) > 1e-6 for j in chosen):
            chosen.append(int(i))
        if len(chosen) == samples:
            break
    return chosen


def _add_nodes(case: Case, threshold: float, value: float) -> None:
    model = case.model
    limit = add_weight(model, "few_limit", np.float32(threshold))
    axes = list(range(1, case.inputs.ndim))
    shape = add_weight(model, "few_shape", np.array([-1, 1]))
    wrong = add_weight(model, "few_value", np.float32(value)) if value else ""
    insert_after(
        model,
        "logits",
        lambda a, b: [
            make("Cast", [case.input], "few_float", to=1),
            make("ReduceSum", ["few_float", add_weight(model, "few_axes", np.array(axes))], "few_sum", keepdims=0),
            make("Greater", ["few_sum", limit], "few_found"),
            make("Reshape", ["few_found", shape], "few_column"),
            *([] if wrong else [make("Neg", [a], "few_other")]),
            make("Where", ["few_column", wrong or "few_other", a], b),
        ],
    )
