"""Load a PyTorch reference with its weights, and know how it is called.

PyTorch comes as an argument: `torch_reference` alone imports it. `FILE.py:factory` runs the user's Python. A
TorchScript archive runs code only from the archive. `torch.export.load` would unpickle parts of an exported program,
and is kept from it. Weights are plain tensors; no pickle is ever loaded.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelreg.registry.errors import ReferenceModelError
from modelreg.validators.user_code import (
    describe_error,
    guard,
    load_function,
    message_lines,
    require_file,
    split_target,
)

_FORMS = "Give FILE.py:factory, a TorchScript archive (.pt, .ts) or an exported program (.pt2)."
_WEIGHTS = "Give safetensors, or a file that torch.save made of plain tensors."
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_SCRIPT_SUFFIXES = (".pt", ".ts", ".pth", ".torchscript")

Tensors = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """
    A loaded reference.

    `is_float` says that its parameters were made FP32, so that it takes FP32 inputs. `call` runs it on tensors by the
    ONNX's names, in the ONNX's order.
    """

    module: Any
    kind: str
    is_float: bool
    call: Callable[[Tensors], Any]


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
        with guard(f"reference {reference} failed"):  # parameters without data have no copy, `eval` may be the user's
            module = module.cpu().float().eval()
        yield Reference(module=module, kind="module", is_float=True, call=_by_name_or_order(module))


def _load_archive(torch: Any, path: Path) -> Reference:
    require_file(str(path))
    if path.suffix == ".pt2":
        with _one_line(f"{path} is not an exported program"), _without_pickles(path):
            program = torch.export.load(path)
            module = program.module()
            call = _as_exported(torch, program, module)
        return Reference(module=module, kind="export", is_float=False, call=call)
    if path.suffix in _SCRIPT_SUFFIXES:
        with _one_line(f"{path} is not a TorchScript archive (a pickled model is never loaded)"):
            module = torch.jit.load(str(path), map_location="cpu").float().eval()
        return Reference(module=module, kind="torchscript", is_float=True, call=_by_name_or_order(module))
    raise ReferenceModelError(f"reference {path} is of no known kind", hint=_FORMS)


def _by_name_or_order(module: Any) -> Callable[[Tensors], Any]:
    """Return a call that gives the inputs by name where `forward` has parameters of all the names, else in order."""

    def call(tensors: Tensors) -> Any:
        if set(tensors) <= _parameter_names(module):
            return module(**tensors)
        return module(*tensors.values())

    return call


def _parameter_names(module: Any) -> set[str]:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {p.name for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}}


def _as_exported(torch: Any, program: Any, module: Any) -> Callable[[Tensors], Any]:
    """Return a call in the form that a program was exported with: it takes no other, even where the names are equal."""
    spec = program.call_spec.in_spec
    arguments = [item.arg for item in program.graph_signature.input_specs if item.kind.name == "USER_INPUT"]
    names = [argument.name for argument in arguments if not hasattr(argument, "value")]  # what has a value is fixed

    def call(tensors: Tensors) -> Any:
        if len(tensors) != len(names):
            raise ReferenceModelError(f"the reference takes {', '.join(names)}; the ONNX has {', '.join(tensors)}")
        ordered = iter([tensors[name] for name in names] if set(names) == set(tensors) else tensors.values())
        leaves = [argument.value if hasattr(argument, "value") else next(ordered) for argument in arguments]
        positional, named = torch.utils._pytree.tree_unflatten(leaves, spec)
        return module(*positional, **named)

    return call


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
    require_file(str(path))
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
    except Exception as error:  # it may be the user's own, and a state anything
        reason = (message_lines(error) or [type(error).__name__])[-1][:300]
        raise ReferenceModelError(f"weights {path} do not fit the reference: {reason}") from error
    if missing or unexpected:
        parts = [f"{len(missing)} are missing, such as {missing[0]!r}"] if missing else []
        parts += [f"{len(unexpected)} are unknown, such as {unexpected[0]!r}"] if unexpected else []
        raise ReferenceModelError(f"weights {path} do not fit the reference: {' and '.join(parts)}")


@contextlib.contextmanager
def _one_line(what: str, *, hint: str = _FORMS) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, ReferenceModelError):
        raise
    except BaseException as error:  # a parser in another language may panic
        raise ReferenceModelError(f"{what}: {describe_error(error)}", hint=hint) from error
