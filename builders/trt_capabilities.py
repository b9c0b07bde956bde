"""What each version of TensorRT and TensorRT-RTX has, as one table. Python 3.8, no imports of a backend.

A capability is there or not, by the numbers of the version; the names of the API that stand for it are listed beside
it, and a test holds both to the listings of every release that we know. Nothing else asks `hasattr`.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Tuple

Numbers = Tuple[int, ...]

END: Numbers = (1 << 30,)
TENSORRT, RTX = "tensorrt", "tensorrt-rtx"


class Span(NamedTuple):
    """The versions of one backend that have a capability: from `first`, and before `before`."""

    backend: str
    first: Numbers = (0,)
    before: Numbers = END


class Capability(NamedTuple):
    """What a version can do; `api` are the names that it uses for that, as `Class.member`."""

    spans: Tuple[Span, ...]
    api: Tuple[str, ...]


def _flag(name: str, *spans: Span) -> Capability:
    return Capability(spans, ("BuilderFlag.%s" % name,))


_RTX_ALL = Span(RTX)
_MODERN = (Span(TENSORRT, (10, 0)), _RTX_ALL)

CAPABILITIES: Dict[str, Capability] = {
    # Networks
    "explicit batch flag": Capability(
        (Span(TENSORRT, (8, 5), (11, 0)),), ("NetworkDefinitionCreationFlag.EXPLICIT_BATCH",)
    ),
    "strong typing": Capability(_MODERN, ("NetworkDefinitionCreationFlag.STRONGLY_TYPED",)),
    "parser names nodes": Capability(_MODERN, ("ParserError.node_name", "ParserError.node_operator")),
    "layer precisions": Capability(
        (Span(TENSORRT, (8, 5), (11, 0)),),
        (
            "ILayer.precision",
            "ILayer.set_output_type",
            "BuilderFlag.OBEY_PRECISION_CONSTRAINTS",
            "BuilderFlag.PREFER_PRECISION_CONSTRAINTS",
        ),
    ),
    "int64": Capability(_MODERN, ("DataType.INT64",)),
    # Precisions of weakly typed networks
    "flag FP16": _flag("FP16", Span(TENSORRT, (8, 5), (11, 0))),
    "flag INT8": _flag("INT8", Span(TENSORRT, (8, 5), (11, 0))),
    "flag BF16": _flag("BF16", Span(TENSORRT, (10, 0), (11, 0))),
    "flag FP8": _flag("FP8", Span(TENSORRT, (8, 6), (11, 0))),
    "flag TF32": _flag("TF32", Span(TENSORRT, (8, 5)), _RTX_ALL),
    "implicit calibration": Capability(
        (Span(TENSORRT, (8, 5), (11, 0)),),
        (
            "IBuilderConfig.int8_calibrator",
            "IBuilderConfig.set_calibration_profile",
            "IInt8EntropyCalibrator2.get_batch",
            "IInt8MinMaxCalibrator.get_batch",
        ),
    ),
    # What a plan can be made for
    "version compatible": _flag("VERSION_COMPATIBLE", Span(TENSORRT, (8, 6))),
    "hardware compatibility AMPERE_PLUS": Capability(
        (Span(TENSORRT, (8, 6)),),
        ("HardwareCompatibilityLevel.AMPERE_PLUS", "IBuilderConfig.hardware_compatibility_level"),
    ),
    "hardware compatibility SAME_COMPUTE_CAPABILITY": Capability(
        (Span(TENSORRT, (10, 10)),),
        ("HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY", "IBuilderConfig.hardware_compatibility_level"),
    ),
    "target compute capabilities": Capability(
        (_RTX_ALL,),
        (
            "ComputeCapability.SM86",
            "IBuilderConfig.num_compute_capabilities",
            "IBuilderConfig.set_compute_capability",
            "IBuilderConfig.get_compute_capability",
        ),
    ),
    "refit": _flag("REFIT", Span(TENSORRT, (8, 5))),
    "refit identical": _flag("REFIT_IDENTICAL", Span(TENSORRT, (10, 0))),
    # How a plan is found
    "optimisation level": Capability((Span(TENSORRT, (8, 6)),), ("IBuilderConfig.builder_optimization_level",)),
    "memory pools": Capability(
        (Span(TENSORRT, (8, 5)), _RTX_ALL),
        ("IBuilderConfig.set_memory_pool_limit", "IBuilderConfig.get_memory_pool_limit", "MemoryPoolType.WORKSPACE"),
    ),
    "pool TACTIC_SHARED_MEMORY": Capability(_MODERN, ("MemoryPoolType.TACTIC_SHARED_MEMORY",)),
    "timing cache": Capability(
        (Span(TENSORRT, (8, 5)),),
        ("IBuilderConfig.create_timing_cache", "IBuilderConfig.set_timing_cache", "ITimingCache.serialize"),
    ),
    "pinned tactics": _flag("ERROR_ON_TIMING_CACHE_MISS", Span(TENSORRT, (10, 0))),
    "tactic sources": Capability(
        (Span(TENSORRT, (8, 5)),),
        ("IBuilderConfig.set_tactic_sources", "IBuilderConfig.get_tactic_sources", "TacticSource.JIT_CONVOLUTIONS"),
    ),
    "dla": Capability(
        (Span(TENSORRT, (8, 5)),),
        ("Builder.num_DLA_cores", "IBuilderConfig.DLA_core", "IBuilderConfig.default_device_type", "DeviceType.DLA"),
    ),
    "plugins": Capability((Span(TENSORRT, (8, 6)),), ("IPluginRegistry.load_library",)),
    # Looking inside
    "debug tensors": Capability(
        _MODERN,
        (
            "INetworkDefinition.mark_debug",
            "ICudaEngine.is_debug_tensor",
            "IExecutionContext.set_debug_listener",
            "IExecutionContext.set_tensor_debug_state",
            "top.IDebugListener",
        ),
    ),
    "marked outputs": Capability((Span(TENSORRT), _RTX_ALL), ("INetworkDefinition.mark_output",)),
    # Running
    "host code": Capability((Span(TENSORRT, (8, 6)),), ("Runtime.engine_host_code_allowed",)),
}


def version_numbers(version: str) -> Numbers:
    """Return the leading numbers of a version: `10.12.0.36+x` gives (10, 12, 0, 36)."""
    numbers: List[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def has(capability: str, backend: str, version: str) -> bool:
    """
    Return whether a version of a backend has a capability.

    Raises:
        KeyError: There is no such capability in the table.
    """
    numbers = version_numbers(version)
    return any(
        span.backend == backend and span.first <= numbers < span.before for span in CAPABILITIES[capability].spans
    )
