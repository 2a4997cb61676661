"""Random faults in a swarm of real nodes, one after another, seen from outside.

    PYTHONPATH=tests python -m campaigns.chaos --faults 200 --seed 1 --out chaos.jsonl

Three nodes run in network namespaces: `pub1` founded the swarm and has a coordinator beside it,
`pub2` has the libp2p stack, `a1` sits behind the NAT of a site. A fault is done to one part of one
of them, lasts some seconds and is undone. The campaign then waits until every node runs, makes
updates, hears a peer and gets groups, and writes a row. A node that ended is started again, as its
owner would do, and that is counted.

After each fault the databases are read beside the running nodes: no group is used twice, no use is
lost, no author has given a number to two groups. Refusals that blame a peer are counted.

With `--share 0.15` all faults are done to `a1`, which is held to 15% of one core from its start on.

Needs root, network namespaces and Debian's package faketime for the clocks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from running import COORDINATOR
from sites.bed import Bed, Nat, why_not
from sites.scene import Scene, scene

from swarm_node.p2p.wire.reasons import Blame, blame_of

HOSTS = ("pub1", "pub2", "a1")
#: The processes of a node, by the name that its status gives them. Judges are children of the
#: environment. The sampler of the tiny model has no process of its own.
PARTS = ("node", "trainer", "environment", "judge", "network")
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
HOME_BYTES = 512 << 20
#: Seconds after the end of a fault within which a swarm must be whole, and until it is given up.
BACK, GIVEN_UP = 60.0, 300.0
_BUSY = "while True: pass"
#: The node that is held to a share of a core, if one is.
HELD = "a1"
#: A policy that learns quickly makes fewer and fewer groups that are worth trading.
_SLOW = ("--set", "training.learning_rate=2e-6")
_OWN = {
    "pub1": ("--coordinator", "http://127.0.0.1:8470"),
    "pub2": ("--set", "network.backend=libp2p"),
}


_CGROUPS = Path("/sys/fs/cgroup")


def _put(place: Path, pid: int) -> None:
    (place / "cgroup.procs").write_text(str(pid))


@contextmanager
def held(share: float) -> Iterator[Callable[[int], None]]:
    """Yield a function that holds a process, and those that it starts, to a share of one core."""
    old = (_CGROUPS / "cpu").is_dir()  # version 1
    place = _CGROUPS / ("cpu" if old else "") / f"swarm-chaos-{os.getpid()}"
    place.mkdir()
    try:
        if old:
            (place / "cpu.cfs_quota_us").write_text(str(int(share * 100_000)))
        else:
            (place / "cpu.max").write_text(f"{int(share * 100_000)} 100000")
        yield partial(_put, place)
    finally:
        deadline = time.monotonic() + 60
        while (place / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.2)
        place.rmdir()


@dataclass(frozen=True)
class RandomFault:
    """One fault: `kind`, done to the `part` of the node on `host`, for `seconds`."""

    kind: str
    part: str
    host: str
    seconds: float


@dataclass
class FaultRow:
    """One fault and its consequences. `back` are the seconds after the end of the fault until the
    whole swarm shared again, infinite if it never did. `ended` are nodes that ended by themselves,
    with their last line. `blamed` counts refusals that blame a peer, and `cut` lists peers that are
    cut off."""

    fault: RandomFault
    back: float
    ended: dict[str, str] = field(default_factory=dict)
    blamed: dict[str, int] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    descriptors: dict[str, int] = field(default_factory=dict)
    disk: dict[str, int] = field(default_factory=dict)
    reward: dict[str, float] = field(default_factory=dict)


def kinds() -> list[tuple[str, str]]:
    """Every fault that there is: its kind and the part that it is done to."""
    ways = ("kill", "stop", "descriptors", "memory")
    return [
        *((way, part) for way in ways for part in PARTS),
        *(("kill", "coordinator"), ("stop", "coordinator")),
        *(("disk", "home"), ("clock ahead", "node"), ("clock behind", "node")),
        *(("link", "host"), ("addresses", "host"), ("busy core", "node")),
    ]


def draw(count: int, seed: int) -> list[RandomFault]:
    """Draw faults: every kind comes before one comes again, each on a host drawn anew."""
    chance = random.Random(seed)
    faults: list[RandomFault] = []
    while len(faults) < count:
        turn = kinds()
        chance.shuffle(turn)
        for kind, part in turn:
            seconds = round(chance.uniform(2.0, 15.0), 1)
            faults.append(RandomFault(kind, part, chance.choice(HOSTS), seconds))
    return faults[:count]


class FaultySwarm:
    """The nodes and their coordinator, in a bed, and the faults that are done to them."""

    def __init__(
        self, bed: Bed, made: Scene, place: Path, hold: Callable[[int], None] | None
    ) -> None:
        self.bed, self.made, self.place = bed, made, place
        self._hold = hold
        self.coordinator: subprocess.Popen[Any] | None = None
        self._uses: dict[str, dict[bytes, int]] = {host: {} for host in HOSTS}
        self._refused: Counter[str] = Counter()

    def begin(self) -> None:
        """Start the coordinator and the nodes, each with a home on a disk of its own."""
        for host in HOSTS:
            (self.place / host).mkdir()
            size = f"size={HOME_BYTES}"
            _run("mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self.place / host))
            self._clock(host, 0)
            self.made.start(host, *_OWN.get(host, ()))
            self._held(host)
        self._serve()
        self._wait(self._state(), time.monotonic(), 300.0)

    def _held(self, host: str) -> None:
        if self._hold is not None and host == HELD:
            self._hold(self.made.nodes[host].process.pid)

    def _serve(self) -> None:
        """Start the coordinator, at the address that the nodes were given."""
        swarm_file, data = self.place / "pub1" / "swarm.json", self.place / "coordinator"
        command = [*COORDINATOR, "serve", "--listen", "127.0.0.1:8470", "--admin", "127.0.0.1:8471"]
        command += ["--swarm", str(swarm_file), "--data", str(data)]
        with (self.place / "coordinator.log").open("ab") as log:
            self.coordinator = self.bed.run("pub1", command, stdout=log, stderr=log)

    def run(self, fault: RandomFault) -> FaultRow:
        """Do one fault, undo it, and look until the swarm is whole."""
        with self._during(fault):
            time.sleep(fault.seconds)
        over, before = time.monotonic(), self._state()
        ended = self._start_again(fault)
        back = self._wait(before, over, GIVEN_UP, ended)
        row = FaultRow(fault, back, ended)
        self._look(row)
        return row

    @contextmanager
    def _during(self, fault: RandomFault) -> Iterator[None]:
        """The fault is there meanwhile."""
        does: dict[str, Callable[[RandomFault], Any]] = {
            "disk": self._full,
            "clock ahead": lambda fault: self._other_clock(fault.host, 3600),
            "clock behind": lambda fault: self._other_clock(fault.host, -3600),
            "link": self._unplugged,
            "addresses": self._exchanged,
            "busy core": self._crowded,
        }
        with ExitStack() as stack:
            if fault.kind in does:
                stack.enter_context(does[fault.kind](fault))
            else:
                for process in self._processes(fault):
                    stack.enter_context(_hurt(process, fault.kind))
            yield

    def _processes(self, fault: RandomFault) -> list[psutil.Process]:
        """The processes of a part, none if it does not run now."""
        if fault.part == "coordinator":
            assert self.coordinator is not None
            return [psutil.Process(self.coordinator.pid)]
        node = self.made.nodes[fault.host]
        if fault.part == "node":
            return [psutil.Process(node.process.pid)]
        known = (self.made.status(fault.host) or {}).get("processes", {})
        pid = known.get("environment" if fault.part == "judge" else fault.part)
        if pid is None:
            return []
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            return process.children(recursive=True) if fault.part == "judge" else [process]
        return []

    @contextmanager
    def _full(self, fault: RandomFault) -> Iterator[None]:
        path = self.place / fault.host / "filler"
        with suppress(OSError), path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        try:
            yield
        finally:
            path.unlink()

    def _clock(self, host: str, ahead: int) -> None:
        path = self.place / f"{host}.clock"
        path.with_suffix(".new").write_text(f"{ahead:+d}\n")
        path.with_suffix(".new").replace(path)

    @contextmanager
    def _other_clock(self, host: str, ahead: int) -> Iterator[None]:
        self._clock(host, ahead)
        try:
            yield
        finally:
            self._clock(host, 0)

    @contextmanager
    def _unplugged(self, fault: RandomFault) -> Iterator[None]:
        self.bed.cut(fault.host)
        try:
            yield
        finally:
            self.bed.join(fault.host)

    @contextmanager
    def _exchanged(self, _: RandomFault) -> Iterator[None]:
        """The two public nodes have each other's address."""
        self._swap("pub1", "pub2")
        try:
            yield
        finally:
            self._swap("pub2", "pub1")

    def _swap(self, one: str, other: str) -> None:
        """Give `one` the address that belongs to `other`, and `other` that of `one`; or undo it."""
        undone = one > other
        for host in (one, other):
            _run(*self.bed.command(host, ["ip", "addr", "flush", "dev", "eth0"]))
        for host, of in ((one, other), (other, one)):
            address = f"{self.bed.address(host if undone else of)}/16"
            _run(*self.bed.command(host, ["ip", "addr", "add", address, "dev", "eth0"]))

    @contextmanager
    def _crowded(self, fault: RandomFault) -> Iterator[None]:
        """The node has one core, with eight processes that never rest."""
        tree = _tree(self.made.nodes[fault.host].process.pid)
        everywhere = sorted(os.sched_getaffinity(0))
        others = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(8)]
        try:
            _pin([*tree, *(psutil.Process(each.pid) for each in others)], everywhere[:1])
            yield
        finally:
            for each in others:
                each.kill()
                each.wait()
            _pin(_tree(self.made.nodes[fault.host].process.pid), everywhere)

    def _start_again(self, fault: RandomFault) -> dict[str, str]:
        """Start what ended, by the fault's hand or by its own; return who ended by itself."""
        ended = {}
        assert self.coordinator is not None
        if self.coordinator.poll() is not None:
            self._serve()
        for host, node in self.made.nodes.items():
            if node.process.poll() is None:
                continue
            said = self._restart(host)
            if (fault.kind, fault.part, fault.host) != ("kill", "node", host):
                ended[host] = said
        return ended

    def _restart(self, host: str) -> str:
        """Start a node that has ended, and return its last words."""
        node = self.made.nodes[host]
        said = _last_words(node.log())
        node.start()
        self._held(host)
        return said

    def _state(self) -> dict[str, dict[str, Any]]:
        return {host: self.made.status(host) or {} for host in HOSTS}

    def _wait(
        self,
        before: dict[str, dict[str, Any]],
        since: float,
        seconds: float,
        ended: dict[str, str] | None = None,
    ) -> float:
        """Wait until every node does all that it does in a whole swarm; return the seconds."""
        left = set(HOSTS)
        while left and time.monotonic() < since + seconds:
            for host in sorted(left):
                node = self.made.nodes[host]
                if node.process.poll() is not None and ended is not None:
                    ended[host] = self._restart(host)
                if _shares(before[host], self.made.status(host) or {}):
                    left.discard(host)
            time.sleep(0.5)
        return math.inf if left else time.monotonic() - since

    def _look(self, row: FaultRow) -> None:
        """Read what the nodes say of themselves and what their databases hold."""
        refused: Counter[str] = Counter()
        for host, status in self._state().items():
            refused.update(
                {f"{host} {code}": count for code, count in status.get("rejected", {}).items()}
            )
            row.cut += [
                f"{host}: {peer['name']}"
                for peer in status.get("peers", [])
                if peer["suspended_seconds"] > 0
            ]
            if status.get("evals"):
                row.reward[host] = status["evals"][-1]["reward"]
            tree = _tree(self.made.nodes[host].process.pid)
            row.memory[host] = sum(_of(each, lambda each: each.memory_info().rss) for each in tree)
            row.descriptors[host] = sum(_of(each, psutil.Process.num_fds) for each in tree)
            row.disk[host] = shutil.disk_usage(self.place / host).used
            row.broken += [f"{host}: {why}" for why in self._broken(host)]
        for key, count in refused.items():
            new = count - self._refused[key] if count >= self._refused[key] else count
            if new and blame_of(key.split()[1]) is not Blame.NONE:
                row.blamed[key] = new
        self._refused = refused

    def _broken(self, host: str) -> Iterator[str]:
        """The promises that a node's database does not keep."""
        path = self.place / host / "node.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as database:
            uses = dict(database.execute("SELECT id, uses FROM groups"))
            twice = "SELECT author, epoch, seq FROM groups GROUP BY 1, 2, 3 HAVING count(*) > 1"
            same = database.execute(twice).fetchall()
        if max(uses.values(), default=0) > 1:
            yield "a group was used twice"
        before = self._uses[host]
        if any(uses.get(group, count) < count for group, count in before.items()):
            yield "a use was lost"
        if same:
            yield f"{len(same)} numbers stand for two groups"
        self._uses[host] = uses


def _shares(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Check that a node runs, has made updates since `before`, hears a peer and got groups."""
    if now.get("state") != "running":
        return False
    # A node that was started again counts its groups on, and its updates from its checkpoint.
    anew = before.get("seconds", math.inf) > now["seconds"]
    updates = now["steps"] > (0 if anew else before["steps"])
    got = now["groups"]["accepted"] > before.get("groups", now["groups"])["accepted"]
    heard = any(peer["seconds_since_seen"] < 20 for peer in now["peers"])
    return updates and heard and (got or (anew and now["groups"]["accepted"] > 0))


@contextmanager
def _hurt(process: psutil.Process, how: str) -> Iterator[None]:
    """Do to a process what a kind says, and undo it where it still runs."""
    limits = {"descriptors": resource.RLIMIT_NOFILE, "memory": resource.RLIMIT_AS}
    old: tuple[int, int] | None = None
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        if how == "kill":
            process.kill()
        elif how == "stop":
            process.suspend()
        else:
            now = process.num_fds() + 1 if how == "descriptors" else process.memory_info().vms
            hard = resource.prlimit(process.pid, limits[how])[1]
            old = resource.prlimit(process.pid, limits[how], (now, hard))
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if how == "stop":
                process.resume()
            elif old is not None and process.is_running():
                resource.prlimit(process.pid, limits[how], old)


def _last_words(log: str) -> str:
    """The error in the last lines of a log, the last line if there is none."""
    lines = [line.strip(" |") for line in log.splitlines() if line.strip()] or [""]
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "swarm-node"))]
    return (errors or lines)[-1]


def _tree(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _of(process: psutil.Process, what: Callable[[psutil.Process], int]) -> int:
    """A figure of a process, 0 if it is gone."""
    try:
        return what(process)
    except psutil.NoSuchProcess:
        return 0


def _pin(processes: Sequence[psutil.Process], cores: list[int]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.cpu_affinity(cores)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def swarm(place: Path, share: float = 0.0) -> Iterator[FaultySwarm]:
    """A whole swarm, with `HELD` held to a share of a core; at the end nothing of it runs and
    nothing is mounted."""
    given = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_CACHE_DURATION": "1",
    }
    with ExitStack() as stack:
        stack.callback(_forget_clocks)
        for host in HOSTS:
            stack.callback(_unmount, place / host)
        hold = stack.enter_context(held(share)) if share else None
        bed = stack.enter_context(Bed({"a": Nat.RESTRICTED}, public=2, hosts=1))
        made = stack.enter_context(scene(bed, place, *_SLOW))
        for host in HOSTS:
            clock = {"FAKETIME_TIMESTAMP_FILE": str(place / f"{host}.clock")}
            made.variables[host] = given | clock
        whole = FaultySwarm(bed, made, place, hold)
        whole.begin()
        yield whole


def _forget_clocks() -> None:
    """Remove the shared memory that libfaketime made for processes which were killed."""
    for path in Path("/dev/shm").glob("*faketime_s[eh]m_*"):
        if not psutil.pid_exists(int(path.name.rpartition("_")[2])):
            path.unlink(missing_ok=True)


def _unmount(path: Path) -> None:
    if path.is_mount():
        _run("umount", "--lazy", str(path))


def table(rows: Sequence[FaultRow]) -> str:
    """The rows by kind of fault, as Markdown."""
    head = "| fault | times | ended a node | longest until whole, s | over 60 s | blamed |"
    lines = [head, "| --- | --- | --- | --- | --- | --- |"]
    names = sorted({f"{row.fault.kind}, {row.fault.part}" for row in rows})
    for name in names:
        same = [row for row in rows if f"{row.fault.kind}, {row.fault.part}" == name]
        late = sum(row.back > BACK for row in same)
        blamed = sum(bool(row.blamed or row.cut) for row in same)
        ended, longest = sum(len(row.ended) for row in same), max(row.back for row in same)
        lines.append(f"| {name} | {len(same)} | {ended} | {longest:.0f} | {late} | {blamed} |")
    return "\n".join(lines)


def why_not_here() -> str:
    """The reason why the campaign cannot run on this machine, "" if it can."""
    if FAKETIME is None:
        return "needs Debian's package faketime"
    if why := why_not():
        return why
    with tempfile.TemporaryDirectory() as place:
        try:
            _run("mount", "-t", "tmpfs", "tmpfs", place)
        except subprocess.CalledProcessError as error:
            return f"needs the right to mount: {error.stderr.decode().strip()}"
        _unmount(Path(place))
    return ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first fault")
    parser.add_argument("--only", default="", help="kinds, comma-separated")
    parser.add_argument("--share", type=float, default=0.0, help=f"of a core, for {HELD}")
    parser.add_argument("--out", type=Path, default=Path("chaos.jsonl"))
    return parser.parse_args()


def main() -> None:
    options = _options()
    if why := why_not_here():
        sys.exit(f"NOT RUN: {why}")
    only = set(filter(None, options.only.split(",")))
    rows: list[FaultRow] = []
    with tempfile.TemporaryDirectory() as place, swarm(Path(place), options.share) as whole:
        for number, fault in enumerate(draw(options.faults, options.seed)):
            if options.share:
                fault = replace(fault, host=HELD)
            if number < options.first or (only and fault.kind not in only):
                continue
            row = whole.run(fault)
            rows.append(row)
            with options.out.open("a") as out:
                out.write(json.dumps({"number": number, **asdict(row)}) + "\n")
            what = f"{fault.kind}, {fault.part} of {fault.host} for {fault.seconds} s"
            said = (row.ended, row.blamed, row.cut, row.broken)
            print(
                f"{number:4} {what}: whole after {row.back:.0f} s", *filter(None, said), flush=True
            )
    print(table(rows))
    if any(row.broken or math.isinf(row.back) for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
