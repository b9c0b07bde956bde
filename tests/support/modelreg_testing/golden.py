"""Golden sets and engines for tests of validators: real files, and ONNX Runtime as the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.records import EngineRecord, VersionRecord
from modelreg.registry.tensor_sets import TensorSet, open_tensor_set, write_tensor_set
from modelreg.registry.words import Json, Precision
from modelreg.validators.interface import EvaluationPass, Runner
from modelreg_testing.records import make_engine, make_source, make_version

Array = NDArray[Any]
Arrays = Mapping[str, Array]


def spec(name: str, shape: tuple[int | str | None, ...] | None, dtype: str = "float32", **more: Any) -> TensorSpec:
    """Return a tensor's declaration."""
    return TensorSpec(name=name, dtype=dtype, shape=shape, **more)


def signature(inputs: list[TensorSpec], outputs: list[TensorSpec]) -> Signature:
    """Return a model's declaration."""
    return Signature(inputs=tuple(inputs), outputs=tuple(outputs))


LENET = signature([spec("image", ("N", 1, 28, 28))], [spec("logits", ("N", 10))])


def version_of(declared: Signature) -> VersionRecord:
    """Return a version with these inputs and outputs."""
    return make_version(source=make_source(signature=declared))


def engine_of(precision: Precision = Precision.FP32, realised: Json | None = None) -> EngineRecord:
    """Return an engine that became what was asked for."""
    return replace(make_engine(1, precision), realised=realised or {"stayed": [], "converted": 3})


def golden_file(path: Path, arrays: Arrays, metadata: Mapping[str, str] | None = None) -> TensorSet:
    """Write a golden set and open it."""
    write_tensor_set(path, dict(arrays), metadata or {})
    return open_tensor_set(path)


class FunctionRunner:
    """An engine made of a function, which nobody can look into."""

    overflows: Mapping[str, int] | None = None
    ranges: Sequence[Mapping[str, Any]] | None = None

    def __init__(self, function: Callable[[Arrays], Mapping[str, Any]]) -> None:
        self._function = function

    def run(self, inputs: Arrays) -> Mapping[str, Any]:
        """Return what the function returns."""
        return self._function(inputs)


def function_pass(function: Callable[[Arrays], Mapping[str, Any]], name: str = "plan") -> EvaluationPass:
    """Return a pass that calls a function."""

    @contextmanager
    def open_runner() -> Iterator[Runner]:
        yield FunctionRunner(function)

    return EvaluationPass(name=name, open_runner=open_runner)


def ort_pass(model: onnx.ModelProto, name: str = "plan") -> EvaluationPass:
    """Return a pass through ONNX Runtime."""

    @contextmanager
    def open_runner() -> Iterator[Runner]:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        yield FunctionRunner(lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True)))

    return EvaluationPass(name=name, open_runner=open_runner)


def run_once(evaluation: EvaluationPass, inputs: Arrays) -> Arrays:
    """Return the outputs of one run."""
    with evaluation.open_runner() as runner:
        return {name: np.asarray(value) for name, value in runner.run(inputs).items()}
