"""Which engines, batch sizes and inputs a benchmark has, and the table of precisions by batch sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from modelreg.cli.bench_choosing import Side, make_random_inputs, match_others, settle_batches
from modelreg.cli.bench_documents import make_matrix
from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.errors import NotFoundError, UsageError
from modelreg.registry.records import VersionRecord
from modelreg.registry.references import parse_reference
from modelreg.registry.words import Precision
from modelreg_testing.cli import Shop
from modelreg_testing.records import make_engine, make_source, make_version

Shape = tuple[int | str | None, ...]


def version(*shapes: Shape, dtype: str = "float32") -> VersionRecord:
    inputs = tuple(TensorSpec(name=f"x{place}", dtype=dtype, shape=shape) for place, shape in enumerate(shapes))
    return make_version(source=make_source(signature=Signature(inputs=inputs, outputs=())))


@pytest.mark.parametrize(("asked", "chosen"), [((), (1, 8, 32)), ((4,), (4,)), ((2, 1), (2, 1))])
def test_a_free_batch_takes_what_is_asked(asked: tuple[int, ...], chosen: tuple[int, ...]) -> None:
    assert settle_batches(version((7,), ("N", 3)), asked) == chosen


@pytest.mark.parametrize(("shapes", "fixed"), [([(4, 3)], 4), ([(), (2, 3)], 2), ([()], 1), ([], 1)])
def test_a_fixed_batch_is_the_only_one_that_is_timed(shapes: list[Shape], fixed: int) -> None:
    assert settle_batches(version(*shapes), ()) == (fixed,)
    assert settle_batches(version(*shapes), (fixed,)) == (fixed,)
    with pytest.raises(UsageError, match=f"lenet:1 takes batches of {fixed} alone"):
        settle_batches(version(*shapes), (fixed, 8))


def test_inputs_have_the_batch_where_it_is_free() -> None:
    inputs = make_random_inputs(version(("N", 3), (5, 2)), 8)
    assert {name: array.shape for name, array in inputs.items()} == {"x0": (8, 3), "x1": (5, 2)}
    assert all(np.isfinite(array).all() for array in inputs.values())


@pytest.mark.parametrize(
    ("shape", "dtype", "fact"),
    [(("N", "length"), "float32", "free axes beside the batch"), (("N", 3), "string", "inputs that are no numbers")],
)
def test_what_cannot_be_made_up_is_said(shape: Shape, dtype: str, fact: str) -> None:
    with pytest.raises(UsageError, match=fact):
        make_random_inputs(version(shape, dtype=dtype), 1)


def test_each_engine_is_matched_with_the_one_of_its_target_and_precision() -> None:
    own = [Side(version=make_version(2), engine=make_engine(number, each)) for number, each in enumerate(Precision, 1)]
    others = [
        Side(version=make_version(1), engine=make_engine(90 + each.engine.id, each.engine.precision)) for each in own
    ]
    found = match_others(own, others[::-1], reference=parse_reference("lenet:1"))
    assert found == {each.engine.id: other for each, other in zip(own, others, strict=True)}
    with pytest.raises(NotFoundError, match="lenet:1 has no cpu best engine to compare with") as caught:
        match_others(own, others[:-1], reference=parse_reference("lenet:1"))
    assert caught.value.hint() == (
        "Compare what both have with --precision fp32,tf32,fp16,bf16,int8,fp8, or build it:"
        " `modelreg build lenet:1 --precision best`."
    )


def row(engine: int, precision: str, batch: int, median_ms: float, **changes: Any) -> dict[str, Any]:
    about = {"engine": engine, "target": "sm_90", "precision": precision, "backend": "tensorrt"}
    return {**about, "batch": batch, "median_ms": median_ms, "throughput": 1000 * batch / median_ms, **changes}


def test_parts_are_of_the_fp32_engine_of_the_same_target_and_backend_and_batch() -> None:
    rows = [
        row(1, "fp32", 1, 2.0),
        row(1, "fp32", 8, 4.0),
        row(2, "int8", 1, 1.0),
        row(2, "int8", 8, 1.0),
        row(2, "int8", 16, 1.0),
        row(3, "int8", 1, 5.0, target="cpu", backend="onnxruntime"),
    ]
    found = {each["engine"]: {cell["batch"]: cell["to_fp32"] for cell in each["cells"]} for each in make_matrix(rows)}
    assert found == {1: {1: 1, 8: 1}, 2: {1: 0.5, 8: 0.25, 16: None}, 3: {1: None}}


def test_engines_that_other_hosts_run_are_said_as_validate_says_it(shop: Shop) -> None:
    shop.add_version()
    shop.add_engine(target="sm_120", precision=Precision.FP16)
    shop.add_engine(target="sm_89", precision=Precision.FP16)
    refused = shop.cli("bench", "lenet:1", "--target", "sm_89")
    assert refused.code == 1
    assert "this host runs none of lenet:1: engine 3 (sm_89 fp16): needs sm_89; this host has cpu\n" in refused.err
    both = shop.cli("bench", "lenet:1", "--precision", "fp16").err
    assert "2 engines (sm_89 fp16, sm_120 fp16): needs sm_89; this host has cpu; needs sm_120; this host has" in both
    nothing = shop.cli("bench", "lenet:1", "--target", "sm_90")
    assert "lenet:1 has no built engine for sm_90\n" in nothing.err
    assert "It has cpu fp32, sm_89 fp16, sm_120 fp16" in nothing.err
    assert shop.cli("bench", "lenet:1", "--dry-run").code == 0
