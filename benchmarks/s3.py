"""Transfers to and from S3 beside boto3 alone: PYTHONPATH=tests/support python benchmarks/s3.py [--size 512MiB].

Without --endpoint-url a SeaweedFS is started on loopback, its data in the current folder. Every round runs each way
once, in turn, on objects that were never there; ratios are taken inside of a round, medians of all are printed.

- boto3: `upload_file` and `download_file` with the same parts and threads, no digest of the whole
- ours: `put_file` (hash, look, upload in parts with checksums) and `fetch_blob` (download, hash, fsync, name)
- pull: `modelreg pull` inside a process, once with everything to fetch and once with nothing new
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from modelreg.registry.storage.s3 import S3Storage
from modelreg.registry.storage.s3_limits import S3Limits
from modelreg_testing.s3_server import BUCKET, ENVIRONMENT, S3Server, seaweedfs
from modelreg_testing.storage import chain_of, published

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
LIMITS = S3Limits()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare transfers with boto3's own.")
    parser.add_argument("--size", default="512MiB", help="of the file, for example 64MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--endpoint-url", help="a server with the bucket `models`; credentials from the environment")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="s3-")))
        if arguments.endpoint_url:
            server = S3Server(arguments.endpoint_url)
        else:
            os.environ.update(ENVIRONMENT)
            server = stack.enter_context(seaweedfs(folder))
        report(measure(server, folder, size_bytes=parse_size(arguments.size), rounds=arguments.rounds))


def parse_size(text: str) -> int:
    for unit, size_bytes in UNITS.items():
        if text.endswith(unit):
            return int(float(text[: -len(unit)]) * size_bytes)
    return int(text)


def measure(server: S3Server, folder: Path, *, size_bytes: int, rounds: int) -> dict[str, list[float]]:
    from boto3.s3.transfer import TransferConfig

    config = TransferConfig(multipart_chunksize=LIMITS.part_bytes, max_concurrency=LIMITS.workers)
    source, target, client = folder / "source", folder / "target", server.boto
    times: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        source.write_bytes(os.urandom(size_bytes))
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        store = S3Storage.create(server.location(), quirks=_quirks(), limits=LIMITS)
        key = {"Bucket": BUCKET, "Key": f"plain/{digest}"}
        ours = {"Bucket": BUCKET, "Key": store.location.key(f"blobs/sha256/{digest[:2]}/{digest}")}
        ways: dict[str, Callable[[], Any]] = {
            "SHA-256 alone": lambda: _hash(source),
            "boto3 upload_file": lambda key=key: client.upload_file(str(source), Config=config, **key),  # type: ignore[misc]
            "ours put_file": lambda store=store: store.put_file(source),  # type: ignore[misc]
            "boto3 download_file": lambda key=key: client.download_file(Filename=str(target), Config=config, **key),  # type: ignore[misc]
            "ours fetch_blob": lambda store=store, digest=digest: store.fetch_blob(digest, target),  # type: ignore[misc]
            "ours verify_blob": lambda store=store, digest=digest: store.verify_blob(digest),  # type: ignore[misc]
        }
        for name, run in ways.items():
            target.unlink(missing_ok=True)
            times.setdefault(name, []).append(_time(run))
        small = S3Storage.create(server.location(), quirks=_quirks(), limits=LIMITS)
        chain_of(small, length=1, release=published(small))
        news = small.poll_pointer("lenet", "production", mark="")
        assert news is not None
        mark = news.mark
        times.setdefault("look, nothing new", []).append(
            _time(lambda small=small, mark=mark: small.poll_pointer("lenet", "production", mark=mark))  # type: ignore[misc]
        )
        for each in (key, ours):
            client.delete_object(**each)
    return {name: taken[1:] for name, taken in times.items()}


def _quirks() -> Any:
    """Return what `init` finds of the server: it checks the parts of an upload."""
    from modelreg.registry.storage.s3 import Quirks

    return Quirks(checks_parts=True)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _time(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def report(times: dict[str, list[float]]) -> None:
    for name, taken in times.items():
        print(f"{name:<20} {statistics.median(taken) * 1000:9.1f} ms")
    for name, beside in (("ours put_file", "boto3 upload_file"), ("ours fetch_blob", "boto3 download_file")):
        ratio = statistics.median(mine / theirs for mine, theirs in zip(times[name], times[beside], strict=True))
        print(f"{name} / {beside}: {ratio:.2f}")


if __name__ == "__main__":
    main()
