from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from modelreg.registry.errors import StorageError
from modelreg.registry.regular_files import fault_of, irregularity, open_without_waiting, write_whole


def test_a_regular_file_has_no_fault_and_a_link_to_one_neither(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    assert fault_of(tmp_path / "file") == fault_of(tmp_path / "link") == ""
    assert irregularity((tmp_path / "file").stat().st_mode) == ""


def test_what_is_no_regular_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("dangling").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert fault_of(Path("socket")) == "a socket, not a file"
    assert fault_of(Path("pipe")) == "a named pipe, not a file"
    assert fault_of(tmp_path) == "a folder, not a file"
    assert fault_of(Path("/dev/null")) == "a device, not a file"
    assert fault_of(Path("dangling")) == "a link to a file that does not exist"
    assert fault_of(Path("none")) == "not a file: nothing is there"
    assert fault_of(Path("loop")) == "not readable: Too many levels of symbolic links"
    assert fault_of(Path("pipe/below")) == "not readable: Not a directory"
    assert "not readable: " in fault_of(Path("a\0b"))
    assert irregularity(0) == "no regular file"


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    for content in (b"one", b"two"):
        write_whole(path, content)
        assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["cache"]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="is a named pipe, not a file, and is not replaced"):
        write_whole(tmp_path / "pipe", b"x")
    with pytest.raises(StorageError, match="cannot be written: No such file or directory"):
        write_whole(tmp_path / "nowhere" / "cache", b"x")
    assert (tmp_path / "pipe").is_fifo()


def test_a_pipe_that_nobody_writes_to_reads_as_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open_without_waiting(tmp_path / "pipe") as opened:
        assert opened.read() == b""
    (tmp_path / "file").write_bytes(b"x")
    with open_without_waiting(tmp_path / "file") as opened:
        assert opened.read() == b"x"
