from __future__ import annotations

import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from modelreg.registry import sqlite
from modelreg.registry.errors import BusyError, DatabaseError
from modelreg.registry.sqlite import SqliteFile, refuse_network, translate

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /mnt/share rw shared:1 - nfs4 server:/export rw
31 22 0:41 / /mnt/share/local rw - xfs /dev/vdb rw
32 22 0:42 / /mnt/with\\040space rw - cifs //server/x rw
33 22 0:43 / /mnt/user rw - fuse.sshfs host: rw
34 22 0:44 / /mnt/ntfs rw - fuseblk /dev/vdc rw
35 22 0:45 / /mnt/twice rw - ext4 /dev/vdd rw
36 22 0:46 / /mnt/twice rw - nfs server:/other rw
37 22 0:47 / /mnt/lustre rw - lustre 10.0.0.1@tcp:/fs rw
38 22 0:48 / /mnt/gpfs rw - gpfs fs1 rw
39 22 0:49 / /mnt/container rw - fuse.fuse-overlayfs fuse-overlayfs rw
40 22 0:50 / /mnt/pool rw - fuse.mergerfs a:b rw
41 22 0:51 / /mnt/memory rw - tmpfs tmpfs rw
42 22 0:52 / /mnt/overlay rw - overlay overlay rw
garbage
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/mnt/share/registry.db", "nfs4"),
        ("/mnt/share/deep/er/registry.db", "nfs4"),
        ("/mnt/with space/registry.db", "cifs"),
        ("/mnt/user/registry.db", "fuse.sshfs"),
        ("/mnt/twice/registry.db", "nfs"),
        ("/mnt/lustre/registry.db", "lustre"),
        ("/mnt/gpfs/registry.db", "gpfs"),
    ],
)
def test_a_network_file_system_is_refused_by_name(path: str, kind: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        refuse_network(Path(path), mounts=MOUNTS)
    assert str(caught.value) == f"database {path} is on a network file system ({kind}), where SQLite corrupts"
    assert "local disk" in caught.value.hint()
    assert "PostgreSQL" in caught.value.hint()


@pytest.mark.parametrize(
    "path",
    [
        *("/registry.db", "/mnt/share/local/registry.db", "/mnt/sharing/registry.db", "/mnt/ntfs/registry.db"),
        *("/mnt/container/registry.db", "/mnt/pool/registry.db", "/mnt/memory/x.db", "/mnt/overlay/x.db"),
    ],
)
def test_a_local_file_system_is_not_refused(path: str) -> None:
    refuse_network(Path(path), mounts=MOUNTS)


def test_where_nothing_is_known_of_mounts_nothing_is_refused(tmp_path: Path) -> None:
    refuse_network(tmp_path, mounts="")
    refuse_network(tmp_path)


def test_a_file_on_a_real_local_disk_or_in_memory_is_taken(tmp_path: Path, in_memory: Path) -> None:
    for folder in (tmp_path, in_memory):
        assert sqlite._file_system(str(folder), sqlite._read_mounts())
        path = folder / "registry.db"
        path.touch()
        sqlite.SqliteFile(path=path, timeout_s=1).connect().close()


def test_a_file_on_a_network_file_system_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "registry.db"
    path.touch()
    monkeypatch.setattr(sqlite, "_file_system", lambda _path, _mounts: "nfs4")
    with pytest.raises(DatabaseError, match="on a network file system"):
        sqlite.SqliteFile(path=path, timeout_s=1).connect()
    assert path.read_bytes() == b""


def test_where_the_system_tells_no_mounts_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_MOUNTS", tmp_path / "missing")
    refuse_network(tmp_path)


def test_an_old_sqlite_is_refused_by_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(DatabaseError, match=r"SQLite 3\.\d+\.\d+ is too old, 3\.35 is needed"):
        sqlite.SqliteFile(path=tmp_path / "registry.db", timeout_s=1).connect()


def test_the_switch_to_a_log_waits_for_whoever_holds_the_file(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE t (x)")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite.SqliteFile(path=path, timeout_s=0.05).connect()
    release = threading.Timer(0.2, lambda: other.execute("COMMIT"))
    release.start()
    connection = sqlite.SqliteFile(path=path, timeout_s=10).connect()
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    release.join()
    other.close()


def test_many_that_switch_a_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    def open_it(file: sqlite.SqliteFile, start: threading.Barrier) -> str:
        start.wait(10)
        connection = file.connect()
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
        start.wait(10)  # nobody is the last to close while another still opens
        connection.close()
        return str(mode)

    with ThreadPoolExecutor(6) as pool:
        for number in range(40):
            file = sqlite.SqliteFile(path=tmp_path / f"{number}.db", timeout_s=10)
            file.path.touch()
            start = threading.Barrier(6)
            assert list(pool.map(open_it, [file] * 6, [start] * 6)) == ["wal"] * 6


def test_a_file_system_without_a_log_is_refused(tmp_path: Path) -> None:
    class Connection:
        answers = iter([sqlite3.OperationalError("database is locked"), "delete"])

        def execute(self, _text: str) -> Connection:
            return self

        def fetchone(self) -> tuple[str]:
            answer = next(self.answers)
            if isinstance(answer, Exception):
                raise answer
            return (str(answer),)

    file = sqlite.SqliteFile(path=tmp_path / "registry.db", timeout_s=10)
    with pytest.raises(DatabaseError, match="cannot keep a write-ahead log"):
        file._use_wal(Connection())  # type: ignore[arg-type]


def test_a_link_to_a_network_file_system_is_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    mounts = f"1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / {os.path.realpath(real)} rw - nfs y rw\n"
    with pytest.raises(DatabaseError, match="network file system"):
        refuse_network(tmp_path / "link" / "registry.db", mounts=mounts)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("database is locked", BusyError, "database r.db stayed locked by another command"),
        ("database table is locked", BusyError, "database r.db stayed locked by another command"),
        ("database or disk is full", DatabaseError, "database r.db cannot grow: the disk is full"),
        ("attempt to write a readonly database", DatabaseError, "database r.db is read-only"),
        ("unable to open database file", DatabaseError, "database r.db cannot be opened"),
        ("disk I/O error", DatabaseError, "database r.db met an I/O error"),
        ("locking protocol", DatabaseError, "database r.db cannot be locked"),
        (
            "database disk image is malformed",
            DatabaseError,
            "database r.db is damaged: database disk image is malformed",
        ),
        ("file is not a database", DatabaseError, "database r.db is damaged: file is not a database"),
        (
            "Could not decode to UTF-8 column 'message' with text '\xff'",
            DatabaseError,
            "database r.db has a row that cannot be read: it is not UTF-8",
        ),
        ("no such column: x", DatabaseError, "database r.db: no such column: x"),
    ],
)
def test_every_failure_is_one_line_of_its_kind(text: str, kind: type[Exception], message: str) -> None:
    found = translate(sqlite3.OperationalError(text), path=Path("r.db"))
    assert type(found) is kind
    assert str(found) == message
    assert found.hint() or "no such column" in text


def space(
    *, free: int = 1 << 20, available: int = 1 << 20, blocks: int = 1 << 20, inodes: int = 9
) -> os.statvfs_result:
    return os.statvfs_result((4096, 4096, blocks, free, available, 9, inodes, inodes, 0, 255))


@pytest.mark.parametrize(
    ("found", "lack"),
    [
        (space(), ""),
        (space(free=15, available=15), "the disk is full"),
        (space(free=16, available=16), ""),
        (space(inodes=0), "the disk has no inodes left"),
        (space(free=0, available=0, blocks=0), ""),
    ],
)
def test_a_disk_that_lacks_room_is_told_from_one_that_fails(
    monkeypatch: pytest.MonkeyPatch, found: os.statvfs_result, lack: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: found)
    message = f"cannot grow: {lack}" if lack else "met an I/O error"
    assert message in str(translate(sqlite3.OperationalError("disk I/O error"), path=Path("r.db")))


def test_only_root_counts_on_what_is_kept_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: space(free=1000, available=0))
    for user, lack in ((0, ""), (1000, "the disk is full")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert sqlite.lack_of_room(Path()) == lack


def test_a_folder_that_is_away_lacks_no_room(tmp_path: Path) -> None:
    assert sqlite.lack_of_room(tmp_path / "missing") == ""


def test_a_sync_that_fails_in_a_commit_leaves_it_open_whether_it_happened(tmp_path: Path) -> None:
    file = SqliteFile(path=tmp_path / "registry.db", timeout_s=1)
    unknown = file.unknown_commit(sqlite3.OperationalError("disk I/O error"))
    assert unknown is not None
    assert (unknown.exit_code, "I/O error while a change was committed" in str(unknown)) == (5, True)
    assert file.unknown_commit(sqlite3.OperationalError("database is locked")) is None
