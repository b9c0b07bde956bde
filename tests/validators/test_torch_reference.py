from __future__ import annotations

import os
import pickle
import sys
import textwrap
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from modelreg.registry.contents import Signature
from modelreg.registry.digests import sha256_hex
from modelreg.registry.errors import GoldenSetError, MissingDependencyError, ModelregError, ReferenceModelError
from modelreg.registry.tensor_sets import open_tensor_set, write_tensor_set
from modelreg.registry.words import Json
from modelreg.validators.activation_capture import WantedActivations
from modelreg.validators.golden import check_golden
from modelreg.validators.torch_reference import run_reference
from modelreg_testing.golden import LENET, signature, spec

torch: Any = pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples/lenet"
PAIR = signature([spec("x", ("N", 3))], [spec("y", ("N", 2))])
X = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)


def user_file(path: Path, body: str) -> Path:
    path.write_text("import numpy as np\nimport torch\nfrom torch import nn\n\n" + textwrap.dedent(body))
    return path


def module(path: Path, forward: str, *, init: str = "pass") -> str:
    body = f"""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)
            {init}

        def forward(self, x):
            {forward}

    def make():
        return Net()
    """
    return f"{user_file(path, body)}:make"


def capture(
    tmp_path: Path,
    reference: str,
    *,
    inputs: str | dict[str, Any] | None = None,
    declared: Signature = PAIR,
    **more: Any,
) -> tuple[Json, dict[str, Any], dict[str, str]]:
    if not isinstance(inputs, str):
        np.savez(tmp_path / "inputs.npz", **({"x": X} if inputs is None else inputs))
        inputs = str(tmp_path / "inputs.npz")
    destination = tmp_path / "golden.safetensors"
    destination.unlink(missing_ok=True)
    options: dict[str, Any] = {"weights": None, "seed": 0, "activations": None} | more
    origin = run_reference(reference=reference, inputs=inputs, signature=declared, destination=destination, **options)
    with open_tensor_set(destination) as golden:
        check_golden(golden, declared)
        return origin, {name: golden.read(name) for name in golden.tensors}, golden.metadata


def refuse(
    tmp_path: Path, reference: str, match: str, kind: type[ModelregError] = ReferenceModelError, **more: Any
) -> Any:
    with pytest.raises(kind, match=match) as caught:
        capture(tmp_path, reference, **more)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith((".capture", "golden"))] == []
    return caught.value


# -- what is captured --------------------------------------------------------------------------------------
def test_the_examples_golden_set_comes_out_of_its_model_and_weights(tmp_path: Path) -> None:
    origin, arrays, metadata = capture(
        tmp_path,
        f"{EXAMPLE / 'model.py'}:lenet",
        inputs=str(EXAMPLE / "golden-v1.npz"),
        declared=LENET,
        weights=EXAMPLE / "lenet-v1.safetensors",
    )
    with open_tensor_set(EXAMPLE / "golden-v1.npz") as golden:
        np.testing.assert_allclose(arrays["output.logits"], golden.read("output.logits"), rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(arrays["input.image"], golden.read("input.image"))
        np.testing.assert_array_equal(arrays["label"], golden.read("label"))
    assert metadata == {"batch": "64"}
    assert (origin["kind"], origin["samples"], origin["batch"], origin["seed"]) == ("module", 597, 64, 0)
    assert origin["torch"] == str(torch.__version__)
    assert origin["reference"]["name"] == "lenet"
    assert origin["weights"] == {
        "file": "lenet-v1.safetensors",
        "sha256": sha256_hex((EXAMPLE / "lenet-v1.safetensors").read_bytes()),
    }


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_ones(tmp_path: Path) -> None:
    reference = module(tmp_path / "user.py", "return self.fc(x)")
    files = []
    for seed in (1, 1, 2):
        capture(tmp_path, reference, seed=seed)
        files.append((tmp_path / "golden.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]


def test_tf32_is_off_while_the_reference_runs_and_global_state_is_put_back(tmp_path: Path) -> None:
    reference = module(
        tmp_path / "user.py",
        "assert not torch.backends.cudnn.allow_tf32; assert not torch.backends.cuda.matmul.allow_tf32; "
        "return self.fc(x)",
    )
    torch.manual_seed(5)
    torch.set_float32_matmul_precision("medium")
    before = torch.random.get_rng_state().clone()
    try:
        capture(tmp_path, reference)
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.cudnn.allow_tf32
        assert torch.equal(torch.random.get_rng_state(), before)
        assert not torch.are_deterministic_algorithms_enabled()
        assert not torch.is_inference_mode_enabled()
    finally:
        torch.set_float32_matmul_precision("highest")


def test_dropout_and_batch_norm_in_training_mode_are_put_into_evaluation(tmp_path: Path) -> None:
    reference = module(
        tmp_path / "user.py",
        "assert not torch.is_grad_enabled(); return self.bn(self.fc(self.drop(x)))",
        init="self.drop = nn.Dropout(0.5); self.bn = nn.BatchNorm1d(2); self.train()",
    )
    _, whole, _ = capture(tmp_path, reference)
    _, alone, _ = capture(tmp_path, reference, batch=1)
    np.testing.assert_allclose(whole["output.y"], alone["output.y"], rtol=1e-5, atol=1e-6)


def test_half_precision_references_are_computed_in_fp32(tmp_path: Path) -> None:
    reference = module(tmp_path / "user.py", "assert x.dtype == torch.float32; return self.fc(x)", init="self.half()")
    half = signature([spec("x", ("N", 3), "float16")], [spec("y", ("N", 2), "float16")])
    _, arrays, _ = capture(tmp_path, reference, inputs={"x": X.astype(np.float16)}, declared=half)
    assert arrays["output.y"].dtype == arrays["input.x"].dtype == np.float16


@pytest.mark.parametrize(
    "form",
    [
        "return self.fc(x), x * 2",
        "return [self.fc(x), x * 2]",
        "return {'a': self.fc(x), 'b': x * 2}",
        "return {'double': x * 2, 'y': self.fc(x)}",
    ],
)
def test_outputs_are_matched_by_name_else_by_order(tmp_path: Path, form: str) -> None:
    declared = signature([spec("x", ("N", 3))], [spec("y", ("N", 2)), spec("double", ("N", 3))])
    _, arrays, _ = capture(tmp_path, module(tmp_path / "user.py", form), declared=declared)
    np.testing.assert_array_equal(arrays["output.double"], 2 * X)


@pytest.mark.parametrize(
    "forward", ["def forward(self, b, a): return a - b", "def forward(self, first, second): return first - second"]
)
def test_inputs_are_given_by_name_else_in_the_onnxs_order(tmp_path: Path, forward: str) -> None:
    body = f"""
    class Net(nn.Module):
        {forward}

    make = Net
    """
    declared = signature([spec("a", ("N",)), spec("b", ("N",))], [spec("y", ("N",))])
    inputs = {"b": np.arange(4, dtype=np.float32), "a": np.full(4, 10, dtype=np.float32)}
    _, arrays, _ = capture(tmp_path, f"{user_file(tmp_path / 'user.py', body)}:make", inputs=inputs, declared=declared)
    assert arrays["output.y"].tolist() == [10, 9, 8, 7]


def test_activations_of_leaf_modules_are_kept_by_name_and_call(tmp_path: Path) -> None:
    body = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(self.block(self.block(x)))
    """
    user = user_file(tmp_path / "user.py", body)
    _, arrays, _ = capture(tmp_path, f"{user}:Net", activations=WantedActivations(), batch=4)
    found = sorted(name for name in arrays if name.startswith("activation."))
    assert found == [f"activation.{n}" for n in ("block.0", "block.0#2", "block.1", "block.1#2", "fc")]
    np.testing.assert_array_equal(arrays["activation.fc"], arrays["output.y"])
    assert (arrays["activation.block.0"] < 0).any()  # before the in-place ReLU
    assert len(arrays["activation.block.0#2"]) == 10


def test_fixed_and_scalar_inputs_are_kept_as_validation_feeds_them(tmp_path: Path) -> None:
    body = """
    class Net(nn.Module):
        def forward(self, x, w, s):
            return x * w + s

    make = Net
    """
    path = f"{user_file(tmp_path / 'user.py', body)}:make"
    w, s = np.array([[1, 2, 3]], dtype=np.float32), np.array(5, dtype=np.float32)
    open_axis = signature([spec("x", ("N", 3)), spec("w", (1, 3)), spec("s", ())], [spec("y", ("N", 3))])
    _, arrays, _ = capture(tmp_path, path, inputs={"x": X, "w": w, "s": s}, declared=open_axis, batch=4)
    assert {k: v.shape for k, v in arrays.items()} == {
        "input.x": (10, 3), "input.w": (1, 3), "input.s": (3,), "output.y": (10, 3)
    }  # fmt: skip
    np.testing.assert_allclose(arrays["output.y"], X * w + 5, rtol=1e-6)
    fixed = signature([spec("x", (2, 3)), spec("w", (1, 3)), spec("s", ())], [spec("y", (2, 3))])
    origin, arrays, _ = capture(tmp_path, path, inputs={"x": X, "w": w, "s": s}, declared=fixed)
    assert arrays["output.y"].shape == (10, 3)
    assert (origin["samples"], origin["batch"]) == (10, 2)


def test_bfloat16_inputs_and_outputs_are_kept(tmp_path: Path) -> None:
    declared = signature([spec("x", ("N", 3), "bfloat16")], [spec("y", ("N", 2), "bfloat16")])
    write_tensor_set(tmp_path / "inputs", {"x": X.astype(ml_dtypes.bfloat16)}, {})
    reference = module(tmp_path / "user.py", "return self.fc(x).bfloat16()")
    _, arrays, _ = capture(tmp_path, reference, inputs=str(tmp_path / "inputs"), declared=declared)
    assert arrays["output.y"].dtype == ml_dtypes.bfloat16
    unsigned = signature([spec("x", ("N", 3), "float8_e5m2")], [spec("y", ("N", 2))])
    write_tensor_set(tmp_path / "narrow", {"x": X.astype(ml_dtypes.float8_e5m2)}, {})
    refuse(
        tmp_path, reference, "no tensors of float8", GoldenSetError, inputs=str(tmp_path / "narrow"), declared=unsigned
    )


# -- inputs ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "body",
    [
        "yield {'x': X[:6]}\n    yield {'x': X[6:]}",
        "yield X[:6]\n    yield X[6:]",
        "yield torch.from_numpy(X[:6])\n    yield torch.from_numpy(X[6:])",
        "yield (X[:6],)\n    yield (X[6:],)",
        "return iter([[X[:6]], [X[6:]]])",
    ],
)
def test_an_iterator_may_yield_dicts_arrays_tensors_or_tuples(tmp_path: Path, body: str) -> None:
    source = f"X = np.load({str(tmp_path / 'x.npy')!r})\n\ndef batches():\n    {body}\n"
    np.save(tmp_path / "x.npy", X)
    inputs = f"{user_file(tmp_path / 'data.py', source)}:batches"
    origin, arrays, metadata = capture(tmp_path, module(tmp_path / "user.py", "return self.fc(x)"), inputs=inputs)
    np.testing.assert_array_equal(arrays["input.x"], X)
    assert metadata == {"batch": "6"}
    assert origin["inputs"]["name"] == "batches"


@pytest.mark.parametrize(
    "pair", ["X[:5], [0, 1, 0, 1, 0]", "{'x': X[:5]}, torch.tensor([0, 1, 0, 1, 0])", "(X[:5],), np.arange(5) % 2"]
)
def test_an_iterator_may_yield_labels_too(tmp_path: Path, pair: str) -> None:
    np.save(tmp_path / "x.npy", X)
    source = f"X = np.load({str(tmp_path / 'x.npy')!r})\n\ndef batches():\n    yield {pair}\n"
    inputs = f"{user_file(tmp_path / 'data.py', source)}:batches"
    _, arrays, _ = capture(tmp_path, module(tmp_path / "user.py", "return self.fc(x)"), inputs=inputs)
    assert arrays["label"].tolist() == [0, 1, 0, 1, 0]


def test_an_npy_is_the_input_of_a_model_with_one(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    reference = module(tmp_path / "user.py", "return self.fc(x)")
    _, arrays, _ = capture(tmp_path, reference, inputs=str(tmp_path / "x.npy"))
    np.testing.assert_array_equal(arrays["input.x"], X)
    two = signature([spec("a", ("N",)), spec("b", ("N",))], [spec("y", ("N",))])
    refuse(
        tmp_path,
        reference,
        "one array, the model has 2 inputs",
        GoldenSetError,
        inputs=str(tmp_path / "x.npy"),
        declared=two,
    )
    np.save(tmp_path / "x.npy", np.array([{}]), allow_pickle=True)
    refuse(tmp_path, reference, "not an .npy of plain numbers", GoldenSetError, inputs=str(tmp_path / "x.npy"))
    np.savez(tmp_path / "x.npz", x=X)
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    refuse(tmp_path, reference, "is not an .npy: it is an .npz", GoldenSetError, inputs=str(tmp_path / "x.npy"))
    os.mkfifo(tmp_path / "pipe.npy")
    refuse(tmp_path, reference, "is a named pipe, not a file", GoldenSetError, inputs=str(tmp_path / "pipe.npy"))
    refuse(tmp_path, reference, "is a named pipe, not a file", weights=tmp_path / "pipe.npy")


def test_labels_of_any_kind_and_slices_are_taken_along(tmp_path: Path) -> None:
    reference = module(tmp_path / "user.py", "return self.fc(x)")
    more = {"label.mask": np.arange(20).reshape(10, 2), "slice": np.arange(10) % 3}
    _, arrays, _ = capture(tmp_path, reference, inputs={"x": X, "label": np.arange(10) % 2, **more}, batch=4)
    for name, array in more.items():
        np.testing.assert_array_equal(arrays[name], array)
    path = tmp_path / "named.safetensors"
    write_tensor_set(path, {"x": X, "slice": np.arange(10) % 2}, {"slice_names": '["day", "night"]', "other": "x"})
    _, _, metadata = capture(tmp_path, reference, inputs=str(path), batch=4)
    assert metadata == {"batch": "4", "slice_names": '["day", "night"]'}
    error = refuse(tmp_path, reference, "slice has 3 rows", GoldenSetError, inputs={"x": X, "slice": np.arange(3)})
    assert "samples" in str(error)


def test_inputs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    reference = module(tmp_path / "user.py", "return self.fc(x)")
    error = refuse(tmp_path, reference, "lacks the model's input 'x'; it has 'z'", GoldenSetError, inputs={"z": X})
    assert "Name the arrays" in error.hint()
    refuse(tmp_path, reference, "label has 3 rows", GoldenSetError, inputs={"x": X, "label": np.arange(3)})
    refuse(tmp_path, reference, "input 'x' is float64", GoldenSetError, inputs={"x": X.astype(float)})
    refuse(tmp_path, reference, r"input 'x' has shape \[10, 2\]", GoldenSetError, inputs={"x": X[:, :2]})
    refuse(tmp_path, reference, "no samples", GoldenSetError, inputs={"x": X[:0]})
    refuse(tmp_path, reference, "No such file", GoldenSetError, inputs=str(tmp_path / "none.npz"))


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("yield 1 / 0", r"inputs .* failed: ZeroDivisionError: division by zero \(.*data.py:6\)"),
        ("return 3", "inputs .* failed: TypeError"),
        ("yield {'z': 1}", "something else than the inputs"),
        ("yield (1, 2, 3)", "something else than the inputs"),
        ("yield from ()", "no samples"),
        ("yield np.zeros((3, 3), 'f4'), [[1], [2, 3], [4]]", "inputs .* failed: ValueError: .*inhomogeneous"),
        ("yield {'x': [[1.0], [2.0, 3.0]]}", "inputs .* failed: ValueError: .*inhomogeneous"),
        ("yield np.zeros((3, 3), 'f4'), [None, 1, 2]", "inputs are numbers, not object"),
        ("yield np.zeros((3, 3), 'f4'), ['a', 'b', 'c']", "inputs are numbers, not <U1"),
        ("yield {'x': 'text'}", "inputs are numbers, not <U4"),
        ("yield np.zeros((3, 3), '>f4')", "PyTorch has no tensors of >f4"),
        ("yield torch.zeros(3, 3).to('meta')", "inputs .* failed: "),
        ("yield torch.zeros(3, 3).bfloat16()", "inputs .* failed: TypeError"),
    ],
)
def test_an_iterator_that_fails_is_one_line(tmp_path: Path, body: str, match: str) -> None:
    inputs = f"{user_file(tmp_path / 'data.py', f'def batches():{chr(10)}    {body}{chr(10)}')}:batches"
    reference = module(tmp_path / "user.py", "return self.fc(x)")
    refuse(tmp_path, reference, match, ModelregError, inputs=inputs)


# -- references that are refused ---------------------------------------------------------------------------
def test_a_reference_that_is_not_deterministic_is_refused(tmp_path: Path) -> None:
    error = refuse(tmp_path, module(tmp_path / "user.py", "return self.fc(x) + torch.rand(1)"), "not deterministic")
    assert "Dropout" in error.hint()
    counting = module(tmp_path / "user.py", "self.n += 1; return self.fc(x) * self.n", init="self.n = 0")
    refuse(tmp_path, counting, "output 'y' differs between two equal runs")


@pytest.mark.parametrize(
    ("forward", "match"),
    [
        ("return x @ x", r"the reference failed: RuntimeError: .*\(.*user.py:13\)"),
        ("return self.fc(x), x", "the reference gives Tensor, Tensor; the ONNX has the outputs y"),
        ("return 3", "the reference gives int"),
        ("return {'y': 3}", "the reference gives int"),
        ("return self.fc(x).long()", "output 'y' of the reference is int64, the ONNX has float32"),
        (
            "return self.fc(x).to('meta')",
            "'y' of the reference cannot be read: NotImplementedError: Cannot copy",
        ),
        ("return self.fc(x).to_sparse()", "output 'y' of the reference cannot be read: RuntimeError"),
        ("return torch.quantize_per_tensor(self.fc(x), 1., 0, torch.qint8)", "'y' of the reference cannot be read"),
        ("return self.fc(x).to(torch.float8_e5m2)", "'y' of the reference cannot be read: TypeError"),
        ("return ()", "the reference gives nothing; the ONNX has the outputs y"),
        ("raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()", r"the reference failed: E \(.*user.py:13\)"),
        ("return type('L', (list,), {'__iter__': lambda s: 1 / 0})()", "the reference failed: ZeroDivisionError"),
    ],
)
def test_what_the_reference_does_wrong_is_one_line(tmp_path: Path, forward: str, match: str) -> None:
    refuse(tmp_path, module(tmp_path / "user.py", forward), match)


@pytest.mark.parametrize(
    ("init", "match"),
    [
        (
            "self.fc = nn.Linear(3, 2, device='meta')",
            "reference .* failed: NotImplementedError: Cannot copy out of",
        ),
        ("self.eval = lambda: 1 / 0", r"reference .* failed: ZeroDivisionError.*user.py:10\)"),
    ],
)
def test_a_module_that_cannot_be_made_ready_is_one_line(tmp_path: Path, init: str, match: str) -> None:
    refuse(tmp_path, module(tmp_path / "user.py", "return self.fc(x)", init=init), match)


def test_a_result_is_compared_as_it_was_before_the_next_run(tmp_path: Path) -> None:
    forward = "self.n += 1; self.kept.copy_(self.fc(x) * self.n); return self.kept"
    reference = module(tmp_path / "user.py", forward, init="self.n = 0; self.kept = torch.zeros(10, 2)")
    refuse(tmp_path, reference, "output 'y' differs between two equal runs")


def test_numbers_that_are_negated_lazily_are_read(tmp_path: Path) -> None:
    reference = module(tmp_path / "user.py", "return torch.complex(x, x).conj().imag[:, :2]")
    _, arrays, _ = capture(tmp_path, reference)
    np.testing.assert_array_equal(arrays["output.y"], -X[:, :2])


@pytest.mark.parametrize(
    ("forward", "match"),
    [
        ("return self.fc(x)[:, :1]", r"output 'y' has shape \[10, 1\]"),
        ("return self.fc(x)[:4]", "output 'y' has 4 rows"),
        ("return self.fc(x) / 0", "'output.y' holds (NaN|an infinity)"),
    ],
)
def test_outputs_that_do_not_fit_the_onnx_are_refused(tmp_path: Path, forward: str, match: str) -> None:
    refuse(tmp_path, module(tmp_path / "user.py", forward), match, GoldenSetError)


def test_a_factory_that_fails_or_makes_no_module_is_refused(tmp_path: Path) -> None:
    path = user_file(
        tmp_path / "user.py", "def make():\n    raise OSError('no weights')\n\ndef other():\n    return 3\n"
    )
    refuse(tmp_path, f"{path}:make", r"reference .* failed: OSError: no weights \(.*user.py:6\)")
    refuse(tmp_path, f"{path}:other", "returned a int, not a torch.nn.Module")
    refuse(tmp_path, f"{path}:none", "has no function 'none'")


# -- weights and archives ----------------------------------------------------------------------------------
def test_weights_come_from_safetensors_or_plain_torch_files(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    reference = module(tmp_path / "user.py", "return self.fc(x)")
    state = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pt")
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "w.ckpt")
    for name in ("w.safetensors", "w.pt", "w.ckpt"):
        _, arrays, _ = capture(tmp_path, reference, weights=tmp_path / name)
        np.testing.assert_allclose(arrays["output.y"][:, 0], X.sum(1), rtol=1e-4, atol=1e-5)


class Evil:
    def __reduce__(self) -> Any:
        return (exec, ("import pathlib; pathlib.Path('evil').write_text('x')",))


def test_pickles_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reference = module(tmp_path / "user.py", "return self.fc(x)")
    for name in ("w.pt", "w.pth", "w.pkl"):
        torch.save(Evil(), tmp_path / name)
        refuse(tmp_path, reference, "cannot be loaded", weights=tmp_path / name)
    (tmp_path / "m.pt").write_bytes(pickle.dumps(Evil()))
    refuse(tmp_path, str(tmp_path / "m.pt"), "a pickled model is never loaded")
    torch.save(Evil(), tmp_path / "n.pt")
    refuse(tmp_path, str(tmp_path / "n.pt"), "a pickled model is never loaded")
    assert not (tmp_path / "evil").exists()


def test_weights_that_do_not_fit_say_which(tmp_path: Path) -> None:
    reference = module(tmp_path / "user.py", "return self.fc(x)")
    good = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}
    for state, match in [
        ({"fc.weight": torch.ones(2, 3)}, "1 are missing, such as 'fc.bias'"),
        (good | {"gone": torch.ones(1)}, "1 are unknown, such as 'gone'"),
        (good | {"fc.bias": torch.zeros(9)}, "do not fit the reference: size mismatch for fc.bias"),
        ([1, 2], "do not fit the reference"),
    ]:
        torch.save(state, tmp_path / "w.pt")
        refuse(tmp_path, reference, match, weights=tmp_path / "w.pt")
    refuse(tmp_path, reference, "is not a file: nothing is there", weights=tmp_path / "none.safetensors")


def archives(folder: Path) -> dict[str, Path]:
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(net), str(folder / "m.pt"))
        batch = torch.export.Dim("batch")
        exported = torch.export.export(net.eval(), (torch.zeros(4, 3),), dynamic_shapes=({0: batch},))
        torch.export.save(exported, folder / "m.pt2")
    np.save(folder / "truth.npy", net.eval()(torch.from_numpy(X)).detach().numpy())
    return {"torchscript": folder / "m.pt", "export": folder / "m.pt2"}


def test_torchscript_and_exported_programs_are_references_too(tmp_path: Path) -> None:
    for kind, path in archives(tmp_path).items():
        origin, arrays, _ = capture(tmp_path, str(path))
        assert origin["kind"] == kind
        assert origin["weights"] is None
        np.testing.assert_allclose(arrays["output.y"], np.load(tmp_path / "truth.npy"), rtol=1e-5, atol=1e-6)
        refuse(tmp_path, str(path), "has its weights inside", weights=path)
        refuse(tmp_path, str(path), "activations need FILE.py:factory", activations=WantedActivations())


class Scaled(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any, factor: Any, twice: bool = False) -> Any:
        return x * factor * (2 if twice else 1)


class Nested(torch.nn.Module):  # type: ignore[misc]
    def forward(self, pair: Any) -> Any:
        return pair["x"] * pair["factor"]


def export(path: Path, net: Any, args: tuple[Any, ...], **kwargs: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(net, args, kwargs), path)
    return str(path)


ROWS, FACTOR = torch.zeros(2, 3), torch.ones(3)


@pytest.mark.parametrize(
    ("given", "kwargs", "times"),
    [
        ((ROWS, FACTOR), {}, 1),
        ((ROWS,), {"factor": FACTOR}, 1),
        ((), {"x": ROWS, "factor": FACTOR}, 1),
        ((ROWS, FACTOR, True), {}, 2),
        ((ROWS, FACTOR), {"twice": True}, 2),
    ],
)
@pytest.mark.parametrize("names", [("x", "factor"), ("factor", "x"), ("rows", "by")])
@pytest.mark.slow
def test_an_exported_program_is_called_in_the_form_it_was_exported_with(
    tmp_path: Path, given: tuple[Any, ...], kwargs: dict[str, Any], times: int, names: tuple[str, str]
) -> None:
    assert scale(tmp_path, export(tmp_path / "m.pt2", Scaled(), given, **kwargs), names) == times


def test_an_exported_program_of_keywords_takes_them_by_name_in_any_order(tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", Scaled(), (), factor=FACTOR, x=ROWS)
    assert scale(tmp_path, path, ("x", "factor")) == scale(tmp_path, path, ("factor", "x")) == 1


@pytest.mark.parametrize("names", [("pair_factor", "pair_x"), ("rows", "by")])
def test_an_exported_program_may_take_its_inputs_in_a_dict(tmp_path: Path, names: tuple[str, str]) -> None:
    assert scale(tmp_path, export(tmp_path / "m.pt2", Nested(), ({"x": ROWS, "factor": FACTOR},)), names) == 1


def scale(tmp_path: Path, path: str, names: tuple[str, str]) -> float:
    """Return what rows times factors is multiplied with by a program whose ONNX has these names."""
    is_rows = {name: name in {"x", "pair_x", "rows"} for name in names}
    declared = signature([spec(n, (2, 3) if is_rows[n] else (3,)) for n in names], [spec("y", (2, 3))])
    factor = np.array([1, 10, 100], dtype=np.float32)
    inputs = {name: X if is_rows[name] else factor for name in names}
    _, arrays, _ = capture(tmp_path, path, inputs=inputs, declared=declared)
    ratio = float(arrays["output.y"][0, 0] / X[0, 0])
    np.testing.assert_allclose(arrays["output.y"], X * factor * ratio, rtol=1e-6)
    return round(ratio)


def test_an_exported_program_of_other_inputs_is_refused(tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", Scaled(), (torch.zeros(10, 3), FACTOR))
    refuse(tmp_path, path, "the reference takes x, factor; the ONNX has x")


def repack(source: Path, target: Path, change: Callable[[str, bytes], bytes], more: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        root = old.namelist()[0].partition("/")[0]
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
        for name, body in more.items():
            new.writestr(f"{root}/{name}", body)
    return target


def test_an_exported_program_is_kept_from_its_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = archives(tmp_path)["export"]
    torch.save(Evil(), tmp_path / "evil.pickle")
    evil = (tmp_path / "evil.pickle").read_bytes()

    def poison(name: str, body: bytes) -> bytes:
        if name.endswith("weights_config.json"):
            return body.replace(b'"use_pickle": false', b'"use_pickle": true')
        return evil if "/weights/weight_" in name else body

    poisoned = repack(source, tmp_path / "poisoned.pt2", poison, {})
    refuse(tmp_path, str(poisoned), "not an exported program: UnpicklingError")
    objects = repack(source, tmp_path / "objects.pt2", lambda _, b: b, {"data/constants/custom_obj_0": evil})
    refuse(tmp_path, str(objects), "pickled object .*custom_obj_0, which is never loaded")
    assert not (tmp_path / "evil").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0")
    capture(tmp_path, str(source))
    assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "0"


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path, str(tmp_path / "none.pt"), "is not a file")
    for name, match in [
        ("a.pt2", "not an exported program"),
        ("a.ts", "not a TorchScript"),
        ("a.bin", "no known kind"),
    ]:
        (tmp_path / name).write_text("hello")
        refuse(tmp_path, str(tmp_path / name), match)


def test_without_pytorch_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match="PyTorch is not installed") as caught:
        capture(tmp_path, "user.py:make")
    assert "modelreg[torch]" in caught.value.hint()
