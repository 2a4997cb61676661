"""Honest requests beside one member that opens links and streams as fast as it can, on both stacks.

    python benchmarks/links.py [--seconds 30] [--stacks hivemind,libp2p] [--attacks none links …]
    python benchmarks/links.py --cost

A node of the stack (tests/light_nodes.py: server, exchange and loops of a real one) runs in a
process of its own. An honest member asks it for its announcements every half second, over the same
stack, for at most ten seconds each; a request that begins while another runs does not wait for it.
Beside them runs tests/link_flooder.py, from another address of loopback unless --same-address is
given. Each attack has a new node. Printed per attack:

requests, answered ones, and the median and the 95th percentile of their seconds, where one without
an answer counts as ten; the attacker's links, streams and silent connections, at most and in all;
of the node with its network daemon, cores used, most descriptors and memory, and its partners in
the end.

With --cost: what honest peers pay. Milliseconds of a handshake (to Yamux, one after the other, each
under a new key, of which the attacker's program has the other end), and requests of 1 KB a second,
one at a time and sixteen at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import structlog

from swarm_node.clock import Clock
from swarm_node.errors import TransportError
from swarm_node.node.home.home import Membership
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import LIST
from swarm_node.simulation.seeded import EPOCH, Seeded

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from link_flooder import Link
from node_process import cpu_seconds, tree
from stacks import ECHO, node, started

ROOT = Path(__file__).resolve().parents[1]
NODE, HONEST, ATTACKER = range(3)
ATTACKS = ("none", "links", "streams", "silent", "links,streams,silent")
HANDSHAKES, REQUESTS = 24, 480
EVERY_SECONDS, LIMIT_SECONDS, MEET_SECONDS = 0.5, 10.0, 10.0


def clock() -> Clock:
    """The clock of the certificates, which all processes share."""
    return Clock(now=time.monotonic, wall=lambda: EPOCH + time.monotonic() % 10_000_000)


def members() -> list[Membership]:
    return Seeded(0).memberships(3)


async def serve(stack: str) -> None:
    """Run the node, and print its addresses, then its partners each second."""
    with tempfile.TemporaryDirectory() as place:
        served = node(stack, Path(place), members()[NODE], clock(), []).start()
        while not served.transport.addresses():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)
        print(json.dumps(served.transport.addresses()), flush=True)
        while True:
            rejected = dict(served.rejected)
            print(json.dumps({"partners": len(served.partners()), **rejected}), flush=True)
            await asyncio.sleep(1.0)


class Reporter:
    """A process that prints lines of JSON: its last line, and the most of each number."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.last: dict[str, int] = {}
        self.most: dict[str, int] = {}

    @classmethod
    async def by(cls, *arguments: str, nice: int = 0) -> Reporter:
        command = ["nice", "-n", str(nice), sys.executable, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return cls(
            await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, env=environment
            )
        )

    async def line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(await self.process.stdout.readline())

    async def listen(self) -> None:
        with contextlib.suppress(json.JSONDecodeError):  # the end
            while True:
                self.last = await self.line()
                for name, value in self.last.items():
                    self.most[name] = max(value, self.most.get(name, 0))

    async def stop(self) -> None:
        for each in tree(self.process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        await self.process.wait()


class HonestRequests:
    """The honest member's requests."""

    def __init__(self, transport: Any, peer: str) -> None:
        self._transport, self._peer = transport, peer
        self.times: list[float] = []
        self.failed = 0
        self.why: dict[str, int] = {}

    async def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < until:
                group.create_task(self._ask())
                await asyncio.sleep(EVERY_SECONDS)

    async def _ask(self) -> None:
        began = time.monotonic()
        payload = wire.pack(wire.ListRequest(epoch=0, since=0, limit=10))
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                await self._transport.request(self._peer, LIST, payload)
        except (TransportError, TimeoutError) as error:
            self.failed += 1
            why = str(error)[:60] or type(error).__name__
            self.why[why] = self.why.get(why, 0) + 1
            self.times.append(LIMIT_SECONDS)
        else:
            self.times.append(time.monotonic() - began)


async def cost(stack: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        one, other = await started(stack, Path(place)), await started(stack, Path(place))
        try:
            await other.dial(one.addresses())
            _, _, host, _, port, _, peer = one.addresses()[0].split("/")
            shaken = [await shake(host, int(port)) for _ in range(HANDSHAKES)]
            payload, rates = bytes(1024), []
            for together in (1, 16):
                await other.request(peer, ECHO, payload)
                began = time.perf_counter()
                for _ in range(REQUESTS // together):
                    requests = (other.request(peer, ECHO, payload) for _ in range(together))
                    await asyncio.gather(*requests)
                rates.append(REQUESTS // together * together / (time.perf_counter() - began))
        finally:
            await other.stop()
            await one.stop()
    return {
        "handshake ms": round(1e3 * statistics.median(shaken), 1),
        "requests/s": round(rates[0]),
        "16 at once, requests/s": round(rates[1]),
        "load": round(os.getloadavg()[0], 1),
    }


async def shake(host: str, port: int) -> float:
    began = time.perf_counter()
    link = await Link.open(host, port, "127.0.0.2", Identity.generate())
    await link.established()
    took = time.perf_counter() - began
    link.writer.close()
    await link.writer.wait_closed()
    return took


async def watch(pid: int, peaks: dict[str, float]) -> None:
    """Note the most descriptors and memory of the tree of processes, until cancelled."""
    while True:
        files, memory = 0, 0
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in tree(pid):
                files += each.num_fds()
                memory += each.memory_info().rss
        peaks["files"] = max(files, peaks.get("files", 0))
        peaks["MiB"] = max(memory >> 20, peaks.get("MiB", 0))
        await asyncio.sleep(0.5)


async def attack(stack: str, kinds: str, seconds: float, source: str) -> dict[str, Any]:
    served = await Reporter.by(__file__, "--serve", stack)
    try:
        address = (await served.line())[0]
        with tempfile.TemporaryDirectory() as place:
            honest = node(stack, Path(place), members()[HONEST], clock(), [address]).start()
            try:
                return await beside(served, honest, kinds, seconds, source, address)
            finally:
                await honest.stop()
    finally:
        await served.stop()


async def beside(
    served: Reporter, honest: Any, kinds: str, seconds: float, source: str, address: str
) -> dict[str, Any]:
    """Measure while the attacker works. The honest member has met the node before."""
    _, _, host, _, port, _, peer = address.split("/")
    asking, peaks = HonestRequests(honest.transport, peer), dict[str, float]()
    async with asyncio.TaskGroup() as group:
        others = [group.create_task(served.listen())]
        async with asyncio.timeout(60):
            while peer not in honest.partners():  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.1)
        await asyncio.sleep(MEET_SECONDS)
        attacker = await flooder(kinds, host, port, source)
        if attacker:
            others.append(group.create_task(attacker.listen()))
        others.append(group.create_task(watch(served.process.pid, peaks)))
        began, spent = time.monotonic(), cpu_seconds(served.process.pid)
        try:
            await asking.run(seconds)
        finally:
            cores = (cpu_seconds(served.process.pid) - spent) / (time.monotonic() - began)
            for task in others:
                task.cancel()
            if attacker:
                await attacker.stop()
    times = sorted(asking.times)
    return {
        "asked": len(times),
        "answered": len(times) - asking.failed,
        "p50 s": round(statistics.median(times), 3),
        "p95 s": round(times[len(times) * 95 // 100], 3),
        "cores": round(cores, 2),
        **peaks,
        "node": served.last,
        "attacker": attacker.most if attacker else {},
        "why": asking.why,
        "load": round(os.getloadavg()[0], 1),
    }


async def flooder(kinds: str, host: str, port: str, source: str) -> Reporter | None:
    if kinds == "none":
        return None
    member = members()[ATTACKER]
    hello = wire.HelloRequest(member.chain, "swarm-node", (), revoked=0, secret=0)
    program = str(ROOT / "tests" / "link_flooder.py")
    arguments = [kinds, host, port, source, member.identity.seed().hex(), wire.pack(hello).hex()]
    return await Reporter.by(program, *arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--stacks", default="hivemind,libp2p")
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS))
    parser.add_argument("--same-address", action="store_true")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # a node of this stack
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if arguments.serve:
        asyncio.run(serve(arguments.serve))
        return
    source = "127.0.0.1" if arguments.same_address else "127.0.0.2"
    for stack in arguments.stacks.split(","):
        if arguments.cost:
            print(stack, json.dumps(asyncio.run(cost(stack))), flush=True)
            continue
        for kinds in arguments.attacks:
            figures = asyncio.run(attack(stack, kinds, arguments.seconds, source))
            print(stack, kinds, json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
