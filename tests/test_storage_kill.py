"""The database under kill -9 of a real process. The page cache outlives the process, so this says
nothing of power cuts: those rest on synchronous=FULL."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from swarm_node.storage import MAX_LISTED, Storage

KILLS = 25
WRITER = """
import json, random, sys
from pathlib import Path
from swarm_node.rollout import Provenance
from swarm_node.schema import KnownPeer
from swarm_node.storage import Storage, StoredGroup, WindowRow

rng = random.Random(int(sys.argv[2]))
storage = Storage(Path(sys.argv[1]))

def say(*words):
    print(json.dumps(words), flush=True)

def group(name, epoch, seq, provenance):
    identifier = name.encode().ljust(34, b".")
    blob = rng.randbytes(rng.randrange(100, 30000))
    return StoredGroup(identifier, "a", epoch, seq, provenance, blob, "q", (0.0, 1.0), 0)

say("open")
(window,) = storage.windows() or [WindowRow("peer", 1, 0, bytes(128))]
seen = window.high
usable = [row.id.decode() for row in storage.live(1 << 30)]
while True:
    match rng.randrange(5):
        case 0:
            first = storage.next_seq()
            rows = [
                group(f"own {seq}", storage.epoch, seq, Provenance.OWN)
                for seq in range(first, first + rng.randrange(1, 4))
            ]
            storage.publish([(row, b"announce %d" % row.seq) for row in rows])
            say("published", [row.seq for row in rows])
            usable += [row.id.decode() for row in rows]
        case 1:
            seen += 1
            row = group(f"received {seen}", 1, seen, Provenance.KIN)
            storage.accept(row, WindowRow("peer", 1, seen, bytes(128)))
            say("accepted", seen)
            usable.append(row.id.decode())
        case 2 if usable:
            chosen = rng.sample(usable, min(3, len(usable)))
            storage.record_use([name.encode() for name in chosen])
            say("used", chosen)
        case 3:
            say("claimed", storage.advance("tasks", 5))
        case 4:
            peers = [KnownPeer(f"peer {i}", ("/ip4/10.0.0.1/tcp/1",), 1.0) for i in range(50)]
            storage.remember_peers(rng.sample(peers, 20))
"""


@pytest.mark.slow(reason="starts and kills 25 processes")
def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """A process that publishes, accepts, uses and claims is killed at a random moment, again and
    again; whatever it had said to be done must be there, and nothing may be there twice."""
    rng = random.Random(20)
    path, writer = tmp_path / "node.db", tmp_path / "writer.py"
    writer.write_text(WRITER)
    published, accepted, claimed = 0, 0, -5
    uses: Counter[str] = Counter()
    acknowledged = 0
    for number in range(KILLS):
        lines = _write_until_killed(writer, path, number, rng.uniform(0.0, 0.15))
        acknowledged += len(lines) - 1
        for what, *values in lines:
            match what:
                case "published":
                    assert values[0][0] == published + 1
                    published = values[0][-1]
                case "accepted":
                    accepted = values[0]
                case "used":
                    uses.update(values[0])
                case "claimed":
                    assert values[0] >= claimed + 5, "numbers were given out twice"
                    claimed = values[0]
        storage = Storage(path)
        announced = tuple(f"announce {seq}".encode() for seq in range(1, storage.head() + 1))
        *_, left_out, listed = storage.announcements(storage.epoch, 0, MAX_LISTED)
        assert listed == announced[-MAX_LISTED:]
        assert left_out + len(listed) == len(announced)
        assert published <= storage.head()
        stored = {row.id.decode(): row for row in storage.live(1 << 30)}
        for seq in range(1, storage.head() + 1):
            assert f"own {seq}".ljust(34, ".") in stored
        high = sum(window.high for window in storage.windows())
        assert accepted <= high <= accepted + 1
        assert {f"received {seq}".ljust(34, ".") for seq in range(1, high + 1)} <= set(stored)
        for name, row in stored.items():
            assert uses[name] <= row.uses <= uses[name] + 1
        in_flight = sum(row.uses - uses[name] for name, row in stored.items())
        assert in_flight <= 3, "more uses than one call can have been making"
        published, accepted = storage.head(), high
        uses = Counter({name: row.uses for name, row in stored.items()})
        storage.close()
    assert acknowledged > 10 * KILLS


def _write_until_killed(writer: Path, path: Path, seed: int, after: float) -> list[list[object]]:
    """What the writer acknowledged until it was killed `after` seconds past opening."""
    process = subprocess.Popen(
        [sys.executable, str(writer), str(path), str(seed)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    opened = process.stdout.readline()
    timer = threading.Timer(after, process.send_signal, [signal.SIGKILL])
    timer.start()
    rest = process.stdout.read()
    timer.join()
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    # The last line may have been cut short.
    return [
        json.loads(line) for line in (opened + rest).splitlines(keepends=True) if line[-1] == "\n"
    ]
