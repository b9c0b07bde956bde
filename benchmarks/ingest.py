"""What `LocalStorage.put_file` costs beside its floor: python benchmarks/ingest.py [--size 1GiB] [--rounds 5].

Run it in a folder of the file system to measure. Every round runs each way once, in turn, and ratios are taken inside
of a round, so a slow moment of the machine hits all alike; medians of all rounds are printed.

- copy, then hash: `shutil.copyfile` with fsync, then SHA-256 over the file, what most registries do
- floor: SHA-256 in a thread beside an early-written copy with one fsync, and nothing else; below 8 MiB, where a thread
  does not pay, one after the other
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import queue
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from modelreg.registry.storage.local import LocalStorage

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
PIECE_BYTES = 1 << 20
THREAD_PAYS_FROM_BYTES = 8 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare put_file with a plain copy and with the floor.")
    parser.add_argument("--size", default="1GiB", help="of the file, for example 64MiB")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="ingest-") as folder:
        measure(Path(folder), size_bytes=parse_size(arguments.size), rounds=arguments.rounds)


def parse_size(text: str) -> int:
    for unit, size_bytes in UNITS.items():
        if text.endswith(unit):
            return int(float(text[: -len(unit)]) * size_bytes)
    return int(text)


def measure(folder: Path, *, size_bytes: int, rounds: int) -> None:
    source = folder / "source"
    write_source(source, size_bytes)
    store = LocalStorage.create(folder / "store")
    floor = hash_beside_copy if size_bytes >= THREAD_PAYS_FROM_BYTES else hash_then_write
    ways: dict[str, Callable[[], object]] = {
        "copy, then hash": lambda: copy_then_hash(source, folder / "copy"),
        "floor": lambda: floor(source, folder / "copy"),
        "ours, put_file": lambda: store.put_file(source),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, run in ways.items():
            os.sync()
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
            forget(folder)
    report({name: taken[1:] for name, taken in times.items()}, size_bytes=size_bytes)


def forget(folder: Path) -> None:
    """Remove what a way wrote, so that each writes anew; the source stays in the cache."""
    (folder / "copy").unlink(missing_ok=True)
    for blob in (folder / "store" / "blobs" / "sha256").glob("*/*"):
        blob.unlink()


def write_source(path: Path, size_bytes: int) -> None:
    piece = os.urandom(min(PIECE_BYTES, size_bytes))
    with path.open("wb") as file:
        while (missing := size_bytes - file.tell()) > 0:
            file.write(piece[:missing])


def copy_then_hash(source: Path, target: Path) -> str:
    shutil.copyfile(source, target)
    with target.open("rb+") as file:
        os.fsync(file.fileno())
        hasher = hashlib.sha256()
        while piece := file.read(PIECE_BYTES):
            hasher.update(piece)
    return hasher.hexdigest()


def hash_then_write(source: Path, target: Path) -> str:
    data = source.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    with target.open("wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())
    return digest


def hash_beside_copy(source: Path, target: Path) -> str:
    """Do the least that hashes and stores a file: nothing is checked and nothing handled."""
    hasher = hashlib.sha256()
    free: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
    filled: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
    for _ in range(8):
        free.put(bytearray(PIECE_BYTES))

    def hash_pieces() -> None:
        while (piece := filled.get()) is not None:
            hasher.update(piece)
            buffer = piece.obj
            assert isinstance(buffer, bytearray)
            free.put(buffer)

    thread = threading.Thread(target=hash_pieces)
    thread.start()
    write_back = ctypes.CDLL(None).sync_file_range
    write_back.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    reading, writing = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY | os.O_CREAT)
    offset = 0
    while count := os.readv(reading, [buffer := free.get()]):
        piece = memoryview(buffer)[:count]
        filled.put(piece)
        os.write(writing, piece)
        write_back(writing, offset, count, 2)
        offset += count
    filled.put(None)
    thread.join()
    os.fsync(writing)
    os.close(reading)
    os.close(writing)
    return hasher.hexdigest()


def report(times: dict[str, list[float]], *, size_bytes: int) -> None:
    floor = times["floor"]
    print(f"{size_bytes / (1 << 20):,.1f} MiB, {len(floor)} rounds")
    print(f"{'way':<18}{'median ms':>11}{'best ms':>10}{'of the floor':>14}{'best / best':>13}")
    for name, taken in times.items():
        ratio = statistics.median(one / least for one, least in zip(taken, floor, strict=True))
        print(
            f"{name:<18}{statistics.median(taken) * 1e3:>11.1f}{min(taken) * 1e3:>10.1f}"
            f"{ratio:>13.2f}x{min(taken) / min(floor):>12.2f}x"
        )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
