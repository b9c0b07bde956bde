"""Which module of PyTorch a node of an ONNX came from, as the two exporters write it. Pure.

TorchScript's exporter puts scopes into node names (`/layer1/layer1.0/conv1/Conv`, `relu_1` for a second call), and the
newer one into the nodes' metadata (`pkg.torch.onnx.name_scopes`, or `namespace`).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping

_SCOPES = "pkg.torch.onnx.name_scopes"
_NAMESPACE = "namespace"


def module_of(name: str, metadata: Mapping[str, str], modules: Collection[str]) -> tuple[str, int] | None:
    """
    Return the module that a node came from and which of its calls (0: not known), or None.

    Args:
        name: The node's name.
        metadata: Its metadata properties.
        modules: The names of the modules that there are.
    """
    scopes = _read_scopes(metadata)
    if scopes is not None:
        known = [scope for scope in scopes if scope in modules]
        return (known[-1], 0) if known else None
    return _from_path(name, modules)


def _read_scopes(metadata: Mapping[str, str]) -> list[str] | None:
    if _SCOPES in metadata:
        try:
            listed = ast.literal_eval(metadata[_SCOPES])
        except (ValueError, SyntaxError):
            return None
        return [str(scope) for scope in listed] if isinstance(listed, list) else None
    if _NAMESPACE in metadata and ": " in metadata[_NAMESPACE]:
        return [part.partition(": ")[0] for part in metadata[_NAMESPACE].split("/")]
    return None


def _from_path(name: str, modules: Collection[str]) -> tuple[str, int] | None:
    parts = name.split("/")[1:-1] if name.startswith("/") else []
    path, call, found = "", 1, None
    for part in parts:
        step, number = _step(path, part, modules)
        path = step
        call = max(call, number)
        if path in modules:
            found = (path, call)
    return found


def _step(path: str, part: str, modules: Collection[str]) -> tuple[str, int]:
    """Return the path one scope further: scopes inside a Sequential repeat its name, calls after the first a number."""
    last = path.rpartition(".")[2]
    own = part[len(last) + 1 :] if last and part.startswith(f"{last}.") else part
    joined = f"{path}.{own}" if path else own
    if _is_path(joined, modules):
        return joined, 1
    base, _, number = joined.rpartition("_")
    if number.isdecimal() and _is_path(base, modules):
        return base, int(number) + 1
    return joined, 1


def _is_path(name: str, modules: Collection[str]) -> bool:
    return name in modules or any(module.startswith(f"{name}.") for module in modules)
