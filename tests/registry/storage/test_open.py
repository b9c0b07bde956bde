from __future__ import annotations

from pathlib import Path

import pytest

from modelreg.registry.errors import StorageError, UsageError
from modelreg.registry.storage.local import LocalStorage
from modelreg.registry.storage.open import create_storage, open_storage
from modelreg.registry.storage.s3 import S3Storage
from modelreg_testing.s3_server import S3Server


def test_a_folder_is_a_store(tmp_path: Path) -> None:
    made = create_storage(str(tmp_path / "store"))
    assert isinstance(made, LocalStorage)
    assert open_storage(str(tmp_path / "store")).url == made.url


@pytest.mark.parametrize("host", ["", "localhost"])
def test_a_file_url_is_a_store(tmp_path: Path, host: str) -> None:
    create_storage(f"file://{host}{tmp_path}/my%20store")
    assert (tmp_path / "my store" / "FORMAT").exists()
    assert open_storage(f"file://{tmp_path}/my store").url == str(tmp_path / "my store")


@pytest.mark.slow
def test_an_s3_url_is_a_store(s3_server: S3Server) -> None:
    url = str(s3_server.location())
    made = create_storage(url)
    assert isinstance(made, S3Storage)
    assert made.url == url
    assert open_storage(url).url == url
    with pytest.raises(StorageError, match=r"a store at .* already"):
        create_storage(url)


def test_where_no_store_is_in_a_bucket_none_is_opened(s3_server: S3Server) -> None:
    with pytest.raises(StorageError, match="no store") as caught:
        open_storage(str(s3_server.location()))
    assert "init" in caught.value.hint()


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
