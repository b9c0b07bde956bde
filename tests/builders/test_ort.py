from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # noqa: TID253 - a dependency, and what these tests look at
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from modelreg.builders import ort
from modelreg.builders.ort import OrtBuildError
from modelreg_testing.onnx_models import (
    conv_net,
    identity,
    make_model,
    mlp,
    save,
    value,
    weight,
)

Array = NDArray[Any]


def build(model: Path, tmp_path: Path, *, inputs: Mapping[str, Array] | None = None, **changes: Any) -> dict[str, Any]:
    plan = tmp_path / "plan" / "model.onnx"
    plan.parent.mkdir(exist_ok=True)
    request = {
        "model": str(model),
        "source": str(model),
        "plan": str(plan),
        "optimisation_level": "extended",
        "is_big": False,
        "keep_io_types": True,
        "seed": 0,
        **changes,
    }
    return ort.build(request, dict(inputs or {}), lambda *_: None)


def run(path: str, inputs: dict[str, Array]) -> list[Array]:
    answer: list[Array] = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)
    return answer


def test_the_plan_is_an_optimised_graph_that_runs(tmp_path: Path) -> None:
    answer = build(save(conv_net(), tmp_path / "m.onnx"), tmp_path)
    assert answer["files"] == [str(tmp_path / "plan" / "model.onnx")]
    assert "FusedConv" in {node.op_type for node in onnx.load(answer["files"][0]).graph.node}
    assert answer["checked"] == {
        "inputs": "random",
        "shapes": [{"image": [2, 1, 12, 12]}, {"image": [1, 1, 12, 12]}],
        "runs": 2,
    }


def test_golden_inputs_are_used_where_they_are_given(tmp_path: Path) -> None:
    image = np.ones((3, 1, 12, 12), np.float32)
    answer = build(save(conv_net(), tmp_path / "m.onnx"), tmp_path, inputs={"image": image})
    assert answer["checked"] == {"inputs": "golden", "shapes": [{"image": [3, 1, 12, 12]}], "runs": 1}


def test_the_weights_of_a_big_plan_lie_beside_it(tmp_path: Path) -> None:
    source = save(conv_net(), tmp_path / "m.onnx")
    answer = build(source, tmp_path, is_big=True)
    assert [Path(path).name for path in answer["files"]] == ["model.onnx", "model.onnx.data"]
    image = np.ones((1, 1, 12, 12), np.float32)
    want = run(str(source), {"image": image})[0]
    np.testing.assert_allclose(run(answer["files"][0], {"image": image})[0], want, rtol=1e-4)


@pytest.mark.parametrize("level", ["disabled", "basic", "extended", "all"])
def test_every_level_builds(tmp_path: Path, level: str) -> None:
    assert build(save(mlp(), tmp_path / "m.onnx"), tmp_path, optimisation_level=level)["files"]


def test_sizes_are_tried_until_the_source_runs(tmp_path: Path) -> None:
    model = conv_net(batch=1)
    for axis in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"side{axis}"
    node = next(each for each in model.graph.node if each.op_type == "Conv")
    del node.attribute[:]
    node.attribute.extend([helper.make_attribute("kernel_shape", [3, 3]), helper.make_attribute("dilations", [3, 3])])
    del model.graph.node[3:]
    model.graph.output[0].name = "p1"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    answer = build(save(model, tmp_path / "m.onnx"), tmp_path)
    assert answer["checked"]["shapes"][0] == {"image": [1, 1, 8, 8]}


def test_a_source_that_runs_on_no_random_input_asks_for_a_golden_set(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"], name="product")
    model = make_model([node], inputs=[value("a", ["N", 3]), value("b", ["K", 5])], outputs=[value("y", ["N", 5])])
    with pytest.raises(OrtBuildError, match="the source does not run on random inputs: ") as caught:
        build(save(model, tmp_path / "m.onnx"), tmp_path)
    assert "golden set" in caught.value.details["hint"]
    fitting = {"a": np.ones((2, 3), np.float32), "b": np.ones((3, 5), np.float32)}
    assert build(save(model, tmp_path / "m.onnx"), tmp_path, inputs=fitting)["checked"]["runs"] == 1


@pytest.mark.parametrize(
    ("shape", "needed"), [([2**40, 2**20], "4,294,967,296.0 GiB"), ([200_000, 200_000], "149.0 GiB")]
)
def test_an_input_too_big_to_be_tried_says_how_big_and_asks_for_a_golden_set(
    tmp_path: Path, shape: list[int], needed: str
) -> None:
    model = make_model(
        [helper.make_node("ReduceMax", ["x"], ["y"], name="max", keepdims=0)],
        inputs=[value("x", shape)],
        outputs=[value("y", [])],
    )
    with pytest.raises(OrtBuildError, match=rf"^the trial input of 'x' would need {needed}$") as caught:
        build(save(model, tmp_path / "m.onnx"), tmp_path)
    assert "golden set" in caught.value.details["hint"]


def test_a_batch_too_big_to_be_tried_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "_TRIAL_BYTES", 16 * 4)
    assert build(save(mlp(), tmp_path / "m.onnx"), tmp_path)["checked"]["shapes"] == [{"x": [1, 16]}]


def test_golden_inputs_that_the_source_refuses_fail(tmp_path: Path) -> None:
    with pytest.raises(OrtBuildError, match="the source does not run on the golden inputs"):
        build(save(mlp(), tmp_path / "m.onnx"), tmp_path, inputs={"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"ir_version": 99}, r"Unsupported model IR version: 99, max supported IR version: \d+"),
        ({"opset": 99}, r"Opset 99 is under development .* till opset \d+"),
    ],
)
def test_a_model_newer_than_the_runtime_is_refused_with_both_numbers(
    tmp_path: Path, change: dict[str, int], fact: str
) -> None:
    model = mlp()
    model.ir_version = change.get("ir_version", model.ir_version)
    model.opset_import[0].version = change.get("opset", 17)
    with pytest.raises(OrtBuildError, match=fact) as caught:
        build(save(model, tmp_path / "m.onnx"), tmp_path)
    assert str(tmp_path) not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "onnxruntime_src" not in str(caught.value)


def test_an_op_without_a_kernel_is_named(tmp_path: Path) -> None:
    node = helper.make_node("Fly", ["x"], ["y"], name="fly", domain="birds")
    model = make_model([node], inputs=[value("x", [2])], outputs=[value("y", [2])], opsets=[("", 17), ("birds", 1)])
    with pytest.raises(OrtBuildError, match="Fly"):
        build(save(model, tmp_path / "m.onnx"), tmp_path)


def test_a_saved_plan_that_does_not_run_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(mlp(), tmp_path / "m.onnx")

    def save_damaged(request: dict[str, Any]) -> None:
        node = helper.make_node("Reshape", ["x", "shape"], ["logits"], name="wrong")
        shape = weight("shape", np.array([7, 7]))
        damaged = make_model(
            [node], inputs=[value("x", ["b", 16])], outputs=[value("logits", [7, 7])], initializers=[shape]
        )
        save(damaged, Path(request["plan"]))

    monkeypatch.setattr(ort, "_optimise", save_damaged)
    with pytest.raises(OrtBuildError, match=r"the saved plan does not run: .*Reshape"):
        build(source, tmp_path)


@pytest.mark.parametrize(
    ("plan", "fact"),
    [
        (identity(["N", 16], input_name="x", output_name="other"), "the plan has outputs"),
        (
            identity(["N", 16], input_name="x", output_name="logits"),
            r"output 'logits' of the plan is float32 \[2, 16\]",
        ),
    ],
)
def test_a_plan_with_other_outputs_fails_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: onnx.ModelProto, fact: str
) -> None:
    monkeypatch.setattr(ort, "_optimise", lambda request: save(plan, Path(request["plan"])))
    with pytest.raises(OrtBuildError, match=fact):
        build(save(mlp(), tmp_path / "m.onnx"), tmp_path)


def test_outputs_of_another_type_fail_unless_they_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save(identity(["N", 3]), tmp_path / "m.onnx")
    half = identity(["N", 3], TensorProto.FLOAT16)
    monkeypatch.setattr(ort, "_optimise", lambda request: save(half, Path(request["plan"])))
    with pytest.raises(OrtBuildError, match="of the plan is float16"):
        build(source, tmp_path)
    assert build(source, tmp_path, keep_io_types=False)["checked"]["runs"] == 2


def test_a_graph_that_was_not_saved_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "_open", lambda *_: None)
    with pytest.raises(OrtBuildError, match="saved no optimised graph"):
        build(save(mlp(), tmp_path / "m.onnx"), tmp_path)


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_scalars_and_empty_tensors_are_fine(tmp_path: Path, shape: tuple[int, ...]) -> None:
    assert build(save(identity(shape), tmp_path / "m.onnx"), tmp_path)["checked"]["shapes"][0] == {"x": list(shape)}


def test_random_inputs_are_seeded_typed_and_agree_on_symbols(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Identity", ["a"], ["y"], name="i")],
        inputs=[
            value("a", ["N", "L"]),
            value("mask", ["N", "L"], TensorProto.BOOL),
            value("ids", ["N", 4, None], TensorProto.INT64),
        ],
        outputs=[value("y", ["N", "L"])],
    )
    path = save(model, tmp_path / "m.onnx")
    declared = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs()
    one, two = (ort.random_inputs(declared, 2, 8, 5) for _ in range(2))
    assert {name: (array.dtype.name, array.shape) for name, array in one.items()} == {
        "a": ("float32", (2, 8)),
        "mask": ("bool", (2, 8)),
        "ids": ("int64", (2, 4, 8)),
    }
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name])
    assert one["ids"].max() <= 1


def test_inputs_and_outputs_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OrtBuildError, match=r"input 'x' is a tensor\(string\)"):
        build(save(identity([2], TensorProto.STRING), tmp_path / "m.onnx"), tmp_path)
    node = helper.make_node("SequenceConstruct", ["x", "x"], ["ys"], name="pair")
    ys = helper.make_tensor_sequence_value_info("ys", TensorProto.FLOAT, ["batch", 3])
    sequence = make_model([node], inputs=[value("x", ["batch", 3])], outputs=[ys])
    with pytest.raises(OrtBuildError, match="'ys' is no tensor of numbers"):
        build(save(sequence, tmp_path / "m.onnx"), tmp_path)


def test_the_probe_tells_the_version() -> None:
    assert ort.probe({}, {}, lambda *_: None)["version"] == onnxruntime.__version__
