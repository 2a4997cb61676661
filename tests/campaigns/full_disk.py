"""Fills the disk, or breaks it, at every write of everything that a node stores.

    PYTHONPATH=tests python -m campaigns.full_disk

A small tmpfs in a mount namespace of its own is filled, each time with one page more of free space.
Then the calls of the operating system fail one by one with EIO, and writes of SQLite with EFBIG. A
writer must raise the error that its docstring names, leave what was there before, and succeed once
there is room again.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from campaigns.kill_child import NOW, sound_weights, state

from swarm_node.durable import LEFTOVERS, replace_private
from swarm_node.errors import CheckpointError, HomeError, SwarmNodeError, WeightsError
from swarm_node.node.home.home import Home
from swarm_node.p2p.wire.envelope import content_id
from swarm_node.policy.training.checkpoints import checkpoint
from swarm_node.policy.training.checkpoints.stored import newest_valid
from swarm_node.policy.weights.store import WeightStore
from swarm_node.rollout import Provenance
from swarm_node.storage import KnownPeer, Storage, StoredGroup, WindowRow

PAGE = 4096
MOST = 4 << 20
_CALLS = ("fsync", "replace", "rename", "link", "mkdir")


@dataclass(frozen=True)
class DiskWriter:
    """`prepare` makes what is there before, `write` raises `error` or succeeds, and `look` raises
    if what it finds is neither the old nor the new state; its second argument is true if `write`
    succeeded."""

    name: str
    error: type[SwarmNodeError] | type[OSError]
    prepare: Callable[[Path], object]
    write: Callable[[Path], object]
    look: Callable[[Path, bool], object]


def writers() -> list[DiskWriter]:
    def found(place: Path) -> None:
        home = Home(place / "home")
        if not home.has_swarm:
            home.found_swarm("team", NOW)

    def founded(place: Path, done: bool) -> None:
        home = Home(place / "home")
        if done or home.has_swarm:
            home.membership()
        if home.path.exists():
            with home.lock():
                assert not list(home.path.glob(LEFTOVERS))

    def port(place: Path, done: bool) -> None:
        assert Home(place).kept_port() or not done

    return [
        DiskWriter("a swarm founded", HomeError, lambda place: None, found, founded),
        DiskWriter("a port", HomeError, lambda place: None, lambda place: Home(place).port(), port),
        DiskWriter(
            "a small file",
            OSError,
            lambda place: replace_private(place / "file", b"old" * 5000),
            lambda place: replace_private(place / "file", b"new" * 5000),
            lambda place, done: _same(
                (place / "file").read_bytes(), b"new", b"" if done else b"old"
            ),
        ),
        DiskWriter(
            "a checkpoint",
            CheckpointError,
            lambda place: checkpoint.save(place / "checkpoints", state(1)),
            lambda place: checkpoint.save(place / "checkpoints", state(2)),
            _find_checkpoint,
        ),
        DiskWriter(
            "weights",
            WeightsError,
            lambda place: _publish(place, 1),
            lambda place: _publish(place, 2),
            lambda place, done: _same(sound_weights(place), 2, 2 if done else 1),
        ),
        DiskWriter(
            "a new database", HomeError, lambda place: None, _open, lambda place, done: None
        ),
        DiskWriter("groups", HomeError, _open, _store, _find_groups),
    ]


def _same(found: object, new: object, old: object) -> None:
    whole = [each * 5000 if isinstance(each, bytes) else each for each in (new, old)]
    assert found in whole, f"found {str(found)[:20]}"


def _find_checkpoint(place: Path, done: bool) -> None:
    root = place / "checkpoints"
    damaged: list[str] = []
    newest = newest_valid(root, lambda path, why: damaged.append(why))
    assert newest is not None
    assert not damaged, damaged
    version = checkpoint.read(newest).version
    assert version == 2 or (version == 1 and not done), f"found version {version}"
    assert not list(root.glob(".writing-*")), "half a checkpoint fills the disk"


def _publish(place: Path, version: int) -> None:
    weights = {"w": torch.full((8192,), float(version))}
    WeightStore(place).publish(version, weights)


def _open(place: Path) -> None:
    storage = Storage(place / "node.db", wall=lambda: NOW)
    storage.begin_epoch()
    storage.close()


def _row(author: str, epoch: int, seq: int) -> StoredGroup:
    provenance = Provenance.LOCAL if author == "me" else Provenance.SAME_MODEL
    blob = random.Random(f"{author} {epoch} {seq}").randbytes(9000)
    identifier = content_id(blob)
    return StoredGroup(identifier, author, epoch, seq, provenance, blob, "q", (0.0, 1.0), 0)


def _store(place: Path) -> None:
    """Write everything that a node stores, in turn. Each step that returned is noted outside of
    this disk."""
    storage = Storage(place / "node.db", wall=lambda: NOW)
    ledger: dict[str, Any] = _LEDGER
    try:
        if storage.epoch != ledger.get("epoch"):
            ledger.update(epoch=storage.epoch, seen=ledger.get("seen", 0))
        for _ in range(4):
            row = _row("me", storage.epoch, storage.next_seq())
            storage.publish([(row, b"announced")])
            ledger.setdefault("groups", []).append(row.id)
            ledger["seen"] += 1
            row = _row("peer", 1, ledger["seen"])
            storage.accept(row, WindowRow("peer", 1, ledger["seen"], bytes(128)))
            ledger["groups"].append(row.id)
            storage.record_use([row.id])
            ledger.setdefault("used", []).append(row.id)
            assert storage.advance("tasks", 5) >= ledger.get("tasks", 0)
            ledger["tasks"] = storage.counter("tasks")
            storage.remember_peers([KnownPeer("peer", ("/ip4/10.0.0.1/tcp/1",), 1.0)])
            storage.prune(4096)
    finally:
        storage.close()


_LEDGER: dict[str, Any] = {}


def _find_groups(place: Path, done: bool) -> None:
    storage = Storage(place / "node.db", wall=lambda: NOW)
    try:
        rows = {row.id: row for row in storage.live(1 << 30)}
        assert not storage.faults
        for identifier in _LEDGER.get("groups", []):
            assert identifier in rows, "a stored group is lost"
        for identifier in _LEDGER.get("used", []):
            assert rows[identifier].uses >= 1, "a use is lost"
        assert storage.counter("tasks") >= _LEDGER.get("tasks", 0)
        for row in rows.values():
            assert content_id(row.blob) == row.id
        if "seen" in _LEDGER:
            _LEDGER["seen"] = max([row.seq for row in rows.values() if row.author == "peer"] + [0])
    finally:
        storage.close()


@dataclass
class DiskTally:
    tried: int = 0
    refused: int = 0
    defects: list[str] | None = None

    def wrong(self, what: str) -> None:
        self.defects = [*(self.defects or []), what]


def attempt(
    writer: DiskWriter, place: Path, tally: DiskTally, break_: Callable[[], Callable[[], None]]
) -> bool:
    """Let the writer work on a broken disk, mend the disk, look, and let the writer work again.
    Return True if it succeeded on the broken disk."""
    tally.tried += 1
    _LEDGER.clear()
    writer.prepare(place)
    mend = break_()
    done = False
    try:
        writer.write(place)
        done = True
    except writer.error as error:
        tally.refused += 1
        if not str(error):
            tally.wrong("an error without a message")
    except BaseException as error:  # noqa: BLE001 - every other is what this program looks for
        tally.wrong(f"on the broken disk: {type(error).__name__}: {error}")
    finally:
        mend()
    try:
        writer.look(place, done)
        if not done:
            writer.write(place)
            writer.look(place, True)
    except BaseException as error:  # noqa: BLE001 - every one is what this program looks for
        tally.wrong(f"afterwards: {type(error).__name__}: {error}")
    for each in place.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    return done


def fill(place: Path, free: int) -> Callable[[], None]:
    """Leave `free` bytes; the result makes room again."""
    ballast = place / ".ballast"
    held = os.statvfs(place)
    size = held.f_bavail * held.f_frsize - free
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(PAGE, size))
    return ballast.unlink


def no_room(writer: DiskWriter, place: Path, step: int) -> DiskTally:
    """Try each amount of room, from a full disk to enough."""
    tally = DiskTally()
    for free in range(0, MOST // 2, step):
        if attempt(writer, place, tally, lambda free=free: fill(place, free)) and free > 64 * PAGE:
            break
    return tally


def calls_fail(writer: DiskWriter, place: Path) -> DiskTally:
    """Each call of the operating system fails once with EIO."""
    tally = DiskTally()
    for name in _CALLS:
        for number in range(1, 100):
            real = getattr(os, name)
            left = [number]

            def failing(
                *args: Any, _left: list[int] = left, _real: Any = real, **kwargs: Any
            ) -> Any:
                _left[0] -= 1
                if _left[0] == 0:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return _real(*args, **kwargs)

            def break_(
                name: str = name, failing: Any = failing, real: Any = real
            ) -> Callable[[], None]:
                setattr(os, name, failing)
                return lambda: setattr(os, name, real)

            attempt(writer, place, tally, break_)
            if left[0] > 0:  # there are not so many calls
                break
    return tally


def files_stop_growing(writer: DiskWriter, place: Path, step: int) -> DiskTally:
    """Bound the length of all files: SQLite takes the refusal for an I/O error."""
    tally = DiskTally()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> Callable[[], None]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)

    for size in range(0, MOST // 4, step):
        if attempt(writer, place, tally, lambda size=size: limit(size)) and size > 64 * PAGE:
            break
    return tally


def campaign(place: Path, step: int, small: bool) -> int:
    total = defects = 0
    ways: dict[str, Callable[[DiskWriter], DiskTally]] = {
        "EIO": lambda writer: calls_fail(writer, place),
        "EFBIG": lambda writer: files_stop_growing(writer, place, step),
    }
    if small:
        ways["no room"] = lambda writer: no_room(writer, place, step)
    for writer in writers():
        for how, break_ in ways.items():
            tally = break_(writer)
            found = tally.defects or []
            total, defects = total + tally.tried, defects + len(found)
            print(
                f"{tally.tried:5} tried, {tally.refused:4} refused, {len(found)} bad: "
                f"{writer.name}, {how}"
            )
            for what in sorted(set(found))[:5]:
                print(f"  DEFECT {found.count(what)} times: {what}")
    print(f"{total:,} broken disks, {defects} defects")
    return min(1, defects)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, default=1, help="pages between two sizes")
    parser.add_argument("--place", type=Path, help="a tmpfs that is mounted already")
    options = parser.parse_args()
    if options.place is not None:
        return campaign(options.place, options.step * PAGE, small=True)
    with tempfile.TemporaryDirectory() as place:
        command = f'mount -t tmpfs -o size={MOST} tmpfs "$1" && shift && exec "$@"'
        again = [sys.executable, "-m", "campaigns.full_disk", "--step", str(options.step)]
        isolated = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command, "sh"]
        if shutil.which("unshare") and not subprocess.run([*isolated, place, "true"]).returncode:
            return subprocess.run([*isolated, place, *again, "--place", place]).returncode
        print("no tmpfs can be mounted here: a disk without room is left out")
        return campaign(Path(place), options.step * PAGE, small=False)


if __name__ == "__main__":
    sys.exit(main())
