"""The job file of ONNX Runtime: optimise, save, load what was saved, and run it.

Runs in the toolchain's interpreter: Python 3.8, the standard library, NumPy and onnxruntime alone.
"""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np

Json = Dict[str, Any]
Arrays = Dict[str, Any]
Report = Callable[[Optional[float], str], None]

# Sizes tried for dimensions without one: small ones, then what vision and text models need.
_SIZES = (2, 8, 32, 64, 224)
_BATCHES = (2, 1)
_TRIAL_BYTES = 2 << 30
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
}
_LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


class OrtBuildError(Exception):
    """The plan cannot be built, or does not do what its source does; `details` carries the hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.details = {"hint": hint} if hint else {}


class OrtRunError(OrtBuildError):
    """A session does not run on some inputs."""


class TrialTooBigError(OrtBuildError):
    """Inputs that a model would be tried on take too much memory."""


def build(request: Json, arrays: Arrays, report: Report) -> Json:
    """
    Build the plan of `request["model"]` at `request["plan"]`; answer with its files and what running it showed.

    The saved file is what counts: a saved optimised graph can fail to load or to run where the session that wrote
    it does not.
    """
    began = time.monotonic()
    report(0.0, "optimising the graph")
    _optimise(request)
    build_s = time.monotonic() - began
    report(0.5, "running the source")
    batches, expected = _run_source(request, arrays)
    report(0.7, "loading and running what was saved")
    plan = _session(request["plan"], "all", "the saved plan cannot be loaded")
    for inputs, want in zip(batches, expected):  # noqa: B905 - Python 3.8
        found = _run(plan, _retyped(inputs, plan), "the saved plan does not run")
        _compare(found, want, request["keep_io_types"])
    saved = Path(request["plan"])
    files = sorted(saved.parent.iterdir(), key=lambda path: (path != saved, path.name))
    shapes = [{name: list(array.shape) for name, array in inputs.items()} for inputs in batches]
    report(1.0, "built")
    return {
        "files": [str(path) for path in files],
        "build_s": build_s,
        "checked": {"inputs": "golden" if arrays else "random", "shapes": shapes, "runs": len(batches)},
    }


def probe(_request: Json, _arrays: Arrays, _report: Report) -> Json:
    """Answer with the exact version and the providers of the onnxruntime of this interpreter."""
    import onnxruntime

    return {"version": onnxruntime.__version__, "providers": onnxruntime.get_available_providers()}


def _optimise(request: Json) -> None:
    options = _options(request["optimisation_level"])
    options.optimized_model_filepath = request["plan"]
    if request["is_big"]:
        data = Path(request["plan"]).name + ".data"
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", data)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    _open(request["model"], options, "ONNX Runtime cannot build it")
    if not Path(request["plan"]).exists():
        raise OrtBuildError("ONNX Runtime saved no optimised graph")


def _run_source(request: Json, arrays: Arrays) -> Tuple[List[Arrays], List[Dict[str, Any]]]:
    """Return inputs on which the source runs, and what it answers: the given inputs, or seeded random ones."""
    source = _session(request["source"], "basic", "ONNX Runtime cannot load the source")
    if arrays:
        return [arrays], [_run(source, arrays, "the source does not run on the golden inputs")]
    reason = ""
    for size in _SIZES:
        tried: List[Arrays] = []
        answers = []
        for batch in _BATCHES:
            try:
                inputs = random_inputs(source.get_inputs(), batch, size, request["seed"])
                answers.append(_run(source, inputs, "the source does not run on random inputs"))
                tried.append(inputs)
            except (OrtRunError, TrialTooBigError) as error:
                reason = reason or str(error)
        if tried:
            return tried, answers
    raise OrtBuildError(reason, "Register a golden set: its first samples are used instead.")


def random_inputs(declared: List[Any], batch: int, size: int, seed: int) -> Arrays:
    """
    Return seeded inputs: normal floats, small counts for integers (they may be indices), random booleans.

    Args:
        declared: Inputs of a session.
        batch: Size of a first dimension without a size.
        size: Size of any other dimension without one; the same symbol gets the same size.
        seed: The same seed gives the same inputs.

    Raises:
        OrtBuildError: An input is no tensor of numbers.
        TrialTooBigError: They would take more than 2 GiB.
    """
    generator = np.random.default_rng(seed)
    symbols: Dict[str, int] = {}
    inputs: Arrays = {}
    left = _TRIAL_BYTES
    for each in declared:
        dtype = _dtype(each)
        shape = []
        for axis, length in enumerate(each.shape):
            free = batch if axis == 0 else size
            if isinstance(length, str):
                free = symbols.setdefault(length, free)
            shape.append(length if isinstance(length, int) and length >= 0 else free)
        size_bytes = math.prod(shape) * dtype.itemsize
        left -= size_bytes
        if left < 0:
            raise TrialTooBigError("the trial input of %r would need %s" % (each.name, _gib(size_bytes)))
        inputs[each.name] = _random(generator, shape, dtype)
    return inputs


def _random(generator: Any, shape: List[int], dtype: Any) -> Any:
    if dtype.kind == "f":
        made = generator.standard_normal(shape, dtype="float64" if dtype == "float64" else "float32")
    else:
        made = generator.integers(0, 2, shape, dtype="uint8")
    return np.asarray(made, dtype=dtype)


def _gib(size_bytes: int) -> str:
    return "{:,.1f} GiB".format(size_bytes / (1 << 30))


def _dtype(declared: Any) -> Any:
    if declared.type not in _DTYPES:
        raise OrtBuildError("input %r is a %s, which cannot be run here" % (declared.name, declared.type))
    return np.dtype(_DTYPES[declared.type])


def _retyped(inputs: Arrays, session: Any) -> Arrays:
    """Return the inputs in the types that the session declares: an FP16 variant may take FP16."""
    return {each.name: inputs[each.name].astype(_dtype(each), copy=False) for each in session.get_inputs()}


def _compare(found: Mapping[str, Any], want: Mapping[str, Any], keep_types: bool) -> None:
    if list(found) != list(want):
        raise OrtBuildError("the plan has outputs %s, the source %s" % (list(found), list(want)))
    for name, array in want.items():
        if (keep_types and found[name].dtype != array.dtype) or found[name].shape != array.shape:
            raise OrtBuildError(
                "output %r of the plan is %s %s, of the source %s %s"
                % (name, found[name].dtype, list(found[name].shape), array.dtype, list(array.shape))
            )


def _run(session: Any, inputs: Arrays, problem: str) -> Dict[str, Any]:
    names = [each.name for each in session.get_outputs()]
    try:
        outputs = session.run(names, inputs)
    except Exception as error:
        raise OrtRunError(problem + ": " + clean(error)) from error
    for name, value in zip(names, outputs):  # noqa: B905 - Python 3.8
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            raise OrtBuildError("output %r is no tensor of numbers" % name)
    return dict(zip(names, outputs))  # noqa: B905 - Python 3.8


def _session(path: str, level: str, problem: str) -> Any:
    return _open(path, _options(level), problem)


def _options(level: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, _LEVELS[level])
    options.use_deterministic_compute = True
    return options


def _open(path: str, options: Any, problem: str) -> Any:
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise OrtBuildError(problem + ": " + clean(error)) from error


def clean(error: BaseException) -> str:
    """Return what an ONNX Runtime error says, on one line, without its source locations and our paths."""
    text = " ".join(str(error).split()).replace("[ONNXRuntimeError] : ", "")
    text = re.sub(r"Load model from .*? failed:", "", text)
    # A location runs up to the closing parenthesis of the function's signature.
    return re.sub(r"/\S*/onnxruntime/\S+\.(?:cc|h):\d+ .*?\) ", "", text)[:600]


JOBS = {"build": build, "probe": probe}
