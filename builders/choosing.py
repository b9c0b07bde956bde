"""Which toolchain builds for which target. Pure: the registered toolchains are given, and what finds their faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from modelreg.builders.backends import BUILDERS
from modelreg.builders.interface import ToolchainSpec
from modelreg.builders.rtx import AHEAD_OF_TIME
from modelreg.builders.trt_capabilities import version_numbers
from modelreg.registry.records import ToolchainRecord

FindFault = Callable[[ToolchainSpec], str]
"""Returns why a toolchain cannot be used now, or an empty string."""

_ADD = "modelreg toolchain add NAME --python PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChoice:
    """
    The toolchains that build for a target.

    Attributes:
        target: What is built for.
        toolchains: Where there is none, `reason` says why each of those known does not, and `hint` what does.
        faults: Of those chosen, by name, why they cannot be used: nothing else builds their cells.
        passed_over: Of those not chosen, by name, why they could not be used, so that another one was chosen.
    """

    target: str
    toolchains: tuple[ToolchainSpec, ...]
    faults: Mapping[str, str] = field(default_factory=dict)
    passed_over: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    hint: str = ""


def to_spec(record: ToolchainRecord) -> ToolchainSpec:
    """Return a registered toolchain as what a cell is built with."""
    return ToolchainSpec(
        name=record.name,
        backend=record.backend,
        version=record.version,
        python=record.python,
        details=record.details,
    )


def choose_named(
    target: str, named: Sequence[ToolchainSpec], known: Sequence[ToolchainSpec], *, find_fault: FindFault
) -> TargetChoice:
    """Return those of the toolchains that the user named which build for the target; `known` are all there are."""
    fitting = tuple(spec for spec in named if not refuse(spec, target))
    if not fitting:
        others = tuple(spec.name for spec in known if not refuse(spec, target))
        return _no_choice(target, named, _say_others(target, others) or _say_what_builds(target))
    faults = {spec.name: fault for spec in fitting if (fault := find_fault(spec))}
    return TargetChoice(target=target, toolchains=fitting, faults=faults)


def choose_toolchains(target: str, known: Sequence[ToolchainSpec], *, find_fault: FindFault) -> TargetChoice:
    """
    Return the newest usable toolchain of each backend that builds for the target.

    Where none of a backend can be used, the newest is returned with its fault. Those that are older than what is
    chosen are not looked at.
    """
    chosen: list[ToolchainSpec] = []
    faults: dict[str, str] = {}
    passed_over: dict[str, str] = {}
    for candidates in _by_backend(target, known).values():
        found: dict[str, str] = {}
        usable = None
        for spec in candidates:
            fault = find_fault(spec)
            if not fault:
                usable = spec
                break
            found[spec.name] = fault
        chosen.append(usable or candidates[0])
        (passed_over if usable else faults).update(found)
    if not chosen:
        return _no_choice(target, known, _say_what_builds(target))
    return TargetChoice(target=target, toolchains=tuple(chosen), faults=faults, passed_over=passed_over)


def refuse(spec: ToolchainSpec, target: str) -> str:
    """Return why a toolchain does not build for the target, or an empty string."""
    return BUILDERS[spec.backend].refuse_target(target, spec)


def _by_backend(target: str, known: Sequence[ToolchainSpec]) -> dict[str, list[ToolchainSpec]]:
    """Return the toolchains that build for the target, newest first."""
    found: dict[str, list[ToolchainSpec]] = {}
    # Of two of one version, the one that is listed last comes first, as it always has.
    for spec in sorted(known, key=lambda each: version_numbers(each.version)):
        if not refuse(spec, target):
            found.setdefault(spec.backend, []).insert(0, spec)
    return found


def _no_choice(target: str, known: Sequence[ToolchainSpec], hint: str) -> TargetChoice:
    reasons = "; ".join(_say_reason(spec, refuse(spec, target)) for spec in known)
    reason = f"no toolchain builds for {target} ({reasons})"
    return TargetChoice(target=target, toolchains=(), reason=reason, hint=hint)


def _say_reason(spec: ToolchainSpec, reason: str) -> str:
    return reason if reason.startswith(f"{spec.name} ") else f"{spec.name}: {reason}"


def _say_others(target: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    builds = "builds" if len(names) == 1 else "build"
    return f"{', '.join(names)} {builds} for {target}: name that with --toolchain, or leave --toolchain out."


def _say_what_builds(target: str) -> str:
    """Return which backend has to be added for a target."""
    if target == "cpu":
        return "ONNX Runtime builds for the CPU: leave --toolchain out."
    if target in AHEAD_OF_TIME:
        what = f"TensorRT-RTX, or on a host with a GPU of {target} one that has TensorRT"
        return f"Add one with: {_ADD}, PATH being an environment that has {what}; `modelreg toolchain list` shows them."
    return (
        f"TensorRT-RTX does not build for {target}: on a host with such a GPU, add the full TensorRT with: {_ADD};"
        " `modelreg toolchain list` shows what there is."
    )
