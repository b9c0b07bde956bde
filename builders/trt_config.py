"""The build configuration of TensorRT and TensorRT-RTX, set from a request and read back. Python 3.8.

What is asked by name is set, all else is cleared; a setting that was not taken, or that made TensorRT log an error,
fails the build: it refuses many things without an exception.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Sequence

from modelreg.registry.toolchains.trt_log import TensorRTError

Json = Dict[str, Any]


def configure(trt: Any, builder: Any, log: Any, request: Json) -> Any:
    """
    Return the configuration that `request` asks for.

    Raises:
        TensorRTError: Something was not taken; says what.
    """
    config = log.require(builder.create_builder_config(), "makes no build configuration")
    set_flags(trt, config, request["flags"], log.product)
    config.profiling_verbosity = trt.ProfilingVerbosity.__members__[request["profiling_verbosity"]]
    for name, size_bytes in request.get("pools", {}).items():
        _set_pool(trt, config, name, size_bytes, log)
    if request.get("optimisation_level") is not None:
        config.builder_optimization_level = request["optimisation_level"]
    if request.get("hardware_compatibility", "NONE") != "NONE":
        _set_hardware_compatibility(trt, config, request["hardware_compatibility"], log.product)
    if request.get("tactic_sources") is not None:
        _set_tactic_sources(trt, config, request["tactic_sources"], log)
    if request.get("dla_core") is not None:
        _set_dla(trt, builder, config, request["dla_core"], log.product)
    for index, shapes in enumerate(request["profiles"]):
        _add_profile(builder, config, shapes, index, log)
    log.require_no_error("does not accept the settings")
    return config


def set_flags(trt: Any, config: Any, names: Sequence[str], product: str) -> None:
    """Set the builder flags of these names, and clear all others; releases number them differently."""
    members = trt.BuilderFlag.__members__
    unknown = [name for name in names if name not in members]
    if unknown:
        raise TensorRTError("%s %s has no builder flag %s" % (product, trt.__version__, ", ".join(unknown)))
    wanted = {members[name].name for name in names}  # an alias stands for the flag it names
    for flag in members.values():
        if flag.name in wanted:
            config.set_flag(flag)
        elif config.get_flag(flag):
            config.clear_flag(flag)
    if set(read_flags(trt, config)) != wanted:  # a flag can be refused without a word
        raise TensorRTError("%s took the flags %s instead of %s" % (product, read_flags(trt, config), sorted(wanted)))


def read_flags(trt: Any, config: Any) -> List[str]:
    """Return the names of the builder flags that are set, sorted."""
    return sorted({flag.name for flag in trt.BuilderFlag.__members__.values() if config.get_flag(flag)})


def _set_pool(trt: Any, config: Any, name: str, size_bytes: int, log: Any) -> None:
    pool = trt.MemoryPoolType.__members__[name]
    config.set_memory_pool_limit(pool, size_bytes)
    log.require_no_error("does not take the memory pool %s" % name)
    taken = config.get_memory_pool_limit(pool)
    if taken != size_bytes:
        raise TensorRTError("%s took %d bytes for the pool %s instead of %d" % (log.product, taken, name, size_bytes))


def hint_at_pools(request: Json, errors: Sequence[str]) -> str:
    """Return what to do where memory pools were limited and TensorRT says that it had too little, or nothing."""
    pools = request.get("pools") or {}
    text = " ".join(errors).lower()
    if not pools or not any(word in text for word in ("workspace", "memory pool", "no implementation")):
        return ""
    limits = ", ".join("%s of %g MiB" % (name, size / (1 << 20)) for name, size in sorted(pools.items()))
    return "The limit %s may be too small: raise it with --memPoolSize (sizes in MiB), or leave it out." % limits


def _set_hardware_compatibility(trt: Any, config: Any, level: str, product: str) -> None:
    config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.__members__[level]
    if config.hardware_compatibility_level.name != level:
        raise TensorRTError("%s did not take the hardware compatibility level %s" % (product, level))


def _set_tactic_sources(trt: Any, config: Any, changes: Json, log: Any) -> None:
    """Switch tactic sources `on` and `off`, starting at the default, or at none of them if `none` is set."""
    members = trt.TacticSource.__members__
    unknown = [name for name in (*changes["on"], *changes["off"]) if name not in members]
    if unknown:
        raise TensorRTError("%s has no tactic source %s: %s" % (log.product, ", ".join(unknown), ", ".join(members)))
    mask = 0 if changes["none"] else config.get_tactic_sources()
    for name in changes["on"]:
        mask |= 1 << int(members[name])
    for name in changes["off"]:
        mask &= ~(1 << int(members[name]))
    if not config.set_tactic_sources(mask):
        raise TensorRTError("%s does not take these tactic sources: %s" % (log.product, log.say_errors() or changes))


def _set_dla(trt: Any, builder: Any, config: Any, core: int, product: str) -> None:
    if core >= builder.num_DLA_cores:
        raise TensorRTError("%s finds %d DLA cores here, core %d is none" % (product, builder.num_DLA_cores, core))
    config.default_device_type = trt.DeviceType.DLA
    config.DLA_core = core


def _add_profile(builder: Any, config: Any, shapes: Json, index: int, log: Any) -> None:
    profile = make_profile(builder, shapes)
    if not profile or config.add_optimization_profile(profile) != index:
        raise TensorRTError("%s does not take profile %d: %s" % (log.product, index, log.say_errors() or shapes))


def make_profile(builder: Any, shapes: Json) -> Any:
    """Return an optimisation profile with `min`, `opt` and `max` of each input."""
    profile = builder.create_optimization_profile()
    for name, points in shapes.items():
        profile.set_shape(name, points["min"], points["opt"], points["max"])
    return profile


def load_timing_cache(config: Any, path: str, log: Any) -> None:
    """
    Give the builder the timings of an earlier build, or an empty cache where there is no file.

    Raises:
        TensorRTError: The cache is of another version or GPU.
    """
    content = Path(path).read_bytes() if path else b""
    cache = log.require(config.create_timing_cache(content), "cannot read the timing cache")
    if not config.set_timing_cache(cache, False):
        raise TensorRTError(
            "%s does not take the timing cache: %s" % (log.product, log.say_errors() or "it is of another GPU"),
            "One cache belongs to one version of TensorRT and one kind of GPU; give another file.",
        )
    log.require_no_error("does not take the timing cache")


def save_timing_cache(config: Any, path: str) -> None:
    """Write the timings of this build and those it was given."""
    cache = config.get_timing_cache()
    if cache is not None:
        Path(path).write_bytes(cache.serialize())
