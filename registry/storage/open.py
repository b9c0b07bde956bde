"""From what a user writes (`DIR`, `file:///DIR`) to a store."""

from __future__ import annotations

from pathlib import Path

from modelreg.registry.errors import UsageError
from modelreg.registry.storage.interface import Storage
from modelreg.registry.storage.local import LocalStorage

_FORMS = "Write a folder, or file:///FOLDER."


def open_storage(url: str) -> Storage:
    """
    Open the store at `url`.

    Raises:
        UsageError: `url` is of no kind that we know.
        StorageError: There is no store there, or it cannot be read.
    """
    return LocalStorage(_local_path(url))


def create_storage(url: str) -> Storage:
    """
    Make an empty store at `url` and open it.

    Raises:
        UsageError: `url` is of no kind that we know.
        StorageError: There is one already, or it cannot be made.
    """
    return LocalStorage.create(_local_path(url))


def _local_path(url: str) -> Path:
    scheme, found, rest = url.partition("://")
    if not found:
        path = url
    elif scheme == "s3":
        raise UsageError("S3 stores are not supported yet", hint=_FORMS)
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
