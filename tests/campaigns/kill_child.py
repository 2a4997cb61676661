"""The process that `kill.py` kills. It writes everything a node stores, by the product's own
writers, and says after each write what it has acknowledged.

It dies by SIGKILL of its own hand at a named point, or by its parent's at any time.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from swarm_node.durable import replace_private
from swarm_node.node.home.home import Home
from swarm_node.p2p.wire.envelope import content_id
from swarm_node.p2p.wire.identity import Identity
from swarm_node.policy.training.checkpoints import checkpoint
from swarm_node.policy.training.checkpoints.checkpoint import TrainingState
from swarm_node.policy.training.checkpoints.checkpoint_writer import CheckpointWriter
from swarm_node.policy.training.checkpoints.stored import newest_valid
from swarm_node.policy.weights.store import WeightStore
from swarm_node.rollout import Provenance
from swarm_node.storage import KnownPeer, Storage, StoredGroup, WindowRow

NOW = 1_800_000_000.0
KEEP_OWN, KEEP_RECEIVED = 20, 20
#: Calls of the operating system before and after which the child may die.
_CALLS = ("fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir")


class Killer:
    """Counts how often each point is reached, and ends the process at the `count`-th of `point`."""

    def __init__(self, point: str, count: int, report: Callable[[str], None]) -> None:
        self.point, self.count, self.report = point, count, report
        self.reached: Counter[str] = Counter()

    def here(self, point: str) -> None:
        self.reached[point] += 1
        if point == self.point and self.reached[point] == self.count:
            self.report(point)
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """Count calls between the product and the operating system, and before each statement of
        SQLite."""
        for name in _CALLS:
            setattr(os, name, self._around(name, getattr(os, name)))
        connect = sqlite3.connect

        def watched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            connection = connect(*args, **kwargs)
            connection.set_trace_callback(
                lambda statement: self.here(f"before {' '.join(statement.split()[:2])}")
            )
            return connection

        sqlite3.connect = watched  # type: ignore[assignment]

    def _around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.here(f"before {name}")
            result = call(*args, **kwargs)
            self.here(f"after {name}")
            return result

        return wrapped


class NodeLife:
    """One life of a node, without its network and without training."""

    def __init__(self, place: Path, seed: int, say: Callable[..., None]) -> None:
        self._rng, self._say = random.Random(seed), say
        self._home = Home(place / "home")
        self._place = place
        self._writer = CheckpointWriter(self._home.checkpoints)

    def run(self) -> None:
        """Start, and write until the end comes."""
        rng, say = self._rng, self._say
        say("begins")
        with self._home.lock():
            self._open()
            say("open", self._storage.epoch)
            doings = (
                *(self._publish, self._publish, self._accept, self._accept, self._train),
                *(self._train, self._claim, self._prune, self._meet, self._retire, self._port),
                *(self._checkpoint, self._weights, self._skip),
            )
            while True:
                rng.choice(doings)()

    def _open(self) -> None:
        if not self._home.has_swarm:
            self._home.found_swarm("team", NOW)
        self._home.membership()
        self._storage = Storage(self._home.database, wall=lambda: NOW)
        self._storage.begin_epoch()
        newest = newest_valid(self._home.checkpoints)
        self._version = 0 if newest is None else checkpoint.read(newest).version
        checkpoint.remove_leftovers(self._home.checkpoints)
        weights = self._place / "weights"
        shutil.rmtree(weights, ignore_errors=True)  # each node has a directory of its own
        weights.mkdir()
        self._store = WeightStore(weights)
        rows = {row.author: row for row in self._storage.windows()}
        self._seen = {author: row.high for author, row in rows.items()}
        self._untrained = [row.id for row in self._storage.live(1)]

    def _group(self, author: str, epoch: int, seq: int, provenance: Provenance) -> StoredGroup:
        head = f"{author} {epoch} {seq} ".encode()
        blob = head + self._rng.randbytes(self._rng.randrange(50, 20_000))
        return StoredGroup(
            content_id(blob), author, epoch, seq, provenance, blob, "q", (0.0, 1.0), 0
        )

    def _publish(self) -> None:
        first, epoch = self._storage.next_seq(), self._storage.epoch
        count = self._rng.randrange(1, 4)
        rows = [
            self._group("me", epoch, seq, Provenance.LOCAL) for seq in range(first, first + count)
        ]
        self._storage.publish([(row, b"announced") for row in rows])
        self._say("published", [(row.id.hex(), epoch, row.seq) for row in rows])
        self._untrained += [row.id for row in rows]

    def _accept(self) -> None:
        author = self._rng.choice("ab")
        seq = self._seen.get(author, 0) + 1
        row = self._group(author, 1, seq, Provenance.SAME_MODEL)
        self._storage.accept(row, WindowRow(author, 1, seq, bytes(128)))
        self._seen[author] = seq
        self._say("accepted", author, seq, row.id.hex())
        self._untrained.append(row.id)

    def _skip(self) -> None:
        """A group of equal rewards: only its number is kept."""
        author = self._rng.choice("ab")
        self._seen[author] = self._seen.get(author, 0) + 1
        self._storage.save_window(WindowRow(author, 1, self._seen[author], bytes(128)))
        self._say("skipped", author, self._seen[author])

    def _train(self) -> None:
        chosen = [self._untrained.pop() for _ in range(min(3, len(self._untrained)))]
        self._storage.record_use(chosen)
        self._say("used", [identifier.hex() for identifier in chosen])
        with (self._place / "trained").open("ab", buffering=0) as file:
            file.write(b"".join(identifier.hex().encode() + b"\n" for identifier in chosen))

    def _claim(self) -> None:
        self._say("claimed", self._storage.advance("tasks", 5))

    def _retire(self) -> None:
        self._storage.retire(self._untrained[:1])

    def _prune(self) -> None:
        self._storage.prune(KEEP_OWN, KEEP_RECEIVED)
        kept = {row.id for row in self._storage.live(1)}
        self._untrained = [each for each in self._untrained if each in kept]

    def _meet(self) -> None:
        name = f"peer {self._rng.randrange(50)}"
        self._storage.remember_peers([KnownPeer(name, ("/ip4/10.0.0.1/tcp/1",), 1.0)])

    def _port(self) -> None:
        (self._home.path / "port").unlink(missing_ok=True)
        self._home.port()
        replace_private(self._home.path / "number", b"%d\n" % self._rng.randrange(1 << 30))
        name = f"key {self._rng.randrange(1 << 30)}"
        identity = Identity.load_or_create(self._home.path / name)
        self._say("key", name, identity.peer_id)

    def _checkpoint(self) -> None:
        self._version += 1
        path = self._writer.begin(state(self._version), copy=True)
        self._writer.finish()
        self._say("checkpoint", path.name)

    def _weights(self) -> None:
        self._version += 1
        self._store.publish(self._version, {"w": torch.full((64,), float(self._version))})
        self._say("weights", self._version)


def state(version: int) -> TrainingState:
    """A checkpoint whose numbers follow from its version."""
    return TrainingState(
        version=version,
        updates=version,
        weights={"w": torch.full((64, 3), float(version))},
        optimizer={"exp_avg:w": torch.full((64, 3), version / 2)},
        rng=b"\1",
        settings={},
        model=b"m" * 32,
    )


def sound_weights(directory: Path) -> int:
    """The newest version in `directory`, whose files are all whole; 0 without one."""
    newest = 0
    for path in directory.glob("weights-*.safetensors"):
        version = int(path.stem.removeprefix("weights-"))
        assert (load_file(path)["w"] == version).all(), path
        newest = max(newest, version)
    return newest


def live(place: Path, seed: int, point: str, count: int, pipe: int) -> None:
    """The whole life of the child."""

    def say(*words: object) -> None:
        os.write(pipe, json.dumps(words).encode() + b"\n")

    killer = Killer(point, count, lambda where: say("dies", where))
    if point:
        killer.install()
    NodeLife(place, seed, say).run()
