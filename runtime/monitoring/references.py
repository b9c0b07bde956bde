"""What live answers are compared with: an FP32 engine of the release, its source, a file, or a function."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from modelreg.registry.contents import StoredFile
from modelreg.registry.errors import NotFoundError
from modelreg.registry.manifest import Manifest, parse_manifest
from modelreg.registry.words import Backend, Precision
from modelreg.runtime.runner import WorkerRunner
from modelreg.runtime.serving import ServedEngine

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from modelreg.registry.storage.interface import Storage

    Array = NDArray[np.generic]


class Reference(Protocol):
    """Something that answers as a release should."""

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return every output; raises ModelregError, or whatever a user's function raises."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class ReferenceSource(Protocol):
    """Finds the reference of what is served. Called by one background thread, once for each release."""

    def open(self, served: ServedEngine) -> Reference:
        """
        Return what `served` is to be compared with.

        Raises:
            ModelregError: There is nothing of the kind.
        """
        ...


class ReleasedReference:
    """
    The FP32 engine for the CPU of the same release, where it has one beside what is served; else the very source of
    its version, which the store has too. It runs in a child process, on one thread, at the lowest priority.

    Args:
        store: The store's URL or folder, or an open store.
        threads: Threads of one operator.
    """

    def __init__(self, store: str | os.PathLike[str] | Storage, *, threads: int = 1) -> None:
        self._store = store
        self._threads = threads

    def open(self, served: ServedEngine) -> Reference:
        """Return the reference; raises NotFoundError where the store has neither, StorageError where it is away."""
        storage = self._open_store()
        manifest = parse_manifest(storage.read_manifest(served.release), where=served.release[:12])
        folder = Path(tempfile.mkdtemp(prefix="modelreg-parity-"))
        try:
            path = fetch_reference(storage, manifest, served, folder)
            return _InChild(path, threads=self._threads, folder=folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _open_store(self) -> Storage:
        from modelreg.registry.storage.open import locate_storage, open_storage  # noqa: PLC0415 - may be open already

        if isinstance(self._store, (str, os.PathLike)):
            return open_storage(locate_storage(os.fspath(self._store)))
        return self._store


def fetch_reference(storage: Storage, manifest: Manifest, served: ServedEngine, folder: Path) -> Path:
    """
    Lay the reference of a release out in `folder`, every file checked on the way; return the file to load.

    Raises:
        NotFoundError: The store has none any more.
        StorageError: It cannot be read.
    """
    files = choose_fp32(manifest, served)
    if files:
        for file in files:
            destination = folder / file.path
            destination.parent.mkdir(parents=True, exist_ok=True)
            storage.fetch_blob(file.digest, destination)
        return folder / files[0].path
    from modelreg.registry.sources.ingest import list_source, materialise_files  # noqa: PLC0415 - imports onnx

    return materialise_files(list_source(storage, manifest.source_digest), storage, folder)


def choose_fp32(manifest: Manifest, served: ServedEngine) -> tuple[StoredFile, ...]:
    """Return the files of the release's FP32 engine that ONNX Runtime loads, none without one but the served. Pure."""
    for engine in manifest.engines:
        is_fp32 = engine.precision is Precision.FP32 and engine.backend is Backend.ONNXRUNTIME
        if is_fp32 and engine.target == "cpu" and engine.plan.digest != served.digest:
            return engine.files
    return ()


class FileReference:
    """
    An ONNX, or a plan of ONNX Runtime, that is the reference of some versions.

    Args:
        path: The file.
        versions: The versions that it is right for; an answer of another one is compared with nothing.
        threads: Threads of one operator.
    """

    def __init__(self, path: Path | str, *, versions: Collection[int], threads: int = 1) -> None:
        self._path, self._versions, self._threads = Path(path), frozenset(versions), threads

    def open(self, served: ServedEngine) -> Reference:
        """Return the reference; raises NotFoundError for another version."""
        _require_version(served, self._versions, what=str(self._path))
        return _InChild(self._path, threads=self._threads)


class FunctionReference:
    """
    A function of this process, such as a PyTorch module, that is the reference of some versions.

    Args:
        function: Takes inputs by name and returns outputs by name, NumPy arrays both. It is called by a background
            thread; whatever it raises is counted, and nothing else happens.
        versions: As for `FileReference`.
    """

    def __init__(
        self, function: Callable[[Mapping[str, Array]], Mapping[str, Array]], *, versions: Collection[int]
    ) -> None:
        self._function, self._versions = function, frozenset(versions)

    def open(self, served: ServedEngine) -> Reference:
        """Return the reference; raises NotFoundError for another version."""
        _require_version(served, self._versions, what="the function")
        return _InProcess(self._function)


def _require_version(served: ServedEngine, versions: Collection[int], *, what: str) -> None:
    if served.version not in versions:
        known = ", ".join(map(str, sorted(versions)))
        raise NotFoundError(f"{what} is the reference of version {known}, and version {served.version} is served")


class _InProcess:
    def __init__(self, function: Callable[[Mapping[str, Array]], Mapping[str, Array]]) -> None:
        self.run = function

    def close(self) -> None:
        """Leave the function to its owner."""


class _InChild:
    """An ONNX in a child of its own: what crashes there, crashes there, and the kernel runs requests first."""

    def __init__(self, path: Path, *, threads: int, folder: Path | None = None) -> None:
        self._folder = folder
        self._runner = WorkerRunner(path, backend=Backend.ONNXRUNTIME, threads=threads)
        with suppress(OSError):  # it may be dead already, and the first call says so
            os.setpriority(os.PRIO_PROCESS, self._runner.pid, 19)

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return self._runner.run(inputs)

    def close(self) -> None:
        self._runner.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
