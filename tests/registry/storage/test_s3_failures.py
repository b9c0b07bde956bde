from __future__ import annotations

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    IncompleteReadError,
    NoCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    SSLError,
)

from modelreg.registry.storage.s3_failures import Trouble, classify, failure_of


@pytest.mark.parametrize(
    ("code", "status", "meaning"),
    [
        ("NoSuchKey", 404, Trouble.ABSENT),
        ("404", 404, Trouble.ABSENT),
        ("NoSuchBucket", 404, Trouble.FATAL),
        ("PreconditionFailed", 412, Trouble.REFUSED),
        ("412", 412, Trouble.REFUSED),
        ("ConditionalRequestConflict", 409, Trouble.BUSY),
        ("NoSuchUpload", 404, Trouble.NO_UPLOAD),
        ("InvalidRange", 416, Trouble.EMPTY_RANGE),
        ("304", 304, Trouble.UNCHANGED),
        ("SlowDown", 503, Trouble.AWAY),
        ("InternalError", 200, Trouble.AWAY),
        ("429", 429, Trouble.AWAY),
        ("RequestTimeout", 400, Trouble.AWAY),
        ("AccessDenied", 403, Trouble.FATAL),
        ("BadDigest", 400, Trouble.FATAL),
        ("NotImplemented", 501, Trouble.FATAL),
    ],
)
def test_every_answer_has_one_meaning(code: str, status: int, meaning: Trouble) -> None:
    assert classify(code, status) is meaning
    error = ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")  # type: ignore[arg-type,unused-ignore]
    assert failure_of(error, where="s3://b/k").trouble is meaning


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url="http://x"),
        ConnectTimeoutError(endpoint_url="http://x"),
        ReadTimeoutError(endpoint_url="http://x"),
        ConnectionClosedError(endpoint_url="http://x"),
        IncompleteReadError(actual_bytes=1, expected_bytes=2),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_way_that_is_cut_may_be_tried_again(error: Exception) -> None:
    failure = failure_of(error, where="s3://b/k")
    assert failure.trouble is Trouble.AWAY
    assert "s3://b/k" in str(failure.told())
    assert "network" in failure.told().hint()


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (NoCredentialsError(), "credentials"),
        (ProfileNotFound(profile="ada"), "profile"),
        (SSLError(endpoint_url="https://x", error="self-signed"), "certificate"),
    ],
)
def test_what_no_repeat_changes_says_what_to_do(error: Exception, hint: str) -> None:
    failure = failure_of(error, where="s3://b/k")
    assert failure.trouble is Trouble.FATAL
    assert hint in failure.told().hint()


def test_an_error_of_the_program_stays_what_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        failure_of(ZeroDivisionError("mine"), where="s3://b/k")


def test_the_server_s_word_is_told() -> None:
    answer = {"Error": {"Code": "AccessDenied", "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    told = failure_of(ClientError(answer, "GetObject"), where="s3://b/k").told()  # type: ignore[arg-type,unused-ignore]
    assert str(told) == "store key s3://b/k: AccessDenied, no"
    assert "access" in told.hint()
