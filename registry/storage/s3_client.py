"""The one place where boto3 is set up, and where a request is sent, numbered, and its failure understood."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from modelreg.registry.errors import MissingDependencyError, StorageError
from modelreg.registry.storage.s3_failures import S3Failure, Trouble, failure_of
from modelreg.registry.storage.s3_limits import S3Limits
from modelreg.registry.storage.s3_location import S3Location

T = TypeVar("T")

OnStep = Callable[[int, str, str], None]
"""Called before each request with its number (from 1), the operation and the key."""


def nothing(_number: int, _operation: str, _key: str) -> None:
    """Let the request happen."""


class S3Client:
    """Sends requests to one bucket. Safe between threads, and after a fork.

    boto3 itself repeats nothing: whether a repeat is safe is known here, and a test can count every request.
    """

    def __init__(self, location: S3Location, limits: S3Limits, *, on_step: OnStep = nothing) -> None:
        self.location = location
        self.limits = limits
        self._on_step = on_step
        self._numbers = itertools.count(1)

    def send(self, operation: str, path: str, **parameters: Any) -> dict[str, Any]:
        """
        Send one request about `path` below the prefix, once.

        Raises:
            S3Failure: It was refused, or not answered.
        """
        key = self.location.key(path)
        if operation.startswith("list_objects") or operation == "list_multipart_uploads":
            parameters["Prefix"] = key
        else:
            parameters["Key"] = key
        if self.location.request_payer:
            parameters["RequestPayer"] = self.location.request_payer
        where = self.location.where(path)
        self._on_step(next(self._numbers), operation, key)
        client = self._client()  # outside of the block: where boto3 is missing, so is what tells its errors apart
        try:
            answer: dict[str, Any] = getattr(client, operation)(Bucket=self.location.bucket, **parameters)
        except Exception as error:
            raise failure_of(error, where=where) from error
        return answer

    def repeat(self, work: Callable[[], T]) -> T:
        """
        Do `work`, which may be done twice, until it is answered or the tries are used up.

        Raises:
            S3Failure: The last one, or one that a repeat would not change.
        """
        for attempt in range(self.limits.tries - 1):
            try:
                return work()
            except S3Failure as failure:
                if failure.trouble not in (Trouble.AWAY, Trouble.BUSY):
                    raise
            self.pause(attempt)
        return work()

    def pause(self, attempt: int) -> None:
        """Wait at random, about twice as long for each attempt, so that many who wait do not come back together."""
        longest = min(self.limits.first_wait_s * 2**attempt, self.limits.longest_wait_s)
        time.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    def encryption(self) -> dict[str, str]:
        """Return what a request that makes an object says about encryption."""
        key = self.location.kms_key_id
        if not key:
            return {}
        chosen = {} if key == "default" else {"SSEKMSKeyId": key}
        return {"ServerSideEncryption": "aws:kms", **chosen}

    def _client(self) -> Any:
        return _clients.get(self.location, self.limits)


class _Clients:
    """The clients of this process: all stores that are reached alike share one, since one is slow to make."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: a forked process must not use the connections of its parent."""
        self._lock = threading.Lock()
        self._made: dict[tuple[S3Location, S3Limits], Any] = {}

    def get(self, location: S3Location, limits: S3Limits) -> Any:
        """Return the client for a location, made when it is first asked for."""
        alike = replace(location, bucket="any", prefix="", kms_key_id="", request_payer=""), limits
        with self._lock:
            if alike not in self._made:
                self._made[alike] = _make_client(location, limits)
            return self._made[alike]


_clients = _Clients()
os.register_at_fork(after_in_child=_clients.forget)


def _make_client(location: S3Location, limits: S3Limits) -> Any:
    try:
        import boto3.session
        from botocore.config import Config  # noqa: PLC0415
    except ModuleNotFoundError:
        raise MissingDependencyError("boto3", extra="s3") from None
    config = Config(
        connect_timeout=limits.connect_timeout_s,
        read_timeout=limits.read_timeout_s,
        max_pool_connections=limits.workers + 2,
        retries={"total_max_attempts": 1},
        # We send and check SHA-256 ourselves; what boto3 adds by default is stored in the object by some servers.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": _addressing(location)},
        user_agent_extra="modelreg",
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the age of this Python, which is no news to the user of a store
            session = boto3.session.Session(profile_name=location.profile or None, region_name=location.region or None)
            client = session.client("s3", endpoint_url=location.endpoint_url or None, config=config)
    except Exception as error:
        raise failure_of(error, where=str(location)).told() from error
    _require_conditions(client)
    client.meta.events.register("before-sign.s3.UploadPart", _sign_checksum_alone)
    return client


def _sign_checksum_alone(request: Any, **_: Any) -> None:
    """
    Let boto3 sign a part's SHA-256, which we give as a header, and not hash the part a second time for that.

    The server checks the header against the bytes, and what it stored is compared again when the upload is complete.
    """
    from botocore.config import Config  # noqa: PLC0415

    request.context["client_config"] = Config(s3={"payload_signing_enabled": False})


def _addressing(location: S3Location) -> str:
    """Return how the bucket is named: servers that are not AWS mostly know it in the path alone."""
    if location.addressing:
        return location.addressing
    elsewhere = location.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return "path" if elsewhere else "auto"


def _require_conditions(client: Any) -> None:
    known = client.meta.service_model.operation_model("PutObject").input_shape.members
    if not {"IfMatch", "IfNoneMatch"} <= set(known):
        raise StorageError(
            "the installed boto3 is too old: it knows no conditional writes",
            hint="Install a newer one with: pip install 'boto3>=1.36'",
        )
