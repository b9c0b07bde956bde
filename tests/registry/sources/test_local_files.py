"""Tests of looking at the user's files before reading them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modelreg.registry.errors import SourceError
from modelreg.registry.sources.local_files import LocalFile, identify, open_regular, require_unchanged, shown


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    return path


def test_a_regular_file_opens_with_its_identity(path: Path) -> None:
    file, identity = open_regular(path)
    with file:
        assert file.read() == b"12345"
    assert identity == identify(path)
    assert identity.size_bytes == 5


def test_what_is_no_file_is_called_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to("nothing")
    for name, fact in [
        ("pipe", "is a named pipe, not a file"),
        ("", "is a folder, not a file"),
        ("gone", "does not exist"),
        ("dangling", "is a link to a file that does not exist"),
        ("a\0b", "cannot be read"),
    ]:
        with pytest.raises(SourceError, match=fact):
            open_regular(tmp_path / name)
    with pytest.raises(SourceError, match="/dev/zero is a device, not a file"):
        open_regular(Path("/dev/zero"))


def test_a_file_without_read_permission_says_so(path: Path) -> None:
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(SourceError, match="cannot be read: Permission denied"):
        open_regular(path)


def test_a_name_that_is_too_long_says_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="File name too long"):
        identify(tmp_path / ("x" * 300))


def test_a_file_put_in_the_place_of_a_checked_one_is_checked_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def swap_then_open(name: str | Path, flags: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return real_open(name, flags)

    monkeypatch.setattr(os, "open", swap_then_open)
    with pytest.raises(SourceError, match="is a named pipe"):
        open_regular(path)


def test_a_file_that_vanishes_before_it_is_opened_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def remove_then_open(name: str | Path, flags: int) -> int:
        path.unlink()
        return real_open(name, flags)

    monkeypatch.setattr(os, "open", remove_then_open)
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        open_regular(path)


def test_an_untouched_file_is_unchanged(path: Path) -> None:
    require_unchanged(LocalFile(name="f", path=path, identity=identify(path)))


@pytest.mark.parametrize("change", ["append", "same size", "old time", "replace", "remove"])
def test_a_changed_file_is_noticed(path: Path, change: str) -> None:
    before = LocalFile(name="f", path=path, identity=identify(path))
    status = path.stat()
    if change == "append":
        path.write_bytes(b"123456")
    elif change == "same size":
        path.write_bytes(b"54321")
        os.utime(path, ns=(1, 1))
    elif change == "old time":
        path.write_bytes(b"123456")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "replace":
        other = path.with_name("other")
        other.write_bytes(b"54321")
        other.replace(path)
    else:
        path.unlink()
    with pytest.raises(SourceError, match=r"changed while it was being registered|does not exist"):
        require_unchanged(before)


def test_a_path_with_a_line_break_is_shown_on_one_line() -> None:
    assert shown(Path("a b/é.onnx")) == "a b/é.onnx"
    assert shown(Path("a\nb")) == "'a\\nb'"
