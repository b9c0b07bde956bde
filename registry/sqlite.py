"""SQLite alone: how a file is opened, and what its errors mean. No other module knows this dialect.

WAL needs a writable folder and shared memory: it is refused on network file systems, and a folder that cannot be
written is read without it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from modelreg.registry.errors import BusyError, CommitUnknownError, DatabaseError, ModelregError

SYNCED = "PRAGMA synchronous=FULL"
UNSYNCED = "PRAGMA synchronous=NORMAL"
"""With a write-ahead log, a commit is not waited for; order and consistency stay."""

_PRAGMAS = ("foreign_keys=ON", "synchronous=FULL", "trusted_schema=OFF", "cell_size_check=ON")
_MOUNTS = Path("/proc/self/mountinfo")
_OLDEST = (3, 35, 0)  # UPDATE ... RETURNING
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse", "lustre", "gpfs", "ceph", "afs", "beegfs"}
    | {"coda", "gfs2", "ocfs2", "orangefs", "panfs", "pvfs2", "wekafs"}
)
_LOCAL_FUSE = frozenset(
    {"fuse-overlayfs", "unionfs", "mergerfs", "bindfs", "gocryptfs", "encfs", "cryfs", "ntfs-3g", "exfat", "zfs-fuse"}
)
_LOCKED = ("database is locked", "database table is locked", "database schema is locked")
_PAGES_A_STEP = 8  # fewer than any registry has, so that there is a step between locking and the end
_ROOM_BYTES = 64 * 1024  # a log and its index, before anything is written
RESTORE_HINT = "Restore its backup; `which` and `rollback` work without. To make a new one: `modelreg init`."
_SPACE_HINT = "Free some space and run the command again."
_DAMAGED = ("malformed", "not a database", "unsupported file format")

_UNMADE = ("unable to open", "disk I/O error")
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    ("disk is full", "cannot grow: the disk is full", _SPACE_HINT),
    ("readonly database", "is read-only", "Make the file and its folder writable, or only read."),
    ("unable to open", "cannot be opened", "Check that the file exists and that you may read it and its folder."),
    ("disk I/O error", "met an I/O error", "Check the disk (`dmesg`), then run `modelreg doctor`."),
    ("Could not decode", "has a row that cannot be read: it is not UTF-8", "Run `modelreg doctor`: it names the row."),
    ("locking protocol", "cannot be locked", "Keep it on a local disk, or on a PostgreSQL server (docs/databases.md)."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteFile:
    """A database file and how long to wait for its lock; `at_rest`: a backup, which nobody writes, we neither."""

    path: Path
    timeout_s: float
    at_rest: bool = False

    def is_writable(self) -> bool:
        """Return whether both the file and its folder (for the write-ahead log) can be written."""
        return self.obstacle() is None

    def obstacle(self) -> DatabaseError | None:
        """Return why the file can only be read: permissions, or no room to make its log; None where nothing is."""
        if self.at_rest:
            return DatabaseError(f"{self.path} is a backup, which is only read")
        if not (os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK)):
            return DatabaseError(
                f"database {self.path} is read-only", hint="Make the file and its folder writable, or only read."
            )
        is_open = os.path.exists(f"{self.path}-wal") and os.path.exists(f"{self.path}-shm")  # noqa: PTH110 - often
        lack = "" if is_open else lack_of_room(self.path.parent)
        return _cannot_grow(self.path, lack) if lack else None

    def unknown_commit(self, error: BaseException) -> CommitUnknownError | None:
        """Return what to say of a commit that ended so, or None where nothing was committed.

        A sync that failed comes after the commit's mark in the log, where the next one who opens the file finds it.
        """
        if "disk I/O error" not in str(error) or lack_of_room(self.path.parent):
            return None
        return CommitUnknownError(f"database {self.path} met an I/O error while a change was committed")

    def connect(self) -> sqlite3.Connection:
        """
        Open the file for reading and writing, or for reading alone where it or its folder cannot be written.

        A disk without room for the log is such a folder.

        Raises:
            DatabaseError: The file is not there, on a network file system, or SQLite is too old.
        """
        if sqlite3.sqlite_version_info < _OLDEST:
            raise DatabaseError(f"SQLite {sqlite3.sqlite_version} is too old, 3.35 is needed")
        if not os.path.exists(self.path):  # noqa: PTH110 - Path.exists raises for a folder that is locked away
            raise DatabaseError(
                f"database {self.path} does not exist",
                hint=RESTORE_HINT,
            )
        if not self.is_writable():
            return self._open(self._read_only_mode())
        refuse_network(self.path)
        return self._open("mode=rw")

    def stamp(self) -> tuple[int, ...] | None:
        """Return what changes when anybody writes, for a reader that has no lock; None where it has one."""
        if self.is_writable() or self._read_only_mode() == "mode=ro":
            return None
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None  # connecting says so better
        return (status.st_ino, status.st_size, status.st_mtime_ns)

    def backup(self, destination: Path) -> None:
        """Copy the last committed state to a new file, whole or not at all; writers are not disturbed."""
        temporary = destination.with_name(destination.name + ".tmp")
        temporary.unlink(missing_ok=True)
        self.copy_to(temporary)
        temporary.replace(destination)
        sync(destination.parent)

    def copy_to(self, path: Path) -> None:
        """Copy the last committed state to a file that is not there, durably; writers are not disturbed."""
        with closing(self.connect()) as source, closing(sqlite3.connect(path)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
        sync(path)

    def overwrite_from(self, backup: Path, *, once_locked: Callable[[], None]) -> None:
        """
        Put what a backup holds in the place of what this file holds, in one transaction; others may have it open.

        Args:
            backup: A file at rest.
            once_locked: Called when nobody else can write any more and nothing is changed yet; may raise.

        Raises:
            sqlite3.Error: It cannot be written; nothing was changed.
        """
        deadline = time.monotonic() + self.timeout_s
        asked: list[bool] = []

        def look(_status: int, remaining: int, total: int) -> None:
            if asked:
                return
            if remaining < total:
                asked.append(True)
                once_locked()
            elif time.monotonic() > deadline:
                raise sqlite3.OperationalError(_LOCKED[0])

        source = SqliteFile(path=backup, timeout_s=self.timeout_s, at_rest=True)
        with closing(source.connect()) as copy, closing(self.connect()) as target:
            copy.backup(target, pages=_PAGES_A_STEP, progress=look, sleep=0.05)

    def _open(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?{mode}",
            uri=True,
            timeout=self.timeout_s,
            isolation_level=None,  # transactions begin where Database says, never by themselves
            check_same_thread=False,
        )
        try:
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
            if mode == "mode=rw":
                self._use_wal(connection)
        except UnicodeDecodeError:  # Python cannot read SQLite's message, which quotes the damaged name of a table
            connection.close()
            raise sqlite3.DatabaseError("malformed database schema") from None
        except BaseException:
            connection.close()
            raise
        return connection

    def _read_only_mode(self) -> str:
        if self.at_rest:
            return "immutable=1"
        log, index = self._beside("-wal"), self._beside("-shm")
        try:
            logged = log.stat().st_size > 0
        except FileNotFoundError:
            logged = False
        if not logged:
            return "immutable=1"
        if not index.exists():
            if lack := lack_of_room(self.path.parent):
                raise _cannot_grow(self.path, lack)
            raise DatabaseError(
                f"database {self.path} has changes in its log that cannot be read without write permission",
                hint="Run any modelreg command once with permission to write the folder.",
            )
        return "mode=ro"

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        # Of several that switch a new file at once, SQLite fails some without waiting (measured: 4 of 240).
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if str(error) not in _LOCKED or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
                continue
            if mode != "wal":
                raise DatabaseError(f"database {self.path} cannot keep a write-ahead log here")
            return


def refuse_network(path: Path, *, mounts: str | None = None) -> None:
    """
    Check that `path` is on a local file system; `mounts` stands in for `/proc/self/mountinfo`.

    The table of mounts tells what a server stands behind (`fuse.sshfs`) from what does not (`fuse.mergerfs`);
    statfs has one number for all of FUSE.

    Raises:
        DatabaseError: It is on NFS, CIFS, FUSE or the like, where shared memory corrupts the write-ahead log.
    """
    kind = _file_system(os.path.realpath(path), _read_mounts() if mounts is None else mounts)
    if kind in _NETWORK or (kind.startswith("fuse.") and kind.removeprefix("fuse.") not in _LOCAL_FUSE):
        raise DatabaseError(
            f"database {path} is on a network file system ({kind}), where SQLite corrupts",
            hint="Keep it on a local disk, or on a PostgreSQL server (docs/databases.md); the store may stay there.",
        )


def find_damage(connection: sqlite3.Connection, *, most: int) -> list[str]:
    """Return what SQLite's own check says is wrong, `most` lines at most; reads all of the file."""
    return [row[0] for row in connection.execute(f"PRAGMA integrity_check({most})") if row[0] != "ok"]


def find_orphans(connection: sqlite3.Connection) -> list[str]:
    """Return a line for each row that refers to a row that is not there."""
    broken = connection.execute("PRAGMA foreign_key_check").fetchall()
    return [f"row {row[1]} of {row[0]} refers to a missing row of {row[2]}" for row in broken]


def lack_of_room(folder: Path) -> str:
    """Return what keeps a folder's disk from taking another file, empty where nothing does or it does not say."""
    try:
        space = os.statvfs(folder)
    except OSError:
        return ""
    free = space.f_bfree if os.geteuid() == 0 else space.f_bavail
    if space.f_blocks and free * space.f_frsize < _ROOM_BYTES:
        return "the disk is full"
    return "the disk has no inodes left" if space.f_files and not space.f_ffree else ""


def translate(error: BaseException, *, path: Path) -> ModelregError:
    """Return what a failure of SQLite means to a user: busy, or a fault of the file, in one line."""
    text = str(error)
    if text in _LOCKED:
        return BusyError(f"database {path} stayed locked by another command")
    if any(word in text for word in _DAMAGED):
        return DatabaseError(
            f"database {path} is damaged: {text}",
            hint="Restore a backup (kept beside it by `modelreg db upgrade`); what is served is not affected.",
        )
    # SQLite has one word for a full disk where it grows a file, and others where it makes one.
    if any(word in text for word in _UNMADE) and (lack := lack_of_room(path.parent)):
        return _cannot_grow(path, lack)
    for word, meaning, hint in _MEANINGS:
        if word in text:
            return DatabaseError(f"database {path} {meaning}", hint=hint)
    return DatabaseError(f"database {path}: {text}")


def _cannot_grow(path: Path, lack: str) -> DatabaseError:
    return DatabaseError(f"database {path} cannot grow: {lack}", hint=_SPACE_HINT)


def _read_mounts() -> str:
    try:
        return _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:  # not Linux: nothing to judge by
        return ""


def _file_system(path: str, mounts: str) -> str:
    """Return the type of the mount that holds `path`: the longest mount point, the last of equals."""
    best, kind = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        mount = _unescape(fields[4])
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, right.split()[0]
    return kind


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
