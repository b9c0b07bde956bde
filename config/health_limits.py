"""When a serving process is not healthy: the settings `health.…`, for hosts with and without a registry."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple  # as `Key`

from modelreg.config.layers import Resolved, resolve
from modelreg.registry.errors import ConfigError

_SECTION = "health."


class HealthLimits(NamedTuple):
    """The limits of the health rules; parts are from 0 to 1, and a value above its limit is trouble."""

    gpu_utilization: float
    gpu_memory: float
    gpu_memory_critical: float
    gpu_temperature_c: float
    host_memory: float
    error_rate: float
    error_rate_critical: float
    stale_s: float
    stale_critical_s: float
    sustained_s: float


def load_health_limits(
    path: Path | None = None, *, environment: Mapping[str, str] | None = None, flags: Iterable[tuple[str, str]] = ()
) -> HealthLimits:
    """
    Return the limits: defaults, overlaid with the `config.toml` at `path`, with variables, and with flags.

    Raises:
        ConfigError: One is wrong, or a limit of CRITICAL is below that of WARNING.
        UsageError: A flag is wrong.
    """
    environment = os.environ if environment is None else environment
    return read_health_limits(resolve(path, environment=environment, flags=flags))


def read_health_limits(resolved: Resolved) -> HealthLimits:
    """Return the limits among all settings; raises ConfigError as `load_health_limits`."""
    values = resolved.values
    limits = HealthLimits(**{name: values[_SECTION + name] for name in HealthLimits._fields})
    for name in ("gpu_memory", "error_rate", "stale"):
        unit = "_s" if name == "stale" else ""
        warning, critical = f"{name}{unit}", f"{name}_critical{unit}"
        if getattr(limits, critical) < getattr(limits, warning):
            raise ConfigError(
                f"{_SECTION}{critical} is {getattr(limits, critical):g}, below {_SECTION}{warning} of"
                f" {getattr(limits, warning):g}",
                hint="What is CRITICAL is a WARNING first: raise the one or lower the other.",
            )
    return limits
