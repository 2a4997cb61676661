"""A directory that only its owner can read: small files that are replaced as a whole, and locks.

A small file begins with a line that has its version and the sha256 of the rest, so that a reader
knows a newer file, half a file and a changed bit before it parses anything.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from swarm_node.durable import (
    LEFTOVERS,
    make_private,
    open_lock,
    open_regular,
    replace_private,
)
from swarm_node.errors import HomeError, StorageError

#: Bytes of a small file; a full list of `admitted` subjects is the longest.
MAX_KEPT_BYTES = 4 << 20
#: The version of small files, which is read before the rest.
FILE_VERSION = 1
_HEAD = re.compile(rb"swarm-node file (\d{1,6}) ([0-9a-f]{64})\n")

Flaw = Literal["empty", "damaged", "newer"]


def with_head(data: bytes) -> bytes:
    """Return a small file with the content `data`."""
    digest = hashlib.sha256(data).hexdigest()
    return f"swarm-node file {FILE_VERSION} {digest}\n".encode() + data


def content_of(raw: bytes) -> bytes | Flaw:
    """Return the content of a small file, or its flaw."""
    if not raw:
        return "empty"
    head = _HEAD.match(raw)
    if head is None or int(head[1]) < 1:
        return "damaged"
    if int(head[1]) > FILE_VERSION:
        return "newer"
    data = raw[head.end() :]
    return data if hashlib.sha256(data).hexdigest().encode() == head[2] else "damaged"


def why_unwritable(directory: Path) -> str:
    """Why this user can neither write into a directory nor make it, "" if one is possible. Nothing
    is written."""
    path = directory.absolute()
    try:
        ancestor = next(place for place in (path, *path.parents) if place.exists())
        if not ancestor.is_dir():
            return f"{ancestor} is not a directory"
        return "" if os.access(ancestor, os.W_OK | os.X_OK) else f"{ancestor} cannot be written"
    except OSError as error:  # a directory above it cannot be entered
        return str(error.strerror).lower()


class PrivateDirectory:
    """Small files under one directory, which one node uses at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser()

    def create(self) -> None:
        """Make the directory (mode 0700) if it is not there.

        Raises:
            HomeError: it cannot be made.
        """
        self._require_text()
        try:
            make_private(self.path)
        except OSError as error:
            raise HomeError(
                f"cannot make the data directory {self.path}: {error.strerror}",
                "choose another with --home",
            ) from error

    def check(self) -> None:
        """Raise unless this user can write into the directory or make it. Nothing is written.

        Raises:
            HomeError: neither is possible.
        """
        self._require_text()
        if reason := why_unwritable(self.path):
            raise HomeError(
                f"cannot use the data directory {self.path}: {reason}", "choose another with --home"
            )

    def _require_text(self) -> None:
        """Refuse a name that messages between processes and programs cannot carry."""
        try:
            str(self.path).encode()
        except UnicodeEncodeError as error:
            raise HomeError(
                f"cannot use the data directory {self.path}: its name is no text in UTF-8",
                "choose another with --home",
            ) from error

    def load(self, name: str) -> bytes | None:
        """Read a small file; return None if it does not exist. A flawed file is returned as it
        lies, which no reader takes for content: a running node goes on with what it has, and its
        next start names the file (`file_checks.py`).

        Raises:
            HomeError: it is too long.
            StorageError: it cannot be read now.
        """
        try:
            with open_regular(self.path / name) as file:
                data = file.read(MAX_KEPT_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._storage_error("read", name, error) from error
        if len(data) > MAX_KEPT_BYTES:
            raise HomeError(f"{self.path / name} is too long", "restore it from a backup")
        content = content_of(data)
        return content if isinstance(content, bytes) else data

    def save(self, name: str, data: bytes) -> None:
        """Replace a small file.

        Raises:
            StorageError: it cannot be written now.
        """
        try:
            replace_private(self.path / name, with_head(data))
        except OSError as error:
            raise self._storage_error("write", name, error) from error

    def _storage_error(self, action: str, name: str, error: OSError) -> StorageError:
        return StorageError(f"cannot {action} {self.path / name}: {error.strerror}")

    def in_use(self) -> bool:
        """Check for a running node in this home, without writing anything."""
        try:
            with open_regular(self.path / "lock") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no file, no regular one, or not of this user
            return False
        return False

    def refuse_in_use(self) -> None:
        """Raise if a node runs in this home.

        Raises:
            HomeError: one does.
        """
        if self.in_use():
            raise HomeError(self._in_use_message())

    def _in_use_message(self) -> str:
        return (
            f"a node is already running in {self.path}; see `swarm-node status`, "
            "or use another --home"
        )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold this home for one process.

        Raises:
            HomeError: another process has it, or it cannot be written.
        """
        self.create()
        try:
            file = open_lock(self.path / "lock")
        except OSError as error:
            raise HomeError(
                f"cannot write into the data directory {self.path}: {error.strerror}"
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise HomeError(self._in_use_message()) from error
            if self.path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                import structlog  # short commands, which import this module, rarely log

                log = structlog.get_logger(__name__)
                log.warning(
                    "other users can enter the data directory", remedy=f"chmod 700 {self.path}"
                )
            for leftover in self.path.glob(LEFTOVERS):
                leftover.unlink(missing_ok=True)
            holder = os.getpid()
            try:
                yield
            finally:
                if os.getpid() == holder:  # a fork of a program has the file open for longer
                    fcntl.flock(file, fcntl.LOCK_UN)

    @contextmanager
    def editing(self, lock: str = "editing") -> Iterator[None]:
        """Hold the lock under which a command reads a small file and writes it anew. Others that
        want the same `lock`, a file's name, wait. Not to be nested.

        Raises:
            HomeError: the home cannot be written.
        """
        try:
            file = open_lock(self.path / lock)
        except OSError as error:
            raise HomeError(f"cannot write into {self.path}: {error.strerror}") from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
