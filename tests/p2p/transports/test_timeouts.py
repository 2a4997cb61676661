"""Patience with a daemon: its limits, and a daemon that is slow because the machine is starved."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Sequence

import pytest
from virtual import virtual_time

from swarm_node.clock import Clock
from swarm_node.errors import SlowStartError, TransportError
from swarm_node.node.loops.supervisor import Supervisor
from swarm_node.p2p.addresses.addresses import Address
from swarm_node.p2p.transports.streams import StreamTransport
from swarm_node.p2p.transports.timeouts import HEALTHY_SECONDS, Patience, on_time
from swarm_node.p2p.wire.identity import Identity
from swarm_node.simulation.virtual_time import VirtualTimeLoop


@pytest.mark.parametrize(
    ("events", "start", "silence"),
    [
        ("", 15, 3),
        ("f", 30, 6),
        ("a", 30, 6),
        ("fa", 60, 12),
        ("fffffff", 300, 300),
        ("f" * 20, 300, 300),
        ("fa.", 60, 12),  # an answer too soon after the alarm proves nothing
        ("fa....", 30, 6),
        ("fa.........", 15, 3),
        ("........", 15, 3),
        ("f" * 20 + "." * 30, 15, 3),
        ("fa" + "-" * 30, 60, 12),  # each took almost four seconds
        ("fa" + "-" * 30 + "." * 10, 15, 3),
    ],
)
def test_limits_double_with_each_failure_and_halve_with_health(
    events: str, start: float, silence: float
) -> None:
    patience, now = Patience(), 1000.0
    for event in events:
        if event in ".-":
            now += HEALTHY_SECONDS / 4
            patience.record_answer(now, 0.1 if event == "." else 3.9)
        else:
            (patience.record_failure if event == "f" else patience.record_false_alarm)(now)
    assert (patience.start, patience.silence) == (start, silence)


class SlowDaemon:
    """A daemon that needs `slow` seconds for each answer, and for ever once it is stuck."""

    pid, dead, addresses = 1, False, ("/ip4/127.0.0.1/tcp/1",)

    def __init__(self, slow: float) -> None:
        self.slow = slow

    async def connections(self, patience: float) -> dict[str, list[str]] | None:
        try:
            async with on_time(patience, asyncio.get_running_loop().time):
                await asyncio.sleep(self.slow)
        except TimeoutError:
            return None
        return {"a peer": []}

    async def stop(self, grace: float) -> None:
        self.dead = True

    async def connect(self, address: Address, patience: float) -> bool:
        raise NotImplementedError

    async def open_stream(
        self, peer_id: str, protocol: str, patience: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise NotImplementedError

    async def disconnect(self, peer_id: str) -> None:
        raise NotImplementedError


class Starved(StreamTransport[SlowDaemon]):
    """A transport whose daemons need `needs` seconds to start and `slow` seconds to answer."""

    has_table = False
    needs, slow = 0.0, 0.0
    starts = 0

    async def _start_node(self, listen: Sequence[str], patience: float) -> SlowDaemon:
        self.starts += 1
        await asyncio.sleep(min(self.needs, patience))
        if patience < self.needs:
            raise SlowStartError("not ready")
        return SlowDaemon(self.slow)

    def use_secret(self, secret: bytes) -> None:
        raise NotImplementedError

    async def publish_heartbeat(self, heartbeat: bytes, ttl: float) -> None:
        raise NotImplementedError

    async def heartbeats(self) -> dict[str, bytes]:
        raise NotImplementedError


def starved(loop: VirtualTimeLoop) -> Starved:
    return Starved(
        Identity.generate(),
        listen=["/ip4/127.0.0.1/tcp/0"],
        rng=random.Random(0),
        clock=Clock(now=loop.time, wall=loop.time),
    )


@pytest.mark.parametrize("slow", [0.0, 8.0])
@virtual_time
async def test_a_daemon_on_a_starved_machine_is_up_within_three_minutes_and_stays(
    loop: VirtualTimeLoop, slow: float
) -> None:
    transport = starved(loop)
    await transport.start()
    transport.needs, transport.slow = 40.0, slow
    node = transport._node
    node.slow = math.inf  # a stop of seconds, as the machine becomes busy
    supervisor = Supervisor(Counter(), {}, transport._clock)
    healed: list[str] = []

    async def mend() -> None:
        healed.append(await transport.heal([]))
        await asyncio.sleep(3.0)

    living = asyncio.create_task(supervisor.repeat("mend", mend))
    await asyncio.sleep(180.0)
    assert transport._node is not None, "no daemon after three minutes"
    starts = transport.starts
    await asyncio.sleep(3600.0)
    assert transport.starts == starts, "it was killed again although it lives"
    assert set(healed[-300:]) == {"ok"}
    living.cancel()
    await asyncio.wait({living})


@virtual_time
async def test_the_start_of_a_node_gives_a_slow_daemon_more_time_and_then_gives_up(
    loop: VirtualTimeLoop,
) -> None:
    transport = starved(loop)
    transport.needs = 40.0
    await transport.start()
    assert (transport.starts, loop.time()) == (3, 15.0 + 30.0 + 40.0)
    hopeless = starved(loop)
    hopeless.needs = 1000.0
    with pytest.raises(TransportError, match="not ready"):
        await hopeless.start()
    assert hopeless.starts == 3


@pytest.mark.slow(reason="a loop that gets no processor for most of a second")
async def test_a_limit_does_not_run_while_this_node_is_late() -> None:
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    async with on_time(0.6, loop.time):
        loop.call_later(0.1, time.sleep, 0.9)  # the node gets no processor
        await asyncio.sleep(1.2)
    assert time.monotonic() - began >= 1.0
    with pytest.raises(TimeoutError):
        async with on_time(0.1, loop.time):
            await asyncio.Event().wait()
