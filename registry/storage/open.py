"""From what a user writes (`DIR`, `file:///DIR`, `s3://BUCKET/PREFIX`) to a store."""

from __future__ import annotations

from pathlib import Path

from modelreg.registry.errors import UsageError
from modelreg.registry.storage.interface import Storage, Trying, not_told
from modelreg.registry.storage.local import LocalStorage

_FORMS = "Write a folder, file:///FOLDER or s3://BUCKET/PREFIX."
S3_SCHEME = "s3://"


def open_storage(url: str) -> Storage:
    """
    Open the store at `url`.

    Raises:
        UsageError: `url` is of no kind that we know.
        StorageError: There is no store there, or it cannot be read.
        MissingDependencyError: It is in S3, and boto3 is not installed.
    """
    if url.startswith(S3_SCHEME):
        from modelreg.registry.storage.s3 import S3Storage  # noqa: PLC0415 - start-up time
        from modelreg.registry.storage.s3_location import parse_location  # noqa: PLC0415

        return S3Storage(parse_location(url))
    return LocalStorage(local_path(url))


def connect_storage(url: str) -> Storage:
    """
    Return the store at `url` for a look at its pointers; in S3, whether there is one is not asked before.

    Raises:
        UsageError: `url` is of no kind that we know.
        StorageError: There is no folder with a store there.
        MissingDependencyError: It is in S3, and boto3 is not installed.
    """
    if url.startswith(S3_SCHEME):
        from modelreg.registry.storage.s3 import S3Storage  # noqa: PLC0415 - start-up time
        from modelreg.registry.storage.s3_location import parse_location  # noqa: PLC0415

        return S3Storage.connect(parse_location(url))
    return open_storage(url)


def create_storage(url: str, *, trying: Trying = not_told) -> Storage:
    """
    Make an empty store at `url` and open it; a server is checked first, and refused if it keeps no conditions.

    Args:
        url: Where.
        trying: Told what of a server is tried, which takes some seconds in all.

    Raises:
        UsageError: `url` is of no kind that we know.
        StorageError: There is one already, or it cannot be made.
        MissingDependencyError: It is in S3, and boto3 is not installed.
    """
    if url.startswith(S3_SCHEME):
        from modelreg.registry.storage.s3 import S3Storage  # noqa: PLC0415 - start-up time
        from modelreg.registry.storage.s3_check import check_server  # noqa: PLC0415
        from modelreg.registry.storage.s3_location import parse_location  # noqa: PLC0415

        location = parse_location(url)
        check = check_server(location, trying=trying)
        check.require_passed(location)
        return S3Storage.create(location, quirks=check.quirks)
    return LocalStorage.create(local_path(url))


def locate_storage(url: str, *, endpoint_url: str | None = None) -> str:
    """
    Return what a user wrote, relative to the current folder, as it is kept in settings.

    Args:
        url: A folder or URL.
        endpoint_url: The server of a store in S3, where it was given beside the URL.

    Raises:
        UsageError: `url` is of no kind that we know, or a folder has a server.
    """
    if url.startswith(S3_SCHEME):
        from dataclasses import replace  # noqa: PLC0415

        from modelreg.registry.storage.s3_location import parse_endpoint, parse_location  # noqa: PLC0415

        location = parse_location(url)
        return str(location if endpoint_url is None else replace(location, endpoint_url=parse_endpoint(endpoint_url)))
    if endpoint_url is not None:
        raise UsageError("--endpoint-url belongs to a store in S3", hint="Name one with s3://BUCKET/PREFIX.")
    return url if "://" in url else str(Path(url).absolute())


def local_path(url: str) -> Path:
    """
    Return the folder that `url` names.

    Raises:
        UsageError: It is of no kind that we know, or names another host.
    """
    scheme, found, rest = url.partition("://")
    if not found:
        path = url
    elif scheme != "file":
        raise UsageError(f"{scheme[:40]!r} is no kind of store", hint=_FORMS)
    else:
        path = _unquoted(rest.removeprefix("localhost"))
        if not path.startswith("/"):
            raise UsageError(f"{url!r} names another host or a relative folder", hint=_FORMS)
    if not path or "\0" in path:
        raise UsageError("the store's folder has no usable name", hint=_FORMS)
    return Path(path)


def _unquoted(path: str) -> str:
    if "%" not in path:
        return path
    from urllib.parse import unquote  # noqa: PLC0415 - costs start-up time, and few paths need it

    return unquote(path)
