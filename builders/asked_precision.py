"""Whether a plan became what was asked: read back after every build, and no warning but a failure. Pure."""

from __future__ import annotations

from collections.abc import Collection

from modelreg.registry.errors import PrecisionError
from modelreg.registry.words import Json, Precision


def require_precision(realised: Json, *, asked: Precision, excluded: Collection[str] = ()) -> None:
    """
    Refuse a plan that did not become what was asked; `excluded` is what the user kept from being converted.

    Raises:
        PrecisionError: Names the nodes that stayed in a higher precision.
    """
    stayed = realised.get("stayed", [])
    if stayed:
        shown = ", ".join(str(node) for node in stayed[:5]) + (", ..." if len(stayed) > 5 else "")
        raise PrecisionError(
            f"{asked} was asked, but {len(stayed)} of {realised.get('eligible')} nodes stayed in FP32: {shown}",
            hint="Exclude them by --nodes-to-exclude if they shall stay, or choose another precision.",
        )
    unwanted = realised.get("unwanted")
    if unwanted:
        raise PrecisionError(f"nodes that were excluded became {asked} all the same: {', '.join(map(str, unwanted))}")
    compute = realised.get("compute")
    if asked is Precision.FP32 and compute in (Precision.FP16, Precision.BF16):
        raise PrecisionError(
            f"fp32 was asked, but the model itself is typed in {compute}",
            hint=f"Build {compute} instead, or export the model in FP32.",
        )
    if asked not in (Precision.FP32, Precision.BEST) and not realised.get("converted"):
        raise PrecisionError(
            f"{asked} was asked, but no node became {asked}: {realised.get('note') or 'nothing was eligible'}",
            hint="Exclude fewer nodes, or build fp32 instead." if excluded else "Build fp32 instead.",
        )
    if asked in (Precision.FP16, Precision.BF16) and realised.get("storage") != str(asked):
        raise PrecisionError(
            f"{asked} was asked, but the plan stores its weights in FP32", hint=_advise_on_storage(realised, excluded)
        )


def may_become(realised: Json, pinned: Collection[str], recipe: Json) -> bool:
    """Return whether a weakly typed plan has no layer of the precision asked, only because others were faster."""
    if realised.get("converted") or "constraints" in recipe:
        return False
    kept = [str(label).rpartition(" (")[0] for label in realised.get("kept", [])]
    return any(name not in pinned for name in kept)


def _advise_on_storage(realised: Json, excluded: Collection[str]) -> str:
    if "flags" in realised:  # of TensorRT, whose levels fold no casts
        return "Exclude fewer nodes: all those with weights stay in FP32." if excluded else "Build fp32 instead."
    return "Build with optimisation level `extended` or lower: `all` folds the casts of weights."
