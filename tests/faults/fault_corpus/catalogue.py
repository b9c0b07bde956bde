"""Everything that is planted, and everything that must pass."""

from __future__ import annotations

from collections.abc import Iterator

from fault_corpus.cases import Case, Fault, healthy_case
from fault_corpus.data_faults import data_faults
from fault_corpus.graph_faults import graph_faults, on_model
from fault_corpus.precision_faults import dead_channel, dead_reference, dead_unit, precision_faults, small_weights
from modelreg.registry.words import Precision

NETWORKS = ("lenet", "residual", "transformer")
HEALTHY_PRECISIONS = (Precision.FP32, Precision.FP16, Precision.INT8)
FAULTS: tuple[Fault, ...] = (*graph_faults(), *data_faults(), *precision_faults())


def controls() -> Iterator[tuple[str, Case]]:
    """
    Yield what looks like a fault and is none.

    They are the networks that some faults of converters are planted in, without the fault: what is caught there is the
    fault, not the network.
    """
    unit = dead_reference(on_model(lambda m: dead_unit(m, "f5"))(healthy_case("lenet", Precision.INT8)))
    yield "control: int8, a dead unit, per channel", unit
    channel = dead_reference(on_model(dead_channel)(healthy_case("residual", Precision.INT8)))
    yield "control: int8, a dead channel, per channel", channel
    small = on_model(small_weights)(healthy_case("lenet", Precision.FP16))
    yield "control: fp16, small weights, not flushed", small
