"""Triton's own messages, from its client library, and the checks that its server makes of a configuration."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

from google.protobuf import text_format


@functools.cache
def messages() -> Any:
    """Return Triton's `model_config_pb2`; the package around it would import gRPC."""
    package = importlib.util.find_spec("tritonclient")
    assert package is not None
    assert package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("triton_model_config_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parse(text: str) -> Any:
    """Return the `ModelConfig` that a text spells; an unknown field or a wrong type is an error."""
    return text_format.Parse(text, messages().ModelConfig())


def check_served(model: Path) -> Any:
    """Assert of a model's folder what a Triton server checks when it loads one; return its configuration."""
    config = parse((model / "config.pbtxt").read_text(encoding="ascii"))
    assert config.name == model.name
    pairs = {"tensorrt": "tensorrt_plan", "onnxruntime": "onnxruntime_onnx"}
    assert pairs[config.backend] == config.platform
    assert config.max_batch_size >= 0
    for tensor in (*config.input, *config.output):
        _check_tensor(tensor, config.max_batch_size)
    assert all(0 < size <= config.max_batch_size for size in config.dynamic_batching.preferred_batch_size)
    kinds = messages().ModelInstanceGroup
    for group in config.instance_group:
        assert group.kind in (kinds.KIND_GPU, kinds.KIND_CPU)
        assert not group.profile or config.backend == "tensorrt"
    _check_warm_up(config)
    versions = [folder for folder in model.iterdir() if folder.is_dir()]
    assert versions
    newest = max(versions, key=lambda folder: int(folder.name))
    names = set(config.cc_model_filenames.values()) or {config.default_model_filename}
    assert all((newest / name).is_file() for name in names)
    return config


def _check_tensor(tensor: Any, max_batch_size: int) -> None:
    assert tensor.name
    assert tensor.data_type != messages().TYPE_INVALID
    assert len(tensor.dims) > 0
    assert all(length == -1 or length >= 1 for length in tensor.dims)
    if tensor.HasField("reshape"):
        assert tensor.reshape.shape or (max_batch_size > 0 and list(tensor.dims) == [1])


def _check_warm_up(config: Any) -> None:
    dims = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in config.input}
    for run in config.model_warmup:
        assert run.batch_size <= max(config.max_batch_size, 0)
        assert set(run.inputs) == set(dims)
        for name, given in run.inputs.items():
            data_type, declared = dims[name]
            assert given.data_type == data_type
            assert len(given.dims) == len(declared)
            assert all(
                length >= 1 and wanted in (-1, length) for length, wanted in zip(given.dims, declared, strict=True)
            )
