from __future__ import annotations

import pytest

from modelreg.registry.errors import UsageError
from modelreg.registry.storage.s3_location import S3Location, parse_location


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket",
        "s3://bucket/prefix",
        "s3://my.bucket-1/a/b=c/d_E.f",
        "s3://bucket/p?endpoint_url=http://127.0.0.1:9000",
        "s3://bucket/p?endpoint_url=https://s3.example.com&region=eu-central-1&profile=ada%20l&addressing=virtual",
        "s3://bucket/p?kms_key_id=default&request_payer=requester",
    ],
)
def test_a_location_is_written_as_it_was_read(url: str) -> None:
    assert str(parse_location(url)) == url


def test_the_parts_of_a_url_are_named() -> None:
    found = parse_location("s3://bucket/a/b/?endpoint_url=http://host/&kms_key_id=arn:aws:kms:x:1:key/2")
    assert found == S3Location(
        bucket="bucket", prefix="a/b", endpoint_url="http://host", kms_key_id="arn:aws:kms:x:1:key/2"
    )
    assert found.key("c/d") == "a/b/c/d"
    assert found.where("c") == "s3://bucket/a/b/c"
    assert parse_location("s3://bucket").key("c") == "c"


@pytest.mark.parametrize(
    "url",
    [
        *("s3://", "s3:///prefix", "s3://B", "s3://ab", "s3://a..b", "s3://bucket#x", "s3://-bucket-", "s3://b_cket"),
        *(
            "s3://bucket/a//b",
            "s3://bucket/../b",
            "s3://bucket/.",
            "s3://bucket/é",
            "s3://bucket/a b",
            "s3://bucket/%2e",
        ),
        "s3://bucket/" + "x" * 513,
        *("s3://bucket?region", "s3://bucket?what=1", "s3://bucket?region=a&region=b"),
        *("s3://bucket?region=%00", "s3://bucket?addressing=odd", "s3://bucket?request_payer=bucketowner"),
        *(
            "s3://bucket?endpoint_url=ftp://x",
            "s3://bucket?endpoint_url=http://u:p@x",
            "s3://bucket?endpoint_url=http://x/y",
            "s3://bucket?endpoint_url=http://[::1",
            "s3://bucket?endpoint_url=http://x:99999",
            "s3://bucket?endpoint_url=http://x:port",
            "s3://bucket?region=../../x",
        ),
    ],
)
def test_what_is_no_location_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        parse_location(url)


def test_credentials_do_not_belong_into_a_url() -> None:
    with pytest.raises(UsageError, match="credentials") as caught:
        parse_location("s3://key:secret@bucket/prefix")
    assert "secret" not in str(caught.value)
    assert "profile" in caught.value.hint()


@pytest.mark.parametrize("url", ["s3://bucket?endpoint_url=http://user:hunter2@host", "s3://bucket/a?hunter2"])
def test_what_could_be_a_secret_is_never_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_location(url)
    assert "hunter2" not in f"{caught.value} {caught.value.hint()}"
