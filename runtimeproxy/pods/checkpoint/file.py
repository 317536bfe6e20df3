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
from typing import TYPE_CHECKING, Any, Final, TypeVar

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.pods.checkpoint.codec import (
    Change,
    Kind,
    Saved,
    decode_cgroup,
    decode_container,
    decode_pod,
    encode,
)
from runtimeproxy.pods.records import CgroupRecord, ContainerRecord, PodRecord

if TYPE_CHECKING:
    from pathlib import Path

MOST_SET_ASIDE: Final = 3
"""Databases that were of no use and are kept; older ones are removed."""

_COMPANIONS: Final = ("", "-wal", "-shm")
"""Source: sqlite.org/wal.html."""

_NOT_PLAIN: Final = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""A symbolic link, a folder, a socket. Source: open(2)."""


class NotPlainError(Exception):
    """What stands there is no plain file."""


def make_private(path: Path) -> int:
    """Makes a file if it is missing, and closes it to all but its owner; returns its inode.

    To be called while this process has not opened the database: closing any descriptor of it drops the
    locks. Source: fcntl(2), "Record locking".

    Raises:
        NotPlainError: see there.
        OSError: as the kernel says.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            raise NotPlainError from error
        raise
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise NotPlainError
        if stat.S_IMODE(about.st_mode) & 0o077:
            os.fchmod(descriptor, 0o600)
        return about.st_ino
    finally:
        os.close(descriptor)


def set_aside(path: Path) -> Path:
    """Renames a database with its companions, and removes the oldest such ones; returns the new name.

    Raises:
        OSError: as the kernel says.
    """
    aside = path.with_name(f"{path.name}.unusable-{time.time_ns()}")
    for suffix in _COMPANIONS:
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    _remove_oldest(path)
    return aside


def _remove_oldest(path: Path) -> None:
    found = path.parent.glob(f"{path.name}.unusable-*")
    names = {each.name.removesuffix("-wal").removesuffix("-shm") for each in found}
    for name in sorted(names)[:-MOST_SET_ASIDE]:
        for suffix in _COMPANIONS:
            with suppress(OSError):
                path.with_name(name + suffix).unlink()


FILE_NAME: Final = "records.db"
"""Name of the file in the state folder."""

APPLICATION_ID: Final = 0x6B727870
"""Tells this file from others' databases: "krxp". Source: sqlite.org, pragma application_id."""

SCHEMA_VERSION: Final = 1
"""In `user_version`; a file with a higher one belongs to a newer program."""

BUSY_TIMEOUT_S: Final = 2.0
"""How long to wait while another process writes, as around an upgrade."""

_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS records (
    kind INTEGER NOT NULL, id TEXT NOT NULL, rank INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, id)
);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

_WRITE: Final = """
INSERT INTO records (kind, id, rank, body) VALUES (?, ?, ?, ?)
ON CONFLICT (kind, id) DO UPDATE SET rank = excluded.rank, body = excluded.body WHERE excluded.rank >= rank
"""

_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
"""The last one stands for a table or column that is missing. Source: sqlite.org/rescode.html."""

ResultT = TypeVar("ResultT")


class CheckpointError(RuntimeProxyError):
    """The checkpoint cannot be read or written just now."""


class UnusableFileError(CheckpointError):
    """The file is damaged, somebody else's or of a newer version: it has to make way."""


class CheckpointFile:
    """The file, opened when it is first needed.

    What is committed survives the end of the process by any signal. A loss of power may take the last
    changes, and with them takes the containers that they are about.
    """

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        """Prepares the file; nothing is opened yet.

        Args:
            folder: The state folder; it is made if it is missing.
            read_only: Whether nothing in it is changed, and a file that is missing counts as empty. SQLite
                may leave empty companions beside it all the same.
        """
        self._path = folder / FILE_NAME
        self._read_only = read_only
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._data_version = 0

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._path

    def load(self) -> Saved:
        """Everything in the file.

        Raises:
            UnusableFileError: see there; `set_aside` makes way for a new file.
            CheckpointError: the file cannot be read.
        """
        if self._read_only and not self._path.exists():
            return Saved()
        return self._guarded(self._load)

    def write(self, changes: Iterable[Change]) -> None:
        """Writes changes, all or none.

        Raises:
            UnusableFileError: see there.
            CheckpointError: the file cannot be written.
        """
        self._guarded(lambda connection: _write(connection, changes, everything=False))

    def rewrite(self, changes: Iterable[Change]) -> None:
        """Writes changes in place of all that is in the file.

        Raises:
            UnusableFileError: see there.
            CheckpointError: the file cannot be written.
        """
        self._guarded(lambda connection: _write(connection, changes, everything=True))

    def was_lost(self) -> bool:
        """Whether the file is no longer the one that was opened; the next use opens the new one."""
        if self._connection is None:
            return False
        try:
            is_same = self._path.stat().st_ino == self._inode
        except OSError:
            is_same = False
        if not is_same:
            self.close()
        return not is_same

    def changed_by_others(self) -> bool:
        """Whether another process has written since the last call of this; False if that cannot be told."""
        with suppress(CheckpointError):
            return self._guarded(self._note_data_version)
        return False

    def set_aside(self) -> Path:
        """Renames the file and its companions, and removes the oldest of those set aside.

        Returns:
            The new name.

        Raises:
            CheckpointError: it cannot be renamed.
        """
        self.close()
        try:
            return set_aside(self._path)
        except OSError as error:
            raise CheckpointError(f"{self._path}: {error.strerror}") from error

    def close(self) -> None:
        """Closes the file; the next use opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _load(self, connection: sqlite3.Connection) -> Saved:
        self._note_data_version(connection)
        if self._read_only and not _has_tables(connection):
            return Saved()
        found: dict[Kind, list[Any]] = {kind: [] for kind in Kind}
        unreadable = 0
        with closing(connection.execute("SELECT kind, id, body FROM records ORDER BY rowid")) as rows:
            for kind, identity, body in rows:
                try:
                    found[Kind(kind)].append(_DECODERS[Kind(kind)](str(identity), body))
                except ValueError:
                    unreadable += 1
        return Saved(
            tuple(found[Kind.POD]), tuple(found[Kind.CONTAINER]), tuple(found[Kind.CGROUP]), unreadable
        )

    def _note_data_version(self, connection: sqlite3.Connection) -> bool:
        before = self._data_version
        # It changes with the commits of other connections only. Source: sqlite.org, pragma data_version.
        (self._data_version,) = connection.execute("PRAGMA data_version").fetchone()
        return before not in (0, self._data_version)

    def _guarded(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        """Opens the file if need be, and makes one kind of error of all."""
        try:
            if self._connection is None:
                self._connection = self._opened()
            return work(self._connection)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            kind = UnusableFileError if code in _DAMAGED else CheckpointError
            raise kind(f"{self._path}: {error}") from error
        except UnicodeDecodeError as error:
            # Python decodes what SQLite says of a damaged schema, which may quote names that are no text.
            raise UnusableFileError(f"{self._path}: damaged") from error
        except NotPlainError as error:
            raise UnusableFileError(f"{self._path}: not a plain file") from error
        except OSError as error:
            raise CheckpointError(f"{self._path}: {error.strerror}") from error

    def _opened(self) -> sqlite3.Connection:
        if not self._read_only:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._inode = make_private(self._path)
        mode = "ro" if self._read_only else "rw"
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.text_factory = _text
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        self._data_version = 0
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        # A checkpoint of a thousand containers has about 1 MiB; the node's memory is not for caching it.
        connection.execute("PRAGMA cache_size = -256")
        identity = _identity(connection)
        if identity is None and not self._read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
            identity = _identity(connection)
        if identity is not None:
            self._check(*identity)
        connection.execute("PRAGMA synchronous = NORMAL")

    def _check(self, application: int, version: int) -> None:
        if application != APPLICATION_ID:
            raise UnusableFileError(f"{self._path}: not a checkpoint of this program")
        if version != SCHEMA_VERSION:
            raise UnusableFileError(f"{self._path}: version {version}, this program knows {SCHEMA_VERSION}")


_DECODERS: Final[dict[Kind, Callable[[str, str], PodRecord | ContainerRecord | CgroupRecord]]] = {
    Kind.POD: decode_pod,
    Kind.CONTAINER: decode_container,
    Kind.CGROUP: decode_cgroup,
}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _identity(connection: sqlite3.Connection) -> tuple[int, int] | None:
    """Application id and version of the file; None if nobody has begun it."""
    # In one transaction, for another process may be making the file just now.
    connection.execute("BEGIN")
    try:
        has_tables = _has_tables(connection)
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    finally:
        connection.execute("COMMIT")
    return (application, version) if has_tables or application or version else None


def _has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def _write(connection: sqlite3.Connection, changes: Iterable[Change], *, everything: bool) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if everything:
            connection.execute("DELETE FROM records")
        for change in changes:
            if change.record is None:
                connection.execute("DELETE FROM records WHERE kind = ? AND id = ?", (change.kind, change.id))
            else:
                row = (change.kind, change.id, change.rank, encode(change.record))
                connection.execute(_WRITE, row)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


logger = logging.getLogger(__name__)


class CheckpointDisk:
    """The file as the worker thread sees it: SQLite is loaded with its first use.

    Args:
        folder: The state folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: CheckpointFile | None = None

    def load(self) -> Saved:
        """Everything in the file; nothing if it had to make way for a new one."""
        from runtimeproxy.pods.checkpoint.file import UnusableFileError

        try:
            return self._file().load()
        except UnusableFileError as error:
            self._renew(error)
            return self._file().load()

    def write(self, changes: Iterable[Change]) -> bool:
        """Writes changes; returns True if everything has to be written instead, for the file is a new one."""
        from runtimeproxy.pods.checkpoint.file import UnusableFileError

        file = self._file()
        if file.was_lost():
            logger.warning("%s was removed or replaced: all records are saved again", file.path)
            return True
        try:
            file.write(changes)
        except UnusableFileError as error:
            self._renew(error)
            return True
        return False

    def rewrite(self, changes: Iterable[Change]) -> bool:
        """Writes changes in place of all that is in the file; returns False."""
        from runtimeproxy.pods.checkpoint.file import UnusableFileError

        try:
            self._file().rewrite(changes)
        except UnusableFileError as error:
            self._renew(error)
            self._file().rewrite(changes)
        return False

    def changed_by_others(self) -> bool:
        """Whether another process has written since the last call."""
        return self._file().changed_by_others()

    def close(self) -> None:
        """Closes the file, if it is open."""
        if self._opened is not None:
            self._opened.close()

    def _file(self) -> CheckpointFile:
        if self._opened is None:
            from runtimeproxy.pods.checkpoint.file import CheckpointFile

            self._opened = CheckpointFile(self._folder)
        return self._opened

    def _renew(self, error: Exception) -> None:
        aside = self._file().set_aside()
        logger.warning("the records are rebuilt from the runtime: %s; it is kept as %s", error, aside)
