"""What a reference is fed with: an array file, or an iterator of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.contents import Signature
from modelreg.registry.errors import GoldenSetError, ReferenceModelError
from modelreg.registry.regular_files import fault_of
from modelreg.registry.tensor_sets import TensorInfo, TensorSet, open_tensor_set
from modelreg.validators.feeding import plan_feed
from modelreg.validators.golden import INPUT, LABEL, LABEL_MORE, SLICE, SLICE_NAMES
from modelreg.validators.user_code import describe_error, guard, load_function, split_target

Array = NDArray[Any]
_ITEMS = "Yield a dict by input name, one array, a tuple of arrays in the ONNX's order, or (inputs, labels)."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceBatch:
    """The inputs of one run, and of its samples the labels and what else belongs to them, where there is some."""

    inputs: dict[str, Array]
    labels: Array | None
    more: dict[str, Array] = field(default_factory=dict)


@contextmanager
def open_inputs(inputs: str, signature: Signature, *, batch: int) -> Iterator[Iterator[ReferenceBatch]]:
    """Yield the batches of an npz, npy or safetensors file, or of `FILE.py:iterator`.

    Raises:
        GoldenSetError: The file cannot be read, or does not fit the model.
        ReferenceModelError: The iterator failed, or yields something that is not understood.
    """
    target = split_target(inputs)
    if target is not None:
        with load_function(*target) as function:
            yield _iterate_user(function, inputs, [spec.name for spec in signature.inputs])
        return
    with _open_file(Path(inputs), signature) as arrays:
        yield _iterate_file(arrays, signature, batch)


def read_slice_names(inputs: str) -> dict[str, str]:
    """Return the metadata of an inputs file that belongs into the golden set too: what its slices are called."""
    if split_target(inputs) is not None or Path(inputs).suffix == ".npy":
        return {}
    with open_tensor_set(Path(inputs)) as arrays:
        return {key: value for key, value in arrays.metadata.items() if key == SLICE_NAMES}


class _NamedArrays:
    """The arrays of a file under the keys of a golden set, whether they are called `NAME` or `input.NAME`."""

    def __init__(self, source: TensorSet, keys: Mapping[str, str]) -> None:
        self.path = source.path
        self.metadata = source.metadata
        self.tensors: dict[str, TensorInfo] = {key: source.tensors[found] for key, found in keys.items()}
        self._source = source
        self._keys = keys

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        return self._source.read(self._keys[name], start, stop)

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> TensorSet:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _NpySet:
    """One `.npy` as a set of one array, mapped and not loaded."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        if fault := fault_of(path):
            raise GoldenSetError(f"{path} is {fault}")
        try:
            self._array = np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # a header may say anything
            raise GoldenSetError(f"{path} is not an .npy of plain numbers: {describe_error(error)}") from error
        if not isinstance(self._array, np.ndarray):
            self._array.close()
            raise GoldenSetError(f"{path} is not an .npy: it is an .npz", hint="Rename it.")
        self.tensors = {name: TensorInfo(dtype=self._array.dtype.name, shape=self._array.shape)}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        assert name in self.tensors
        return np.array(self._array[start:stop] if self._array.ndim else self._array)

    def close(self) -> None:
        del self._array

    def __enter__(self) -> TensorSet:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _open_file(path: Path, signature: Signature) -> _NamedArrays:
    names = [spec.name for spec in signature.inputs]
    if path.suffix == ".npy":
        if len(names) != 1:
            raise GoldenSetError(f"{path} holds one array, the model has {len(names)} inputs: {names}")
        source: TensorSet = _NpySet(path, names[0])
    else:
        source = open_tensor_set(path)
    keys = {INPUT + n: n if n in source.tensors else INPUT + n for n in names}
    missing = [name for name in names if keys[INPUT + name] not in source.tensors]
    if missing:
        source.close()
        raise GoldenSetError(
            f"{path} lacks the model's input {missing[0]!r}; it has {', '.join(map(repr, source.tensors))}",
            hint="Name the arrays as the ONNX names its inputs; `label`, `label.NAME` and `slice` may be there too.",
        )
    if LABEL in source.tensors and LABEL not in names:
        keys[LABEL] = LABEL
    more = [key for key in source.tensors if key == SLICE or key.startswith(LABEL_MORE)]
    keys |= {key: key for key in more if key not in names}
    return _NamedArrays(source, keys)


def _iterate_file(arrays: TensorSet, signature: Signature, batch: int) -> Iterator[ReferenceBatch]:
    infos = {spec.name: arrays.tensors[INPUT + spec.name] for spec in signature.inputs}
    inputs_only = Signature(inputs=signature.inputs, outputs=())
    feed = plan_feed(inputs_only, infos, {}, {"batch": str(batch), **arrays.metadata})
    beside = [key for key in arrays.tensors if key == SLICE or key.startswith(LABEL)]
    for key in beside:
        rows = arrays.tensors[key].rows
        if rows != feed.samples:
            raise GoldenSetError(f"{key} has {rows} rows in {arrays.path}, the inputs have {feed.samples} samples")
    for part in feed.iterate_batches(arrays):
        found = {key: arrays.read(key, part.start, part.stop) for key in beside}
        yield ReferenceBatch(inputs=part.inputs, labels=found.pop(LABEL, None), more=found)


def _iterate_user(function: Any, where: str, names: list[str]) -> Iterator[ReferenceBatch]:
    with guard(f"inputs {where} failed"):
        items = iter(function())
    while True:
        with guard(f"inputs {where} failed"):
            item = next(items, None)
            batch = None if item is None else _read_item(item, where, names)
        if batch is None:
            return
        yield batch


def _read_item(item: Any, where: str, names: list[str]) -> ReferenceBatch:
    labels = None
    is_pair = isinstance(item, tuple | list) and len(item) == 2
    if is_pair and (len(names) == 1 or isinstance(item[0], Mapping | tuple | list)):
        item, labels = item
    if isinstance(item, Mapping):
        arrays = {str(name): as_array(value) for name, value in item.items()}
    elif isinstance(item, tuple | list):
        arrays = dict(zip(names, map(as_array, item), strict=False)) if len(item) == len(names) else {}
    else:
        arrays = {names[0]: as_array(item)} if len(names) == 1 else {}
    if set(arrays) != set(names):
        raise ReferenceModelError(f"inputs {where} yields something else than the inputs {names}", hint=_ITEMS)
    found = None if labels is None else np.atleast_1d(as_array(labels))
    return ReferenceBatch(inputs={name: arrays[name] for name in names}, labels=found)


def as_array(value: Any) -> Array:
    """
    Return an array of an array, a tensor or numbers.

    Raises:
        ReferenceModelError: It holds something else than numbers.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind in "SUMm":
        raise ReferenceModelError(f"inputs are numbers, not {array.dtype}", hint=_ITEMS)
    return array
