"""A coordinator with a thousand members on one core.

    python benchmarks/coordinator_load.py [--members 1000] [--seconds 120] [--rate 1.0]

Starts `swarm-coordinator serve`, held to one core, and members that behave as nodes do: each leaves
a presence once a minute, and every fifth minute a report about 32 peers, then asks for batches and
reputation. With `--rate 4` they ask four times as often. Prints the latencies of each operation as
members see them, the CPU seconds and the memory of the coordinator, and what it refused.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import msgspec
import psutil
from aiohttp import ClientSession, TCPConnector

# Before this directory, where this file has the name of the package that it measures.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from coordinator_runs import authorization, found, sealed_report, swarm_file
from swarm_keys import Swarm

from swarm_node.node.home.home import Membership
from swarm_node.p2p.coordinator import coordinator_api as api

_PEERS = 32
_MINUTE = 60.0
_ROUNDS_PER_REPORT = 5


class Crowd:
    """The members, and what they measured."""

    def __init__(self, url: str, swarm: Swarm, count: int, rng: random.Random) -> None:
        self._url = url
        self._swarm = swarm
        self._rng = rng
        issuers = [(f"ticket {n}", swarm.issuer(f"ticket {n}")) for n in range(max(1, count // 10))]
        self.members = [
            swarm.member(n + 1, issuer, name)
            for n in range(count)
            for name, issuer in (issuers[n % len(issuers)],)
        ]
        #: Each is at a site of its own.
        self._addresses = {
            member.identity.peer_id: f"10.0.{n >> 8}.{n & 255}"
            for n, member in enumerate(self.members)
        }
        self.taken: defaultdict[str, list[float]] = defaultdict(list)
        self.statuses: Counter[int] = Counter()

    async def live(
        self, session: ClientSession, member: Membership, until: float, pause: float
    ) -> None:
        """One node: it asks every `pause` seconds, and reports every fifth time."""
        await asyncio.sleep(self._rng.uniform(0, pause))
        turn = self._rng.randrange(_ROUNDS_PER_REPORT)
        while time.monotonic() < until:
            round_start = time.monotonic()
            presence = self._swarm.presence(member, time.time() - self._swarm.begin)
            await self._ask(session, member, "introductions", api.Introduction(presence))
            if turn % _ROUNDS_PER_REPORT == 0:
                peers = tuple(
                    found(peer, self._rng.randrange(100), stale=self._rng.randrange(9))
                    for peer in self._rng.sample(self.members, _PEERS)
                )
                report = sealed_report(member, time.time(), peers=peers)
                await self._ask(session, member, "reports", report)
                await self._ask(session, member, "batches?since=1")
                await self._ask(session, member, "reputation")
            turn += 1
            await asyncio.sleep(max(0.0, pause - (time.monotonic() - round_start)))

    async def _ask(
        self, session: ClientSession, member: Membership, what: str, body: object = None
    ) -> None:
        method, target = "GET" if body is None else "POST", f"/v1/{what}"
        request_body = b"" if body is None else msgspec.json.encode(body)
        headers = {
            "Authorization": authorization(member, method, target, request_body, time.time(), {}),
            "X-Forwarded-For": self._addresses[member.identity.peer_id],
        }
        request_start = time.perf_counter()
        async with session.request(
            method, self._url + target, data=request_body, headers=headers
        ) as response:
            await response.read()
            self.statuses[response.status] += 1
        self.taken[what.partition("?")[0]].append(time.perf_counter() - request_start)


async def crowd_of(crowd: Crowd, seconds: float, rate: float) -> None:
    """Run all members for `seconds`."""
    # New connections each time, as nodes make them.
    connector = TCPConnector(limit=0, force_close=True)
    until, pause = time.monotonic() + seconds, _MINUTE / rate
    async with ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        for member in crowd.members:
            group.create_task(crowd.live(session, member, until, pause))


def run(count: int, seconds: float, rate: float) -> None:
    swarm = Swarm(begin=int(time.time()) - 60)
    with tempfile.TemporaryDirectory() as place:
        command = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--behind-proxy"]
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from coordinator.main import app; app()", "serve"),
                *("--swarm", str(swarm_file(Path(place), swarm)), "--data", place, *command),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        os.sched_setaffinity(process.pid, {0})
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split()[1]
            process.stdout.readline()
            crowd = Crowd(url, swarm, count, random.Random(0))
            coordinator_process = psutil.Process(process.pid)
            before, load_start = sum(coordinator_process.cpu_times()[:2]), time.monotonic()
            asyncio.run(crowd_of(crowd, seconds, rate))
            wall = time.monotonic() - load_start
            cpu = sum(coordinator_process.cpu_times()[:2]) - before
            memory = coordinator_process.memory_info().rss / 2**20
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    total = sum(map(len, crowd.taken.values()))
    print(f"{count} members, {total} requests in {wall:.0f} s: {total / wall:.1f} a second")
    for what, latencies in sorted(crowd.taken.items()):
        latencies.sort()
        p50, p95, p99 = (latencies[int(len(latencies) * q)] * 1000 for q in (0.5, 0.95, 0.99))
        print(
            f"{what:14} {len(latencies):6} p50 {p50:6.1f} ms  p95 {p95:6.1f} ms  p99 {p99:6.1f} ms"
        )
    print(f"coordinator: {cpu:.1f} CPU s, {cpu / wall:.1%} of a core, {memory:.0f} MiB")
    print(f"statuses: {dict(crowd.statuses)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rate", type=float, default=1.0)
    arguments = parser.parse_args()
    run(arguments.members, arguments.seconds, arguments.rate)
