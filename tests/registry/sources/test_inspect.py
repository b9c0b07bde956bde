"""Tests of inspecting a source end to end, on files."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import modelreg_testing.memory
from modelreg.registry.errors import SourceError
from modelreg.registry.sources.inspect import inspect_source
from modelreg_testing import onnx_faults, onnx_models


def refusal(path: Path) -> str:
    """Return the one line with which a file is refused."""
    with pytest.raises(SourceError) as caught:
        inspect_source(path)
    assert caught.value.exit_code == 1
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_model_is_described_without_its_weights(tmp_path: Path) -> None:
    path = onnx_models.save(onnx_models.conv_net(), tmp_path / "net.onnx")
    source = inspect_source(path)
    assert [(file.name, file.path) for file in source.files] == [("model.onnx", path)]
    assert source.size_bytes == path.stat().st_size
    assert source.opsets == {"": 17}
    assert source.ir_version == 8
    assert source.producer == "modelreg-tests 1"
    assert source.node_counts["Conv"] == 2
    assert source.parameter_bytes == sum(
        onnx.numpy_helper.to_array(tensor).nbytes for tensor in onnx_models.conv_net().graph.initializer
    )
    assert (source.unbuildable, source.warnings) == ((), ())


def test_inline_and_external_weights_are_described_alike(tmp_path: Path) -> None:
    inline = inspect_source(onnx_models.save(onnx_models.conv_net(), tmp_path / "inline.onnx"))
    external = inspect_source(
        onnx_models.save_with_external_data(onnx_models.conv_net(), tmp_path / "external.onnx", location="data/w.bin")
    )
    assert [file.name for file in external.files] == ["model.onnx", "data/w.bin"]
    for name in ("signature", "opsets", "node_counts", "parameter_bytes", "unbuildable", "warnings"):
        assert getattr(inline, name) == getattr(external, name)


@pytest.mark.parametrize(
    "model",
    [
        onnx_models.identity(()),
        onnx_models.identity((0, 3)),
        onnx_models.scalar_output(),
        onnx_models.constant_only(),
        onnx_models.initializers_as_inputs(),
        onnx_models.identity((2,), TensorProto.BOOL),
        onnx_models.identity(input_name="入力 é", output_name="🦜"),
        onnx_models.branches(3000),
        onnx_models.local_function(3000),
    ],
)
def test_valid_models_of_every_kind_pass_without_a_warning(tmp_path: Path, model: onnx.ModelProto) -> None:
    source = inspect_source(onnx_models.save(model, tmp_path / "m.onnx"))
    assert (source.unbuildable, source.warnings) == ((), ())


def test_a_model_that_declares_no_rank_passes_with_a_warning(tmp_path: Path) -> None:
    source = inspect_source(onnx_models.save(onnx_models.identity(None), tmp_path / "m.onnx"))
    assert source.signature.inputs[0].shape is None
    assert source.warnings == (
        "input 'x' does not declare how many dimensions it has",
        "output 'y' does not declare how many dimensions it has",
    )


@pytest.mark.parametrize(
    "model",
    [
        onnx_models.sequence_output(),
        onnx_models.optional_input(),
        onnx_models.map_input(),
        onnx_models.identity((2,), TensorProto.STRING),
    ],
)
def test_a_valid_model_that_nothing_can_build_is_described_with_the_reason(
    tmp_path: Path, model: onnx.ModelProto
) -> None:
    assert inspect_source(onnx_models.save(model, tmp_path / "m.onnx")).unbuildable


@pytest.mark.parametrize(
    ("model", "fact"),
    [
        (onnx_faults.future_opset(), "uses opset 99"),
        (onnx_faults.future_ir_version(), "uses IR version 99"),
        (onnx_faults.no_opset(), "which opset"),
        (onnx_faults.duplicate_output(), "output 'y' is listed twice"),
        (onnx_faults.duplicate_initializer(), "initialiser 'fc1.bias' is there twice"),
        (onnx_faults.duplicate_opset_domain(), "twice"),
        (onnx_faults.duplicate_value(), "produced by two nodes"),
        (onnx_faults.short_payload(), "raw_data is 2044 long"),
        (onnx_faults.empty_payload(), "but no numbers"),
        (onnx_faults.unknown_operator(), "NoSuchOperator"),
    ],
)
def test_a_faulty_model_is_refused_by_the_name_of_its_file(tmp_path: Path, model: onnx.ModelProto, fact: str) -> None:
    path = onnx_models.save(model, tmp_path / "m.onnx")
    message = refusal(path)
    assert message.startswith(str(path))
    assert fact in message


def test_other_files_are_refused_as_what_they_are(tmp_path: Path) -> None:
    checkpoint = tmp_path / "model.pt"
    with zipfile.ZipFile(checkpoint, "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    empty, text, noise = tmp_path / "empty.onnx", tmp_path / "text.onnx", tmp_path / "noise.onnx"
    empty.touch()
    text.write_text("not a model\n")
    noise.write_bytes(bytes(range(200, 256)) * 20 + b"\0")
    assert "is a zip archive" in refusal(checkpoint)
    assert "is empty" in refusal(empty)
    assert "is text" in refusal(text)
    assert "is not an ONNX model" in refusal(noise)
    assert "is a folder" in refusal(tmp_path)
    assert "does not exist" in refusal(tmp_path / "gone.onnx")
    assert "is a device" in refusal(Path("/dev/zero"))
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "is a named pipe" in refusal(tmp_path / "pipe.onnx")


def test_a_model_without_a_graph_is_refused(tmp_path: Path) -> None:
    model = onnx_models.mlp()
    model.ClearField("graph")
    assert "has no graph" in refusal(onnx_models.save(model, tmp_path / "m.onnx"))


def test_what_protobuf_itself_cannot_decode_is_refused(tmp_path: Path) -> None:
    broken_number = onnx.NodeProto(op_type="Relu").SerializeToString() + b"\x2a\x03\x42\x01\xff"
    graph = b"\x0a" + encoded(len(broken_number)) + broken_number
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x08\x3a" + encoded(len(graph)) + graph)
    assert "is damaged" in refusal(path)


def test_missing_external_data_is_refused(tmp_path: Path) -> None:
    path = onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "m.onnx")
    (tmp_path / "weights.bin").unlink()
    assert "weights.bin does not exist" in refusal(path)


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    data = onnx_models.mlp().SerializeToString()
    path = tmp_path / "m.onnx"
    for end in range(0, len(data), 41):
        path.write_bytes(data[:end])
        assert any(fact in refusal(path) for fact in ("cut short", "is empty", "no graph", "is text", "which opset"))


def test_external_data_is_found_beside_the_model_from_any_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx_models.save_with_external_data(onnx_models.mlp(), tmp_path / "here" / "m.onnx")
    decoy = tmp_path / "elsewhere"
    decoy.mkdir()
    (decoy / "weights.bin").write_bytes(b"evil" * 4096)
    monkeypatch.chdir(decoy)
    source = inspect_source(Path("../here/m.onnx"))
    monkeypatch.chdir(tmp_path)
    assert source.files[1].path.samefile(tmp_path / "here" / "weights.bin")


def test_a_linked_model_is_read_with_the_data_beside_the_link(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "x"
    onnx_models.save_with_external_data(onnx_models.mlp(), snapshot / "model.onnx")
    blobs.mkdir()
    (snapshot / "model.onnx").rename(blobs / "abc")
    (snapshot / "model.onnx").symlink_to("../../blobs/abc")
    assert inspect_source(snapshot / "model.onnx").files[1].name == "weights.bin"
    (snapshot / "weights.bin").rename(blobs / "def")
    (snapshot / "weights.bin").symlink_to("../../blobs/def")
    assert "is a link that leaves the model's folder" in refusal(snapshot / "model.onnx")


def test_a_file_that_breaks_off_while_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = onnx_models.save(onnx_models.mlp(), tmp_path / "m.onnx")

    def fail(*_args: object, **_options: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("modelreg.registry.sources.inspect.strip_model", fail)
    assert "cannot be read: Input/output error" in refusal(path)


def test_nesting_up_to_protobufs_own_limit_is_refused_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for depth in range(25, 36):
        path.write_bytes(onnx_faults.nested_graphs(depth))
        assert refusal(path)


# -- hostile bytes -------------------------------------------------------------------------------------------
SEEDS = [
    onnx_models.mlp(features=4, hidden=80).SerializeToString(),
    onnx_models.branches(4).SerializeToString(),
    onnx_models.local_function(300).SerializeToString(),
    onnx_models.sparse_initializer().SerializeToString(),
    onnx_models.sequence_output().SerializeToString(),
    onnx_models.map_input().SerializeToString(),
]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255), st.integers(0, 2)), min_size=1, max_size=6),
)
def test_damaged_bytes_raise_nothing_but_source_errors(
    tmp_path: Path, seed: bytes, edits: list[tuple[float, int, int]]
) -> None:
    data = bytearray(seed)
    for where, byte, kind in edits:
        position = int(where * (len(data) - 1))
        if kind == 0:
            data[position] = byte
        elif kind == 1:
            data.insert(position, byte)
        else:
            del data[position]
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    try:
        inspect_source(path)
    except SourceError as error:
        if "\n" in str(error):
            pytest.fail(f"more than one line: {error}")


# -- memory --------------------------------------------------------------------------------------------------
SUPPORT = str(Path(modelreg_testing.memory.__file__).parents[1])
MEASURE = """
import sys
from pathlib import Path
from modelreg.registry.sources.inspect import inspect_source
from modelreg_testing.memory import peak_bytes

before = peak_bytes()
source = inspect_source(Path(sys.argv[1]))
print(source.parameter_bytes, peak_bytes() - before, peak_bytes())
"""


def test_weights_of_more_than_a_gigabyte_cost_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.onnx"
    sparse_weight_file(path, size_bytes=1_200_000_000)
    script = [sys.executable, "-c", MEASURE, str(path)]
    environment = {**os.environ, "PYTHONPATH": SUPPORT}
    printed = subprocess.run(script, check=True, capture_output=True, text=True, env=environment).stdout.split()
    parameters, added, peak = map(int, printed)
    assert parameters == 1_200_000_000
    assert added < 20_000_000
    assert peak < 200_000_000


def sparse_weight_file(path: Path, *, size_bytes: int) -> None:
    """Write a model with one inline weight of zeros; the file takes no room on disk."""
    marker = b"\x4a" + encoded(size_bytes)  # raw_data
    head = TensorProto(dims=[size_bytes // 4], data_type=TensorProto.FLOAT, name="w").SerializeToString()
    tensor_size = len(head) + len(marker) + size_bytes
    model = onnx_models.identity((size_bytes // 4,), input_name="w")
    del model.graph.input[:]
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    opening = b"\x2a" + encoded(tensor_size) + head + marker  # initializer
    with path.open("wb") as file:
        file.write(model.SerializeToString())
        file.write(b"\x3a" + encoded(len(graph) + len(opening) + size_bytes) + graph + opening)
        file.truncate(file.tell() + size_bytes)


def encoded(value: int) -> bytes:
    body = bytearray()
    while value >= 0x80:
        body.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*body, value])
