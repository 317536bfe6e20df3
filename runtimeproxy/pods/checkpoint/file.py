"""The checkpoint: one SQLite file with the records, for the next start. Used in one worker thread only."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.pods.checkpoint.codec import RowChange, RowKind, Saved, decode, encode
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.resources import LAST_APPLIED

logger = logging.getLogger(__name__)

FILE_NAME: Final = "records.db"
"""Name of the file in the state folder."""

APPLICATION_ID: Final = 0x6B727870
"""Tells this file from others' databases: "krxp". Source: sqlite.org, pragma application_id."""

SCHEMA_VERSION: Final = 1
"""In `user_version`; a file with a higher one belongs to a newer program."""

BUSY_TIMEOUT_S: Final = 2.0
"""How long to wait while another process writes, as around an upgrade."""

MOST_SET_ASIDE: Final = 3
"""Number of unusable databases to keep; older ones are removed."""

_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS records (
    kind INTEGER NOT NULL, id TEXT NOT NULL, rank INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, id)
);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

_BOOKS: Final = "CREATE TABLE IF NOT EXISTS books (id TEXT PRIMARY KEY, body TEXT NOT NULL)"
"""A table of its own, which version 0.1 does not see: it goes on with its records after an upgrade that has
failed. Each book names the version of its form."""

_WRITE: Final = """
INSERT INTO records (kind, id, rank, body) VALUES (?, ?, ?, ?)
ON CONFLICT (kind, id) DO UPDATE SET rank = excluded.rank, body = excluded.body WHERE excluded.rank >= rank
"""
_WRITE_BOOK: Final = """
INSERT INTO books (id, body) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body
"""
_REPLACE_BODY: Final = "UPDATE records SET body = ? WHERE kind = ? AND id = ?"
_DELETE: Final = "DELETE FROM records WHERE kind = ? AND id = ?"
_DELETE_BOOK: Final = "DELETE FROM books WHERE id = ?"

_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
"""The last one stands for a table or column that is missing. Source: sqlite.org/rescode.html."""

_COMPANIONS: Final = ("", "-journal", "-wal", "-shm")
"""The last two are of earlier versions. Source: sqlite.org/tempfiles.html."""

_NOT_PLAIN: Final = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""A symbolic link, a folder, a socket. Source: open(2)."""

ResultT = TypeVar("ResultT")


class CheckpointError(RuntimeProxyError):
    """The checkpoint cannot be read or written just now."""


class UnusableFileError(CheckpointError):
    """The file is damaged, foreign or of a newer version: no later attempt can succeed."""


class NotPlainError(Exception):
    """Not a plain file."""


class CheckpointFile:
    """The file, opened at its first use.

    Commits survive the end of the process by any signal, without waiting for the disk. A loss of power may
    take the file, but it takes the containers that it is about as well.

    Nothing of it is mapped into memory: a mapped file that another program cuts ends the process (SIGBUS).
    So there is a rollback journal, and no write-ahead log, whose index is mapped. Both processes of an
    upgrade write in turn, and commands read while the daemon runs.

    Args:
        folder: The state folder; made if it is missing.
        read_only: Changes nothing in the file, but for taking back a write that was cut short, and takes a
            missing one for empty. SQLite may leave empty companions beside it all the same.
        recreates: Begins a new file when the old one was removed or is unusable; an unusable one is renamed.

    Attributes:
        set_aside: How many unusable files were set aside.
        aside: Where a file was put that could not be used; empty for none.
        lost: How often the file was removed or replaced while it was open here.
    """

    def __init__(self, folder: Path, *, read_only: bool = False, recreates: bool = False) -> None:
        self.path = folder / FILE_NAME
        self.set_aside = 0
        self.aside = ""
        self.lost = 0
        self._read_only = read_only
        self._recreates = recreates
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        # Size and time of the last change, as this process left the file.
        self._left: tuple[int, int] | None = None
        self._data_version = 0
        self._is_changed_by_others = False
        self._is_written = False
        self._has_wal = False
        self._is_of_this_boot = True

    def load(self) -> Saved:
        """Everything in the file.

        Raises:
            UnusableFileError: See there.
            CheckpointError: The file cannot be read.
        """
        if self._read_only and not self.path.exists():
            return Saved()
        try:
            return self._guarded(self._load)
        except UnusableFileError as error:
            self._replace(error)
            return self._guarded(self._load)

    def write(self, changes: Iterable[RowChange], *, everything: bool = False) -> bool:
        """Writes changes, all or none.

        `everything`: whether the changes take the place of all that is in the file.

        Returns:
            Whether nothing was written because the file is a new one, and so everything has to be written.

        Raises:
            UnusableFileError: See there.
            CheckpointError: The file cannot be written.
        """
        if self._recreates and self.is_harmed() and not everything:
            return True
        try:
            if self._has_wal:
                # Only a new connection may leave it: one that has read pages does not see what is changed
                # by others in between.
                self._close_for_now()
            self._guarded(lambda connection: self._write(connection, changes, everything=everything))
        except UnusableFileError as error:
            self._replace(error)
            if not everything:
                return True
            self._guarded(lambda connection: self._write(connection, changes, everything=True))
        return False

    def is_harmed(self, *, after_writes: bool = False) -> bool:
        """Whether the opened file is gone, or not as SQLite left it: then everything has to be written.

        An unusable one is set aside.

        Args:
            after_writes: Whether to look for harm that was done while this process wrote, too.

        Raises:
            CheckpointError: The file cannot be read.
        """
        if self.was_lost():
            self.lost += 1
            logger.warning("%s was removed or replaced: all records are saved again", self.path)
            return True
        left, now = self._left, self._state()
        if self._connection is None or (left == now and not (after_writes and self._is_written)):
            return False
        try:
            # SQLite keeps pages that are free, and would begin anew in an empty file.
            least_bytes = max(1, left[0]) if left is not None else 1
            self._examine(is_cut=now is None or now[0] < least_bytes)
        except UnusableFileError as error:
            self._replace(error)
            return True
        self._is_changed_by_others |= left != now
        return False

    def was_lost(self) -> bool:
        """Whether the opened file has been removed or replaced; the next use opens the new one."""
        if self._connection is None:
            return False
        try:
            is_same = self.path.stat().st_ino == self._inode
        except OSError:
            is_same = False
        if not is_same:
            self.close()
        return not is_same

    def changed_by_others(self) -> bool:
        """Whether another process has written since the last call; False if the file cannot be read."""
        with suppress(CheckpointError):
            self._is_changed_by_others |= self._guarded(self._note_data_version)
        is_changed, self._is_changed_by_others = self._is_changed_by_others, False
        return is_changed

    def close(self) -> None:
        """Closes the file; the next use opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _close_for_now(self) -> None:
        """Closes the file, for the next use to open it again."""
        # A new connection does not see that others have written before it was there.
        self._is_changed_by_others = True
        self.close()

    def _examine(self, *, is_cut: bool) -> None:
        """Reads the whole file anew: a process of ours may have changed it, or one that knows no SQLite.

        What this connection has in memory may be in the file no more, and would hide that.

        Raises:
            UnusableFileError: The file is damaged.
            CheckpointError: The file cannot be read.
        """
        if is_cut:
            raise UnusableFileError(f"{self.path}: cut")
        self._close_for_now()
        (found,) = self._guarded(lambda connection: connection.execute("PRAGMA quick_check(1)").fetchone())
        if found != "ok":
            raise UnusableFileError(f"{self.path}: damaged")
        self._is_written = False

    def _write(
        self, connection: sqlite3.Connection, changes: Iterable[RowChange], *, everything: bool
    ) -> None:
        _write(connection, changes, everything=everything)
        self._left, self._is_written = self._state(), True

    def _state(self) -> tuple[int, int] | None:
        """Size and time of the last change; None if there is no file."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns

    def _replace(self, error: UnusableFileError) -> None:
        if not self._recreates:
            raise error
        self.close()
        try:
            aside = set_aside(self.path)
        except OSError as failure:
            raise CheckpointError(f"{self.path}: {failure.strerror}") from failure
        self.set_aside += 1
        self.aside = str(aside)
        logger.warning("the records are rebuilt from the runtime: %s; the file is kept as %s", error, aside)

    def _load(self, connection: sqlite3.Connection) -> Saved:
        self._note_data_version(connection)
        if self._read_only and not _has_tables(connection):
            return Saved()
        found: dict[RowKind, list[Any]] = {kind: [] for kind in RowKind}
        unreadable = 0
        unclean: list[PodRecord | ContainerRecord] = []
        queries = ["SELECT kind, id, body FROM records ORDER BY rowid"]
        if _has_table(connection, "books"):
            queries.append("SELECT 4, id, body FROM books ORDER BY rowid")  # Kind.BOOK
        for query in queries:
            with closing(connection.execute(query)) as rows:
                for kind, identity, body in rows:
                    try:
                        record = decode(RowKind(kind), str(identity), body)
                    except ValueError:
                        unreadable += 1
                        continue
                    found[RowKind(kind)].append(record)
                    if isinstance(record, PodRecord | ContainerRecord) and LAST_APPLIED in body:
                        unclean.append(record)
        if unclean and not self._read_only:
            self._clean(connection, unclean)
        pods, containers, cgroups, books = (tuple(found[kind]) for kind in RowKind)
        if not self._is_of_this_boot:
            # Version 0.1 did not say of which boot its values are; those of before are in no file.
            cgroups = ()
        return Saved(pods, containers, cgroups, books, unreadable)

    def _clean(self, connection: sqlite3.Connection, records: Iterable[PodRecord | ContainerRecord]) -> None:
        """Takes the annotation that earlier versions saved out of the file, free pages included."""
        connection.execute("BEGIN IMMEDIATE")
        for record in records:
            kind = RowKind.POD if isinstance(record, PodRecord) else RowKind.CONTAINER
            connection.execute(_REPLACE_BODY, (encode(record), kind, record.id))
        connection.execute("COMMIT")
        # A predecessor that still has it open may keep this from being done now.
        with suppress(sqlite3.OperationalError):
            connection.execute("VACUUM")
        self._left = self._state()

    def _note_data_version(self, connection: sqlite3.Connection) -> bool:
        before = self._data_version
        # It changes with the commits of other connections only. Source: sqlite.org, pragma data_version.
        (self._data_version,) = connection.execute("PRAGMA data_version").fetchone()
        return before not in (0, self._data_version)

    def _guarded(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        # All failures become the two errors of this module.
        try:
            if self._connection is None:
                self._connection = self._open()
            return work(self._connection)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            kind = UnusableFileError if code in _DAMAGED else CheckpointError
            raise kind(f"{self.path}: {error}") from error
        except UnicodeDecodeError as error:
            # SQLite's message about a damaged schema may quote names that are not text.
            raise UnusableFileError(f"{self.path}: damaged") from error
        except NotPlainError as error:
            raise UnusableFileError(f"{self.path}: not a plain file") from error
        except OSError as error:
            raise CheckpointError(f"{self.path}: {error.strerror}") from error

    def _open(self) -> sqlite3.Connection:
        self._is_of_this_boot = self._last_written_s() >= boot_time_s()
        if not self._read_only:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._inode = make_private(self.path)
        try:
            connection = self._connected("ro" if self._read_only else "rw")
        except sqlite3.OperationalError as error:
            if not self._read_only or error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
            connection = self._connected("rw")
        self._data_version = 0
        self._note_data_version(connection)
        self._left = self._state()
        return connection

    def _connected(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _last_written_s(self) -> float:
        """When the file was last written; now, if there is none."""
        found = []
        for suffix in ("", "-wal"):
            with suppress(OSError):
                found.append(self.path.with_name(self.path.name + suffix).stat().st_mtime)
        return max(found, default=time.time())

    def _set_up(self, connection: sqlite3.Connection) -> None:
        # A checkpoint of a thousand containers has about 1 MiB; the node's memory is not for caching it.
        connection.execute("PRAGMA cache_size = -256")
        connection.execute("PRAGMA mmap_size = 0")
        # What is deleted is no longer in the file.
        connection.execute("PRAGMA secure_delete = ON")
        if not self._read_only:
            self._has_wal = not _left_wal(connection)
        identity = _identity(connection)
        if identity is None and not self._read_only:
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
            identity = _identity(connection)
        if identity is not None:
            application, version = identity
            if application != APPLICATION_ID:
                raise UnusableFileError(f"{self.path}: not a checkpoint of this program")
            if version != SCHEMA_VERSION:
                raise UnusableFileError(
                    f"{self.path}: version {version}, this program knows {SCHEMA_VERSION}"
                )
        connection.execute("PRAGMA synchronous = OFF")
        if not self._read_only:
            connection.execute(_BOOKS)


def _left_wal(connection: sqlite3.Connection) -> bool:
    """Chooses the rollback journal, in place of an earlier version's write-ahead log, too.

    Returns:
        Whether it is used; False while a predecessor of such a version has the file open.
    """
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        connection.execute("PRAGMA journal_mode = TRUNCATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return False
    else:
        return True
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")


def boot_time_s() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def make_private(path: Path) -> int:
    """Makes a file if it is missing, and closes it to all but its owner; returns its inode.

    To be called while this process has not opened the database: closing any descriptor of it drops the
    locks. Source: fcntl(2), "Record locking".

    Raises:
        NotPlainError: The path leads to something else than a plain file.
        OSError: Any other error of the kernel.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            raise NotPlainError from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotPlainError
        if stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(descriptor, 0o600)
        return status.st_ino
    finally:
        os.close(descriptor)


def set_aside(path: Path) -> Path:
    """Renames a database with its companions, and removes the oldest renamed ones; returns the new name.

    Raises:
        OSError: The database cannot be renamed.
    """
    aside = path.with_name(f"{path.name}.unusable-{time.time_ns()}")
    for suffix in _COMPANIONS:
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    found = path.parent.glob(f"{path.name}.unusable-*")
    names = {each.name.removesuffix("-wal").removesuffix("-shm") for each in found}
    for name in sorted(names)[:-MOST_SET_ASIDE]:
        for suffix in _COMPANIONS:
            with suppress(OSError):
                path.with_name(name + suffix).unlink()
    return aside


def _identity(connection: sqlite3.Connection) -> tuple[int, int] | None:
    """Application id and version of the file; None if it is empty."""
    # In one transaction, because another process may be making the file just now.
    connection.execute("BEGIN")
    try:
        has_tables = _has_tables(connection)
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    finally:
        connection.execute("COMMIT")
    return (application, version) if has_tables or application or version else None


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE name = ?"
    return connection.execute(query, (name,)).fetchone() is not None


def _has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def _write(connection: sqlite3.Connection, changes: Iterable[RowChange], *, everything: bool) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if everything:
            connection.execute("DELETE FROM records")
            connection.execute("DELETE FROM books")
        for change in changes:
            if change.kind is RowKind.BOOK:
                _write_book(connection, change)
            elif change.record is None:
                connection.execute(_DELETE, (change.kind, change.id))
            else:
                row = (change.kind, change.id, change.rank, encode(change.record))
                connection.execute(_WRITE, row)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _write_book(connection: sqlite3.Connection, change: RowChange) -> None:
    """Takes the place of what version 0.1 knew of the cgroup, too."""
    connection.execute(_DELETE, (RowKind.CGROUP, change.id))
    if change.record is None:
        connection.execute(_DELETE_BOOK, (change.id,))
    else:
        connection.execute(_WRITE_BOOK, (change.id, encode(change.record)))
