from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from modelreg.registry.errors import WorkerError
from modelreg.registry.toolchains.process import WorkerDiedError
from modelreg.registry.words import Backend
from modelreg.runtime.runner import GpuLoad, RunError, WorkerRunner
from modelreg_testing.onnx_models import conv_net, identity, make_model, save, scalar_output, value, weight

Array = NDArray[Any]
ORT = Backend.ONNXRUNTIME


def reference(model: onnx.ModelProto, feed: dict[str, Array]) -> Array:
    answers = ReferenceEvaluator(model).run(None, feed)
    assert isinstance(answers, list)
    first: Array = answers[0]
    return first


def test_a_plan_runs_in_a_child_as_often_as_asked(tmp_path: Path) -> None:
    model = conv_net()
    images = np.random.default_rng(0).normal(size=(5, 1, 12, 12)).astype(np.float32)
    with WorkerRunner(save(model, tmp_path / "m.onnx"), backend=ORT) as runner:
        assert (runner.input_names, runner.output_names) == (["image"], ["logits"])
        assert runner.info["inputs"][0] == {"name": "image", "type": "tensor(float)", "shape": ["batch", 1, 12, 12]}
        whole: Array = runner.run({"image": images})["logits"]
        rows: list[Array] = [runner.run({"image": images[i : i + 1]})["logits"] for i in range(5)]
    want = reference(model, {"image": images})
    np.testing.assert_allclose(whole, want, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(np.concatenate(rows), whole, rtol=1e-4, atol=1e-5)


def test_the_same_inputs_give_the_same_bits(tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(size=(8, 1, 12, 12)).astype(np.float32)
    path = save(conv_net(), tmp_path / "m.onnx")
    answers = []
    for _ in range(2):
        with WorkerRunner(path, backend=ORT, threads=1) as runner:
            answers.append(runner.run({"image": images})["logits"].tobytes())
    assert answers[0] == answers[1]


@pytest.mark.parametrize("array", [np.zeros((0, 3), np.float32), np.ones((2, 3), np.float32)])
def test_empty_batches_and_scalars_travel(tmp_path: Path, array: Array) -> None:
    with WorkerRunner(save(identity(["N", 3]), tmp_path / "i.onnx"), backend=ORT) as runner:
        np.testing.assert_array_equal(runner.run({"x": array})["y"], array)
    with WorkerRunner(save(scalar_output(), tmp_path / "s.onnx"), backend=ORT) as runner:
        assert runner.run({"x": array})["total"].shape == ()


def half(factor: float) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], name="in", to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["h", "up"], ["b"], name="grow"),
        helper.make_node("Div", ["b", "up"], ["s"], name="shrink"),
        helper.make_node("Cast", ["s"], ["y"], name="out", to=TensorProto.FLOAT),
    ]
    return make_model(
        nodes,
        inputs=[value("x", ["N", 3])],
        outputs=[value("y", ["N", 3])],
        initializers=[weight("up", np.array(factor, np.float16))],
    )


def test_an_overflow_hides_in_the_plan_and_shows_in_the_rounded_run(tmp_path: Path) -> None:
    path = save(half(30_000.0), tmp_path / "m.onnx")
    feed = {"x": np.array([[1.0, 2.0, 3.0]], np.float32)}
    with WorkerRunner(path, backend=ORT) as plan, WorkerRunner(path, backend=ORT, mode="rounded") as rounded:
        assert plan.run(feed)["y"].tolist() == [[1.0, 2.0, 3.0]]
        assert rounded.run(feed)["y"].tolist() == [[1.0, 2.0, np.inf]]
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]  # nothing is left beside the variant


def test_fp16_inputs_are_rounded_from_fp32(tmp_path: Path) -> None:
    path = save(identity(["N", 3], TensorProto.FLOAT16), tmp_path / "m.onnx")
    with WorkerRunner(path, backend=ORT) as runner:
        found = runner.run({"x": np.array([[1.0001, 2.0, 3.0]], np.float32)})["y"]
    assert found.dtype == np.float16
    assert found[0, 0] == 1.0


def test_what_does_not_load_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(RunError, match=r"the plan cannot be loaded: .*") as caught:
        WorkerRunner(tmp_path / "m.onnx", backend=ORT)
    assert "\n" not in str(caught.value)


def test_wrong_inputs_are_refused_and_the_runner_lives_on(tmp_path: Path) -> None:
    with WorkerRunner(save(identity(["N", 3]), tmp_path / "m.onnx"), backend=ORT) as runner:
        with pytest.raises(RunError, match="cannot be run: input 'x' is missing"):
            runner.run({})
        with pytest.raises(RunError, match="cannot be run: "):
            runner.run({"x": np.ones((2, 4), np.float32)})
        assert runner.run({"x": np.ones((2, 3), np.float32)})["y"].shape == (2, 3)


def test_a_death_in_between_is_named(tmp_path: Path) -> None:
    runner = WorkerRunner(save(identity(["N", 3]), tmp_path / "m.onnx"), backend=ORT)
    os.kill(runner._worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        runner.run({"x": np.ones((2, 3), np.float32)})
    runner.close()


def test_the_log_goes_where_it_is_asked_to(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    with WorkerRunner(save(identity(["N", 3]), tmp_path / "m.onnx"), backend=ORT, log_path=log):
        assert log.exists()


def test_an_interpreter_that_is_gone_is_named(tmp_path: Path) -> None:
    path = save(identity(["N", 3]), tmp_path / "m.onnx")
    with pytest.raises(WorkerError, match="cannot start the interpreter /no/python"):
        WorkerRunner(path, backend=ORT, python="/no/python")


def test_the_rounded_run_uses_our_own_interpreter(tmp_path: Path) -> None:
    path = save(half(2.0), tmp_path / "m.onnx")
    with WorkerRunner(path, backend=ORT, python="/no/python", mode="rounded") as runner:
        assert runner._worker.python_version == sys.version.split()[0]


def test_unknown_modes_and_gpus_that_do_not_fit_are_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mode 'fast'"):
        WorkerRunner(tmp_path, backend=ORT, mode="fast")
    with pytest.raises(ValueError, match="a plan of tensorrt is run on a GPU"):
        WorkerRunner(tmp_path, backend=Backend.TENSORRT)
    with pytest.raises(ValueError, match="a plan of onnxruntime is not run on a GPU"):
        WorkerRunner(
            tmp_path, backend=ORT, gpu=GpuLoad(digest="0" * 64, version="8.6.0", built_for=("sm_90",), target="sm_90")
        )
