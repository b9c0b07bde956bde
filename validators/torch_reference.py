"""Run a PyTorch reference once and keep what it says as a golden set. The only module that imports PyTorch.

It runs in this process; `reference_capture` gives it one of its own. `FILE.py:factory` runs the user's Python, as the
user asked; TorchScript archives (`.pt`, `.ts`) and exported programs (`.pt2`) run what is in them. No pickle is ever
loaded.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelreg.registry.contents import Signature
from modelreg.registry.digests import file_digest
from modelreg.registry.errors import GoldenSetError, MissingDependencyError, ReferenceModelError
from modelreg.registry.tensor_sets import numpy_dtype, open_tensor_set
from modelreg.registry.words import Json
from modelreg.validators.activation_capture import ActivationKeeper, WantedActivations
from modelreg.validators.activations import METADATA
from modelreg.validators.feeding import DEFAULT_BATCH
from modelreg.validators.golden import INPUT, LABEL, OUTPUT, check_golden
from modelreg.validators.reference_inputs import ReferenceBatch, open_inputs, read_slice_names
from modelreg.validators.reference_models import Reference, load_reference
from modelreg.validators.spool import Spool
from modelreg.validators.user_code import guard, split_target

Array = NDArray[Any]


def run_reference(
    *,
    reference: str,
    weights: Path | None,
    inputs: str,
    signature: Signature,
    seed: int,
    activations: WantedActivations | None,
    destination: Path,
    batch: int = DEFAULT_BATCH,
    progress: Callable[[int], None] = lambda _samples: None,
) -> Json:
    """Do in this process what `capture_reference` has done in another; the parameters are the same.

    Raises:
        MissingDependencyError: PyTorch is not installed.
        ReferenceModelError: The reference or the iterator failed, or is not deterministic.
        GoldenSetError: Inputs or outputs do not fit the model.
    """
    torch = import_torch()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_exact(torch, seed))
        loaded = stack.enter_context(load_reference(torch, reference, weights))
        batches = stack.enter_context(open_inputs(inputs, signature, batch=batch))
        spool = stack.enter_context(Spool(destination.parent))
        keeper = None
        if activations is not None:
            keeper = ActivationKeeper(torch, loaded, activations, spool, seed=seed)
        first = _run_all(torch, loaded, batches, signature, spool, keeper=keeper, progress=progress)
        kept = None if keeper is None else keeper.finish()
        told = {} if kept is None else {METADATA: kept.to_text()}
        spool.write(destination, {"batch": str(first), **read_slice_names(inputs), **told})
    try:
        with open_tensor_set(destination) as golden:
            checked = check_golden(golden, signature)
    except BaseException:
        destination.unlink(missing_ok=True)
        raise
    return {
        "kind": loaded.kind,
        "torch": str(torch.__version__),
        "seed": seed,
        "batch": checked.feed.batch,
        "samples": checked.samples,
        "activations": kept is not None and kept.summary(),
        "reference": _describe(reference),
        "weights": _describe(str(weights)) if weights is not None else None,
        "inputs": _describe(inputs),
    }


def import_torch() -> Any:
    """Return PyTorch's module; raises MissingDependencyError where it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("PyTorch", extra="torch") from error
    return torch


@contextlib.contextmanager
def _exact(torch: Any, seed: int) -> Iterator[None]:
    """Compute in plain FP32, deterministically and seeded; everything is put back afterwards."""
    states = random.getstate(), np.random.get_state()
    deterministic, precision = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    tf32_convolutions = torch.backends.cudnn.allow_tf32
    with torch.random.fork_rng(devices=[]), torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations of PyTorch are no news for its user here
        try:
            torch.use_deterministic_algorithms(True)
            torch.set_float32_matmul_precision("highest")  # no TF32, and no BF16 on the CPU
            torch.backends.cudnn.allow_tf32 = False  # a reference may move itself to a GPU
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_float32_matmul_precision(precision)
            torch.backends.cudnn.allow_tf32 = tf32_convolutions
            torch.use_deterministic_algorithms(deterministic)


# -- running -----------------------------------------------------------------------------------------------
def _run_all(
    torch: Any,
    reference: Reference,
    batches: Iterator[ReferenceBatch],
    signature: Signature,
    spool: Spool,
    *,
    keeper: ActivationKeeper | None,
    progress: Callable[[int], None],
) -> int:
    """Run every batch into the spool; return the size of the first."""
    first = 0
    for number, batch in enumerate(batches):
        if number == 0 and keeper is not None:
            _study(torch, reference, batch, signature, keeper)
        listening = contextlib.nullcontext() if keeper is None else keeper.listening(rows=_samples(batch, signature))
        with listening:
            outputs = _run(torch, reference, batch, signature)
        if number == 0:
            _check_deterministic(torch, reference, batch, signature, outputs)
        rows = _keep_inputs(spool, batch, signature, is_first=number == 0)
        for spec, output in zip(signature.outputs, outputs, strict=True):
            spool.append(OUTPUT + spec.name, _as_declared(output, spec.name, spec.dtype))
        if batch.labels is not None:
            spool.append(LABEL, batch.labels)
        for name, array in batch.more.items():
            spool.append(name, array)
        first = first or rows
        progress(rows)
    if not first:
        raise GoldenSetError("the inputs hold no samples")
    return first


def _run(torch: Any, reference: Reference, batch: ReferenceBatch, signature: Signature) -> list[Array]:
    """Return the outputs in the ONNX's order."""
    tensors = {spec.name: to_torch(torch, reference, batch.inputs[spec.name]) for spec in signature.inputs}
    names = [spec.name for spec in signature.outputs]
    with guard("the reference failed"):
        found = _in_order(reference.call(tensors), names)
        are_tensors = all(isinstance(item, torch.Tensor) for item in found)
    if len(found) != len(names) or not are_tensors:
        kinds = ", ".join(type(item).__name__ for item in found) or "nothing"
        raise ReferenceModelError(f"the reference gives {kinds}; the ONNX has the outputs {', '.join(names)}")
    return [_to_numpy(torch, tensor, f"output {name!r}") for name, tensor in zip(names, found, strict=True)]


def _in_order(result: Any, names: list[str]) -> list[Any]:
    """Return what a reference gave as a list: a mapping by name where it has all of them, else in its own order."""
    if isinstance(result, Mapping):
        return [result[name] for name in names] if set(names) <= set(result) else list(result.values())
    return list(result) if isinstance(result, tuple | list) else [result]


def _check_deterministic(
    torch: Any, reference: Reference, batch: ReferenceBatch, signature: Signature, outputs: list[Array]
) -> None:
    again = _run(torch, reference, batch, signature)
    for spec, one, two in zip(signature.outputs, outputs, again, strict=True):
        if one.shape != two.shape or not _equal_or_nan(one, two).all():
            raise ReferenceModelError(
                f"the reference is not deterministic: output {spec.name!r} differs between two equal runs",
                hint="Dropout or noise that eval() does not stop, or state that a run changes: take it out.",
            )


def _equal_or_nan(one: Array, two: Array) -> Array:
    equal: Array = (one == two) | ((one != one) & (two != two))  # noqa: PLR0124 - what NaN is, in any dtype
    return equal


def _study(
    torch: Any, reference: Reference, batch: ReferenceBatch, signature: Signature, keeper: ActivationKeeper
) -> None:
    """Let the keeper learn from the first batch what there is to keep."""
    cut, rows = _cut_inputs(signature), _samples(batch, signature)

    def run(samples: int | None) -> None:
        inputs = {name: array[:samples] if name in cut else array for name, array in batch.inputs.items()}
        _run(torch, reference, ReferenceBatch(inputs=inputs, labels=None), signature)

    keeper.study(run, rows=rows, is_cut=bool(cut))


def _cut_inputs(signature: Signature) -> set[str]:
    """Return the inputs whose first axis counts samples and is free."""
    return {s.name for s in signature.inputs if s.shape is None or bool(s.shape and not isinstance(s.shape[0], int))}


def _samples(batch: ReferenceBatch, signature: Signature) -> int:
    """Return how many samples a run has; one where nothing counts them."""
    cut = _cut_inputs(signature)
    sizes = [len(array) for name, array in batch.inputs.items() if array.ndim and (name in cut or not cut)]
    return sizes[0] if sizes else 1


def _keep_inputs(spool: Spool, batch: ReferenceBatch, signature: Signature, *, is_first: bool) -> int:
    """Append the inputs; return how many samples the batch has.

    A fixed input that every run gets whole, beside others that are cut into runs, is kept once.
    """
    cut = _cut_inputs(signature)
    rows = 1
    for spec in reversed(signature.inputs):
        array = batch.inputs[spec.name]
        is_repeated = bool(spec.shape) and bool(cut) and spec.name not in cut
        if array.ndim and not is_repeated:
            rows = len(array)
        if is_first or not is_repeated:
            spool.append(INPUT + spec.name, array)
    return rows


# -- arrays ------------------------------------------------------------------------------------------------
def to_torch(torch: Any, reference: Reference, array: Array) -> Any:
    """Return an input as a tensor on the CPU: floats in FP32 where the reference was made FP32."""
    if array.dtype.name == "bfloat16":
        tensor = torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    else:
        try:
            tensor = torch.from_numpy(np.array(array))
        except (TypeError, ValueError) as error:  # a type it lacks, or the byte order of another machine
            raise GoldenSetError(f"PyTorch has no tensors of {array.dtype}") from error
    return tensor.float() if reference.is_float and tensor.is_floating_point() else tensor


def _to_numpy(torch: Any, tensor: Any, what: str) -> Array:
    """Return a copy of a tensor; quantized and sparse ones, and those of the meta device, have no plain numbers."""
    with guard(f"{what} of the reference cannot be read"):
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return np.array((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


def _as_declared(array: Array, name: str, dtype: str) -> Array:
    """Return an output in the ONNX's dtype: floats are rounded to it, anything else must be it already."""
    if dtype in {"unknown", array.dtype.name}:
        return array
    if array.dtype.kind != "f" or "float" not in dtype:
        raise ReferenceModelError(f"output {name!r} of the reference is {array.dtype}, the ONNX has {dtype}")
    return array.astype(numpy_dtype(dtype))


def _describe(text: str) -> Json:
    """Return a file's name and digest, and the function in it."""
    path, name = split_target(text) or (Path(text), "")
    return {"file": path.name, "sha256": file_digest(path), **({"name": name} if name else {})}
