"""The job file of the process that a reference runs in: the registry's own interpreter, and nothing of ours to lose."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def capture(
    request: dict[str, Any], _arrays: dict[str, Any], report: Callable[[float | None, str], None]
) -> dict[str, Any]:
    """Run a reference; answer with where the set comes from, or with the error that a user can act on."""
    sys.path[:] = request["path"]
    from modelreg.registry.contents import Signature  # noqa: PLC0415 - found on the path above
    from modelreg.registry.errors import ModelregError  # noqa: PLC0415
    from modelreg.validators.activation_capture import WantedActivations  # noqa: PLC0415
    from modelreg.validators.feeding import DEFAULT_BATCH  # noqa: PLC0415 - imports NumPy
    from modelreg.validators.torch_reference import run_reference  # noqa: PLC0415

    kept = request["activations"]
    try:
        origin = run_reference(
            reference=request["reference"],
            weights=None if request["weights"] is None else Path(request["weights"]),
            inputs=request["inputs"],
            signature=Signature.from_json(request["signature"]),
            seed=request["seed"],
            activations=None if kept is None else WantedActivations(patterns=tuple(kept[0]), budget_bytes=kept[1]),
            destination=Path(request["destination"]),
            batch=request["batch"] or DEFAULT_BATCH,
            progress=lambda samples: report(None, str(samples)),
        )
    except ModelregError as error:
        traceback.print_exc()  # into the log
        return {"error": {"kind": type(error).__name__, "message": str(error), "hint": error.hint()}}
    return {"origin": origin}


JOBS = {"capture": capture}
