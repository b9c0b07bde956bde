"""`s3://BUCKET/PREFIX?SETTING=VALUE`: where a store in S3 is and how it is reached, in one text. Pure.

Credentials are never part of it; they come from where every AWS tool looks for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from modelreg.registry.errors import UsageError

_CREDENTIALS_HINT = "Use a profile, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of the machine."
_REGION = re.compile(r"[A-Za-z0-9-]{1,63}")
FORMS = "Write s3://BUCKET/PREFIX, with settings as in ?endpoint_url=https://HOST&region=NAME."
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_PREFIX_PART = re.compile(r"[A-Za-z0-9._=-]+", re.ASCII)
_ENDPOINT = re.compile(r"https?://[^/?#@\s]+/?", re.ASCII)
_MAX_PREFIX = 512
_CHOICES = {"addressing": ("path", "virtual"), "request_payer": ("requester",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Location:
    """A bucket, a prefix in it (without slashes at its ends), and how to reach them; empty means AWS's own way.

    `addressing` is `path` or `virtual` (empty: `path` where an endpoint is set), `kms_key_id` a key for server-side
    encryption or `default` for the account's own, `request_payer` is `requester` or empty.
    """

    bucket: str
    prefix: str = ""
    endpoint_url: str = ""
    region: str = ""
    profile: str = ""
    addressing: str = ""
    kms_key_id: str = ""
    request_payer: str = ""

    def __str__(self) -> str:
        path = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        settings = [(name, value) for name in SETTINGS if (value := getattr(self, name))]
        return path + (f"?{urlencode(settings, safe=':/', quote_via=quote)}" if settings else "")

    def key(self, path: str) -> str:
        """Return the key of `path` below the prefix."""
        return f"{self.prefix}/{path}" if self.prefix else path

    def where(self, path: str) -> str:
        """Return how `path` is named to a person."""
        return f"s3://{self.bucket}/{self.key(path)}"


SETTINGS = tuple(field.name for field in fields(S3Location))[2:]
"""The names that may stand behind the question mark."""


def parse_location(url: str) -> S3Location:
    """
    Return where `url` points to.

    Raises:
        UsageError: It is no such URL, has an unknown setting, or holds credentials.
    """
    rest = url.removeprefix("s3://")
    path, _, query = rest.partition("?")
    bucket, _, prefix = path.partition("/")
    if "@" in bucket:
        raise UsageError("a store's URL holds no credentials", hint=_CREDENTIALS_HINT)
    if "#" in url or _BUCKET.fullmatch(bucket) is None or ".." in bucket:
        raise UsageError(f"{url[:80]!r} names no bucket", hint=FORMS)
    prefix = prefix.strip("/")
    _check_prefix(prefix)
    settings = _parse_settings(query)
    return S3Location(bucket=bucket, prefix=prefix, **settings)


def _check_prefix(prefix: str) -> None:
    parts = prefix.split("/") if prefix else []
    if len(prefix) > _MAX_PREFIX or any(_PREFIX_PART.fullmatch(part) is None or part in (".", "..") for part in parts):
        raise UsageError(
            f"the prefix {prefix[:80]!r} is not allowed",
            hint="Use letters, digits, '.', '_', '=', '-' and single slashes.",
        )


def _parse_settings(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise UsageError("the settings behind ? of the store's URL cannot be read", hint=FORMS) from None
    settings = dict(pairs)
    if len(settings) != len(pairs):
        raise UsageError("a setting of the store is given twice", hint=FORMS)
    for name, value in pairs:
        _check_setting(name, value)
    if "endpoint_url" in settings:
        settings["endpoint_url"] = parse_endpoint(settings["endpoint_url"])
    return settings


def parse_endpoint(value: str) -> str:
    """
    Return the address of a server.

    Raises:
        UsageError: It is none, or has a path or credentials.
    """
    if "@" in value:  # and what stands before it is not to be printed
        raise UsageError("an endpoint holds no credentials", hint=_CREDENTIALS_HINT)
    if _ENDPOINT.fullmatch(value) is None or not _has_port(value):
        raise UsageError(
            f"the endpoint {value[:80]!r} is no address of a server", hint="Write http://HOST:PORT or https://HOST."
        )
    return value.rstrip("/")


def _has_port(endpoint: str) -> bool:
    """Return whether the port of an address is one, or is left out; brackets of IPv6 must close."""
    try:
        return urlsplit(endpoint).port != 0
    except ValueError:
        return False


def _check_setting(name: str, value: str) -> None:
    if name not in SETTINGS:
        raise UsageError(f"{name[:40]!r} is no setting of a store", hint=f"Known: {', '.join(SETTINGS)}.")
    if name == "region" and _REGION.fullmatch(value) is None:
        raise UsageError(f"{value[:40]!r} is no region")
    choices = _CHOICES.get(name)
    if choices is not None and value not in choices:
        raise UsageError(f"{name} of the store is {' or '.join(choices)}, not {value[:40]!r}")
    if not value.isprintable():
        raise UsageError(f"{name} of the store has a control character")
