"""Backup of a home into one file while its node runs, and restore into a new home.

The file is a plain tar with mode 0600, in this order: keys, membership, lists, a consistent copy of
the database, the newest checkpoint if asked for, and last `manifest.json`, which has the size and
the sha256 of every other member. The reader takes nothing else: no links, no directories, and no
name, size or byte between the files that the writer would not write. It trusts no byte before the
manifest verified all of them, and puts nothing in place before `inventory.judge` found a whole home
in it.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated

import msgspec
from msgspec import Meta, Struct

from swarm_node.durable import open_regular
from swarm_node.errors import HomeError, reason_of, words_of
from swarm_node.node.home.home import Home
from swarm_node.node.home.inventory import RECORD
from swarm_node.node.home.stocktaking import take_stock
from swarm_node.p2p.membership.membership import MAX_UNIX_SECONDS

#: The small files of a home, each if it is there.
SMALL_FILES = (
    *("node.key", "root.key", "site.key", "swarm.json", "membership", "bootstrap", "port"),
    "settings.json",
    *("issuer.key", "issuer.certificate", "revoked", "secret", "admitted"),
    *("invitations.json", "tickets.json", "bans.json"),
)
_DATABASE, _MANIFEST = "node.db", "manifest.json"
_CHECKPOINT = re.compile(r"checkpoints/v\d{10,19}/[a-z]{1,20}\.(safetensors|msgpack)")
_MAX_SMALL = 8 << 20
#: A database takes 1 GiB and what its pages leave empty; the rest is for checkpoints.
_MAX_DATABASE, _MAX_LARGE = 4 << 30, 1 << 40
_MAX_MEMBERS = 64
_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1 << 20


class BackedUpFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file in a backup: its size in bytes and its sha256 in hex."""

    size: Annotated[int, Meta(ge=0)]
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class _Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=1, le=1)]
    files: dict[str, BackedUpFile]


@dataclass(frozen=True)
class Backup:
    """A backup that was written or restored; `made` is in Unix seconds."""

    made: int
    files: dict[str, BackedUpFile]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(member.size for member in self.files.values())


def back_up(home: Home, out: Path, *, now: float, checkpoint: Path | None = None) -> Backup:
    """Write all of `home` into the new file `out`. A node may run in the home. `checkpoint` is the
    directory of one to include.

    Raises:
        HomeError: `out` exists or cannot be written, or the home cannot be read.
    """
    home.swarm()  # or there is nothing to keep
    small = [home.path / name for name in SMALL_FILES if (home.path / name).exists()]
    large = sorted(checkpoint.iterdir()) if checkpoint is not None else []
    copied = home.database.exists()
    names = [*(path.name for path in small), *([_DATABASE] * copied)]
    names += [f"checkpoints/{path.parent.name}/{path.name}" for path in large]
    files: dict[str, BackedUpFile] = {}
    try:
        with ExitStack() as stack:
            target = stack.enter_context(_new_file(out))
            opened: list[IO[bytes]] = [stack.enter_context(open_regular(path)) for path in small]
            if copied:
                opened.append(stack.enter_context(_copy_of(home.database, out.parent)))
            # All are open before the first is copied: the node may delete a checkpoint meanwhile.
            opened += [stack.enter_context(path.open("rb")) for path in large]
            for name, file in zip(names, opened, strict=True):
                files[name] = _append(target, name, file, now)
            manifest = msgspec.json.encode(_Manifest(1, files))
            _append(target, _MANIFEST, io.BytesIO(manifest), now)
            target.write(bytes(2 * _BLOCK))  # the end of a tar
    except FileExistsError:
        raise HomeError(f"{out} exists already: choose another name for the backup") from None
    except (OSError, sqlite3.Error) as error:
        raise HomeError(f"cannot write the backup {out}: {words_of(error)}") from error
    return Backup(int(now), files)


def restore(home: Home, source: Path) -> Backup:
    """Restore a backup into the unused `home`. Its node starts a new epoch of its log, as at every
    start, so it reuses no number from after the backup.

    Raises:
        HomeError: the home is in use or was used; the backup is damaged, or holds what no backup
            holds. Nothing is restored then.
    """
    home.create()
    with home.lock():
        for name in (*SMALL_FILES, _DATABASE, home.checkpoints.name, RECORD):
            if (home.path / name).exists():
                raise HomeError(
                    f"{home.path} is in use already ({name} is there): restore into a new "
                    "directory, --home DIR"
                )
        place = Path(tempfile.mkdtemp(prefix=".restoring-", dir=home.path))
        try:
            restored = _Reader(source, place).read()
            _check(place, source)
            for path in sorted(place.iterdir()):
                path.rename(home.path / path.name)
            home.record()
        except OSError as error:
            raise HomeError(
                f"cannot restore {source} into {home.path}: {reason_of(error)}"
            ) from error
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return restored


def _check(place: Path, source: Path) -> None:
    """Raise unless the files of a backup, now in `place`, are those of a home that starts.

    Raises:
        HomeError: with every fault.
    """
    stock = take_stock(place, deep=True)
    judged = stock.judged()
    unknown = [fault for fault in judged.errors if fault.file != RECORD]
    if unknown or judged.state == "new":
        said = "; ".join(fault.found for fault in unknown) or "it holds no files of a home"
        raise HomeError(f"{source} is not a usable backup ({said}): take another, or an older one")


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file with mode 0600, synced at the end; it is deleted if anything fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def _copy_of(database: Path, beside: Path) -> Iterator[IO[bytes]]:
    """A consistent copy of a database that may be in use, for as long as the context lasts."""
    with tempfile.NamedTemporaryFile(dir=beside, prefix=".backup-", suffix=".db") as file:
        with (
            closing(sqlite3.connect(database, timeout=30)) as source,
            closing(sqlite3.connect(file.name)) as target,
        ):
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")  # so that it is one file
        with Path(file.name).open("rb") as copy:
            yield copy


def _append(target: IO[bytes], name: str, file: IO[bytes], now: float) -> BackedUpFile:
    """Write one member of the tar and return its entry for the manifest."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    target.write(_header(name, size, int(now)))
    digest, left = hashlib.sha256(), size
    while left:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            raise OSError(f"{name} shrank while it was read: try again")
        digest.update(chunk)
        target.write(chunk)
        left -= len(chunk)
    target.write(bytes(-size % _BLOCK))
    return BackedUpFile(size, digest.hexdigest())


def _header(name: str, size: int, made: int) -> bytes:
    """The header of a member: the same fields give the same bytes."""
    header = tarfile.TarInfo(name)
    header.size, header.mode, header.mtime = size, 0o600, made
    return header.tobuf(tarfile.GNU_FORMAT)


@dataclass
class _Reader:
    """Reads a backup into the empty directory `place`. tarfile's own reader would follow links,
    create any path that a header names, and read headers of any size into memory."""

    source: Path
    place: Path
    made: int = 0
    found: dict[str, BackedUpFile] = field(default_factory=dict)

    def read(self) -> Backup:
        try:
            if self.source.exists() and not self.source.is_file():  # a pipe may never have an end
                raise self._damaged("it is no regular file")
            with self.source.open("rb") as file:
                while (raw := self._next(file)) is None:
                    pass
                if file.read(2 * _BLOCK + 1) != bytes(2 * _BLOCK):
                    raise self._damaged("more than the end follows its manifest")
        except OSError as error:
            raise HomeError(f"cannot read the backup {self.source}: {error.strerror}") from error
        try:
            manifest = msgspec.json.decode(raw, type=_Manifest)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"its manifest: {error}") from error
        if manifest.files != self.found:
            raise self._damaged("its files are not those of its manifest")
        return Backup(self.made, self.found)

    def _next(self, file: IO[bytes]) -> bytes | None:
        """Read one member. Return the bytes of the manifest, which is the last member, and None
        before it."""
        block = file.read(_BLOCK)
        try:
            header = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.TarError, ValueError) as error:  # UnicodeDecodeError is one
            raise self._damaged("it is cut short, or no backup") from error
        name, size = header.name, header.size
        large = name == _DATABASE or _CHECKPOINT.fullmatch(name) is not None
        if header.type != tarfile.REGTYPE or name in self.found or len(self.found) >= _MAX_MEMBERS:
            raise self._damaged("it holds what no backup holds")
        if not large and name not in (*SMALL_FILES, _MANIFEST):
            raise self._damaged(f"it holds {name[:80]!r}, which no backup holds")
        most = _MAX_DATABASE if name == _DATABASE else _MAX_LARGE if large else _MAX_SMALL
        if not 0 <= size <= most:
            raise self._damaged(f"{name} is too large")
        if not 0 <= header.mtime < MAX_UNIX_SECONDS:
            raise self._damaged("its date is impossible")
        if block != _header(name, size, int(header.mtime)):
            raise self._damaged("a header is not as backups have it")
        if name == _MANIFEST:
            self.made = int(header.mtime)
            return b"".join(self._content(file, name, size))
        if size > shutil.disk_usage(self.place).free:
            raise HomeError(
                f"no room for {name}, {size:,} bytes, in {self.place.parent}: free some"
            )
        path = self.place / name
        for parent in reversed(path.relative_to(self.place).parents):
            (self.place / parent).mkdir(mode=0o700, exist_ok=True)
        digest = hashlib.sha256()
        with _new_file(path) as target:
            for chunk in self._content(file, name, size):
                digest.update(chunk)
                target.write(chunk)
        self.found[name] = BackedUpFile(size, digest.hexdigest())
        return None

    def _content(self, file: IO[bytes], name: str, size: int) -> Iterator[bytes]:
        left = size
        while left:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                raise self._damaged(f"it is cut short, in {name}")
            left -= len(chunk)
            yield chunk
        if any(file.read(-size % _BLOCK)):
            raise self._damaged(f"the padding after {name} is not empty")

    def _damaged(self, what: str) -> HomeError:
        return HomeError(f"{self.source} is not a usable backup ({what}): take another copy of it")
