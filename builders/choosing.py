"""Which toolchain builds for which target. Pure: the registered toolchains are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modelreg.builders.backends import BUILDERS
from modelreg.builders.interface import ToolchainSpec
from modelreg.builders.trt_capabilities import version_numbers
from modelreg.registry.records import ToolchainRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChoice:
    """The toolchains that build for a target; where there is none, `reason` says why each of those known does not."""

    target: str
    toolchains: tuple[ToolchainSpec, ...]
    reason: str = ""


def to_spec(record: ToolchainRecord) -> ToolchainSpec:
    """Return a registered toolchain as what a cell is built with."""
    return ToolchainSpec(
        name=record.name,
        backend=record.backend,
        version=record.version,
        python=record.python,
        details=record.details,
    )


def choose_named(target: str, named: Sequence[ToolchainSpec]) -> TargetChoice:
    """Return those of the toolchains that the user named which build for the target."""
    fitting = tuple(spec for spec in named if not refuse(spec, target))
    return _choice(target, fitting, named)


def choose_toolchains(target: str, known: Sequence[ToolchainSpec]) -> TargetChoice:
    """Return the newest toolchain of each backend that builds for the target."""
    newest: dict[str, ToolchainSpec] = {}
    for spec in sorted(known, key=lambda each: version_numbers(each.version)):
        if not refuse(spec, target):
            newest[spec.backend] = spec
    return _choice(target, tuple(newest.values()), known)


def refuse(spec: ToolchainSpec, target: str) -> str:
    """Return why a toolchain does not build for the target, or an empty string."""
    return BUILDERS[spec.backend].refuse_target(target, spec)


def _choice(target: str, fitting: tuple[ToolchainSpec, ...], known: Sequence[ToolchainSpec]) -> TargetChoice:
    if fitting:
        return TargetChoice(target=target, toolchains=fitting)
    reasons = "; ".join(f"{spec.name}: {refuse(spec, target)}" for spec in known)
    return TargetChoice(target=target, toolchains=(), reason=f"no toolchain builds for {target} ({reasons})")
