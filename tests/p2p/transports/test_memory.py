"""Loss, delay, partitions and crashes of the in-memory network, on a virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from virtual import virtual_time

from swarm_node.errors import TransportError
from swarm_node.p2p.transports.memory import MAX_FOUND, MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire.identity import Identity

ECHO = "/test/echo/1"


async def swarm(network: MemoryNetwork, count: int) -> list[MemoryTransport]:
    async def echo(peer: str, payload: bytes) -> bytes:
        return payload

    transports = []
    for number in range(count):
        transport = MemoryTransport(network, Identity.from_seed(bytes([number]) * 32))
        transport.serve(ECHO, echo)
        await transport.start()
        transports.append(transport)
    return transports


def now() -> float:
    return asyncio.get_running_loop().time()


@virtual_time
async def test_delay_is_drawn_for_each_way() -> None:
    one, other = await swarm(MemoryNetwork(random.Random(0), delay=(2.0, 3.0)), 2)
    for _ in range(20):
        start = now()
        assert await one.request(other.peer_id, ECHO, b"x") == b"x"
        assert 4.0 <= now() - start <= 6.0


@virtual_time
async def test_messages_overtake_each_other() -> None:
    one, other = await swarm(MemoryNetwork(random.Random(0), delay=(0.5, 4.0)), 2)
    arrived: list[int] = []

    async def ask(number: int) -> None:
        await one.request(other.peer_id, ECHO, b"%d" % number)
        arrived.append(number)

    await asyncio.gather(*(ask(number) for number in range(20)))
    assert sorted(arrived) == list(range(20)) != arrived


@virtual_time
async def test_without_delay_no_time_passes() -> None:
    one, other = await swarm(MemoryNetwork(random.Random(0)), 2)
    await one.request(other.peer_id, ECHO, b"x")
    assert now() == 0.0


async def lossy_run(seed: int) -> list[tuple[bool, float]]:
    network = MemoryNetwork(random.Random(seed), delay=(0.01, 0.05), loss=0.3, patience=1.0)
    one, other = await swarm(network, 2)
    outcomes = []
    for _ in range(200):
        try:
            await one.request(other.peer_id, ECHO, b"x")
            outcomes.append((True, now()))
        except TransportError:
            outcomes.append((False, now()))
    return outcomes


@virtual_time
async def test_lost_messages_cost_the_callers_patience_and_depend_on_the_seed_only() -> None:
    start = now()
    first = await lossy_run(seed=7)
    again = await lossy_run(seed=7)
    third = await lossy_run(seed=8)
    length = first[-1][1] - start
    assert [ok for ok, _ in first] == [ok for ok, _ in again]
    assert [ok for ok, _ in first] != [ok for ok, _ in third]
    assert again[-1][1] - first[-1][1] == pytest.approx(length)
    arrived = sum(ok for ok, _ in first)
    assert 70 <= arrived <= 126  # both ways: 0.7² of 200 = 98, 4 standard deviations
    assert length > 200 - arrived


@virtual_time
async def test_partition_and_healing() -> None:
    network = MemoryNetwork(random.Random(0))
    a, b, c, d = await swarm(network, 4)
    for transport in (a, b, c, d):
        await transport.publish_heartbeat(transport.peer_id.encode(), ttl=60)
    network.partition([[a.peer_id, b.peer_id]])
    assert await a.request(b.peer_id, ECHO, b"x") == b"x"
    assert await c.request(d.peer_id, ECHO, b"x") == b"x"
    with pytest.raises(TransportError, match="cannot reach"):
        await a.request(c.peer_id, ECHO, b"x")
    assert set(await a.heartbeats()) == {b.peer_id}
    assert set(await c.heartbeats()) == {d.peer_id}
    assert await a.dial([*b.addresses(), *c.addresses()]) == 1
    network.partition([[a.peer_id]])
    assert await a.heal(b.addresses()) == "alone"
    network.partition([])
    assert await a.heal([]) == "ok"
    assert len(await a.heartbeats()) == 3


@virtual_time
async def test_of_many_heartbeats_a_reader_gets_another_sample_each_time() -> None:
    network = MemoryNetwork(random.Random(0))
    (reader,) = await swarm(network, 1)
    await reader.publish_heartbeat(b"own", ttl=60)
    for index in range(4 * MAX_FOUND):
        network.publish(f"far {index}", b"far", 60)
        network.publish(f"ended {index}", b"ended", 0)
        network.publish(f"near {index}", b"near", 60)
    network.partition([[f"far {index}" for index in range(4 * MAX_FOUND)]])
    found = [await reader.heartbeats() for _ in range(20)]
    assert all(len(each) == MAX_FOUND for each in found)
    assert {name for each in found for name in each.values()} == {b"near"}
    times = Counter(peer for each in found for peer in each)
    assert len(times) > 0.98 * 4 * MAX_FOUND  # each is missed with probability 0.75²⁰ = 0.003
    assert max(times.values()) < 16  # of a binomial of 20 at 0.25


@virtual_time
async def test_partition_during_a_request_loses_its_reply() -> None:
    network = MemoryNetwork(random.Random(0), delay=(1.0, 1.0))
    one, other = await swarm(network, 2)

    async def part() -> None:
        await asyncio.sleep(1.5)
        network.partition([[one.peer_id]])

    with pytest.raises(TransportError, match="cannot reach"):
        await asyncio.gather(one.request(other.peer_id, ECHO, b"x"), part())


@virtual_time
async def test_cut_peer_answers_nobody_and_its_heartbeat_outlives_it_until_ttl() -> None:
    network = MemoryNetwork(random.Random(0))
    one, other = await swarm(network, 2)
    await other.publish_heartbeat(b"alive", ttl=60)
    network.cut(other.peer_id)
    with pytest.raises(TransportError, match="cannot reach"):
        await one.request(other.peer_id, ECHO, b"x")
    with pytest.raises(TransportError, match="not running"):
        await other.request(one.peer_id, ECHO, b"x")
    await asyncio.sleep(59)
    assert await one.heartbeats() == {other.peer_id: b"alive"}
    await asyncio.sleep(2)
    assert await one.heartbeats() == {}
    await other.start()
    assert await one.request(other.peer_id, ECHO, b"x") == b"x"


@virtual_time
async def test_traffic_is_counted_by_peer() -> None:
    network = MemoryNetwork(random.Random(0))
    one, other = await swarm(network, 2)
    await one.request(other.peer_id, ECHO, bytes(1000))
    assert network.bytes_sent == {one.peer_id: 1000, other.peer_id: 1000}
    assert network.bytes_received == network.bytes_sent


@virtual_time
async def test_one_identity_runs_once() -> None:
    network = MemoryNetwork(random.Random(0))
    one = (await swarm(network, 1))[0]
    double = MemoryTransport(network, Identity.from_seed(bytes(32)))
    with pytest.raises(TransportError, match="already runs"):
        await double.start()
    await double.stop()
    assert network.running(one.peer_id) is one


@pytest.mark.parametrize("settings", [{"loss": 1.5}, {"delay": (2.0, 1.0)}, {"delay": (-1.0, 1.0)}])
def test_impossible_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="probability"):
        MemoryNetwork(random.Random(0), **settings)  # type: ignore[arg-type]
