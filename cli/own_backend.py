"""The backend of modelreg's own interpreter: `pip install 'modelreg[rtx]'` brings one, and makes no toolchain of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from modelreg.registry.words import Backend

if TYPE_CHECKING:
    from modelreg.cli.context import Registry


def advise_own_backend(registry: Registry, target: str) -> str:
    """Return how to make a toolchain of a backend of our own interpreter that could build for the target, or ""."""
    from modelreg.registry.toolchains.catalogue import list_toolchains
    from modelreg.runtime.host import describe_host, find_versions

    found = find_versions()
    if not set(found) - {Backend.ONNXRUNTIME}:
        return ""
    with registry.database.read() as connection:
        known = [(each.backend, each.python) for each in list_toolchains(connection)]
    return say_own_backend(target, found, known, gpus=describe_host().targets)


def say_own_backend(
    target: str, found: Mapping[Backend, str], known: Sequence[tuple[str, str]], *, gpus: Sequence[str]
) -> str:
    """
    Return the advice of `advise_own_backend`. Pure.

    Args:
        target: What nothing builds for.
        found: The backends of our interpreter.
        known: Backend and interpreter of each toolchain.
        gpus: The targets of this host.
    """
    from modelreg.builders.rtx import AHEAD_OF_TIME

    for backend, targets in ((Backend.TENSORRT_RTX, AHEAD_OF_TIME), (Backend.TENSORRT, gpus)):
        if backend in found and target in targets and (backend, sys.executable) not in known:
            name = backend.replace("tensorrt", "trt").replace("trt-rtx", "rtx")
            return (
                f"{backend} is installed beside modelreg, and is no toolchain before you add it:"
                f" modelreg toolchain add {name} --python {sys.executable} --backend {backend}"
            )
    return ""
