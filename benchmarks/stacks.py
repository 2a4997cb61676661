"""Both network stacks on one machine, and their ratios of cost, speed and recovery.

    python benchmarks/stacks.py [--nodes 16]

Per stack, in a fresh process and over loopback: seconds of a first start (with all imports) and of
a further one; MiB that a transport adds, its daemon included (PSS); latency of a request and reply
of 1 KB; throughput of replies of 4 MiB, one at a time and four at once; seconds from a killed
daemon to the next answer. Nodes that all know the first one's address (tests/light_nodes.py) give
the seconds until each has every other one as a partner, and the CPU seconds of a node and minute
after that. 14 attacks below the frames (tests/libp2p_attacker.py) run while an honest peer asks. A
third swarm has nodes of both stacks by turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog

from swarm_node.clock import Clock
from swarm_node.node.home.home import Membership
from swarm_node.p2p.wire.identity import Identity
from swarm_node.simulation.seeded import EPOCH, Seeded

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from light_nodes import LightNode
from node_process import Memory, cpu_seconds

ROOT = Path(__file__).resolve().parents[1]
ECHO, SIZED, WAIT = "/swarm-node/echo/1", "/swarm-node/sized/1", "/swarm-node/wait/1"
LISTEN = ["/ip4/127.0.0.1/tcp/0"]
REPLY = 4 << 20
REQUESTS, REPLIES, STARTS, KILLS = 500, 16, 3, 3
SETTLED_SECONDS = 30.0


async def echo(peer: str, payload: bytes) -> bytes:
    return payload


async def sized(peer: str, payload: bytes) -> bytes:
    return bytes(int(payload))


async def wait(peer: str, payload: bytes) -> bytes:
    await asyncio.sleep(60)
    return b""


def make(stack: str, place: Path, identity: Identity, **settings: Any) -> Any:
    """A transport; the stack is imported here, so that a first start counts its imports."""
    settings = {"listen": LISTEN, "rng": random.Random(0), **settings}
    if stack == "libp2p":
        from swarm_node.p2p.transports.libp2p.transport import Libp2pTransport

        return Libp2pTransport(identity, **settings)
    from swarm_node.p2p.transports.hivemind.transport import HivemindTransport

    return HivemindTransport(
        identity,
        swarm_id=Seeded(0).memberships(1)[0].swarm.swarm_id,
        secret=bytes(32),
        state_dir=place / identity.peer_id,
        **settings,
    )


async def started(stack: str, place: Path) -> Any:
    transport = make(stack, place, Identity.generate())
    for protocol, handler in ((ECHO, echo), (SIZED, sized), (WAIT, wait)):
        transport.serve(protocol, handler)
    await transport.start()
    return transport


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.01)


async def timed(work: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def costs(stack: str, place: Path) -> dict[str, float]:
    before = Memory.of(os.getpid()).pss
    began = time.perf_counter()
    transports = [await started(stack, place)]
    first = time.perf_counter() - began
    memory = Memory.of(os.getpid()).pss - before
    again = []
    for _ in range(STARTS):
        began = time.perf_counter()
        transports.append(await started(stack, place))
        again.append(time.perf_counter() - began)
    for transport in transports:
        await transport.stop()
    return {"first start, s": first, "start, s": statistics.median(again), "memory, MiB": memory}


async def speeds(stack: str, place: Path) -> dict[str, float]:
    one, other = await started(stack, place), await started(stack, place)
    await other.dial(one.addresses())
    payload = random.Random(0).randbytes(1024)
    began = cpu_seconds(os.getpid())
    times = sorted(
        [await timed(other.request(one.peer_id, ECHO, payload)) for _ in range(REQUESTS)]
    )
    per_request = (cpu_seconds(os.getpid()) - began) / REQUESTS

    async def pull() -> None:
        await other.request(one.peer_id, SIZED, b"%d" % REPLY)

    await pull()
    began = cpu_seconds(os.getpid())
    single = await timed(repeated(pull, REPLIES))
    four = await timed(asyncio.gather(*(repeated(pull, REPLIES // 4) for _ in range(4))))
    megabytes = REPLY * REPLIES / 1e6
    per_megabyte = (cpu_seconds(os.getpid()) - began) / 2 / megabytes
    for transport in (one, other):
        await transport.stop()
    return {
        "p50 of 1 KB, ms": 1e3 * times[REQUESTS // 2],
        "p95 of 1 KB, ms": 1e3 * times[REQUESTS * 95 // 100],
        "CPU of it, all processes, ms": 1e3 * per_request,
        "CPU of a MB, all processes, ms": 1e3 * per_megabyte,
        "4 MiB replies, MB/s": megabytes / single,
        "four at once, MB/s": megabytes / four,
    }


async def repeated(work: Callable[[], Awaitable[None]], times: int) -> None:
    for _ in range(times):
        await work()


async def kills(stack: str, place: Path) -> dict[str, float]:
    """Seconds from the kill of a daemon until its node asks, and is asked, again."""
    one, other = await started(stack, place), await started(stack, place)
    await other.dial(one.addresses())
    healed = []
    for _ in range(KILLS):
        pid = other.daemon_pid
        began = time.perf_counter()
        os.kill(pid, 9)
        await until(lambda: other.daemon_pid is None)
        assert await other.heal(one.addresses()) == "restarted"
        await other.request(one.peer_id, ECHO, b"x")
        await one.request(other.peer_id, ECHO, b"x")
        healed.append(time.perf_counter() - began)
    for transport in (one, other):
        await transport.stop()
    return {"kill to answer, s": statistics.median(healed)}


def node(stack: str, place: Path, member: Membership, clock: Clock, boot: list[str]) -> LightNode:
    transport = make(stack, place, member.identity, bootstrap=boot)
    return LightNode(place, clock, transport, member, boot)


async def meet(stacks: tuple[str, ...], place: Path, count: int) -> dict[str, float]:
    began = time.monotonic()
    clock = Clock(now=time.monotonic, wall=lambda: EPOCH + time.monotonic() - began)
    members = Seeded(0).memberships(count)
    first = node(stacks[0], place, members[0], clock, []).start()
    await until(lambda: bool(first.transport.addresses()))
    boot = first.transport.addresses()
    nodes = [first]
    for index, member in enumerate(members[1:], 1):
        nodes.append(node(stacks[index % len(stacks)], place, member, clock, boot).start())
        await until(lambda: bool(nodes[-1].transport.addresses()))
    all_started = time.monotonic()
    await until(lambda: all(len(light.partners()) == count - 1 for light in nodes))
    meeting_seconds = time.monotonic() - all_started
    before = cpu_seconds(os.getpid())
    await asyncio.sleep(SETTLED_SECONDS)
    cpu = (cpu_seconds(os.getpid()) - before) / count / SETTLED_SECONDS * 60
    for light in nodes:
        await light.stop()
    return {f"{count} nodes meet, s": meeting_seconds, "CPU a node and minute, s": cpu}


async def attacked(stack: str, place: Path) -> dict[str, Any]:
    one, other = await started(stack, place), await started(stack, place)
    await other.dial(one.addresses())
    _, _, host, _, port, _, peer = one.addresses()[0].split("/")
    attacker = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "tests" / "libp2p_attacker.py"), host, port, peer, WAIT),
        stdout=asyncio.subprocess.PIPE,
    )
    pid, request_count, answer_count, peak, slowest = one.daemon_pid, 0, 0, 0.0, 0.0
    base = Memory.of(pid).pss
    async with asyncio.TaskGroup() as group:
        attack_task = group.create_task(attacker.communicate())
        while not attack_task.done():
            request_count += 1
            try:
                async with asyncio.timeout(10):
                    took = await timed(other.request(one.peer_id, ECHO, b"x"))
                answer_count, slowest = answer_count + 1, max(slowest, took)
            except Exception as error:  # noqa: BLE001 - it is counted
                print(f"an honest request failed: {error!r}", file=sys.stderr)
            peak = max(peak, Memory.of(pid).pss)
            await asyncio.sleep(0.05)
    ended = json.loads(attack_task.result()[0])
    alive = one.daemon_pid == pid
    for transport in (one, other):
        await transport.stop()
    return {
        "honest requests, share answered": answer_count / request_count,
        "slowest honest request, s": slowest,
        "memory at the peak of attacks, MiB": peak - base,
        "daemon lived": float(alive),
        "attacks": ended,
    }


async def measure(what: str, count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as text:
        place = Path(text)
        if what == "both":
            return await meet(("hivemind", "libp2p"), place, count)
        figures: dict[str, Any] = await costs(what, place)
        for part in (speeds, kills, attacked):
            figures |= await part(what, place)
        return figures | await meet((what,), place, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--only", help=argparse.SUPPRESS)  # one stack, as JSON
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if arguments.only:
        print(json.dumps(asyncio.run(measure(arguments.only, arguments.nodes))))
        return
    figures_of_stack = {}
    for what in ("hivemind", "libp2p", "both"):
        command = [sys.executable, __file__, "--only", what, "--nodes", str(arguments.nodes)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        child_process = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
        figures_of_stack[what] = json.loads(child_process.stdout.splitlines()[-1])
        print(what, figures_of_stack[what], file=sys.stderr, flush=True)
    attacks = {what: figures_of_stack[what].pop("attacks", {}) for what in figures_of_stack}
    print(f"{'':38}{'hivemind':>10}{'libp2p':>10}{'ratio':>8}{'both':>10}")
    for name, value in figures_of_stack["hivemind"].items():
        other, both = figures_of_stack["libp2p"][name], figures_of_stack["both"].get(name)
        ratio = f"{other / value:8.2f}" if value else f"{'-':>8}"
        both_cell = f"{both:10.2f}" if both is not None else ""
        print(f"{name:38}{value:10.2f}{other:10.2f}{ratio}{both_cell}")
    for name, ended in attacks["hivemind"].items():
        print(f"{name:38}{ended[:20]:>20}{attacks['libp2p'][name][:20]:>20}")


if __name__ == "__main__":
    main()
