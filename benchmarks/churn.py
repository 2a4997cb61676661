"""Cost of dead, invented and many peers to a node: live peers reached, bytes and CPU time.

    python benchmarks/churn.py [dead] [kills] [stuffed] [scale] [--nodes 1000]

Nodes without trainers (tests/light_nodes.py) on the in-memory network and a virtual clock; who is
dead is silent. `dead`, `kills` and `stuffed` print the lists that live peers answer to one of four
nodes per second, and the ratio to its rate without the disturbance. `scale` prints bytes and CPU
time of a node in a minute, in swarms of 32 and in one of 1,000, and their ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import structlog

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from light_nodes import (
    HostileNode,
    LightNode,
    SilentNetwork,
    SilentTransport,
    address_of,
    heartbeat,
    virtual,
)

from swarm_node.node.home.home import Membership
from swarm_node.simulation.seeded import EPOCH, Seeded
from swarm_node.simulation.virtual_time import ACCOUNT, ChargingLoop, VirtualTimeLoop, run_charging

Result = TypeVar("Result")
MINUTE = 60.0
LIVE = 4
#: Number of small swarms beside a large one, and the nodes of each.
SMALL_SWARMS, SMALL = 4, 32


class LightSwarm:
    """Nodes of one swarm; the first LIVE of its members know the first one's address."""

    def __init__(self, loop: VirtualTimeLoop, place: Path, members: int, seed: int = 0) -> None:
        self.loop = loop
        self.network = SilentNetwork(random.Random(seed))
        self.memberships = Seeded(seed).memberships(members)
        self._place = place

    def start(self, index: int, kind: type[LightNode] = LightNode) -> LightNode:
        first = self.memberships[:LIVE]
        boot = [address_of(m) for m in first if m is not self.memberships[index]]
        member = self.memberships[index]
        transport = SilentTransport(self.network, member.identity)
        return kind(self._place, virtual(self.loop), transport, member, boot).start()

    def publish(self, member: Membership) -> None:
        """Publish a heartbeat of a member that does not run."""
        now = EPOCH + self.loop.time()
        self.network.publish(member.identity.peer_id, heartbeat(member, now), 7200.0)


def answered(node: LightNode) -> int:
    """Lists that peers have answered to this node."""
    assert isinstance(node.transport, SilentTransport)
    return node.transport.lists


async def rate(node: LightNode, seconds: float) -> float:
    """Answered lists per second."""
    start_count = answered(node)
    await asyncio.sleep(seconds)
    return (answered(node) - start_count) / seconds


def dead(count: int) -> Callable[[ChargingLoop, Path], Coroutine[Any, Any, float]]:
    async def main(loop: ChargingLoop, place: Path) -> float:
        swarm = LightSwarm(loop, place, LIVE + count)
        for member in swarm.memberships[LIVE:]:
            swarm.publish(member)
        nodes = [swarm.start(index) for index in range(LIVE)]
        answer_rate = await rate(nodes[-1], 10 * MINUTE)
        await asyncio.gather(*(node.stop() for node in nodes))
        return answer_rate

    return main


def kills(count: int) -> Callable[[ChargingLoop, Path], Coroutine[Any, Any, float]]:
    """`count` more nodes run for two minutes, and are killed in the third, whose rate counts
    together with that of the fourth."""

    async def main(loop: ChargingLoop, place: Path) -> float:
        swarm = LightSwarm(loop, place, LIVE + count)
        nodes = [swarm.start(index) for index in range(LIVE + count)]
        await asyncio.sleep(2 * MINUTE)
        async with asyncio.TaskGroup() as group:
            rate_task = group.create_task(rate(nodes[LIVE - 1], 2 * MINUTE))
            for node in nodes[LIVE:]:
                await node.stop()
                await asyncio.sleep(MINUTE / count)
        await asyncio.gather(*(node.stop() for node in nodes[:LIVE]))
        return rate_task.result()

    return main


def stuffed(
    invented_count: int, record_count: int, silent_count: int
) -> Callable[[ChargingLoop, Path], Coroutine[Any, Any, float]]:
    """A member answers with invented heartbeats only, and the table is full of others."""

    async def main(loop: ChargingLoop, place: Path) -> float:
        swarm = LightSwarm(loop, place, LIVE + 1 + invented_count + record_count + silent_count)
        extra_members = swarm.memberships[LIVE + 1 :]
        for member in extra_members[invented_count:]:
            swarm.publish(member)
        nodes = [swarm.start(index) for index in range(LIVE)]
        attacker = swarm.start(LIVE, HostileNode)
        assert isinstance(attacker, HostileNode)
        attacker.named = [heartbeat(member, EPOCH) for member in extra_members[:invented_count]]
        answer_rate = await rate(nodes[-1], 10 * MINUTE)
        await asyncio.gather(*(node.stop() for node in [*nodes, attacker]))
        return answer_rate

    return main


def scale(
    count: int,
) -> Callable[[ChargingLoop, Path], Coroutine[Any, Any, dict[str, tuple[float, ...]]]]:
    """Bytes and CPU seconds of a node in a minute, two minutes after the start, in SMALL_SWARMS
    swarms of SMALL nodes ("few") and in one of `count` ("many").

    All run in one process at once. So all nodes share the same caches and the same load of the
    machine, on which a node's cost depends. Only the steps of nodes count, not the event loop. The
    garbage collector, which would walk all nodes for one, is off.
    """

    async def main(loop: ChargingLoop, place: Path) -> dict[str, tuple[float, ...]]:
        gc.disable()
        swarms = {
            "few": [LightSwarm(loop, place, SMALL, seed) for seed in range(1, SMALL_SWARMS + 1)],
            "many": [LightSwarm(loop, place, count)],
        }
        nodes: dict[str, list[LightNode]] = {}
        for account, group in swarms.items():
            ACCOUNT.set(account)  # the tasks that begin now inherit it
            nodes[account] = [s.start(index) for s in group for index in range(len(s.memberships))]

        def taken(account: str) -> tuple[int, float]:
            ACCOUNT.set(account)
            networks = [swarm.network for swarm in swarms[account]]
            byte_count = sum(n.bytes_sent.total() + n.bytes_received.total() for n in networks)
            return byte_count, loop.spent_seconds()

        await asyncio.sleep(2 * MINUTE)
        start_usage = {account: taken(account) for account in swarms}
        await asyncio.sleep(2 * MINUTE)
        end_usage = {account: taken(account) for account in swarms}
        for node in [node for group in nodes.values() for node in group]:
            await node.stop()
        gc.enable()
        return {
            account: tuple(
                (end - begin) / len(nodes[account]) / 2
                for begin, end in zip(start_usage[account], end_usage[account], strict=True)
            )
            for account in swarms
        }

    return main


def measure(scenario: Callable[[ChargingLoop, Path], Coroutine[Any, Any, Result]]) -> Result:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        return run_charging(lambda loop: scenario(loop, Path(place)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["dead", "kills", "stuffed", "scale"])
    parser.add_argument("--nodes", type=int, default=1000)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    random.seed(0)
    cases = {
        "dead": [(f"{n} dead peers known", dead(n)) for n in (30, 100, 1000)],
        "kills": [("100 kills a minute", kills(100))],
        "stuffed": [("100 invented, 5,000 records, 100 dead", stuffed(100, 5000, 100))],
    }
    scenarios = [case for kind in options.what for case in cases.get(kind, [])]
    base_rate = measure(dead(0)) if scenarios else 0.0
    for name, scenario in [("undisturbed", dead(0)), *scenarios] if scenarios else []:
        answer_rate = measure(scenario)
        print(
            f"{name:38} {answer_rate:.2f} lists/s, ratio {answer_rate / base_rate:.2f}", flush=True
        )
    if "scale" in options.what:
        costs = measure(scale(options.nodes))
        for name, index, unit, factor in (("bytes", 0, "kB", 1e-3), ("CPU", 1, "ms", 1e3)):
            few_cost, many_cost = (costs[account][index] * factor for account in ("few", "many"))
            print(
                f"{name} a node and minute: {few_cost:.1f} {unit} of {SMALL} nodes, "
                f"{many_cost:.1f} {unit} of {options.nodes:,}, ratio {many_cost / few_cost:.2f}"
            )


if __name__ == "__main__":
    main()
