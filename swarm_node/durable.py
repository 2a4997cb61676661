"""Files for their owner alone, which a crash leaves either old or new, never half written.

The content goes to a file beside the final one (`*.new`), to the disk, and then to its name, so no
reader and no power cut sees half of it. A killed writer can leave the other file behind.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import IO

LEFTOVERS = "*.new"


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read it. Nothing else is waited for, such as a pipe without a writer.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    return _regular(path, os.O_RDONLY)


def open_lock(path: Path) -> IO[bytes]:
    """Open a file to hold its lock, and make it if it is not there. A pipe is not waited for.

    Raises:
        OSError: it cannot be written, or is no regular file.
    """
    return _regular(path, os.O_RDWR | os.O_CREAT)


def _regular(path: Path, flags: int) -> BufferedReader:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "it is no regular file")


def create_private(path: Path, data: bytes) -> None:
    """Write a new file with mode 0600.

    Raises:
        OSError: the file exists, as a link too, or cannot be written.
    """
    _write(path, data, os.link)


def replace_private(path: Path, data: bytes) -> None:
    """Write a file with mode 0600; it replaces an existing one.

    Raises:
        OSError: it cannot be written. The old file is still there, unless only the last step
            failed: the sync of the new name.
    """
    _write(path, data, os.replace)


def replace_like(path: Path, data: bytes) -> None:
    """Write a file with the mode and the owner of the one in its place; 0600 if there is none.

    Raises:
        OSError: it cannot be written, or given to that owner.
    """
    _write(path, data, os.replace, path.stat() if path.exists() else None)


class Journal:
    """A file of lines, for its owner alone. At `limit` bytes it gets the suffix `.1` and replaces
    the earlier `.1`, so both together stay within twice the limit."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.old = path.with_name(f"{path.name}.1")
        self._limit = limit

    def append(self, line: bytes) -> None:
        """Write a line, which has no line end.

        Raises:
            OSError: it cannot be written.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size and size + len(line) >= self._limit:
                os.replace(self.path, self.old)
                self.append(line)
                return
            if size:
                file.seek(size - 1)
                line = line if file.read(1) == b"\n" else b"\n" + line  # a crash cut a line
            file.write(line + b"\n")

    def lines(self, offset: int | None = None) -> Iterator[bytes]:
        """All lines, the oldest first, or those after `offset` bytes of the newer file. A line that
        a crash cut may be among them."""
        for path in (self.old, self.path) if offset is None else (self.path,):
            with suppress(OSError), open_regular(path) as file:
                file.seek(offset or 0)
                yield from file


def make_private(directory: Path) -> None:
    """Make a directory with mode 0700, and the missing ones above it.

    Raises:
        OSError: it cannot be made, or is no directory.
    """
    missing_paths = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in (*reversed(missing_paths), directory):  # pathlib gives parents another mode
        path.mkdir(mode=0o700, exist_ok=True)
    for path in missing_paths:
        sync(path.parent)


def is_private(path: Path) -> bool:
    """Check that this user owns a file or directory, and that nobody else may write it.

    Raises:
        OSError: it is not there.
    """
    status = path.stat()
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022


def sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(
    path: Path,
    data: bytes,
    name_it: Callable[[str, Path], None],
    template: os.stat_result | None = None,
) -> None:
    descriptor, temp_path = tempfile.mkstemp(LEFTOVERS[1:], f"{path.name}.", path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if template is not None:
                os.fchown(descriptor, template.st_uid, template.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(template.st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        name_it(temp_path, path)
        sync(path.parent)
    finally:
        Path(temp_path).unlink(missing_ok=True)
