"""A store whose `FORMAT` is gone or cannot be read: is all else there that of a store? Then it is written again.

Nothing but the name of the format is in it, and in S3 how the server was found to behave, which is tried anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from modelreg.registry.errors import IntegrityError, StorageError, StoreAbsentError, StoreFormatError
from modelreg.registry.pointers import parse_pointer
from modelreg.registry.storage.files import FileOps
from modelreg.registry.storage.interface import Trying, not_told
from modelreg.registry.storage.layout import Layout
from modelreg.registry.storage.open import S3_SCHEME, local_path, open_storage


def is_mendable(url: str) -> bool:
    """
    Return whether `FORMAT` alone is amiss in the store at `url`: there are pointers, and they are of our format.

    A place where nothing is but the folders of a store is none: an unmounted disk looks like that.
    """
    try:
        open_storage(url)
    except (StoreFormatError, StoreAbsentError):
        return _has_pointers(url)
    except StorageError:
        return False
    return False


def mend_format(url: str, *, trying: Trying = not_told) -> None:
    """
    Write `FORMAT` again; the caller has asked `is_mendable`.

    Args:
        url: The store.
        trying: Told what of a server is tried.

    Raises:
        StorageError: It cannot be written, or a server does not pass its check.
    """
    if not url.startswith(S3_SCHEME):
        Layout(local_path(url), FileOps()).write_format()
        return
    from modelreg.registry.storage.s3 import S3Storage  # noqa: PLC0415 - start-up time
    from modelreg.registry.storage.s3_check import check_server  # noqa: PLC0415
    from modelreg.registry.storage.s3_location import parse_location  # noqa: PLC0415

    location = parse_location(url)
    check = check_server(location, trying=trying)
    check.require_passed(location)
    S3Storage.rewrite_format(location, quirks=check.quirks)


def _has_pointers(url: str) -> bool:
    if not url.startswith(S3_SCHEME):
        layout = Layout(local_path(url), FileOps())
        return layout.has_folders() and _are_ours(_local_pointers(layout.channels))
    from modelreg.registry.storage.s3 import S3Storage  # noqa: PLC0415 - start-up time
    from modelreg.registry.storage.s3_location import parse_location  # noqa: PLC0415

    store = S3Storage.connect(parse_location(url))
    found = []
    for model, channel in store.list_channels():
        with suppress(IntegrityError):
            found.append(store.read_pointer(model, channel))
    return any(pointer is not None for pointer in found)


def _local_pointers(channels: Path) -> Iterator[bytes]:
    for folder, _, names in os.walk(channels):
        if "pointer.json" in names:
            yield (Path(folder) / "pointer.json").read_bytes()


def _are_ours(documents: Iterator[bytes]) -> bool:
    """Return whether at least one of some pointers can be read."""
    for data in documents:
        with suppress(IntegrityError):
            parse_pointer(data, where="of the store")
            return True
    return False
