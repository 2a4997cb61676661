"""Kills a process that stores what a node stores, again and again, and looks at what is left.

    PYTHONPATH=tests python -m campaigns.kill --rounds 1000

Half of the kills come at a random time, half at a named point: before or after a call of the
operating system, or before a statement of SQLite. A kill leaves the page cache as it was, so this
says nothing of power cuts: `crashes.py` is about those.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from campaigns.kill_child import KEEP_OWN, KEEP_RECEIVED, NOW, live, sound_weights, state

from swarm_node.durable import LEFTOVERS
from swarm_node.node.home.home import Home
from swarm_node.p2p.wire.identity import Identity
from swarm_node.policy.training.checkpoints import checkpoint
from swarm_node.policy.training.checkpoints.stored import newest_valid
from swarm_node.storage import Storage

#: Kills after which the next life begins with a new home, in which it founds a swarm.
LIVES = 25
_POINTS = (
    *(
        f"{when} {name}"
        for name in ("fsync", "replace", "rename", "link", "unlink")
        for when in ("before", "after")
    ),
    *("before mkdir", "before rmdir", "after rmdir", "before BEGIN IMMEDIATE", "before COMMIT"),
    *("before INSERT INTO", "before UPDATE groups", "before REPLACE INTO", "before DELETE FROM"),
    *(
        "before PRAGMA user_version",
        "before ALTER TABLE",
        "before CREATE INDEX",
        "before CREATE TABLE",
    ),
    *("before PRAGMA journal_mode", "before INSERT OR"),
)


class Acknowledged:
    """Acknowledged writes, over the lives of one home."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, int], str] = {}
        self.published: list[str] = []
        self.accepted: list[str] = []
        self.high: Counter[str] = Counter()
        self.claimed = -5
        self.used: set[str] = set()
        self.keys: dict[str, str] = {}
        self.checkpoint = ""
        self.weights = 0
        self.epoch = 0
        self.said = 0

    def read(self, lines: list[list[Any]]) -> str:  # noqa: C901 - one case per kind of line
        """Take in what a life acknowledged. Return the point at which it says that it dies."""
        dies = ""
        for what, *values in lines:
            self.said += 1
            match what:
                case "open":
                    assert values[0] > self.epoch, "an epoch was begun twice"
                    self.epoch = values[0]
                case "begins":
                    self.weights = 0
                case "published":
                    for name, epoch, seq in values[0]:
                        assert self.numbers.setdefault((epoch, seq), name) == name, "signed twice"
                        self.published.append(name)
                case "accepted":
                    self.high[values[0]] = values[1]
                    self.accepted.append(values[2])
                case "skipped":
                    self.high[values[0]] = values[1]
                case "used":
                    self.used.update(values[0])
                case "claimed":
                    assert values[0] >= self.claimed + 5, "numbers were given out twice"
                    self.claimed = values[0]
                case "key":
                    self.keys[values[0]] = values[1]
                case "checkpoint":
                    self.checkpoint = values[0]
                case "weights":
                    self.weights = values[0]
                case "dies":
                    dies = values[0]
        return dies


def check(place: Path, ledger: Acknowledged) -> None:
    """Check the state that a start finds. Any exception is a defect."""
    home = Home(place / "home")
    with home.lock():
        assert not list(home.path.glob(LEFTOVERS)), "a start leaves files of killed writers"
    if ledger.epoch:
        home.membership()
        for small in (home.path / "port", home.path / "number"):
            assert not small.exists() or small.read_bytes().endswith(b"\n"), "half a file"
        for name, peer_id in ledger.keys.items():
            assert Identity.load(home.path / name).peer_id == peer_id
    for path in home.path.glob("key *"):
        Identity.load(path)  # also one that was not acknowledged is whole
    _check_checkpoints(home, ledger)
    assert sound_weights(place / "weights") >= ledger.weights, "a published version is lost"
    if not home.database.exists():
        return  # and what looks at a home makes nothing in it
    storage = Storage(home.database, wall=lambda: NOW)
    try:
        _check_storage(storage, ledger, place)
    finally:
        storage.close()


def _check_checkpoints(home: Home, ledger: Acknowledged) -> None:
    damaged: list[str] = []
    newest = newest_valid(home.checkpoints, lambda path, why: damaged.append(why))
    assert not damaged, damaged
    if ledger.checkpoint:
        assert newest is not None
        assert newest.name >= ledger.checkpoint, "an acknowledged checkpoint is lost"
    if newest is not None:
        read = checkpoint.read(newest)
        assert (read.weights["w"] == state(read.version).weights["w"]).all()


def _check_storage(storage: Storage, ledger: Acknowledged, place: Path) -> None:
    rows = {row.id.hex(): row for row in storage.live(1 << 30)}
    assert not storage.faults, "a row is damaged"
    for row in rows.values():
        assert row.blob.startswith(f"{row.author} {row.epoch} {row.seq} ".encode())
        if row.author == "me":
            name = ledger.numbers.setdefault((row.epoch, row.seq), row.id.hex())
            assert name == row.id.hex(), "a number was signed twice"
    # A prune may have come before the kill and after the last acknowledged group.
    for names, keep in ((ledger.published, KEEP_OWN), (ledger.accepted, KEEP_RECEIVED)):
        for name in names[-keep + 3 :]:
            assert storage.blob(bytes.fromhex(name)) is not None, "an acknowledged group is lost"
    query = "SELECT count(*) FROM groups WHERE provenance = 'local' AND epoch = ?"
    _, head, left_out, listed = storage.announcements(storage.epoch, 0, 1000)
    assert left_out + len(listed) == storage._rows(query, storage.epoch)[0][0], "log and groups"
    assert head >= max((seq for epoch, seq in ledger.numbers if epoch == storage.epoch), default=0)
    # What was stored and not acknowledged counts among the newest from now on.
    query = "SELECT id FROM groups WHERE provenance = ? ORDER BY arrival"
    ledger.published = [each[0].hex() for each in storage._rows(query, "local")]
    ledger.accepted = [each[0].hex() for each in storage._rows(query, "same_model")]
    windows = {row.author: row.high for row in storage.windows()}
    for author, high in ledger.high.items():
        assert high <= windows[author] <= high + 1, "a window went back or ahead"
    ledger.high = Counter(windows)
    assert storage.counter("tasks") >= ledger.claimed + 5, "a counter went back"
    for name in ledger.used & set(rows):
        assert rows[name].uses == 1, "an acknowledged use is lost"
    trained = place / "trained"
    done = trained.read_text().split() if trained.exists() else []
    assert len(done) == len(set(done)), "a group was trained on twice"
    fresh = {row.id.hex() for row in storage.live(1)}
    assert not fresh & set(done), "a group that was trained on may be trained on again"
    storage.known_peers(100)


def one_life(place: Path, seed: int, point: str, count: int, after: float) -> list[list[Any]]:
    """Fork, let it live until it dies, and return what it said. `after` seconds it is killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            live(place, seed, point, count, writing)
        except BaseException as error:  # noqa: BLE001 - whatever ends it is told, and the process must not go on
            os.write(writing, json.dumps(["failed", repr(error)]).encode() + b"\n")
        finally:
            os._exit(1)
    os.close(writing)
    if not point:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    said, ends = bytearray(), time.monotonic() + 20
    os.set_blocking(reading, False)
    while time.monotonic() < ends:
        try:
            chunk = os.read(reading, 1 << 16)
        except BlockingIOError:
            time.sleep(0.002)
            # A point that is not reached any more ends a life late.
            if point and time.monotonic() > ends - 18.5:
                os.kill(child, signal.SIGKILL)
            continue
        if not chunk:
            break
        said += chunk
    os.close(reading)
    os.waitpid(child, 0)
    return [json.loads(line) for line in said.splitlines(keepends=True) if line.endswith(b"\n")]


def run(rounds: int, seed: int) -> tuple[Counter[str], int, list[str]]:
    """(kills by place, acknowledgements, defects)."""
    rng = random.Random(seed)
    died: Counter[str] = Counter()
    defects: list[str] = []
    said = 0
    while died.total() < rounds:
        with tempfile.TemporaryDirectory() as folder:
            place, ledger = Path(folder), Acknowledged()
            for life in range(min(LIVES, rounds - died.total())):
                point = rng.choice(_POINTS) if rng.random() < 0.5 else ""
                count = rng.randrange(1, 4 if life == 0 else 12)
                lines = one_life(place, rng.randrange(1 << 30), point, count, rng.uniform(0, 0.2))
                failed = [line[1] for line in lines if line[0] == "failed"]
                try:
                    where = ledger.read([line for line in lines if line[0] != "failed"])
                    check(place, ledger)
                except Exception as error:  # noqa: BLE001 - every one is what this program looks for
                    failed.append(f"{type(error).__name__}: {error}")
                died[where if point and where else "at random"] += 1
                if failed:
                    defects += [f"{point or 'at random'}: {each}" for each in failed]
                    break
            said += ledger.said
    return died, said, defects


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    died, said, defects = run(options.rounds, options.seed)
    for where, number in died.most_common():
        print(f"{number:6} {where}")
    for defect, number in Counter(defects).most_common(20):
        print(f"  DEFECT {number} times: {defect}")
    print(f"{died.total()} kills, {said:,} acknowledged writes, {len(defects)} defects")
    return min(1, len(defects))


if __name__ == "__main__":
    sys.exit(main())
