"""What speaks against a promotion whose gates pass. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from modelreg.registry.words import Precision, Verdict

if TYPE_CHECKING:
    from modelreg.registry.promotion import Candidate
    from modelreg.registry.records import EngineRecord

_FAILED = f"validation {Verdict.FAIL}"


def find_doubts(chosen: Mapping[str, EngineRecord], fp32: Sequence[Candidate]) -> tuple[str, ...]:
    """
    Return for each target that gets less than FP32 what it means that FP32 fails there, if it does.

    With FP32 the engine computes what the export says. Where that is not what the reference gave, a pass of less is
    luck: the golden set is of another model, or the export is wrong.

    Args:
        chosen: The engines to activate, by target.
        fp32: The version's FP32 engines, judged.
    """
    return tuple(
        doubt
        for target, engine in chosen.items()
        if engine.precision is not Precision.FP32
        and (doubt := _say_fp32_fails(target, [each for each in fp32 if each.engine.target.name == target]))
    )


def _say_fp32_fails(target: str, fp32: Sequence[Candidate]) -> str:
    failed = [each for each in fp32 if each.reason.startswith(_FAILED) and not each.is_stale]
    if not failed or any(each.usable for each in fp32):
        return ""
    newest = max(failed, key=lambda each: each.engine.id)
    return (
        f"FP32 fails on {target} (engine {newest.engine.id}, {newest.reason}):"
        " the golden set is of another model, or the export is wrong"
    )
