"""What an S3 server or the way to it refused: what it means for us, and how it is told."""

from __future__ import annotations

from enum import Enum, auto

from modelreg.registry.errors import StorageError

_RETRYABLE_STATUS = (408, 425, 429, 500, 502, 503, 504, 509, 529)
_RETRYABLE_CODES = frozenset(
    {
        *("InternalError", "RequestTimeout", "RequestTimeoutException", "PriorRequestNotComplete", "SlowDown"),
        *("ServiceUnavailable", "Throttling", "ThrottlingException", "RequestLimitExceeded", "BandwidthLimitExceeded"),
        *("TooManyRequestsException", "ProvisionedThroughputExceededException", "IncompleteBody"),
    }
)
_RETRYABLE_CLIENT = frozenset(
    {
        *("HTTPClientError", "ConnectionError", "EndpointConnectionError", "ConnectionClosedError", "ReadTimeoutError"),
        *("ConnectTimeoutError", "ProxyConnectionError", "ResponseStreamingError", "IncompleteReadError"),
    }
)
_CREDENTIALS_HINT = (
    "Check the credentials: the profile, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of the machine."
)
_HINTS = {
    "AccessDenied": "Give the credentials access to that bucket and prefix, or use others (AWS_PROFILE).",
    "403": "Give the credentials access to that bucket and prefix, or use others (AWS_PROFILE).",
    "NoSuchBucket": "Create the bucket first, or correct its name, its region and the endpoint.",
    "InvalidAccessKeyId": _CREDENTIALS_HINT,
    "SignatureDoesNotMatch": _CREDENTIALS_HINT,
    "ExpiredToken": "The credentials have expired: get new ones.",
    "NoCredentialsError": _CREDENTIALS_HINT,
    "PartialCredentialsError": _CREDENTIALS_HINT,
    "ProfileNotFound": "Choose a profile of the AWS configuration, or leave it out.",
    "RequestTimeTooSkewed": "Set this machine's clock: it is too far from the server's.",
    "PermanentRedirect": "The bucket is in another region: name it with region=NAME in the store's URL.",
    "AuthorizationHeaderMalformed": "The bucket is in another region: name it with region=NAME in the store's URL.",
    "QuotaExceeded": "Free some space within the quota, or raise it, and run the command again.",
    "InsufficientStorage": "Free some space there and run the command again; what was active stays active.",
    "XMinioStorageFull": "Free some space there and run the command again; what was active stays active.",
    "SSLError": "Check the endpoint's certificate (AWS_CA_BUNDLE names an authority of your own).",
}
_AWAY_HINT = "Check the network, the endpoint and the server; what was active stays active."


class Trouble(Enum):
    """What a failed request means. `AWAY`: nobody knows whether the server acted, and a repeat may help."""

    ABSENT = auto()
    REFUSED = auto()
    BUSY = auto()
    NO_UPLOAD = auto()
    EMPTY_RANGE = auto()
    UNCHANGED = auto()
    AWAY = auto()
    FATAL = auto()


class S3Failure(Exception):  # noqa: N818 - never leaves these modules
    """A request that failed, before anybody decided what that means for the user."""

    def __init__(self, code: str, status: int, reason: str, *, where: str) -> None:
        super().__init__(f"{where}: {code}: {reason}")
        self.code = code
        self.where = where
        self.reason = reason
        self.trouble = classify(code, status)

    def told(self) -> StorageError:
        """Return the error that the user sees."""
        if self.code == "NoSuchBucket":
            bucket = self.where.removeprefix("s3://").partition("/")[0]
            return StorageError(f"there is no bucket {bucket!r}", hint=_HINTS[self.code])
        reason = self.reason if self.code.isdigit() or self.code in self.reason else f"{self.code}, {self.reason}"
        hint = _HINTS.get(self.code) or (_AWAY_HINT if self.trouble is Trouble.AWAY else None)
        return StorageError(f"store key {self.where}: {reason}", hint=hint)


def classify(code: str, status: int) -> Trouble:
    """Return what an error code with its HTTP status (0: there was no answer) means. Pure."""
    if code in ("NoSuchKey", "404"):
        return Trouble.ABSENT
    if code in ("PreconditionFailed", "412"):
        return Trouble.REFUSED
    if status == 409:
        return Trouble.BUSY
    if code == "NoSuchUpload":
        return Trouble.NO_UPLOAD
    if code in ("InvalidRange", "416"):
        return Trouble.EMPTY_RANGE
    if code == "304":
        return Trouble.UNCHANGED
    if code in _RETRYABLE_CODES or status in _RETRYABLE_STATUS or (status == 0 and code in _RETRYABLE_CLIENT):
        return Trouble.AWAY
    return Trouble.FATAL


def failure_of(error: Exception, *, where: str) -> S3Failure:
    """Return the failure that an exception of botocore means; any other exception is raised again."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - S3 is optional

    if isinstance(error, ClientError):
        answer = error.response
        said = answer.get("Error", {})
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(said.get("Code") or status)
        return S3Failure(code, status, str(said.get("Message") or error), where=where)
    if isinstance(error, BotoCoreError):
        code = next(
            (each.__name__ for each in type(error).__mro__ if each.__name__ in _RETRYABLE_CLIENT | _HINTS.keys()),
            type(error).__name__,
        )
        return S3Failure(code, 0, str(error), where=where)
    raise error
