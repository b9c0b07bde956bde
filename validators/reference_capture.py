"""Have a PyTorch reference run in a process of its own, which may crash, hang or leave as it likes.

Nothing of PyTorch or NumPy is imported here.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from modelreg.registry.contents import Signature
from modelreg.registry.errors import (
    GoldenSetError,
    MissingDependencyError,
    ModelregError,
    ReferenceModelError,
    UsageError,
    WorkerError,
)
from modelreg.registry.toolchains.exits import name_signal
from modelreg.registry.toolchains.process import (
    MAX_LOG_BYTES,
    Worker,
    WorkerDiedError,
    WorkerJobError,
    WorkerLogError,
    WorkerTimeoutError,
)
from modelreg.registry.words import Json
from modelreg.validators.user_code import require_file, require_name

DEFAULT_TIMEOUT_S = 3600.0
_JOB_FILE = Path(__file__).with_name("reference_job.py")
_INSTEAD = "capture the golden set where it is, and give it with --golden FILE"
_SEE_LOG = "Run again with -v to see what it printed."
_CARRIED = {error.__name__: error for error in (GoldenSetError, ReferenceModelError, UsageError)}


def capture_reference(
    *,
    reference: str,
    weights: Path | None,
    inputs: str,
    signature: Signature,
    seed: int,
    activations: tuple[Sequence[str], int] | None,
    destination: Path,
    batch: int | None = None,
    progress: Callable[[int], None] = lambda _samples: None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    log_path: Path | None = None,
) -> Json:
    """Run the reference over the inputs and write the golden set; nothing is left behind on failure.

    Args:
        reference: `FILE.py:factory`, or the path of a TorchScript archive or an exported program.
        weights: safetensors, or a `torch.save` file of plain tensors.
        inputs: An npz, npy or safetensors file, or `FILE.py:iterator`.
        signature: The ONNX's inputs and outputs; both are matched by name, else by order.
        seed: For every random generator, before the model is made.
        activations: Keep outputs of modules too, as `activation.NAME`: patterns of their names (`all`: every leaf), and
            the bytes that may be kept; None for none.
        destination: The safetensors file to make.
        batch: Samples of one run, where the inputs come from a file and the model leaves it open; None for ours.
        progress: Called with the number of samples after each run.
        timeout_s: How long it may take, the import of PyTorch included.
        log_path: The file that gets what the reference prints; None to drop it.

    Returns:
        Where the set comes from: PyTorch version, seed, batch, samples, and the files' names and digests.

    Raises:
        UsageError: A Python file is given without the name of the function in it.
        MissingDependencyError: PyTorch is not installed.
        ReferenceModelError: The reference or the iterator failed, took too long, ended the process, or is not
            deterministic.
        GoldenSetError: Inputs or outputs do not fit the model, or the destination cannot be written.
        WorkerError: No process can be started.
    """
    check_capture(reference=reference, weights=weights, inputs=inputs)
    try:
        folder = tempfile.TemporaryDirectory(prefix=".capture-", dir=destination.parent)
    except OSError as error:
        raise GoldenSetError(f"{destination.parent} cannot be written: {error.strerror}") from error
    with folder as name:  # the child cannot clear up behind itself when it is killed
        made = Path(name) / "golden.safetensors"
        request = {
            "path": sys.path,
            "reference": reference,
            "weights": None if weights is None else str(weights),
            "inputs": inputs,
            "signature": signature.to_json(),
            "seed": seed,
            "activations": None if activations is None else [list(activations[0]), activations[1]],
            "destination": str(made),
            "batch": batch,
        }
        origin = _run(request, log_path or Path(name) / "log", timeout_s, progress)
        if destination.exists():
            raise GoldenSetError(f"{destination} cannot be written: File exists")
        made.replace(destination)
    return origin


def check_capture(*, reference: str, weights: Path | None, inputs: str) -> None:
    """Refuse what cannot be captured before any of it runs; PyTorch is looked for, not imported.

    Raises:
        UsageError: A Python file is given without the name of the function in it.
        ReferenceModelError: A file is missing, or is a folder, a pipe or a device.
        MissingDependencyError: PyTorch is not installed.
    """
    require_name(inputs, option="--inputs", what="iterator")
    require_file(inputs)
    check_reference(reference=reference, weights=weights, option="--reference", instead=_INSTEAD)


def check_reference(*, reference: str, weights: Path | None, option: str, instead: str = "") -> None:
    """Refuse a reference that cannot be run, before it is; raises as `check_capture` does."""
    require_name(reference, option=option, what="factory")
    for text in (reference, *(() if weights is None else (str(weights),))):
        require_file(text)
    if importlib.util.find_spec("torch") is None:
        raise MissingDependencyError("PyTorch", extra="torch", instead=instead)


def _run(request: Mapping[str, Any], log_path: Path, timeout_s: float, progress: Callable[[int], None]) -> Json:
    with Worker.start(sys.executable, _JOB_FILE, log_path=log_path, timeout_s=timeout_s) as worker:
        try:
            answer, _ = worker.call(
                "capture", request, timeout_s=timeout_s, on_progress=lambda _, samples: progress(int(samples))
            )
        except WorkerError as error:
            raise explain_failure(error, timeout_s) from error
    if "error" in answer:
        raise carried_error(**answer["error"])
    origin: Json = answer["origin"]
    return origin


def carried_error(*, kind: str, message: str, hint: str) -> ModelregError:
    """Return the error that the child raised."""
    if kind == MissingDependencyError.__name__:  # found by `check_capture`, and then not importable
        return MissingDependencyError("PyTorch", extra="torch", instead=_INSTEAD)
    return _CARRIED.get(kind, ReferenceModelError)(message, hint=hint)


def explain_failure(
    error: WorkerError, timeout_s: float, *, hint: str = "Give it more time with --timeout."
) -> ReferenceModelError:
    """Return what became of the process, in words about the reference."""
    if isinstance(error, WorkerDiedError):
        return ReferenceModelError(f"the reference {_say_how(error.return_code)}", hint=_SEE_LOG)
    if isinstance(error, WorkerLogError):
        return ReferenceModelError(
            f"the reference printed more than {MAX_LOG_BYTES >> 20} MiB and was ended", hint=_SEE_LOG
        )
    if isinstance(error, WorkerTimeoutError):
        return ReferenceModelError(f"the reference took longer than {timeout_s:g} s and was ended", hint=hint)
    if isinstance(error, WorkerJobError):
        message = " ".join(str(error).split())[:300]
        return ReferenceModelError(f"the reference failed: {error.remote_type}: {message}", hint=_SEE_LOG)
    return ReferenceModelError(f"the reference disturbed what its process answers: {error}", hint=_SEE_LOG)


def _say_how(return_code: int | None) -> str:
    if return_code is None:
        return "closed the files that its process answers with"
    how = f"exit code {return_code}" if return_code >= 0 else name_signal(-return_code)
    return f"ended the process ({how}{', perhaps out of memory' if how == 'SIGKILL' else ''})"
