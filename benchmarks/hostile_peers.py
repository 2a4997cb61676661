"""What hostile members take from a node's learning: ratios to the time just before each attack.

    python benchmarks/hostile_peers.py [--seconds 20] [--repetitions 1] [--attacks costly,long,…]

A real node runs on the first core. An honest member that publishes slowly and the attacker share
the second. Every attack comes right after an undisturbed phase of the same length, with new keys:

costly  groups of 64 kB texts of shapes that cost parsers much (tests/hostile_member.py)
long    answers of 30,000 tokens
junk    malformed, badly signed and repeated requests, as fast as the sender can (tests/flooder.py)
leech   lists and pulls everything, again and again

`rate` is the attacked over the undisturbed rate of batches, and `work` the same per second of
processor time that the node and its children took, which the load of the machine changes less.
`dropped` is when the attacker was left alone for longer than ten seconds, after its first refusal.
In the end the trainer is stopped, so that the node soon waits, and `idle node` is what junk and
leech then cost its process and its network daemon.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from node_process import Memory, NodeProcess, cpu_seconds

from swarm_node.node.snapshot import PeerRow, Snapshot

ROOT = Path(__file__).resolve().parents[1]
QUIET = ["run.eval_seconds=3600"]
ATTACKS = ("costly", "long", "junk", "leech")


@dataclass
class Phase:
    """What a phase found: batches per second, and per second of processor time; cores that node and
    network daemon took; MiB; groups of the honest member."""

    rate: float
    work: float
    network: float
    memory: float
    honest: int
    dropped: float | None
    end: Snapshot


def batches(status: Snapshot) -> int:
    """Batches that the trainer took, those without an advantage too."""
    return status.updates + status.skipped_updates


def network_seconds(founder: NodeProcess, status: Snapshot) -> float:
    pids = founder.process.pid, status.processes["network"]
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def phase(founder: NodeProcess, seconds: float, honest: str, attacker: str = "") -> Phase:
    """Watch the founder for so long, while an attacker of this peer id may be at work."""
    before, began = founder.status(), time.monotonic()
    spent, cpu = network_seconds(founder, before), cpu_seconds(founder.process.pid)
    first = dropped = None
    while (now := time.monotonic()) < began + seconds:
        row = peer(founder.status(), attacker)
        if row is not None and row.rejected and first is None:
            first = now
        if row is not None and getattr(row, "left_seconds", 0.0) > 10.0 and dropped is None:
            dropped = now - (first or now)
        time.sleep(0.5)
    after, took = founder.status(), time.monotonic() - began
    received = [row.received if (row := peer(s, honest)) else 0 for s in (before, after)]
    return Phase(
        rate=(batches(after) - batches(before)) / took,
        work=(batches(after) - batches(before)) / (cpu_seconds(founder.process.pid) - cpu),
        network=(network_seconds(founder, after) - spent) / took,
        memory=Memory.of(founder.process.pid).rss,
        honest=received[1] - received[0],
        dropped=dropped,
        end=after,
    )


def peer(status: Snapshot, peer_id: str) -> PeerRow | None:
    return next((row for row in status.peers if row.peer_id == peer_id), None)


class Attacker:
    """A process that attacks: a modified node, or the flooder."""

    def __init__(self, kind: str, place: Path, ticket: Path, address: str) -> None:
        place.mkdir()
        self._log = place / "log"
        self.peer_id = ""
        self._node: NodeProcess | None = None
        if kind in ("junk", "leech"):
            program = [sys.executable, str(ROOT / "tests" / "flooder.py"), kind]
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [*program, str(place / "home"), str(ticket), address], stdout=log
                )
        else:
            member = str(ROOT / "tests" / "hostile_member.py")
            self._node = NodeProcess(place, QUIET, (member, kind), ticket)

    def begin(self) -> None:
        """Return as soon as it works."""
        if self._node is not None:
            self.peer_id = self._node.start().peer_id
            return
        deadline = time.monotonic() + 60
        while not self._said() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.peer_id = str(self._said()["peer"])

    def end(self) -> dict[str, object]:
        """Stop it; what it says of itself."""
        if self._node is not None:
            self._node.stop()
            return {}
        said = self._said()
        daemon = psutil.Process(int(str(said["pid"])))
        self._process.kill()
        self._process.wait()
        daemon.kill()
        return said

    def _said(self) -> dict[str, object]:
        lines = self._log.read_text().splitlines()
        return json.loads(lines[-1]) if lines else {}


def attack(
    kind: str, place: Path, seconds: float, founder: NodeProcess, honest: str, ticket: Path
) -> tuple[float, float]:
    """One undisturbed phase, one attacked one, and a line about both; the ratios of both rates."""
    quiet = phase(founder, seconds, honest)
    attacker = Attacker(kind, place, ticket, quiet.end.addresses[0])
    attacker.begin()
    attacked = phase(founder, seconds, honest, attacker.peer_id)
    said = attacker.end()
    row = peer(attacked.end, attacker.peer_id)
    ratio, work = attacked.rate / quiet.rate, attacked.work / quiet.work
    dropped = "no" if attacked.dropped is None else f"{attacked.dropped:.1f} s"
    print(
        f"{kind:6}  rate {ratio:.2f} ({quiet.rate:.1f} -> {attacked.rate:.1f}/s)  work {work:.2f}"
        f"  memory {attacked.memory - quiet.memory:+.0f} MiB"
        f"  honest groups {quiet.honest} -> {attacked.honest}  dropped {dropped}"
        f"  refused {getattr(row, 'refused', row and row.rejected)}"
        f"  sent {said or ''}  load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return ratio, work


def idle(
    kind: str, place: Path, seconds: float, founder: NodeProcess, honest: str, ticket: Path
) -> None:
    """What the requests of an attacker cost a node that does nothing else."""
    status = founder.status()
    trainer = psutil.Process(status.processes["trainer"])
    trainer.suspend()
    try:
        time.sleep(10)
        quiet = phase(founder, seconds, honest)
        attacker = Attacker(kind, place, ticket, status.addresses[0])
        attacker.begin()
        attacked = phase(founder, seconds, honest, attacker.peer_id)
        said = attacker.end()
    finally:
        trainer.resume()
    print(
        f"idle node, {kind}: {quiet.network:.2f} -> {attacked.network:.2f} cores"
        f"  memory {attacked.memory - quiet.memory:+.0f} MiB  sent {said}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    wanted = parser.parse_args()
    rates: dict[str, list[tuple[float, float]]] = {kind: [] for kind in wanted.attacks.split(",")}
    pin: Callable[[int], None] = lambda core: os.sched_setaffinity(0, {core})  # noqa: E731
    with tempfile.TemporaryDirectory() as directory:
        place, ticket = Path(directory), Path(directory, "ticket")
        (place / "honest").mkdir()
        founder = NodeProcess(place, QUIET)
        member = str(ROOT / "tests" / "hostile_member.py")
        honest = NodeProcess(place / "honest", QUIET, (member, "honest"), ticket)
        try:
            pin(0)
            addresses, day = founder.start().addresses, 86400.0
            ticket.write_text(
                founder.home.invite(
                    addresses, now=time.time(), valid_seconds=day, member_seconds=day
                )
            )
            pin(1)
            peer_id = honest.start().peer_id
            time.sleep(5)
            for number in range(wanted.repetitions):
                for kind, found in rates.items():
                    home = place / f"{kind} {number}"
                    found.append(attack(kind, home, wanted.seconds, founder, peer_id, ticket))
            for kind in rates.keys() & {"junk", "leech"}:
                idle(kind, place / f"idle {kind}", wanted.seconds, founder, peer_id, ticket)
            status = founder.status()
        finally:
            honest.stop()
            founder.stop()
    for kind, found in rates.items():
        rate, work = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"{kind:6}  median rate {rate:.2f}  work {work:.2f}")
    row = peer(status, peer_id)
    print(f"refused of the honest member: {getattr(row, 'refused', row and row.rejected)}")
    print(f"all refusals {status.rejected}\nalarms {getattr(status, 'alarms', None)}")


if __name__ == "__main__":
    main()
