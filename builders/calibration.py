"""Calibration sets: checked against the model before anything is built, and known by their digest."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelreg.builders.interface import CalibrationOptions
from modelreg.registry.contents import Signature, TensorSpec
from modelreg.registry.digests import file_digest
from modelreg.registry.errors import CellRefusedError, GoldenSetError, UsageError
from modelreg.registry.words import Json

if TYPE_CHECKING:
    from modelreg.registry.tensor_sets import TensorInfo, TensorSet

METHODS = ("entropy", "minmax", "percentile")
RECOMMENDED_SAMPLES = 100
ENTROPY_BINS = 512
"""ONNX Runtime's default of 128 leaves its KL search one candidate: the whole range."""
ENTROPY_LEVELS = 128
PERCENTILE_BINS = 2048
_BLOCK_BYTES = 4 << 20
_ADVICE = "Give some hundred real samples, preprocessed like the inputs of production."


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSet:
    """
    A calibration set that fits a model.

    Attributes:
        keys: The key in the file for each input of the model.
        rows: Which rows are used, ascending.
        batch: Rows that go through the model at once.
    """

    path: Path
    digest: str
    keys: dict[str, str]
    rows: tuple[int, ...]
    batch: int
    warnings: tuple[str, ...]

    def to_request(self) -> Json:
        """Return what the child needs to read the same rows."""
        return {"path": str(self.path), "keys": self.keys, "rows": list(self.rows), "batch": self.batch}


def check_options(options: CalibrationOptions) -> None:
    """
    Refuse a method or number that means nothing.

    Raises:
        UsageError: Says which.
    """
    if options.method not in METHODS:
        raise UsageError(f"calibration method {options.method!r} is none of {', '.join(METHODS)}")
    if not 50.0 < options.percentile <= 100.0:
        raise UsageError(f"percentile {options.percentile:g} is not between 50 and 100")
    if options.samples is not None and options.samples < 1:
        raise UsageError(f"{options.samples} calibration samples are none")


def recipe_part(options: CalibrationOptions, calibration: CalibrationSet) -> Json:
    """Return the calibration as part of a recipe: everything that decides the ranges, nothing else."""
    body: Json = {"digest": calibration.digest, "method": options.method, "samples": len(calibration.rows)}
    if options.method == "percentile":
        body |= {"percentile": options.percentile, "bins": PERCENTILE_BINS}
    if options.method == "entropy":
        body |= {"bins": ENTROPY_BINS, "levels": ENTROPY_LEVELS}
    if options.samples is not None:
        body["seed"] = options.seed
    return body


def check_calibration_set(options: CalibrationOptions, signature: Signature) -> CalibrationSet:
    """
    Read a calibration set once, in blocks, and hold it to the model's inputs.

    Raises:
        GoldenSetError: It is empty, of another model, of the wrong dtype or shape, or holds NaN or infinities.
        UsageError: An option means nothing.
        CellRefusedError: The model takes no samples.
    """
    from modelreg.registry.tensor_sets import open_tensor_set  # noqa: PLC0415 - only where a set is read

    check_options(options)
    with open_tensor_set(options.path) as tensors:
        keys = _match(tensors.tensors, signature, options.path)
        for spec in signature.inputs:
            _check_declared(tensors.tensors[keys[spec.name]], spec, options.path)
        count = _row_count(tensors.tensors, keys, options.path)
        batch, multiple = _batch(tensors.tensors, keys, signature)
        rows, warnings = _choose(count, options, multiple)
        if not rows:
            raise GoldenSetError(f"{options.path} has {count} samples, fewer than the model's batch of {multiple}")
        for name, key in keys.items():
            warnings += _check_values(tensors, key, name, options.path)
    digest = file_digest(options.path)
    return CalibrationSet(path=options.path, digest=digest, keys=keys, rows=rows, batch=batch, warnings=tuple(warnings))


def iterate_batches(tensors: TensorSet, request: Json) -> Iterator[dict[str, Any]]:
    """Yield inputs by name, `batch` rows at a time; the memory of one batch, whatever the set."""
    import numpy as np  # noqa: PLC0415 - runs in the child

    rows, batch = request["rows"], request["batch"]
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        contiguous = part == list(range(part[0], part[0] + len(part)))
        inputs = {}
        for name, key in request["keys"].items():
            if contiguous:
                inputs[name] = tensors.read(key, part[0], part[-1] + 1)
            else:
                inputs[name] = np.concatenate([tensors.read(key, row, row + 1) for row in part])
        yield inputs


def _match(tensors: dict[str, TensorInfo], signature: Signature, path: Path) -> dict[str, str]:
    if not tensors:
        raise GoldenSetError(f"the calibration set {path} is empty", hint=_ADVICE)
    keys = {}
    for spec in signature.inputs:
        found = [key for key in (f"input.{spec.name}", spec.name) if key in tensors]
        if not found:
            raise GoldenSetError(
                f"the calibration set {path} has no input {spec.name!r}; it holds: {', '.join(sorted(tensors))}",
                hint="It may be of another model: its keys must be `input.NAME` with the model's input names.",
            )
        keys[spec.name] = found[0]
    return keys


def _check_declared(info: TensorInfo, spec: TensorSpec, path: Path) -> None:
    where = f"input {spec.name!r} in {path}"
    if info.dtype != spec.dtype:
        raise GoldenSetError(f"{where} has dtype {info.dtype}, the model takes {spec.dtype}")
    if not info.shape:
        raise GoldenSetError(f"{where} is a scalar: samples must lie along axis 0")
    if spec.shape is None:
        return
    fits = len(info.shape) == len(spec.shape) and all(
        not isinstance(declared, int) or declared == length
        for declared, length in zip(spec.shape[1:], info.shape[1:], strict=True)
    )
    if not fits:
        shown = " x ".join("?" if each is None else str(each) for each in spec.shape)
        raise GoldenSetError(f"{where} has shape {' x '.join(map(str, info.shape))}, the model takes {shown}")


def _row_count(tensors: dict[str, TensorInfo], keys: dict[str, str], path: Path) -> int:
    counts = {name: tensors[key].rows for name, key in keys.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise GoldenSetError(f"the inputs in {path} have different numbers of samples ({shown})")
    count = min(counts.values(), default=0)
    if count == 0 or any(tensors[key].row_bytes == 0 for key in keys.values()):
        raise GoldenSetError(f"the calibration set {path} holds no samples", hint=_ADVICE)
    return count


def _batch(tensors: dict[str, TensorInfo], keys: dict[str, str], signature: Signature) -> tuple[int, int]:
    """Return rows per run, and what the number of rows must be a multiple of."""
    fixed = [spec.shape[0] for spec in signature.inputs if spec.shape and isinstance(spec.shape[0], int)]
    if 0 in fixed:
        raise CellRefusedError(
            "nothing can be calibrated: the model's batch is fixed at 0",
            hint="Export it with a batch, or build a precision that needs no calibration.",
        )
    if fixed:
        return fixed[0], fixed[0]
    row_bytes = sum(tensors[key].row_bytes for key in keys.values())
    return max(1, min(32, _BLOCK_BYTES // max(1, row_bytes))), 1


def _choose(count: int, options: CalibrationOptions, multiple: int) -> tuple[tuple[int, ...], list[str]]:
    warnings = []
    wanted = count if options.samples is None else min(options.samples, count)
    used = wanted - wanted % multiple
    if used < wanted:
        warnings.append(f"{wanted - used} calibration samples do not fill a batch of {multiple} and are left out")
    if options.samples is not None and options.samples > count:
        warnings.append(f"{options.samples} calibration samples were asked, the set has {count}")
    if used < RECOMMENDED_SAMPLES:
        warnings.append(f"{used} calibration samples are few: {RECOMMENDED_SAMPLES} and more are recommended")
    if used == count:
        return tuple(range(count)), warnings
    return tuple(sorted(random.Random(options.seed).sample(range(count), used))), warnings  # noqa: S311


def _check_values(tensors: TensorSet, key: str, name: str, path: Path) -> list[str]:
    """Refuse values that are not finite; return a warning where they tell nothing of what production will send."""
    import numpy as np  # noqa: PLC0415 - see check_calibration_set

    from modelreg.registry.tensor_sets import row_chunks  # noqa: PLC0415

    info = tensors.tensors[key]
    first: Any = None
    are_same = True
    for start, stop in row_chunks(info, chunk_bytes=_BLOCK_BYTES):
        block = tensors.read(key, start, stop)
        if block.dtype.kind not in "fc":
            return []
        rows = block.reshape(stop - start, -1)
        flat = np.isfinite(rows).all(axis=1)
        if not flat.all():
            raise GoldenSetError(
                f"{key!r} in {path} holds NaN or infinity, first in sample {start + int(flat.argmin())}"
            )
        first = rows[0].copy() if first is None else first
        are_same = are_same and bool((rows == first).all())
    if not are_same:
        return []
    if bool((first == first[0]).all()):
        return [f"calibration input {name!r} is {first[0]:g} in all samples: {_ADVICE}"]
    return [f"calibration input {name!r} is the same in all samples: {_ADVICE}"] if info.rows > 1 else []
