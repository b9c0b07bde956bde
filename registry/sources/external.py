"""External data: the files beside a model that hold its weights, judged before anything in them is read.

onnx.checker accepts files that are too short and offsets that point nowhere, and ONNX Runtime follows links out of
the folder, so the checks are ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from modelreg.registry.errors import SourceError
from modelreg.registry.sources.local_files import LocalFile, identify, shown
from modelreg.registry.sources.tensors import TensorFacts

MODEL_NAME = "model.onnx"
"""What the ONNX file itself is called inside a source."""

_KNOWN_KEYS = frozenset({"location", "offset", "length", "checksum", "basepath"})
_DRIVE = re.compile(r"[A-Za-z]:")
_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalData:
    """The external data of a model, every file once, and what is odd about it but harmless."""

    files: tuple[LocalFile, ...]
    warnings: tuple[str, ...]


def find_external_data(model: Path, tensors: Sequence[TensorFacts]) -> ExternalData:
    """
    Return the files that the tensors refer to, beside the model as it was named (not where a link leads).

    Raises:
        SourceError: A location leaves the model's folder, is no regular file or is not there; an offset or length
            is no number, lies outside the file, or does not fit the tensor's shape.
    """
    folder = model.parent
    files: dict[str, LocalFile] = {}
    unknown_keys: set[str] = set()
    for tensor in tensors:
        if tensor.external is None:
            continue
        entries = _entries(tensor)
        unknown_keys |= entries.keys() - _KNOWN_KEYS
        location = check_location(entries.get("location", ""), tensor=tensor.describe())
        if location not in files:
            files[location] = _find(folder, location, tensor)
        _check_range(entries, tensor, files[location])
    warnings = [f"external data has the unknown entry {key!r}, which is ignored" for key in sorted(unknown_keys)]
    return ExternalData(files=tuple(files[name] for name in sorted(files)), warnings=tuple(warnings))


def check_location(location: str, *, tensor: str) -> str:
    """
    Return a location in its shortest spelling (`./a//b` is `a/b`), judged by its text alone.

    Raises:
        SourceError: It is empty, absolute, climbs with `..`, is spelt for Windows, or has unprintable characters.
    """
    problem = _location_problem(location)
    if problem:
        raise SourceError(
            f"the external data of {tensor} is at {location!r}, which {problem}",
            hint="Save the model again with its data in files beside it.",
        )
    return str(PurePosixPath(location))


def _location_problem(location: str) -> str:
    if any(ord(char) < 32 or ord(char) == 127 for char in location):
        return "has control characters in it"
    if "\\" in location or _DRIVE.match(location):
        return "is spelt for Windows"
    path = PurePosixPath(location)
    if path.is_absolute():
        return "is an absolute path"
    if ".." in path.parts:
        return "leaves the model's folder"
    if not path.parts:
        return "names no file"
    if path.parts[0] == MODEL_NAME:
        return "is the name that the registry gives to the model itself"
    return ""


def _entries(tensor: TensorFacts) -> dict[str, str]:
    entries: dict[str, str] = {}
    for key, value in tensor.external or ():
        if key in entries:
            raise SourceError(f"the external data of {tensor.describe()} has two entries {key!r}")
        entries[key] = value
    return entries


def _find(folder: Path, location: str, tensor: TensorFacts) -> LocalFile:
    path = folder / location
    try:
        real_folder, real = os.path.realpath(folder), os.path.realpath(path)
    except (OSError, ValueError) as error:  # pragma: no cover - Python 3.10 to 3.13 raise neither
        raise SourceError(f"{shown(path)} cannot be resolved: {error}") from error
    if not real.startswith(real_folder.rstrip("/") + "/"):
        raise SourceError(
            f"the external data of {tensor.describe()}, {shown(path)}, is a link that leaves the model's folder",
            hint="Copy the model and its data into one folder, with links replaced by files (`cp -rL`).",
        )
    if not os.path.lexists(path):
        raise SourceError(
            f"the external data of {tensor.describe()} is missing: {shown(path)} does not exist",
            hint="Put the data file beside the model, where the export wrote it.",
        )
    return LocalFile(name=location, path=path, identity=identify(path))


def _check_range(entries: dict[str, str], tensor: TensorFacts, file: LocalFile) -> None:
    needed = tensor.size_bytes
    if needed is None:
        raise SourceError(f"{tensor.describe()} cannot be stored as external data: its type has no fixed size")
    offset = _number(entries.get("offset", "0"), "offset", tensor)
    length = _number(entries["length"], "length", tensor) if "length" in entries else needed
    if length != needed:
        raise SourceError(
            f"the external data of {tensor.describe()} is {length} bytes long, but its shape needs {needed}"
        )
    if offset + length > file.size_bytes:
        raise SourceError(
            f"{shown(file.path)} is too short: {tensor.describe()} needs bytes {offset} to {offset + length}, "
            f"the file has {file.size_bytes}",
            hint="Copy the data file again: it may be cut short.",
        )


def _number(text: str, key: str, tensor: TensorFacts) -> int:
    if not _NUMBER.fullmatch(text):
        raise SourceError(f"the external data of {tensor.describe()} has the {key} {text!r}, which is no byte count")
    return int(text)
