"""Backup of a home into one file while its node runs, and restore into a new home.

The file is a plain tar with mode 0600, in this order: keys, membership, lists, a consistent copy of
the database, the newest checkpoint if asked for, and last `manifest.json`, which has the size and
the sha256 of every other member. The reader takes nothing else: no links, no directories, and no
name or size that the writer would not write. It trusts no file before the manifest verified all of
them, and puts nothing in place before `file_checks.home_state` found a whole home in it.
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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Self

import msgspec
from msgspec import Meta, Struct

from swarm_node.durable import open_regular
from swarm_node.errors import HomeError, reason_of, words_of
from swarm_node.node.home.file_checks import RECORD
from swarm_node.node.home.home import Home
from swarm_node.node.home.read_files import take_stock
from swarm_node.p2p.membership.membership import MAX_UNIX_SECONDS

#: The small files of a home, each if it is there.
SMALL_FILES = (
    *("node.key", "root.key", "site.key", "swarm.json", "membership", "bootstrap", "port"),
    "settings.json",
    *("issuer.key", "issuer.certificate", "revoked", "secret", "admitted"),
    *("invitations.json", "tickets.json", "blocks.json"),
)
_DATABASE, _MANIFEST = "node.db", "manifest.json"
_CHECKPOINT = re.compile(r"checkpoints/v\d{10,19}/[a-z]{1,20}\.(safetensors|msgpack)")
#: The most bytes of each file. A database takes 1 GiB and what its pages leave empty.
_MOST = {**dict.fromkeys((*SMALL_FILES, _MANIFEST), 8 << 20), _DATABASE: 4 << 30}
_MAX_CHECKPOINT = 1 << 40
_MAX_MEMBERS = 64


class BackedUpFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file in a backup: its size in bytes and its sha256 in hex."""

    size: Annotated[int, Meta(ge=0)]
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class _Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=1, le=1)]
    files: dict[str, BackedUpFile]


@dataclass(frozen=True)
class Backup:
    """A backup that was written or restored; `created_at` is in Unix seconds."""

    created_at: int
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
    if out.exists():
        raise _taken_error(out)
    home.swarm()  # or there is nothing to keep
    small_files = [home.path / name for name in SMALL_FILES if (home.path / name).exists()]
    large_files = sorted(checkpoint.iterdir()) if checkpoint is not None else []
    has_database = home.database.exists()
    names = [*(path.name for path in small_files), *([_DATABASE] * has_database)]
    names += [f"checkpoints/{path.parent.name}/{path.name}" for path in large_files]
    files: dict[str, BackedUpFile] = {}
    try:
        with ExitStack() as stack:
            target = stack.enter_context(_new_file(out))
            streams: list[IO[bytes]] = [
                stack.enter_context(open_regular(path)) for path in small_files
            ]
            if has_database:
                streams.append(stack.enter_context(_copy_of(home.database, out.parent)))
            # All are open before the first is copied: the node may delete a checkpoint meanwhile.
            streams += [stack.enter_context(path.open("rb")) for path in large_files]
            archive = tarfile.TarFile(None, "w", target, tarfile.GNU_FORMAT)
            for name, file in zip(names, streams, strict=True):
                files[name] = _append(archive, name, file, now)
            manifest = msgspec.json.encode(_Manifest(1, files))
            _append(archive, _MANIFEST, io.BytesIO(manifest), now)
            target.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of a tar
    except FileExistsError:
        raise _taken_error(out) from None
    except (OSError, sqlite3.Error) as error:
        raise HomeError(f"cannot write the backup {out}: {words_of(error)}") from error
    return Backup(int(now), files)


def _taken_error(out: Path) -> HomeError:
    return HomeError(f"{out} exists already", "choose another name for the backup")


def restore(home: Home, source: Path) -> Backup:
    """Restore a backup into the unused `home`. Its node starts a new epoch of its log, as at every
    start, so it reuses no number from after the backup.

    Raises:
        HomeError: the home is in use or was used; the backup is damaged, or holds what no backup
            holds. Nothing is restored then.
    """
    _open(source).close()  # before a home is made for it
    home.create()
    with home.lock():
        for name in (*SMALL_FILES, _DATABASE, home.checkpoints.name, RECORD):
            if (home.path / name).exists():
                raise HomeError(
                    f"{home.path} is in use already ({name} is there)",
                    "restore into a new directory, --home DIR",
                )
        place = Path(tempfile.mkdtemp(prefix=".restoring-", dir=home.path))
        try:
            restored = _read(source, place)
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
    home_state = stock.state()
    other_faults = [fault for fault in home_state.errors if fault.file != RECORD]
    if other_faults or home_state.state == "new":
        reason = (
            "; ".join(fault.problem for fault in other_faults)
            or "it holds no files of a data directory"
        )
        raise HomeError(
            f"{source} is not a usable backup ({reason})", "take another, or an older one"
        )


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


class _Hashed:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(size)
        self.digest.update(chunk)
        return chunk


def _append(archive: tarfile.TarFile, name: str, file: IO[bytes], now: float) -> BackedUpFile:
    """Write one member of the tar and return its entry for the manifest."""
    header, hashed = tarfile.TarInfo(name), _Hashed(file)
    header.size, header.mode, header.mtime = file.seek(0, os.SEEK_END), 0o600, int(now)
    file.seek(0)
    archive.addfile(header, hashed)
    return BackedUpFile(header.size, hashed.digest.hexdigest())


class _Header(tarfile.TarInfo):
    """The header of a plain file. tarfile would follow the others, or load what they announce,
    before anybody sees them."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type != tarfile.REGTYPE:
            raise ValueError("it holds what no backup holds")
        return header


def _read(source: Path, place: Path) -> Backup:
    """Read a backup into the empty directory `place`.

    Raises:
        HomeError: the backup is damaged, or holds what no backup holds.
    """
    try:
        with _open(source) as file, tarfile.open(None, "r:", file, tarinfo=_Header) as archive:
            return _unpack(archive, file, place)
    except tarfile.TarError:
        reason = "it is cut short, or no backup"
    except (ValueError, RecursionError) as error:
        reason = str(error)
    except OSError as error:
        raise HomeError(f"cannot read the backup {source}: {reason_of(error)}") from error
    raise _unusable(source, reason)


def _open(source: Path) -> IO[bytes]:
    """
    Raises:
        HomeError: it cannot be opened, or is no regular file: a pipe may never have an end.
    """
    try:
        if source.exists() and not source.is_file():
            raise _unusable(source, "it is no regular file")
        return source.open("rb")
    except OSError as error:
        raise HomeError(f"cannot read the backup {source}: {reason_of(error)}") from error


def _unusable(source: Path, reason: str) -> HomeError:
    return HomeError(f"{source} is not a usable backup ({reason})", "take another copy of it")


def _unpack(archive: tarfile.TarFile, file: IO[bytes], place: Path) -> Backup:
    """Write the files of `archive`, which lies in `file`, into `place`.

    Raises:
        tarfile.TarError, ValueError, RecursionError: it is no backup.
        HomeError: there is no room for a file.
    """
    files: dict[str, BackedUpFile] = {}
    for header in archive:
        name, size, content = header.name, header.size, archive.extractfile(header)
        max_bytes = _MAX_CHECKPOINT if _CHECKPOINT.fullmatch(name) else _MOST.get(name)
        if max_bytes is None or content is None or name in files or len(files) >= _MAX_MEMBERS:
            raise ValueError(f"it holds {name[:80]!r}, which no backup holds")
        if not 0 <= size <= max_bytes:
            raise ValueError(f"{name} is too large")
        if not 0 <= header.mtime < MAX_UNIX_SECONDS:
            raise ValueError("its date is impossible")
        if name == _MANIFEST:
            manifest = msgspec.json.decode(content.read(), type=_Manifest)
            file.seek(header.offset_data + size)
            rest = file.read(2 * tarfile.RECORDSIZE)  # zeros up to a record end a tar
            if len(rest) == 2 * tarfile.RECORDSIZE or any(rest):
                raise ValueError("more than the end follows its manifest")
            if manifest.files != files:
                raise ValueError("its files are not those of its manifest")
            return Backup(int(header.mtime), files)
        if size > shutil.disk_usage(place).free:
            raise HomeError(f"no room for {name}, {size:,} bytes, in {place.parent}", "free some")
        path = place / name
        for parent in reversed(path.relative_to(place).parents):
            (place / parent).mkdir(mode=0o700, exist_ok=True)
        hashed = _Hashed(content)
        with _new_file(path) as target:
            shutil.copyfileobj(hashed, target)
        files[name] = BackedUpFile(size, hashed.digest.hexdigest())
    raise ValueError("it is cut short, or no backup")
