"""The child side of a worker: one process that runs the jobs of one module file, and speaks in frames.

Started by path with any Python from 3.8 on (`python -u worker.py MODULE.py`), so it imports the standard library
alone, and NumPy once arrays travel. A frame is one line of JSON; when it lists `arrays`, their raw bytes follow, but
for those that lie in shared memory, `at` some place of an arena.
Requests come on stdin. Answers leave on a private copy of stdout: fd 1 itself is pointed at stderr, the log, so
that whatever a library prints cannot be taken for an answer.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import sys
import traceback
import types
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, List, Mapping, Optional, Tuple

PROTOCOL = 1
ARENAS = "MODELREG_WORKER_ARENAS"
"""The variable with the numbers of the files that are shared memory, for requests and for answers."""
MAX_HEADER_BYTES = 4 << 20
MAX_MESSAGE_CHARACTERS = 8000
_PR_SET_PDEATHSIG = 1

Arrays = Dict[str, Any]
Report = Callable[[Optional[float], str], None]


class FrameError(ValueError):
    """What came is not a frame."""


def write_frame(
    stream: BinaryIO, header: Dict[str, Any], arrays: Optional[Mapping[str, Any]] = None, *, arena: Any = None
) -> None:
    """
    Write one frame: the header as a line of JSON, then the bytes of each array in C order and in this host's byte
    order; large ones into the arena.

    Raises:
        FrameError: The header is too long, or an array has a dtype without a plain memory layout; nothing was written.
    """
    buffers = []
    listing = []
    for name, given in (arrays or {}).items():
        _require_plain(name, given)
        array = native(given)
        entry = {"name": name, "dtype": array.dtype.str, "shape": list(array.shape), "nbytes": int(array.nbytes)}
        place = None if arena is None else arena.place(array)
        if place is None:
            buffers.append(_contiguous(array))
        else:
            entry["at"] = place
        listing.append(entry)
    body = dict(header, arrays=listing) if listing else header
    line = json.dumps(body, separators=(",", ":")).encode() + b"\n"
    if len(line) > MAX_HEADER_BYTES:
        raise FrameError("the header has %d bytes, more than %d" % (len(line), MAX_HEADER_BYTES))
    stream.write(line)
    for buffer in buffers:
        stream.write(buffer)
    stream.flush()


def read_frame(stream: BinaryIO, *, arena: Any = None) -> Optional[Tuple[Dict[str, Any], Arrays]]:
    """
    Read one frame; None at the end of the stream. Arrays in the arena are there until the next frame is written.

    Raises:
        FrameError: The bytes are not a frame, or end in the middle of one.
    """
    line = stream.readline(MAX_HEADER_BYTES + 1)
    if not line:
        return None
    if not line.endswith(b"\n"):
        raise FrameError("no line end within %d bytes: %r" % (len(line), line[:80]))
    try:
        header = json.loads(line.decode())
    except (ValueError, RecursionError):
        raise FrameError("not JSON: %r" % line[:80]) from None
    if not isinstance(header, dict):
        raise FrameError("not a JSON object: %r" % line[:80])
    listing = header.pop("arrays", [])
    if not isinstance(listing, list):
        raise FrameError("arrays is not a list: %r" % line[:80])
    return header, {entry["name"]: _read_array(stream, entry, arena) for entry in _checked(listing)}


def native(array: Any) -> Any:
    """Return an array in the byte order of this host: backends take the bytes of another one for what they are not."""
    is_native = getattr(getattr(array, "dtype", None), "isnative", True)
    return array if is_native else array.astype(array.dtype.newbyteorder("="))


def _require_plain(name: Any, array: Any) -> None:
    if not isinstance(name, str) or not hasattr(array, "ctypes"):
        raise FrameError("%.80r is no name with an array of NumPy, but %s" % (name, type(array).__name__))
    if array.dtype.hasobject or array.dtype.kind not in "biufc":
        raise FrameError("array %r has dtype %s, which cannot travel" % (name, array.dtype))


def _contiguous(array: Any) -> Any:
    import numpy as np  # noqa: PLC0415 - only where arrays travel

    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data if flat.size else b""


def _checked(listing: List[Any]) -> List[Dict[str, Any]]:
    for entry in listing:
        keys = isinstance(entry, dict) and set(entry) - {"at"} == {"name", "dtype", "shape", "nbytes"}
        words = keys and isinstance(entry["name"], str) and isinstance(entry["dtype"], str)
        sizes = words and isinstance(entry["nbytes"], int) and isinstance(entry["shape"], list)
        if not sizes or not all(
            isinstance(n, int) and n >= 0 for n in [entry["nbytes"], entry.get("at", 0), *entry["shape"]]
        ):
            raise FrameError("not the description of an array: %.80r" % (entry,))
    return listing


def _read_array(stream: BinaryIO, entry: Dict[str, Any], arena: Any) -> Any:
    import numpy as np  # noqa: PLC0415 - only where arrays travel

    try:
        dtype = np.dtype(entry["dtype"])
    except (TypeError, ValueError, SyntaxError):
        raise FrameError("unknown dtype %.40r" % (entry["dtype"],)) from None
    if dtype.hasobject or dtype.kind not in "biufc":
        raise FrameError("array %r has dtype %s, which cannot travel" % (entry["name"], dtype))
    count = 1
    for length in entry["shape"]:
        count *= length
    if count * dtype.itemsize != entry["nbytes"]:
        raise FrameError("array %r: %d bytes do not fit its shape" % (entry["name"], entry["nbytes"]))
    if "at" in entry:
        return _find_shared(arena, entry).view(dtype).reshape(entry["shape"])
    try:
        array = np.empty(count, dtype=dtype)
    except (MemoryError, ValueError):
        raise FrameError("array %r: no memory for %d bytes" % (entry["name"], entry["nbytes"])) from None
    if array.nbytes:
        _read_into(stream, array.view(np.uint8).data)
    return array.reshape(entry["shape"])


def _find_shared(arena: Any, entry: Dict[str, Any]) -> Any:
    if arena is None:
        raise FrameError("array %r: there is no shared memory" % entry["name"])
    try:
        return arena.read(entry["at"], entry["nbytes"])
    except ValueError as error:
        raise FrameError("array %r: %s" % (entry["name"], error)) from None


def _read_into(stream: BinaryIO, view: memoryview) -> None:
    done = 0
    while done < len(view):
        size = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not size:
            raise FrameError("the stream ended %d bytes early" % (len(view) - done))
        done += size


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, even in the middle of a build."""
    if not sys.platform.startswith("linux"):
        return
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):  # pragma: no cover - a libc without prctl: the end of stdin has to do
        return
    if os.environ.get("MODELREG_WORKER_PARENT", str(os.getppid())) != str(os.getppid()):
        os._exit(1)  # the parent died before the request took effect


def _private_streams() -> Tuple[BinaryIO, BinaryIO]:
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(requests, "rb"), os.fdopen(answers, "wb")


def _offer_our_package() -> None:
    """Make `modelreg.…` importable for job files, from the folders that this file lies in, in any interpreter.

    What a job file imports of it must keep to the same rule: Python 3.8, the standard library, NumPy, its backend.
    """
    package = types.ModuleType("modelreg")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["modelreg"] = package


def _load_jobs(path: str) -> Mapping[str, Callable[[Dict[str, Any], Arrays, Report], Any]]:
    spec = importlib.util.spec_from_file_location("modelreg_job", path)
    if spec is None or spec.loader is None:
        raise ImportError("cannot load %r as a Python file" % path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    jobs: Mapping[str, Callable[[Dict[str, Any], Arrays, Report], Any]] = module.JOBS
    return jobs


def _error_frame(error: BaseException) -> Dict[str, Any]:
    traceback.print_exc()
    try:
        message = str(error)[:MAX_MESSAGE_CHARACTERS]
    except Exception:  # an exception of somebody's library may be as broken as the rest of it
        message = ""
    details = getattr(error, "details", {})
    return {
        "kind": "error",
        "type": type(error).__name__,
        "message": message,
        # whatever an exception carries, it must not be what ends the worker
        "details": json.loads(json.dumps(details, default=str)) if isinstance(details, dict) else {},
    }


def serve(jobs: Mapping[str, Any], requests: BinaryIO, answers: BinaryIO, *, arenas: Any = None) -> None:
    """Answer requests until their stream ends; a job's exception is its answer, not the end."""
    asked, answered = arenas or (None, None)

    def report(fraction: Optional[float], message: str) -> None:
        write_frame(answers, {"kind": "progress", "fraction": fraction, "message": message})

    while True:
        frame = read_frame(requests, arena=asked)
        if frame is None:
            return
        header, arrays = frame
        if answered is not None:
            answered.start()
        try:
            if header.get("job") not in jobs:
                raise LookupError("there is no job %r" % (header.get("job"),))
            result = jobs[header["job"]](header.get("request", {}), arrays, report)
            body, out = result if isinstance(result, tuple) else (result, {})
            write_frame(answers, {"kind": "result", "body": body}, out, arena=answered)
        except Exception as error:
            write_frame(answers, _error_frame(error))
        del arrays, frame


def main(arguments: List[str]) -> int:
    """Load the module file named on the command line and serve its jobs."""
    _die_with_parent()
    requests, answers = _private_streams()
    # Python put this file's folder first: a sibling named like a library would shadow it.
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    _offer_our_package()
    try:
        arenas = _take_arenas() if os.environ.get(ARENAS) else None
        jobs = _load_jobs(arguments[0])
    except Exception as error:
        write_frame(answers, _error_frame(error))
        return 1
    write_frame(answers, {"kind": "ready", "protocol": PROTOCOL, "python": sys.version.split()[0]})
    serve(jobs, requests, answers, arenas=arenas)
    return 0


def _take_arenas() -> Any:
    from modelreg.registry.toolchains.shared import take_arenas  # noqa: PLC0415 - it needs NumPy

    return take_arenas(os.environ.pop(ARENAS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
