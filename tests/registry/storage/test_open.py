from __future__ import annotations

from pathlib import Path

import pytest

from modelreg.registry.errors import StorageError, UsageError
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.storage.open import create_storage, open_storage


def test_a_folder_is_a_store(tmp_path: Path) -> None:
    made = create_storage(str(tmp_path / "store"))
    assert isinstance(made, LocalStorage)
    assert open_storage(str(tmp_path / "store")).url == made.url


@pytest.mark.parametrize("host", ["", "localhost"])
def test_a_file_url_is_a_store(tmp_path: Path, host: str) -> None:
    create_storage(f"file://{host}{tmp_path}/my%20store")
    assert (tmp_path / "my store" / "FORMAT").exists()
    assert open_storage(f"file://{tmp_path}/my store").url == str(tmp_path / "my store")


@pytest.mark.parametrize("url", ["s3://bucket/prefix", "s3://"])
def test_s3_is_not_supported_yet(url: str) -> None:
    for use in (open_storage, create_storage):
        with pytest.raises(UsageError, match="S3 stores are not supported yet"):
            use(url)


@pytest.mark.parametrize(
    "url", ["", "http://x/y", "file://host/x", "file://x", "file://", "a\0b", "file:///a%00b", "://x"]
)
def test_what_names_no_store_is_refused(url: str) -> None:
    for use in (open_storage, create_storage):
        with pytest.raises(UsageError) as caught:
            use(url)
        assert "folder" in caught.value.hint()


def test_where_no_store_is_none_is_opened(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no store"):
        open_storage(str(tmp_path))
