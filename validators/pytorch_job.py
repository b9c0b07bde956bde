"""The job file of the process that PyTorch is timed in: the registry's own interpreter, with the user's code in it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_state: dict[str, Any] = {}


def _answering(job: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Callable[..., Any]:
    """Return a job that answers with the error that a user can act on, where it raises one."""

    def run(request: dict[str, Any], arrays: dict[str, Any], _report: Any) -> Any:
        from modelreg.registry.errors import ModelregError  # noqa: PLC0415 - found on the caller's path

        try:
            return job(request, arrays)
        except ModelregError as error:
            traceback.print_exc()  # into the log
            return {"error": {"kind": type(error).__name__, "message": str(error), "hint": error.hint()}}

    return run


def _load(request: dict[str, Any], _arrays: dict[str, Any]) -> Any:
    from modelreg.validators.pytorch_eager import Eager  # noqa: PLC0415
    from modelreg.validators.torch_reference import import_torch  # noqa: PLC0415

    _state["eager"] = Eager(
        import_torch(),
        reference=request["reference"],
        weights=None if request["weights"] is None else Path(request["weights"]),
        device=request["device"],
        threads=request["threads"],
    )
    return _state["eager"].describe()


def _bench(request: dict[str, Any], arrays: dict[str, Any]) -> Any:
    from modelreg.validators.pytorch_timing import Variant  # noqa: PLC0415

    return _state["eager"].time_runs(Variant(request["variant"]), arrays, request)


def load(request: dict[str, Any], arrays: dict[str, Any], report: Any) -> Any:
    """Choose reference and device; answer with versions, or with the error that a user can act on."""
    sys.path[:] = request["path"]
    return _answering(_load)(request, arrays, report)


JOBS = {"load": load, "bench": _answering(_bench)}
