"""The engines of a release that one Triton model can hold, and the files it holds them in. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modelreg.registry.contents import StoredFile
from modelreg.registry.manifest import NO_HARDWARE_COMPATIBILITY, Manifest, ReleasedEngine
from modelreg.registry.words import Backend, Json
from modelreg.runtime.triton.tensors import TritonRefusalError

_GPU = re.compile(r"sm_([1-9]\d?)(\d)")
_ANY_NEWER_GPU = "AMPERE_PLUS"
DEFAULT_PLAN = "model.plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEngine:
    """
    An engine of a release with the recipe it was built by.

    Attributes:
        engine: As the manifest has it.
        recipe: The recipe's body; profiles and types are in it.
    """

    engine: ReleasedEngine
    recipe: Json

    @property
    def profiles(self) -> list[Mapping[str, Mapping[str, Sequence[int]]]]:
        """Return its optimisation profiles: for each, `min`, `opt` and `max` of every input with free dimensions."""
        return list((self.recipe.get("build") or {}).get("profiles") or ())

    @property
    def halves_io(self) -> bool:
        """Return whether its FP32 inputs and outputs became FP16."""
        variant = self.recipe.get("variant") or {}
        return variant.get("kind") == "fp16" and not variant.get("keep_io_types", True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedEngines:
    """
    Engines with their places in a version's folder.

    Attributes:
        engines: In order of target.
        files: What lies where; the paths are relative to the folder.
        default: The plan that a device without one of its own loads.
        by_capability: Compute capability, such as `9.0`, to file; empty off TensorRT.
    """

    engines: tuple[ServedEngine, ...]
    files: tuple[StoredFile, ...]
    default: str
    by_capability: dict[str, str]


def choose_targets(manifest: Manifest, wanted: Sequence[str]) -> tuple[ReleasedEngine, ...]:
    """
    Return the engines of a release for one Triton model: those of the targets wanted, else all.

    Raises:
        TritonRefusalError: A target is not in it, or the engines cannot be in one model; says what to leave out.
    """
    unknown = [target for target in wanted if target not in manifest.targets]
    if unknown:
        raise TritonRefusalError(
            f"the release has no target {unknown[0]!r}", hint=f"It has: {', '.join(manifest.targets)}."
        )
    chosen = tuple(engine for engine in manifest.engines if not wanted or engine.target in wanted)
    for engine in chosen:
        if engine.backend is Backend.TENSORRT_RTX:
            raise TritonRefusalError(
                f"Triton has no backend for {engine.backend}, which {engine.target} is built with",
                hint="Build that target with TensorRT or ONNX Runtime, or choose others with --target.",
            )
    _require_one(chosen, "backend", [str(engine.backend) for engine in chosen])
    if chosen[0].backend is Backend.TENSORRT:
        fixed = [engine for engine in chosen if not engine.version_compatible]
        _require_one(fixed, "TensorRT version", [engine.backend_version for engine in fixed])
    elif len(chosen) > 1:
        _require_one(chosen, "ONNX Runtime plan", [engine.plan.digest for engine in chosen])
    return chosen


def _require_one(engines: Sequence[ReleasedEngine], what: str, values: Sequence[str]) -> None:
    if len(set(values)) > 1:
        listed = ", ".join(f"{engine.target}: {value[:20]}" for engine, value in zip(engines, values, strict=True))
        raise TritonRefusalError(
            f"one Triton model has one {what}, and the release has several ({listed})",
            hint="Export them one by one, each with --target and a --name of its own.",
        )


def place_engines(engines: Sequence[ServedEngine]) -> PlacedEngines:
    """
    Return where the files of engines lie in a version's folder.

    Several TensorRT plans get a name each, which Triton chooses by the device; what lies beside a plan (external data,
    plugins) keeps its name.

    Raises:
        TritonRefusalError: Two different files would have one name, or a target is no GPU that Triton can name.
    """
    first = engines[0].engine
    if first.backend is not Backend.TENSORRT:
        files = _merge([_inside(engine.engine, engine.engine.plan.path.rpartition("/")[2]) for engine in engines[:1]])
        return PlacedEngines(engines=tuple(engines), files=files, default=files[0].path, by_capability={})
    names = {each.engine.target: _plan_name(each.engine.target, alone=len(engines) == 1) for each in engines}
    anywhere = [each.engine for each in engines if each.engine.hardware_compatibility == _ANY_NEWER_GPU]
    return PlacedEngines(
        engines=tuple(engines),
        files=_merge([_inside(each.engine, names[each.engine.target]) for each in engines]),
        default=names[anywhere[0].target] if anywhere else DEFAULT_PLAN,
        by_capability={compute_capability(each.engine.target): names[each.engine.target] for each in engines},
    )


def compute_capability(target: str) -> str:
    """
    Return `9.0` for `sm_90`.

    Raises:
        TritonRefusalError: It is no such target.
    """
    found = _GPU.fullmatch(target)
    if found is None:
        raise TritonRefusalError(f"{target!r} is no GPU that Triton can choose a TensorRT plan by")
    return f"{found[1]}.{found[2]}"


def describe_needs(engines: Sequence[ServedEngine]) -> list[str]:
    """Return what a server must be started with, or be, for these engines; one sentence each."""
    needs = []
    for engine in (each.engine for each in engines):
        if engine.version_compatible:
            needs.append("start tritonserver with --backend-config=tensorrt,version-compatible=true")
        elif engine.backend is Backend.TENSORRT:
            needs.append(f"the server must have TensorRT {engine.backend_version}")
        if engine.plugins:
            names = ";".join(plugin.name for plugin in engine.plugins)
            needs.append(f"start tritonserver with --backend-config=tensorrt,plugins={names}, by their full paths")
        if engine.backend is Backend.TENSORRT and engine.hardware_compatibility == NO_HARDWARE_COMPATIBILITY:
            needs.append(f"{engine.target} serves compute capability {compute_capability(engine.target)} alone")
        if engine.backend is Backend.ONNXRUNTIME:
            needs.append(
                f"the plan was optimised by ONNX Runtime {engine.backend_version}: serve it with that or newer"
            )
    return list(dict.fromkeys(needs))


def _plan_name(target: str, *, alone: bool) -> str:
    compute_capability(target)
    return DEFAULT_PLAN if alone else f"model_{target}.plan"


def _inside(engine: ReleasedEngine, plan_name: str) -> list[StoredFile]:
    prefix = f"{engine.target}/"
    files = [StoredFile(path=plan_name, digest=engine.plan.digest, size_bytes=engine.plan.size_bytes)]
    for file in engine.files[1:]:
        path = file.path.removeprefix(prefix)
        files.append(StoredFile(path=path, digest=file.digest, size_bytes=file.size_bytes))
    return files


def _merge(lists: Sequence[Sequence[StoredFile]]) -> tuple[StoredFile, ...]:
    known: dict[str, StoredFile] = {}
    for file in (file for files in lists for file in files):
        other = known.setdefault(file.path, file)
        if other.digest != file.digest:
            raise TritonRefusalError(
                f"two engines have different files {file.path!r}, which cannot lie in one folder",
                hint="Export them one by one, each with --target and a --name of its own.",
            )
    return tuple(known.values())
