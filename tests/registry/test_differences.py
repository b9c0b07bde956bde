import pytest

from modelreg.registry.contents import TensorSpec
from modelreg.registry.differences import (
    Difference,
    as_json,
    compare_facts,
    describe_tensor,
    engine_facts,
    manifest_facts,
    source_facts,
)
from modelreg.registry.manifest import make_manifest
from modelreg.registry.promotion import EngineStanding
from modelreg.registry.words import EngineStatus, Precision
from modelreg_testing.records import make_engine, make_source, make_validation, make_version


def test_equal_sources_do_not_differ() -> None:
    assert compare_facts(source_facts(make_source()), source_facts(make_source())) == []


def test_opset_and_node_counts_are_compared() -> None:
    left = source_facts(make_source())
    right = source_facts(make_source(opsets={"": 18}, node_counts={"Conv": 4, "Gemm": 2, "Relu": 1}))
    assert compare_facts(left, right) == [
        Difference(field="opset ai.onnx", left="17", right="18"),
        Difference(field="nodes Conv", left="3", right="4"),
        Difference(field="nodes Relu", left="", right="1"),
    ]


def test_engines_are_compared_by_cell_gate_and_size() -> None:
    engine = make_engine(1)
    passed = EngineStanding(engine=engine, validation=make_validation(engine))
    fresh = EngineStanding(engine=make_engine(2), validation=None)
    fields = {difference.field for difference in compare_facts(engine_facts([passed]), engine_facts([fresh]))}
    assert "cpu fp32 onnxruntime size" in fields
    assert "cpu fp32 onnxruntime verdict" in fields
    assert "cpu fp32 onnxruntime gate cosine of logits" in fields


def test_a_failed_engine_shows_its_error() -> None:
    failed = make_engine(1, status=EngineStatus.FAILED, error="no kernel")
    facts = engine_facts([EngineStanding(engine=failed, validation=None)])
    assert facts["cpu fp32 onnxruntime plan"] == "failed: no kernel"


def test_releases_are_compared_by_what_they_serve() -> None:
    left = manifest_facts(make_manifest(make_version(), {"cpu": make_engine(1)}))
    right = manifest_facts(make_manifest(make_version(), {"cpu": make_engine(2, Precision.INT8)}))
    fields = [difference.field for difference in compare_facts(left, right)]
    assert fields == ["cpu precision", "cpu plan", "cpu size", "cpu recipe"]


def test_tensors_read_as_people_write_them() -> None:
    assert describe_tensor(TensorSpec(name="x", dtype="float32", shape=("N", 3, None))) == "float32[N,3,?]"
    assert describe_tensor(TensorSpec(name="x", dtype="int64", shape=())) == "int64[]"
    assert describe_tensor(TensorSpec(name="x", dtype="float32", shape=None)) == "float32[…]"
    assert describe_tensor(TensorSpec(name="x", dtype="float32", shape=(1,), kind="sequence")) == (
        "sequence of float32[1]"
    )


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("size", "1000", 1000),
        ("cpu fp32 onnxruntime size", "1000", 1000),
        ("parameter bytes", "800", 800),
        ("IR version", "8", 8),
        ("opset ai.onnx", "17", 17),
        ("nodes Conv", "3", 3),
        ("cpu fp32 onnxruntime plan", "1" * 64, "1" * 64),
        ("cpu precision", "int8", "int8"),
        ("nodes Conv", "", None),
        ("cpu fp32 onnxruntime gate cosine of y", "pass 0.99875", {"outcome": "pass", "measured": 0.99875}),
        ("cpu fp32 onnxruntime gate cosine of y", "skipped ", {"outcome": "skipped", "measured": None}),
        ("cpu fp32 onnxruntime gate sqnr_db of y", "fail nan", {"outcome": "fail", "measured": "nan"}),
    ],
)
def test_a_fact_for_programs_has_the_type_of_what_it_tells(field: str, text: str, value: object) -> None:
    assert as_json(field, text) == value
