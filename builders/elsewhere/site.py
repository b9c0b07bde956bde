"""What happens on the host of a worker: its toolchains are found, and cells are built in child processes there.

Nothing here knows of Dask. A worker finds the interpreter of a toolchain in MODELREG_TOOLCHAINS, under the registered
name or as backend and version: `trt103=/opt/trt103/bin/python,tensorrt-8.6.0=/opt/trt86`.
"""

from __future__ import annotations

import os
import platform
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from modelreg.builders.backends import embedded_toolchain
from modelreg.builders.elsewhere.answers import Answer, describe_skew, own_version
from modelreg.builders.elsewhere.parcels import Parcel
from modelreg.builders.elsewhere.resources import toolchain_resources
from modelreg.builders.filling import make_cell, write_head
from modelreg.builders.interface import OnProgress, ToolchainSpec
from modelreg.builders.materials import CellFiles
from modelreg.builders.planning import PreparedCell, prepare_cell
from modelreg.registry.contents import StoredFile
from modelreg.registry.errors import BuildError, ModelregError, ToolchainError
from modelreg.registry.scratch import scratch_folder
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.open import open_storage
from modelreg.registry.storage.writing import host_name
from modelreg.registry.toolchains.catalogue import EMBEDDED
from modelreg.registry.toolchains.probing import locate_python, probe_python
from modelreg.registry.words import Json

TOOLCHAINS_VARIABLE = "MODELREG_TOOLCHAINS"


def answer_greeting(body: Json) -> Json:
    """
    Say which modelreg this is, and whether the store at `store` is the one where `nonce` is; leave a note there.

    Answers with `version`, and with `note`, the digest of what was left, or with `reason`, why nothing was.
    """
    answer: Json = {"version": own_version(), "host": host_name()}
    if describe_skew(body["version"], where=""):
        return answer  # what follows may mean something else there
    try:
        storage = open_storage(body["store"])
        said = storage.read_blob(body["nonce"])
        return {**answer, "note": storage.put_bytes(said + os.urandom(16)).digest}
    except ModelregError as error:
        return {**answer, "reason": str(error)}


def build_parcel(parcel: Parcel, *, worker: str, progress: OnProgress) -> Answer:
    """
    Build one cell here; whatever is wrong with it comes back as the answer's error.

    Args:
        parcel: The cell.
        worker: What the worker is called.
        progress: Told what is going on.
    """
    try:
        storage = open_storage(parcel.store_url)
        toolchain = find_toolchain(parcel.request.cell.toolchain, os.environ, worker=worker)
        with scratch_folder("elsewhere") as folder:
            site = _Site(folder=folder, storage=storage, toolchain=toolchain, worker=worker)
            return _build(parcel, site, progress)
    except ModelregError as error:
        return Answer(error=error)


def find_toolchain(wanted: ToolchainSpec, environment: Mapping[str, str], *, worker: str) -> ToolchainSpec:
    """
    Return a registered toolchain as it is on this host, looked at now.

    Raises:
        ToolchainError: There is none, it is of another version, or it cannot be used.
    """
    if wanted.name == EMBEDDED:
        found = embedded_toolchain()
    else:
        python = _locate(wanted, read_toolchains(environment), worker)
        probe = probe_python(python, backend=wanted.backend)
        found = ToolchainSpec(
            name=wanted.name, backend=probe.backend, version=probe.version, python=python, details=probe.details
        )
    if found.version != wanted.version:
        raise ToolchainError(
            f"worker {worker} has {found.backend} {found.version} as {wanted.name} ({found.python}),"
            f" and {wanted.backend} {wanted.version} is registered",
            hint="Install that version there, or register the other one and build with it.",
        )
    return found


def read_toolchains(environment: Mapping[str, str]) -> dict[str, str]:
    """
    Return the interpreters that the variable names.

    Raises:
        ToolchainError: It is not of the form NAME=PYTHON,NAME=PYTHON.
    """
    found = {}
    for part in filter(None, (part.strip() for part in environment.get(TOOLCHAINS_VARIABLE, "").split(","))):
        name, equals, python = part.partition("=")
        if not equals or not name.strip() or not python.strip():
            raise ToolchainError(
                f"{TOOLCHAINS_VARIABLE} on {host_name()} has {part!r:.80} in it, which is not NAME=PYTHON",
                hint="For example trt103=/opt/trt103/bin/python,trt86=/opt/trt86.",
            )
        found[name.strip()] = python.strip()
    return found


def _locate(wanted: ToolchainSpec, named: Mapping[str, str], worker: str) -> str:
    for name in toolchain_resources(wanted):
        if name in named:
            return locate_python(named[name])
    if Path(wanted.python).is_file():  # hosts of one image have it in the same place
        return wanted.python
    first, second = toolchain_resources(wanted)
    raise ToolchainError(
        f"worker {worker} does not say where its toolchain {first} is",
        hint=f"Start it with {TOOLCHAINS_VARIABLE}={first}=PYTHON (or {second}=PYTHON).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """Where a cell is built: a folder that is gone afterwards, the store, the toolchain here, and the worker."""

    folder: Path
    storage: Storage
    toolchain: ToolchainSpec
    worker: str


def _build(parcel: Parcel, site: _Site, progress: OnProgress) -> Answer:
    files = CellFiles.create(site.folder)
    try:
        prepared = _prepare(parcel, site)
        write_head(files.log, prepared)
        _say_place(files.log, site)
        made = make_cell(prepared, files, parcel.known, site.storage, progress)
    except ModelregError as error:
        return Answer(error=error, log=_keep(files.log, site.storage))
    except Exception as error:  # a fault of ours here must not look like a dead worker
        _append(files.log, traceback.format_exc())
        reason = BuildError(f"worker {site.worker}: {type(error).__name__}: {' '.join(str(error).split())}"[:800])
        return Answer(error=reason, log=_keep(files.log, site.storage))
    cache = prepared.request.options.tensorrt.calibration_cache
    place = {"worker": site.worker, "host": host_name(), "python": site.toolchain.python}
    return Answer(
        made=replace(made, realised={**made.realised, "built_by": place}),
        log=_keep(files.log, site.storage),
        calibration_cache=files.store([cache], site.storage) if cache is not None and cache.exists() else (),
    )


def _prepare(parcel: Parcel, site: _Site) -> PreparedCell:
    given = site.folder / "given"
    given.mkdir()
    prepared = prepare_cell(parcel.unpack(site.storage, given, site.toolchain))
    if prepared.recipe.digest != parcel.recipe_digest:
        variant = prepared.recipe.variant or {}
        tools = ", ".join(f"{name} {version}" for name, version in variant.get("tools", {}).items())
        raise BuildError(
            f"worker {site.worker} would build another recipe{f' (it has {tools})' if tools else ''}",
            hint="Install the same versions of modelreg, onnx and onnxruntime there as here.",
        )
    return prepared


def _say_place(log: Path, site: _Site) -> None:
    host = f"{host_name()}, Python {platform.python_version()} of {sys.executable}"
    _append(log, f"built by worker {site.worker} on {host}; {site.toolchain.name} is {site.toolchain.python}\n")


def _append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def _keep(log: Path, storage: Storage) -> StoredFile | None:
    if not log.exists():
        return None
    blob = storage.put_file(log)
    return StoredFile(path=log.name, digest=blob.digest, size_bytes=blob.size_bytes)
