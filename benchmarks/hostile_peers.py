"""Loss of a node's learning to hostile members: ratios of interleaved phases.

    python benchmarks/hostile_peers.py [--seconds 24] [--repetitions 1] [--attacks costly,long,…]

A real node runs on the first core. An honest member that publishes slowly and the attacker share
the second. Each attack begins with new keys:

costly  groups of 64 kB texts of shapes that cost parsers much (tests/hostile_member.py)
long    answers of 30,000 tokens
junk    malformed, badly signed and repeated requests, as fast as the sender can (tests/flooder.py)
leech   lists and pulls everything, again and again

`costly` and `long` are compared with the time before and after, `junk` and `leech` with slices of
three seconds during which the sender is stopped. `rate` is the ratio of batches per second, and
`work` that of batches per second of processor time of the node and its children, which the load of
the machine changes less. `honest` is how many groups of the honest member the node was offered,
admitted and refused meanwhile. `dropped` is when the attacker was left alone for longer than ten
seconds, after its first refusal. In the end the trainer is stopped, so that the node soon waits.
`idle node` is the load of its process and its network daemon by junk and leech then.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from node_process import Memory, NodeProcess, cpu_seconds

from swarm_node.errors import SwarmNodeError
from swarm_node.node.metrics.snapshot import PeerRow, Snapshot

ROOT = Path(__file__).resolve().parents[1]
QUIET = ["run.eval_seconds=3600"]
ATTACKS = ("costly", "long", "junk", "leech")
SENDERS = ("junk", "leech")
SLICE_SECONDS = 3.0


@dataclass
class Spent:
    """Batches; groups of the honest member; and seconds: of the clock, of the node's whole tree, of
    node and network daemon."""

    batches: int = 0
    offered: int = 0
    admitted: int = 0
    refused: int = 0
    clock: float = 0.0
    tree: float = 0.0
    network: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        values, other_values = vars(self), vars(other)
        return Spent(**{name: values[name] + other_values[name] for name in values})

    def __sub__(self, other: Spent) -> Spent:
        values, other_values = vars(self), vars(other)
        return Spent(**{name: values[name] - other_values[name] for name in values})


class AttackWatch:
    """Watches the node, and when it drops the attacker."""

    honest = ""  # the peer id of the honest member, of all watches

    def __init__(self, founder: NodeProcess, attacker: str = "") -> None:
        self._founder = founder
        self.attacker = attacker
        self._first: float | None = None
        self.dropped: float | None = None
        self.status = founder.status()

    def spend(self, seconds: float) -> Spent:
        """Batches, groups and seconds of the next `seconds`."""
        start, deadline = self._now(), time.monotonic() + seconds
        while (remaining_seconds := deadline - time.monotonic()) > 0:
            time.sleep(min(0.5, remaining_seconds))
            self._look()
        return self._now() - start

    def _look(self) -> None:
        try:
            self.status = self._founder.status()
        except SwarmNodeError:  # too busy to answer in time: the next look will tell
            return
        row, now = peer(self.status, self.attacker), time.monotonic()
        if row is not None and row.rejected and self._first is None:
            self._first = now
        if self._first and self.dropped is None and getattr(row, "suspended_seconds", 0.0) > 10.0:
            self.dropped = now - self._first

    def _now(self) -> Spent:
        self._look()
        status, pid = self.status, self._founder.process.pid
        pids, honest = (pid, status.processes["network"]), peer(status, self.honest)
        groups = (honest.announced, honest.accepted, honest.rejected) if honest else (0, 0, 0)
        return Spent(
            # Those without an advantage count too.
            status.steps + status.skipped_batches,
            *groups,
            time.monotonic(),
            cpu_seconds(pid),
            sum(sum(psutil.Process(process_id).cpu_times()[:2]) for process_id in pids),
        )


def peer(status: Snapshot, peer_id: str) -> PeerRow | None:
    return next((row for row in status.peers if row.peer_id == peer_id), None)


class Attacker:
    """A process that attacks: a modified node, or the flooder."""

    def __init__(self, kind: str, place: Path, ticket: Path, address: str) -> None:
        place.mkdir()
        self._log = place / "log"
        self._node: NodeProcess | None = None
        if kind not in SENDERS:
            member = str(ROOT / "tests" / "hostile_member.py")
            self._node = NodeProcess(place, QUIET, (member, kind), ticket)
            self.peer_id = self._node.start().peer_id
            return
        program = [sys.executable, str(ROOT / "tests" / "flooder.py"), kind]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*program, str(place / "home"), str(ticket), address], stdout=log
            )
        while not self.said() and self._process.poll() is None:
            time.sleep(0.1)
        self.peer_id = str(self.said()["peer"])
        self._pids = self._process.pid, int(str(self.said()["pid"]))

    def signal(self, number: int) -> None:
        """Send a signal to a sender and to its network daemon."""
        for pid in self._pids:
            os.kill(pid, number)

    def end(self) -> None:
        if self._node is not None:
            self._node.stop()
        else:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def said(self) -> dict[str, object]:
        """The last line of the flooder's output."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return json.loads(lines[-1]) if lines else {}


def around(
    founder: NodeProcess, start: tuple[str, Path, Path, str], seconds: float
) -> tuple[Spent, Spent, AttackWatch]:
    """Without and with a modified node: before, during, after."""
    baseline = AttackWatch(founder).spend(seconds / 2)
    attacker = Attacker(*start)
    watch = AttackWatch(founder, attacker.peer_id)
    stress = watch.spend(seconds)
    attacker.end()
    return baseline + AttackWatch(founder).spend(seconds / 2), stress, watch


def sliced(
    founder: NodeProcess, start: tuple[str, Path, Path, str], seconds: float
) -> tuple[Spent, Spent, AttackWatch, Attacker]:
    """Without and with a sender, in turns."""
    attacker = Attacker(*start)
    watch = AttackWatch(founder, attacker.peer_id)
    baseline, stress = Spent(), Spent()
    for _ in range(max(1, int(seconds / SLICE_SECONDS))):
        stress += watch.spend(SLICE_SECONDS)
        attacker.signal(signal.SIGSTOP)
        baseline += watch.spend(SLICE_SECONDS)
        attacker.signal(signal.SIGCONT)
    attacker.end()
    return baseline, stress, watch, attacker


def attack(
    kind: str, place: Path, seconds: float, founder: NodeProcess, ticket: Path
) -> tuple[float, float]:
    """One attack and a line about it; the ratios of both rates."""
    start = (kind, place, ticket, founder.status().addresses[0])
    memory, report = Memory.of(founder.process.pid).rss, {}
    if kind in SENDERS:
        baseline, stress, watch, sender = sliced(founder, start, seconds)
        report = sender.said()
    else:
        baseline, stress, watch = around(founder, start, seconds)
    rates = [phase.batches / phase.clock for phase in (baseline, stress)]
    work = [phase.batches / phase.tree for phase in (baseline, stress)]
    row = peer(watch.status, watch.attacker)
    drop_time = "no" if watch.dropped is None else f"{watch.dropped:.1f} s"
    print(
        f"{kind:6}  rate {rates[1] / rates[0]:.2f} ({rates[0]:.1f} -> {rates[1]:.1f}/s)"
        f"  work {work[1] / work[0]:.2f} ({work[0]:.1f} -> {work[1]:.1f})"
        f"  honest {stress.offered} offered, {stress.admitted} admitted, {stress.refused} refused"
        f" (before or between {baseline.offered}, {baseline.admitted}, {baseline.refused})"
        f"  memory {Memory.of(founder.process.pid).rss - memory:+.0f} MiB  dropped {drop_time}"
        f"  rejected {getattr(row, 'rejected_by_reason', row and row.rejected)}"
        f"  sent {report}  load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return rates[1] / rates[0], work[1] / work[0]


def idle(kind: str, place: Path, seconds: float, founder: NodeProcess, ticket: Path) -> None:
    """Load by a sender's requests of a node that does nothing else."""
    status = founder.status()
    trainer = psutil.Process(status.processes["trainer"])
    trainer.suspend()
    try:
        time.sleep(10)
        memory = Memory.of(founder.process.pid).rss
        baseline, stress, _, sender = sliced(
            founder, (kind, place, ticket, status.addresses[0]), seconds
        )
        growth = Memory.of(founder.process.pid).rss - memory
    finally:
        trainer.resume()
    cores = [phase.network / phase.clock for phase in (baseline, stress)]
    print(
        f"idle node, {kind}: {cores[0]:.3f} -> {cores[1]:.3f} cores  memory {growth:+.0f} MiB"
        f"  sent {sender.said()}  load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=24.0)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    options = parser.parse_args()
    results: dict[str, list[tuple[float, float]]] = {
        kind: [] for kind in options.attacks.split(",")
    }
    with tempfile.TemporaryDirectory() as directory:
        place, ticket = Path(directory), Path(directory, "ticket")
        (place / "honest").mkdir()
        founder = NodeProcess(place, QUIET)
        member = str(ROOT / "tests" / "hostile_member.py")
        honest = NodeProcess(place / "honest", QUIET, (member, "honest"), ticket)
        try:
            os.sched_setaffinity(0, {0})
            addresses, day = founder.start().addresses, 86_400
            ticket.write_text(
                founder.home.invite(
                    addresses, now=time.time(), valid_seconds=day, member_seconds=day
                )
            )
            os.sched_setaffinity(0, {1})
            AttackWatch.honest = honest.start().peer_id
            time.sleep(5)
            for number in range(options.repetitions):
                for kind, ratios in results.items():
                    home = place / f"{kind} {number}"
                    ratios.append(attack(kind, home, options.seconds, founder, ticket))
            for kind in results.keys() & set(SENDERS):
                idle(kind, place / f"idle {kind}", options.seconds, founder, ticket)
            status = founder.status()
        finally:
            honest.stop()
            founder.stop()
    for kind, ratios in results.items():
        rate, work = (statistics.median(values) for values in zip(*ratios, strict=True))
        print(f"{kind:6}  median rate {rate:.2f}  work {work:.2f}")
    row = peer(status, AttackWatch.honest)
    print(
        f"refused of the honest member: {getattr(row, 'rejected_by_reason', row and row.rejected)}"
    )
    print(f"all refusals {status.rejected}\nalarms {getattr(status, 'alarms', None)}")


if __name__ == "__main__":
    main()
