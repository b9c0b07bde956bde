"""What the user says about a TensorRT build beyond cell, shapes and precision; held to what a version has. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modelreg.builders.trt_capabilities import has
from modelreg.registry.digests import file_digest
from modelreg.registry.errors import CellRefusedError, UsageError
from modelreg.registry.regular_files import fault_of
from modelreg.registry.words import Backend, Json

POOLS = {
    "workspace": "WORKSPACE",
    "dlaSRAM": "DLA_MANAGED_SRAM",
    "dlaLocalDRAM": "DLA_LOCAL_DRAM",
    "dlaGlobalDRAM": "DLA_GLOBAL_DRAM",
    "tacticSharedMem": "TACTIC_SHARED_MEMORY",
}
"""trtexec's names of the memory pools, and the API's."""

LEVELS = {"none": "NONE", "ampere+": "AMPERE_PLUS", "sameComputeCapability": "SAME_COMPUTE_CAPABILITY"}
"""trtexec's names of the hardware compatibility levels, and the API's."""

DEFAULT_OPTIMISATION_LEVEL = 3
_TOO_MANY_BYTES = 1 << 63
_UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class TacticSources:
    """Which libraries kernels may come from: `none` to start with none instead of the default, then changes by name."""

    none: bool = False
    on: tuple[str, ...] = ()
    off: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """Return it as part of a recipe."""
        return {"none": self.none, "on": sorted(self.on), "off": sorted(self.off)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRTOptions:
    """
    Settings of the builder; each default leaves TensorRT's own.

    Attributes:
        optimisation_level: 0 to 5; more takes longer and may run faster.
        memory_pools: Bytes by the API's name of the pool.
        version_compatible: Whether newer releases of the same major version can load the plan.
        hardware_compatibility: `NONE`, `AMPERE_PLUS` or `SAME_COMPUTE_CAPABILITY`.
        refit: Whether weights can be replaced in the plan.
        tactic_sources: Where kernels may come from.
        dla_core: The DLA core to build for.
        gpu_fallback: Whether layers that the DLA lacks may run on the GPU.
        plugins: Plugin libraries, allowed by their digests.
        timing_cache: Timings of earlier builds, read if it exists and written afterwards.
        pin_tactics: Whether a tactic that is not in the timing cache fails the build.
        implicit_calibration: Whether INT8 ranges are found by TensorRT instead of Q/DQ nodes.
        calibration_cache: Ranges of an earlier implicit calibration, read if it exists and written afterwards.
        precision_constraints: Whether every layer of a weakly typed fp16 or bf16 build is constrained to it: `prefer`,
            `none`, or `auto`: only in a second try, where TensorRT made no layer of it.
    """

    optimisation_level: int | None = None
    memory_pools: Mapping[str, int] = field(default_factory=dict)
    version_compatible: bool = False
    hardware_compatibility: str = "NONE"
    refit: bool = False
    tactic_sources: TacticSources | None = None
    dla_core: int | None = None
    gpu_fallback: bool = False
    plugins: tuple[Path, ...] = ()
    timing_cache: Path | None = None
    pin_tactics: bool = False
    implicit_calibration: bool = False
    calibration_cache: Path | None = None
    precision_constraints: str = "auto"

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the builder flags that these settings mean, by name."""
        wanted = {
            "VERSION_COMPATIBLE": self.version_compatible,
            "REFIT": self.refit,
            "GPU_FALLBACK": self.gpu_fallback,
            "ERROR_ON_TIMING_CACHE_MISS": self.pin_tactics,
        }
        return tuple(name for name, is_set in wanted.items() if is_set)

    def to_recipe(self) -> Json:
        """Return what decides the plan; a timing cache does only where tactics are pinned to it."""
        return {
            "optimisation_level": DEFAULT_OPTIMISATION_LEVEL
            if self.optimisation_level is None
            else self.optimisation_level,
            "pools": dict(sorted(self.memory_pools.items())),
            "hardware_compatibility": self.hardware_compatibility,
            "tactic_sources": None if self.tactic_sources is None else self.tactic_sources.to_json(),
            "dla_core": self.dla_core,
            "plugins": [{"name": path.name, "digest": digest_file(path)} for path in self.plugins],
            "timing_cache": self._pinned_cache_digest(),
        }

    def _pinned_cache_digest(self) -> str:
        if not self.pin_tactics:
            return ""
        if self.timing_cache is None or not self.timing_cache.is_file():
            raise UsageError(
                "--errorOnTimingCacheMiss pins tactics to a timing cache, and there is none",
                hint="Give the cache of an earlier build with --timingCacheFile.",
            )
        return digest_file(self.timing_cache)


def digest_file(path: Path) -> str:
    """
    Return the SHA-256 of a file that the user names.

    Raises:
        UsageError: It cannot be read.
    """
    fault = fault_of(path)
    if fault:
        raise UsageError(f"{path} is {fault}")
    try:
        return file_digest(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def require_places(options: TensorRTOptions) -> None:
    """
    Refuse caches that could not be read or written, and plugin libraries that would lie in each other's place.

    Raises:
        UsageError: Says which; before anything is built.
    """
    for spelling, path in (
        ("--timingCacheFile", options.timing_cache),
        ("--calibration-cache", options.calibration_cache),
    ):
        if path is None:
            continue
        fault = fault_of(path) if path.exists() or path.is_symlink() else ""
        if not path.name or fault:
            raise UsageError(f"{spelling} {path} is {fault or 'no file name'}")
        if not path.absolute().parent.is_dir() or not os.access(path.absolute().parent, os.W_OK):
            raise UsageError(f"{spelling} {path} cannot be written there", hint="Name a file in a folder of yours.")
    names = [path.name for path in options.plugins]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two plugin libraries are named {name}", hint="They lie beside the plan: rename one.")
        if not name.endswith(".so"):
            raise UsageError(f"the plugin library {name} is not named *.so")


_NEEDS: tuple[tuple[str, str, Callable[[TensorRTOptions], bool]], ...] = (
    ("--builderOptimizationLevel", "optimisation level", lambda given: given.optimisation_level is not None),
    ("--memPoolSize", "memory pools", lambda given: bool(given.memory_pools)),
    (
        "--memPoolSize tacticSharedMem",
        "pool TACTIC_SHARED_MEMORY",
        lambda given: "TACTIC_SHARED_MEMORY" in given.memory_pools,
    ),
    ("--versionCompatible", "version compatible", lambda given: given.version_compatible),
    (
        "--hardwareCompatibilityLevel ampere+",
        "hardware compatibility AMPERE_PLUS",
        lambda given: given.hardware_compatibility == "AMPERE_PLUS",
    ),
    (
        "--hardwareCompatibilityLevel sameComputeCapability",
        "hardware compatibility SAME_COMPUTE_CAPABILITY",
        lambda given: given.hardware_compatibility == "SAME_COMPUTE_CAPABILITY",
    ),
    ("--refit", "refit", lambda given: given.refit),
    ("--tacticSources", "tactic sources", lambda given: given.tactic_sources is not None),
    ("--useDLACore", "dla", lambda given: given.dla_core is not None),
    ("--plugins", "plugins", lambda given: bool(given.plugins)),
    ("--timingCacheFile", "timing cache", lambda given: given.timing_cache is not None),
    ("--errorOnTimingCacheMiss", "pinned tactics", lambda given: given.pin_tactics),
    ("--implicit-calibration", "implicit calibration", lambda given: given.implicit_calibration),
    ("--precisionConstraints", "layer precisions", lambda given: given.precision_constraints != "auto"),
)
"""What an option is called, which capability it needs, and whether it was given."""


def given_options(options: TensorRTOptions) -> list[str]:
    """Return the spellings of the options that differ from their defaults."""
    return [spelling for spelling, _, is_given in _NEEDS if is_given(options)]


def require_options(options: TensorRTOptions, *, backend: Backend, version: str) -> None:
    """
    Refuse options that a version of a backend lacks.

    Raises:
        CellRefusedError: Names the first.
    """
    for spelling, capability, is_given in _NEEDS:
        if is_given(options) and not has(capability, str(backend), version):
            raise CellRefusedError(
                f"{backend} {version} has no {spelling}", hint=f"Leave {spelling.split()[0]} out for this toolchain."
            )


def parse_pools(text: str) -> dict[str, int]:
    """
    Return bytes by pool in trtexec's spelling: `workspace:4096,tacticSharedMem:512K`; MiB where no unit is given.

    Raises:
        UsageError: It is not of that form, names a pool twice, or is more than any memory has.
    """
    pools: dict[str, int] = {}
    for part in text.split(","):
        name, found, written = part.strip().partition(":")
        unit = written[-1:].upper() if written[-1:].upper() in _UNITS else ""
        number = written[: len(written) - len(unit)]
        if not found or name not in POOLS or not number.isascii() or not number.replace(".", "", 1).isdigit():
            raise UsageError(
                f"memory pool {part.strip()!r} is not NAME:SIZE",
                hint=f"Names: {', '.join(POOLS)}; sizes in MiB, or with B, K, M or G.",
            )
        size_bytes = float(number) * _UNITS[unit or "M"]
        if size_bytes >= _TOO_MANY_BYTES:
            raise UsageError(f"memory pool {name} cannot be that large", hint="The limit is 2^63 bytes.")
        if POOLS[name] in pools:
            raise UsageError(f"memory pool {name} has two sizes", hint="Give it one.")
        pools[POOLS[name]] = int(size_bytes)
    return pools


def parse_tactic_sources(text: str) -> TacticSources:
    """
    Return tactic sources in trtexec's spelling, `-CUDNN,+CUBLAS`, or `none`.

    Raises:
        UsageError: It is not of that form, or names one twice.
    """
    words = [word.strip() for word in text.split(",")]
    changes = [word for word in words if word != "none"]
    if not all(word[:1] in ("+", "-") and len(word) > 1 for word in changes):
        raise UsageError(f"tactic sources {text!r} are not +NAME or -NAME", hint="For example -CUDNN,-CUBLAS, or none.")
    names = [word[1:].upper() for word in changes]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"tactic source {twice[0]} is in {text!r} twice", hint="Give it once, with + or -.")
    return TacticSources(
        none="none" in words,
        on=tuple(word[1:].upper() for word in changes if word[0] == "+"),
        off=tuple(word[1:].upper() for word in changes if word[0] == "-"),
    )
