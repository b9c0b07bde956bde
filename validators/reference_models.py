"""Load a PyTorch reference and its weights. PyTorch comes as an argument: `torch_reference` alone imports it.

`FILE.py:factory` runs the user's Python. A TorchScript archive runs code only from the archive. `torch.export.load`
would unpickle parts of an exported program, and is kept from it. Weights are plain tensors; no pickle is ever loaded.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelreg.registry.errors import ReferenceModelError
from modelreg.validators.user_code import guard, load_function, split_target

_FORMS = "Give FILE.py:factory, a TorchScript archive (.pt, .ts) or an exported program (.pt2)."
_WEIGHTS = "Give safetensors, or a file that torch.save made of plain tensors."
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_SCRIPT_SUFFIXES = (".pt", ".ts", ".pth", ".torchscript")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A loaded reference; `is_float` says that its parameters were made FP32, so that it takes FP32 inputs."""

    module: Any
    kind: str
    is_float: bool


@contextlib.contextmanager
def load_reference(torch: Any, reference: str, weights: Path | None) -> Iterator[Reference]:
    """Yield what `FILE.py:factory` or an archive's path names, in evaluation mode.

    Raises:
        ReferenceModelError: It cannot be loaded, is no module, or the weights do not fit it.
    """
    target = split_target(reference)
    if target is None:
        if weights is not None:
            raise ReferenceModelError(f"{reference} has its weights inside", hint="Leave --weights out.")
        yield _load_archive(torch, Path(reference))
        return
    with load_function(*target) as factory:
        with guard(f"reference {reference} failed"):
            module = factory()
        if not isinstance(module, torch.nn.Module):
            raise ReferenceModelError(f"{reference} returned a {type(module).__name__}, not a torch.nn.Module")
        if weights is not None:
            _load_weights(torch, module, weights)
        yield Reference(module=module.cpu().float().eval(), kind="module", is_float=True)


def _load_archive(torch: Any, path: Path) -> Reference:
    if not path.is_file():
        raise ReferenceModelError(f"reference {path} is not a file", hint=_FORMS)
    if path.suffix == ".pt2":
        with _one_line(f"{path} is not an exported program"), _without_pickles(path):
            return Reference(module=torch.export.load(path).module(), kind="export", is_float=False)
    if path.suffix in _SCRIPT_SUFFIXES:
        with _one_line(f"{path} is not a TorchScript archive (a pickled model is never loaded)"):
            module = torch.jit.load(str(path), map_location="cpu")
        return Reference(module=module.float().eval(), kind="torchscript", is_float=True)
    raise ReferenceModelError(f"reference {path} is of no known kind", hint=_FORMS)


@contextlib.contextmanager
def _without_pickles(path: Path) -> Iterator[None]:
    """Let PyTorch load an exported program of plain tensors alone."""
    with zipfile.ZipFile(path) as archive:
        objects = [n for n in archive.namelist() if n.rpartition("/")[2].startswith(("custom_obj", "opaque_obj"))]
    if objects:
        raise ValueError(f"it holds the pickled object {objects[0]}, which is never loaded")
    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"  # it overrides the `weights_only=False` of torch.export.load
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FORCE]
        else:
            os.environ[_FORCE] = before


def _load_weights(torch: Any, module: Any, path: Path) -> None:
    state: Any
    with _one_line(f"weights {path} cannot be loaded", hint=_WEIGHTS):
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # noqa: PLC0415 - imports PyTorch

            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    try:
        missing, unexpected = module.load_state_dict(state, strict=False)
    except (RuntimeError, TypeError, AttributeError) as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise ReferenceModelError(f"weights {path} do not fit the reference: {lines[-1]}") from error
    if missing or unexpected:
        parts = [f"{len(missing)} are missing, such as {missing[0]!r}"] if missing else []
        parts += [f"{len(unexpected)} are unknown, such as {unexpected[0]!r}"] if unexpected else []
        raise ReferenceModelError(f"weights {path} do not fit the reference: {' and '.join(parts)}")


@contextlib.contextmanager
def _one_line(what: str, *, hint: str = _FORMS) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines()
        detail = f": {lines[0][:200]}" if lines else ""
        raise ReferenceModelError(f"{what}: {type(error).__name__}{detail}", hint=hint) from error
