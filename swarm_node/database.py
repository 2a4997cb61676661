"""An SQLite file that survives a crash: the base of a node's database and of a coordinator's.

WAL mode with synchronous=FULL: when a transaction has ended, its data survives kill -9 and, if the
disk flushes when told to, a power cut.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from swarm_node.errors import HomeError, StorageError
from swarm_node.version import __version__

_BUSY_SECONDS = 5.0
#: The journal keeps at most this size between transactions.
WAL_BYTES = 16 << 20


class Database:
    """One connection behind one lock, so any thread may call. Every method raises `HomeError` if
    the file is damaged, `StorageError` if a later call may succeed, and then stores nothing of the
    call."""

    def __init__(
        self, path: Path, tables: str, *, layout: int, program: str, exclusive: bool = False
    ) -> None:
        """Open the database at `path`, or make a new one with mode 0600.

        Args:
            tables: the statements that make a new one, with semicolons between them.
            layout: the number of these tables. A file with another number is left as it is.
            program: the program that writes it, for messages.
            exclusive: keep every other writing process out until it is closed, by a file beside it.

        Raises:
            HomeError: not a database of this layout, or not writable.
        """
        self._path = path
        self._lock = threading.RLock()
        self._lock_fd = _lock(path) if exclusive else None
        with self._explain_errors():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            with self._explain_errors():
                self._prepare(tables, layout, program)
        except HomeError:
            Database.close(self)
            raise

    def close(self) -> None:
        """Merge the write-ahead log into the file and close it."""
        with self._lock, self._explain_errors():
            self._connection.close()
            if self._lock_fd is not None:
                fcntl.flock(
                    self._lock_fd, fcntl.LOCK_UN
                )  # a fork may have the file open for longer
                os.close(self._lock_fd)
                self._lock_fd = None

    def _prepare(self, tables: str, layout: int, program: str) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        with self._transaction() as db:  # which takes the lock, too
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > layout:
                raise HomeError(
                    f"{self._path} was written by a newer {program}", "upgrade this one"
                )
            if 0 < version < layout:
                raise HomeError(
                    f"{self._path} has layout {version}, and {program} {__version__} reads layout "
                    f"{layout} only",
                    "move it away and start again. Keys, membership and "
                    "checkpoints are in other files",
                )
            if version == 0:
                for statement in tables.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {layout}")

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._lock, self._explain_errors():
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._explain_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.OperationalError):  # SQLite may have rolled back
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Turn errors of disk and database into `HomeError`, those that may pass into
        `StorageError`; errors of the caller pass through."""
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise
        except (sqlite3.Error, OSError) as error:
            kind = StorageError if _passes(error) else HomeError
            raise kind(_explanation(self._path, error)) from error


def _passes(error: sqlite3.Error | OSError) -> bool:
    """Check that a later call may succeed. A damaged file stays damaged."""
    lasting = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF not in lasting


def flaw(
    path: Path, tables: str, layout: int
) -> tuple[Literal["empty", "damaged", "newer"], str] | None:
    """Check a database without writing: its layout first, then its tables, then every page. Return
    its flaw with details; None if it is sound. No trigger or view of a stranger is run."""
    if not path.stat().st_size:
        return "empty", ""
    try:
        with contextlib.closing(read_only(path)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA cell_size_check = ON")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > layout:
                return "newer", f"version {version}"
            if version < layout or _objects(database) != _objects_of(tables):
                return "damaged", "its tables are not those of this program"
            (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
            return None if result == "ok" else ("damaged", str(result)[:200])
    except sqlite3.Error as error:
        return "damaged", str(error)[:200]


def read_rows(path: Path, layout: int, query: str, *values: Any) -> list[Any]:
    """Rows of a database without writing; none of another layout.

    Raises:
        HomeError: it is damaged, or cannot be read.
    """
    try:
        with contextlib.closing(read_only(path)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            return database.execute(query, values).fetchall() if version == layout else []
    except sqlite3.Error as error:
        raise HomeError(_explanation(path, error)) from error


def read_only(path: Path) -> sqlite3.Connection:
    """Open a database without writing."""
    # Without a journal nobody has it open, and a reader need not make one.
    journal = path.with_name(f"{path.name}-wal").exists()
    name = f"{path.absolute().as_uri()}?{'mode=ro' if journal else 'immutable=1'}"
    return sqlite3.connect(name, uri=True, timeout=30)


def _objects(database: sqlite3.Connection) -> set[tuple[str, str, str | None]]:
    """The tables, indices, triggers and views of a database."""
    return set(database.execute("SELECT type, name, sql FROM sqlite_master").fetchmany(1000))


def _objects_of(tables: str) -> set[tuple[str, str, str | None]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.executescript(tables)
        return _objects(database)


def _lock(path: Path) -> int:
    """Hold the file `.lock` beside a database for this process and return its descriptor.

    Raises:
        HomeError: another process holds it, or it cannot be made.
    """
    try:
        descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise HomeError(_explanation(path, error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise HomeError(f"{path} is in use by another process", "stop that one first") from error
    return descriptor


def _explanation(path: Path, error: sqlite3.Error | OSError) -> str:
    """Explain an error in one line for the person who runs the node."""
    # The low byte is the primary result code; the rest says where it happened.
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return f"no space left for {path}: free some, nothing stored so far is lost"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return (
                f"{path} is damaged ({error}): move it away and start again; key, membership and "
                "checkpoints are in other files"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"{path} is in use by another process: stop that one first"
        case _:
            return f"cannot use the database {path} ({error}): check the disk and its permissions"
