"""Tests of the walk that leaves weights unread."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from modelreg.registry.errors import SourceError
from modelreg.registry.sources.wire import Limits, StrippedModel, strip_model
from modelreg.registry.sources.wire_schema import PAYLOAD_FIELDS
from modelreg_testing import onnx_models
from modelreg_testing.onnx_faults import nested_graphs

KEPT_BYTES = 1024


def strip(data: bytes, limits: Limits | None = None) -> StrippedModel:
    return strip_model(io.BytesIO(data), size_bytes=len(data), name="m.onnx", limits=limits or Limits())


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def field(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def tensors_of(message: object) -> Iterator[TensorProto]:
    """Every tensor below a message, found by protobuf's own reflection."""
    for descriptor, content in message.ListFields():  # type: ignore[attr-defined]
        if descriptor.message_type is None:
            continue
        for child in content if isinstance(content, (list, tuple)) or hasattr(content, "add") else [content]:
            if isinstance(child, TensorProto):
                yield child
            yield from tensors_of(child)


def without_large_payloads(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in tensors_of(copy):
        numbers = TensorProto()
        for name in PAYLOAD_FIELDS.values():
            if name == "raw_data":
                numbers.raw_data = tensor.raw_data
            else:
                getattr(numbers, name).extend(getattr(tensor, name))
        if not tensor.HasField("raw_data"):
            numbers.ClearField("raw_data")
        if numbers.ByteSize() > KEPT_BYTES:
            for name in PAYLOAD_FIELDS.values():
                tensor.ClearField(name)
    return copy


MODELS = {
    "mlp": onnx_models.mlp(),
    "conv net": onnx_models.conv_net(),
    "large weights": onnx_models.mlp(features=64, hidden=128),
    "constant": onnx_models.constant_only(2000),
    "subgraphs": onnx_models.branches(2000),
    "function": onnx_models.local_function(2000),
    "sparse": onnx_models.sparse_initializer(),
    "sequence": onnx_models.sequence_output(),
    "optional": onnx_models.optional_input(),
    "map": onnx_models.map_input(),
    "strings": onnx_models.identity((2,), TensorProto.STRING),
    "unicode": onnx_models.identity(input_name="entrée ✓", output_name="出力"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_stripped_model_is_the_model_without_its_larger_payloads(name: str) -> None:
    model = MODELS[name]
    stripped = strip(model.SerializeToString())
    assert onnx.ModelProto.FromString(stripped.data) == without_large_payloads(model)


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_is_noted_with_its_type_and_shape(name: str) -> None:
    model = MODELS[name]
    expected = sorted((t.name, t.data_type, tuple(t.dims)) for t in tensors_of(model))
    found = sorted((t.name, t.data_type, t.dims) for t in strip(model.SerializeToString()).tensors)
    assert found == expected


def test_payloads_up_to_the_limit_are_kept_and_one_byte_more_is_not() -> None:
    # On the wire raw_data costs a tag and a two-byte length more.
    kept = onnx_models.constant_only((KEPT_BYTES - 3) // 4)
    dropped = onnx_models.constant_only((KEPT_BYTES - 3) // 4 + 1)
    assert strip(kept.SerializeToString()).data == kept.SerializeToString()
    assert strip(dropped.SerializeToString()).data != dropped.SerializeToString()


def test_the_bytes_of_each_kind_of_payload_are_counted() -> None:
    strings: Any = [b"a", b"", b"c" * 2000]  # onnx declares numbers only
    tensors = [
        helper.make_tensor("floats", TensorProto.FLOAT, [300], np.arange(300, dtype=np.float32)),
        helper.make_tensor("doubles", TensorProto.DOUBLE, [200], np.arange(200, dtype=np.float64)),
        helper.make_tensor("strings", TensorProto.STRING, [3], strings),
        helper.make_tensor("bools", TensorProto.BOOL, [3], [True, False, True]),
        onnx_models.weight("raw", np.zeros(400, dtype=np.float16)),
    ]
    model = onnx_models.make_model([], inputs=[], outputs=[], initializers=tensors)
    facts = {tensor.name: tensor for tensor in strip(model.SerializeToString()).tensors}
    assert facts["floats"].payloads == {"float_data": 1200}
    assert facts["doubles"].payloads == {"double_data": 1600}
    assert facts["strings"].payloads == {"string_data": 3}
    assert facts["bools"].payloads == {"int32_data": 3}
    assert facts["bools"].numbers == 3
    assert facts["raw"].payloads == {"raw_data": 800}
    assert facts["raw"].numbers is None
    assert facts["raw"].role == "initializer"


def test_unpacked_numbers_count_like_packed_ones() -> None:
    floats = b"".join(varint(4 << 3 | 5) + bytes(4) for _ in range(60_000))
    doubles = b"".join(varint(10 << 3 | 1) + bytes(8) for _ in range(500))
    tensor = varint(1 << 3) + varint(60_000) + varint(2 << 3) + varint(1)
    graph = field(5, tensor + floats + field(8, b"w")) + field(5, tensor + doubles + field(8, b"v"))
    first, second = strip(b"\x08\x08" + field(7, graph)).tensors
    assert first.payloads == {"float_data": 240_000}
    assert second.payloads == {"double_data": 4000}
    assert (first.name, second.name) == ("w", "v")


def test_a_list_of_floats_in_an_attribute_stays_whole() -> None:
    node = helper.make_node("Tree", ["x"], ["y"], domain="com.example", values=[0.5] * 70_000)
    model = onnx_models.make_model([node], inputs=[], outputs=[])
    assert strip(model.SerializeToString()).data == model.SerializeToString()


def test_external_entries_are_noted_only_where_the_data_is_external() -> None:
    model = onnx_models.mlp()
    first, second = model.graph.initializer[:2]
    onnx_models.refer_to_external_data(first, location="w.bin", offset=4)
    second.external_data.add(key="location", value="ignored")
    facts = {tensor.name: tensor for tensor in strip(model.SerializeToString()).tensors}
    assert facts["fc1.weight"].external == (("location", "w.bin"), ("offset", "4"))
    assert facts["fc1.bias"].external is None


def test_every_prefix_of_a_model_is_refused_or_has_no_graph() -> None:
    data = onnx_models.mlp().SerializeToString()
    graph_ends = [end for end in range(1, len(data)) if not _is_refused(data[:end])]
    for end in graph_ends:
        assert not onnx.ModelProto.FromString(data[:end]).opset_import


def _is_refused(data: bytes) -> bool:
    try:
        strip(data)
    except SourceError:
        return True
    return False


def test_a_cut_file_is_called_cut_short_where_it_ends() -> None:
    data = onnx_models.conv_net().SerializeToString()[:5000]
    with pytest.raises(SourceError, match=r"m\.onnx is cut short at byte 5000") as caught:
        strip(data)
    assert caught.value.hint()


def test_a_file_that_shrinks_while_it_is_read_is_cut_short() -> None:
    data = onnx_models.mlp(features=64, hidden=128).SerializeToString()
    with pytest.raises(SourceError, match="cut short"):
        strip_model(io.BytesIO(data[:3000]), size_bytes=len(data), name="m.onnx")
    text = b"\x08\x08" + field(6, b"x" * 400_000) + GRAPH
    with pytest.raises(SourceError, match="cut short"):
        strip_model(io.BytesIO(text[:300_000]), size_bytes=len(text), name="m.onnx")


class DribblingFile(io.BytesIO):
    """Returns a few bytes at a time, as an unbuffered file may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 7))


def test_a_file_that_returns_few_bytes_at_a_time_reads_the_same() -> None:
    data = onnx_models.conv_net().SerializeToString()
    slow = strip_model(DribblingFile(data), size_bytes=len(data), name="m.onnx")
    assert slow == strip(data)


GRAPH = field(7, field(2, b"g"))


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b"\x08\x08" + GRAPH + b"\x00" * 16, "a field number that cannot be"),
        (b"\x08\x08" + GRAPH + b"hello", "field 13 is none of a model"),
        (b"\x08\x08" + b"\x3b", "wire type 3"),
        (b"\x08\x08" + b"\x3f", "wire type 7"),
        (b"\x08" + b"\xff" * 10 + b"\x01" + GRAPH, "a number longer than ten bytes"),
        (b"\x08\x08" + b"\xff" * 9 + b"\x01", "wire type 7"),
        (b"\x08\x08" + varint(1 << 35 | 2) + b"\x00" + GRAPH, "a field number that cannot be"),
        (b"\x08\x08" + GRAPH + GRAPH, "a second graph"),
        (b"\x0a\x01a" + GRAPH, "ir_version with the wrong wire type"),
        (b"\x08\x08" + field(7, b"\x0a\x7fab") + field(14, b""), "longer than the message that holds it"),
        (b"\x08\x08" + field(7, field(2, b"\xff\xfe")), "not UTF-8"),
        (b"\x08\x08" + field(7, field(5, b"\x0a\x0b" + b"\xff" * 11)), "tensor that cannot be decoded"),
        (b"\x08\x08" + b"\x3a" + varint(2**63), "cut short"),
    ],
)
def test_bytes_that_no_writer_leaves_are_refused_with_the_reason(data: bytes, fact: str) -> None:
    with pytest.raises(SourceError, match=fact):
        strip(data)


def test_a_field_of_a_newer_onnx_inside_the_graph_is_let_through() -> None:
    data = b"\x08\x08" + field(7, field(2, b"g") + field(900, b"news"))
    assert strip(data).data == data


@pytest.mark.slow
def test_ten_million_empty_nodes_are_refused_by_a_limit() -> None:
    graph = b"\x0a\x00" * 10_000
    data = b"\x08\x08" + field(7, graph)
    assert strip(data).data == data
    with pytest.raises(SourceError, match="more than 5,000 nodes"):
        strip(data, Limits(messages=5000))
    ten_million = b"\x08\x08" + field(7, b"\x0a\x00" * 10_000_000)
    with pytest.raises(SourceError, match="more than 2,000,000 nodes"):
        strip(ten_million)


def test_endless_scalar_fields_are_refused_by_a_limit() -> None:
    with pytest.raises(SourceError, match="more than 1,000 fields"):
        strip(b"\x08\x08" * 400_000, Limits(fields=1000))
    with pytest.raises(SourceError, match="more than 1,000 fields"):
        strip(b"\x08\x08" * 1001, Limits(fields=1000))


def test_graphs_nested_too_deep_are_refused() -> None:
    assert strip(nested_graphs(30)).data == nested_graphs(30)
    with pytest.raises(SourceError, match="more than 100 deep"):
        strip(nested_graphs(40))


def test_deeply_nested_types_without_end_are_refused() -> None:
    declared = b""
    for _ in range(5000):
        declared = field(4, field(1, declared))  # a sequence of a sequence of …
    with pytest.raises(SourceError, match="more than 100 deep"):
        strip(b"\x08\x08" + field(7, field(11, field(2, declared))))


def test_a_graph_larger_than_the_limit_is_refused() -> None:
    data = onnx_models.mlp().SerializeToString()
    with pytest.raises(SourceError, match="beside its weights"):
        strip(data, Limits(graph_bytes=100))
    text = b"\x08\x08" + field(6, b"x" * 400_000) + GRAPH
    with pytest.raises(SourceError, match="beside its weights"):
        strip(text, Limits(graph_bytes=300_000))


def test_a_tensor_with_a_huge_description_is_refused() -> None:
    data = b"\x08\x08" + field(7, field(5, field(8, b"n" * 2_000_000)))
    with pytest.raises(SourceError, match="larger than a megabyte"):
        strip(data)


# -- properties ------------------------------------------------------------------------------------------------
names = st.text(max_size=12).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))


@st.composite
def tensors(draw: st.DrawFn) -> TensorProto:
    tensor = TensorProto(name=draw(names), data_type=draw(st.integers(0, 30)))
    tensor.dims.extend(draw(st.lists(st.integers(-1, 2**40), max_size=4)))
    size = draw(st.sampled_from([0, 1, 10, 300, 3000]))
    match draw(st.integers(0, 6)):
        case 0:
            tensor.raw_data = bytes(size)
        case 1:
            tensor.float_data.extend([0.5] * size)
        case 2:
            tensor.int64_data.extend([-(2**50)] * size)
        case 3:
            tensor.string_data.extend([b"text"] * size)
        case 4:
            tensor.int32_data.extend(range(size))
        case 5:
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key=draw(names), value=draw(names))
    return tensor


def graphs(children: st.SearchStrategy[onnx.GraphProto] | None = None) -> st.SearchStrategy[onnx.GraphProto]:
    @st.composite
    def build(draw: st.DrawFn) -> onnx.GraphProto:
        graph = onnx.GraphProto(name=draw(names))
        graph.initializer.extend(draw(st.lists(tensors(), max_size=3)))
        for sparse in draw(st.lists(st.tuples(tensors(), tensors()), max_size=2)):
            graph.sparse_initializer.add(values=sparse[0], indices=sparse[1], dims=[5])
        for _ in range(draw(st.integers(0, 3))):
            node = graph.node.add(op_type=draw(names), name=draw(names), input=draw(st.lists(names, max_size=2)))
            node.attribute.add(name=draw(names), t=draw(tensors()), s=draw(st.binary(max_size=9)))
            node.attribute.add(tensors=draw(st.lists(tensors(), max_size=2)), floats=[1.0] * draw(st.integers(0, 9)))
            if children is not None:
                node.attribute.add(g=draw(children), graphs=draw(st.lists(children, max_size=1)))
        return graph

    return build()


@settings(max_examples=60, deadline=None)
@given(graph=graphs(graphs()), functions=st.lists(graphs(), max_size=1), version=st.integers(-1, 2**40))
@pytest.mark.slow
def test_any_model_survives_stripping_but_for_its_payloads(
    graph: onnx.GraphProto, functions: list[onnx.GraphProto], version: int
) -> None:
    model = onnx.ModelProto(ir_version=8, graph=graph, model_version=version)
    for function in functions:
        model.functions.add(name="f", node=function.node)
    stripped = strip(model.SerializeToString())
    assert onnx.ModelProto.FromString(stripped.data) == without_large_payloads(model)
    assert len(stripped.tensors) == len(list(tensors_of(model)))


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_source_errors(data: bytes) -> None:
    if not _is_refused(data):
        onnx.ModelProto.FromString(data)
