"""The `config.pbtxt` of a release: what Triton is told about its engines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modelreg.registry.contents import Signature
from modelreg.registry.errors import UsageError
from modelreg.registry.words import Backend
from modelreg.runtime.triton.engines import PlacedEngines, ServedEngine
from modelreg.runtime.triton.pbtxt import Message, Value, Word, entries, format_message
from modelreg.runtime.triton.tensors import (
    ANY,
    PlanTypes,
    TritonRefusalError,
    TritonTensor,
    describe_tensors,
    is_batched,
)

DEFAULT_MAX_BATCH = 64
"""For an engine without profiles; the largest batch of the default profile (docs/decisions/0013)."""
_PLATFORMS = {Backend.TENSORRT: "tensorrt_plan", Backend.ONNXRUNTIME: "onnxruntime_onnx"}

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """
    What the user says of how Triton is to serve.

    Attributes:
        max_batch: The largest batch, at most the profiles'; None for the largest that they allow.
        preferred_batches: Preferred batch sizes; none for the optima of the profiles.
        max_delay_us: How long a request may wait for others, in microseconds.
        instances: Instances on each device.
        version_policy: `latest:N`, `all` or `specific:1,3`.
        warms_up: Whether every profile is run before the model is ready.
    """

    max_batch: int | None = None
    preferred_batches: tuple[int, ...] = ()
    max_delay_us: int = 100
    instances: int = 1
    version_policy: str = "latest:1"
    warms_up: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What Triton is told, as values; `text` is the file."""

    name: str
    max_batch: int
    inputs: tuple[TritonTensor, ...]
    outputs: tuple[TritonTensor, ...]
    body: Message = field(repr=False)

    @property
    def text(self) -> str:
        """Return `config.pbtxt`."""
        return format_message(self.body)


def make_configuration(
    name: str, signature: Signature, placed: PlacedEngines, options: ServingOptions, *, parameters: Mapping[str, str]
) -> Configuration:
    """
    Return the configuration that serves these engines.

    Args:
        name: Of the Triton model, which is the name of its folder.
        signature: What the source takes and gives.
        placed: The engines and their files; all are of one backend.
        options: How to serve.
        parameters: What is said of the release.

    Raises:
        TritonRefusalError: Triton would refuse it; says why.
        UsageError: The options do not fit the engines.
    """
    batched = is_batched(signature)
    described = [_describe(signature, engine, batched=batched) for engine in placed.engines]
    if any(each != described[0] for each in described):
        raise TritonRefusalError(
            "the engines take or give different types, and one Triton model has one interface",
            hint="Export them one by one, each with --target and a --name of its own.",
        )
    inputs, outputs = described[0]
    if not outputs:
        raise TritonRefusalError("the model gives nothing, and Triton needs an output")
    max_batch = _max_batch(placed.engines, options) if batched else 0
    if not batched and (options.max_batch or options.preferred_batches):
        raise UsageError(
            "this model has no batch that Triton could fill: its first axis is fixed, or not the same everywhere",
            hint="Leave --max-batch and --preferred-batch out.",
        )
    engine = placed.engines[0].engine
    body: dict[str, Value] = {
        "name": name,
        "platform": _PLATFORMS[engine.backend],
        "backend": str(engine.backend),
        "version_policy": _version_policy(options.version_policy),
        "max_batch_size": max_batch,
        "input": [_tensor(each) for each in inputs],
        "output": [_tensor(each) for each in outputs],
        "default_model_filename": placed.default,
        "cc_model_filenames": entries(placed.by_capability),
        "instance_group": [_instance_group(placed.engines, options)],
    }
    if max_batch > 1:
        body["dynamic_batching"] = {
            "preferred_batch_size": _preferred(placed.engines, options, max_batch),
            "max_queue_delay_microseconds": options.max_delay_us,
        }
    body["parameters"] = entries({key: {"string_value": value} for key, value in sorted(parameters.items())})
    if options.warms_up:
        body["model_warmup"] = _warm_up(placed.engines, inputs, batched=batched, max_batch=max_batch)
    return Configuration(name=name, max_batch=max_batch, inputs=inputs, outputs=outputs, body=body)


def _describe(
    signature: Signature, served: ServedEngine, *, batched: bool
) -> tuple[tuple[TritonTensor, ...], tuple[TritonTensor, ...]]:
    engine = served.engine
    types = PlanTypes(backend=engine.backend, version=engine.backend_version, halves_io=served.halves_io)
    inputs = describe_tensors(signature.inputs, types=types, batched=batched)
    return inputs, describe_tensors(signature.outputs, types=types, batched=batched)


def _batches(engines: Sequence[ServedEngine], point: str) -> list[list[int]]:
    """Return the batch of each profile at a point, for each engine that has profiles."""
    return [
        [next(iter(profile.values()))[point][0] for profile in engine.profiles] for engine in engines if engine.profiles
    ]


def _max_batch(engines: Sequence[ServedEngine], options: ServingOptions) -> int:
    allowed = [max(batches) for batches in _batches(engines, "max")]
    largest = min(allowed, default=options.max_batch or DEFAULT_MAX_BATCH)
    if options.max_batch is not None and options.max_batch > largest:
        raise UsageError(
            f"--max-batch {options.max_batch} is more than the profiles allow, {largest}",
            hint="Build with a larger --maxShapes, or ask for less.",
        )
    smallest = max((min(batches) for batches in _batches(engines, "min")), default=1)
    if smallest > 1:
        raise TritonRefusalError(
            f"no profile takes a batch below {smallest}, and Triton sends a lone request as a batch of 1",
            hint="Build with --minShapes of batch 1.",
        )
    return options.max_batch or largest


def _preferred(engines: Sequence[ServedEngine], options: ServingOptions, max_batch: int) -> list[int]:
    if options.preferred_batches:
        too_large = [size for size in options.preferred_batches if size > max_batch]
        if too_large:
            raise UsageError(f"--preferred-batch {too_large[0]} is more than the largest batch, {max_batch}")
        return sorted(set(options.preferred_batches))
    return sorted({size for sizes in _batches(engines, "opt") for size in sizes if 1 < size <= max_batch})


def _instance_group(engines: Sequence[ServedEngine], options: ServingOptions) -> Message:
    on_gpu = engines[0].engine.target != "cpu"
    body: dict[str, Value] = {"count": options.instances, "kind": Word("KIND_GPU" if on_gpu else "KIND_CPU")}
    profiles = min((len(engine.profiles) for engine in engines), default=0)
    if engines[0].engine.backend is Backend.TENSORRT and profiles > 1:
        body["profile"] = [str(index) for index in range(profiles)]
    return body


def _version_policy(text: str) -> Message:
    kind, _, numbers = text.partition(":")
    words = [word.strip() for word in numbers.split(",")] if numbers else []
    if all(word.isdecimal() and int(word) > 0 for word in words):
        if kind == "all" and not words:
            return {"all": {}}
        if kind == "latest" and len(words) == 1:
            return {"latest": {"num_versions": int(words[0])}}
        if kind == "specific" and words:
            return {"specific": {"versions": [int(word) for word in words]}}
    raise UsageError(f"{text!r} is no version policy", hint="Write latest:1, all, or specific:1,3.")


def _tensor(tensor: TritonTensor) -> Message:
    body: dict[str, Value] = {
        "name": tensor.name,
        "data_type": Word(tensor.data_type),
        "dims": list(tensor.dims),
    }
    if tensor.reshape is not None:
        body["reshape"] = {"shape": list(tensor.reshape)}
    return body


def _warm_up(
    engines: Sequence[ServedEngine], inputs: Sequence[TritonTensor], *, batched: bool, max_batch: int
) -> list[Message]:
    """Return a run for each profile at its smallest, best and largest shapes; zeros are a value every model takes."""
    profiles = engines[0].profiles
    shapes: dict[str, Shapes] = {}
    for index, profile in enumerate(profiles):
        for point in ("min", "opt", "max"):
            shapes[f"profile {index} {point}"] = {name: points[point] for name, points in profile.items()}
    if not profiles:
        for batch in dict.fromkeys((1, max_batch)) if batched else (0,):
            shapes[f"batch {batch}" if batched else "first"] = {each.name: (batch,) for each in inputs if batched}
    runs: dict[str, Message] = {}
    for name, given in shapes.items():
        run = _warm_up_run(name, given, inputs, batched=batched, max_batch=max_batch)
        if run is not None:
            key = str({field: value for field, value in run.items() if field != "name"})
            runs.setdefault(key, run)
    return list(runs.values())


def _warm_up_run(
    name: str, shapes: Shapes, inputs: Sequence[TritonTensor], *, batched: bool, max_batch: int
) -> Message | None:
    """Return one run, or None where a free dimension has no length to try."""
    batch = min(next(iter(shapes.values()))[0], max_batch) if batched and shapes else int(batched)
    tensors: dict[str, Value] = {}
    for tensor in inputs:
        given = list(shapes.get(tensor.name, ()))[1 if batched else 0 :]
        dims = given if given and tensor.reshape is None else list(tensor.dims)
        if ANY in dims:
            return None
        tensors[tensor.name] = {"data_type": Word(tensor.data_type), "dims": dims, "zero_data": True}
    return {"name": name, "batch_size": batch, "inputs": entries(tensors)}
