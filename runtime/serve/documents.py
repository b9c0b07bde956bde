"""What the protocol says of a server and its models, beside answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.words import Backend, Json
from modelreg.runtime.serve.datatypes import datatype_of
from modelreg.runtime.serve.models import ServedModel
from modelreg.runtime.serving import ServedEngine
from modelreg.runtime.triton.tensors import triton_type

EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics")
_PLATFORMS = {
    Backend.ONNXRUNTIME: "onnxruntime_onnx",
    Backend.TENSORRT: "tensorrt_plan",
    Backend.TENSORRT_RTX: "tensorrt_rtx_plan",
}
_FREE = -1


def describe_server(version: str) -> Json:
    """Return the server's metadata."""
    return {"name": "modelreg", "version": version, "extensions": list(EXTENSIONS)}


def describe_model(name: str, signature: Signature, served: ServedEngine) -> Json:
    """Return a model's metadata; a free axis is -1."""
    return {
        "name": name,
        "versions": [str(served.version)],
        "platform": _PLATFORMS[served.backend],
        "inputs": [_describe_tensor(spec) for spec in signature.inputs],
        "outputs": [_describe_tensor(spec) for spec in signature.outputs],
        "parameters": {key: value for key, value in served.to_json().items() if key != "model"},
    }


def _describe_tensor(spec: TensorSpec) -> Json:
    return {"name": spec.name, "datatype": datatype_of(spec.dtype) or spec.dtype, "shape": _shape(spec)}


def _shape(spec: TensorSpec) -> list[int]:
    return [axis if isinstance(axis, int) else _FREE for axis in spec.shape or ()]


def configure_model(name: str, signature: Signature, served: ServedEngine) -> Json:
    """
    Return a model's configuration, in the words of Triton's `ModelConfig`.

    `max_batch_size` is 0: shapes are whole, the first axis among them, as in the metadata.
    """
    parameters = {key: {"string_value": str(value)} for key, value in served.to_json().items() if key != "model"}
    return {
        "name": name,
        "platform": _PLATFORMS[served.backend],
        "backend": str(served.backend),
        "version_policy": {"specific": {"versions": [served.version]}},
        "max_batch_size": 0,
        "input": [_configure_tensor(spec) for spec in signature.inputs],
        "output": [_configure_tensor(spec) for spec in signature.outputs],
        "parameters": parameters,
    }


def _configure_tensor(spec: TensorSpec) -> Json:
    return {"name": spec.name, "data_type": triton_type(spec.dtype) or "TYPE_INVALID", "dims": _shape(spec)}


def list_repository(models: Iterable[ServedModel]) -> list[Json]:
    """Return the repository index: what is served, and why not where there is no engine."""
    return [_describe_state(model) for model in models]


def _describe_state(model: ServedModel) -> Json:
    served = model.served
    if served is None:
        reason = "it has no engine at this moment"
        return {"name": model.name, "version": "", "state": "UNAVAILABLE", "reason": reason}
    return {"name": model.name, "version": str(served.version), "state": "READY", "reason": ""}


def list_statistics(models: Sequence[ServedModel], *, version: str | None = None) -> Json:
    """Return the statistics of models, of all versions or of one."""
    return {
        "model_stats": [
            model.statistics.of(each).to_json(model.name, each)
            for model in models
            for each in model.statistics.versions
            if version in (None, str(each))
        ]
    }
