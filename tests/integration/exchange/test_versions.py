"""Nodes of two versions of the wire in one swarm: docs/protocol.md, "Versions"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from exchange_sides import Side

from swarm_node.errors import NotServedError
from swarm_node.p2p.transports.memory import MemoryNetwork
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.protocols import LIST, LIST_2, PULL, PULL_2

InSwarm = Callable[..., None]


def make_old(side: Side) -> None:
    """Let it serve version 1 only, as a program of before does."""
    for protocol in (LIST_2, PULL_2):
        del side.transport._handlers[protocol]


def asked(side: Side) -> Counter[str]:
    """The protocols of the requests that a side answers from now on."""
    counts: Counter[str] = Counter()

    def counting(
        protocol: str, handler: Callable[[str, bytes], Awaitable[bytes]]
    ) -> Callable[[str, bytes], Awaitable[bytes]]:
        async def answer(caller: str, payload: bytes) -> bytes:
            counts[protocol] += 1
            return await handler(caller, payload)

        return answer

    handlers = side.transport._handlers
    for protocol in (LIST, PULL, LIST_2, PULL_2):
        if protocol in handlers:
            handlers[protocol] = counting(protocol, handlers[protocol])
    return counts


def test_an_old_peer_is_listed_by_its_own_version_and_nobody_is_blamed(in_swarm: InSwarm) -> None:
    async def body(network: MemoryNetwork, old: Side, new: Side) -> None:
        make_old(old)
        counts = asked(old)
        await old.publish(0)
        assert len(await new.fetch()) == 1
        await old.publish(1)
        assert len(await new.fetch()) == 1
        assert counts == {LIST: 2, PULL: 2}
        assert new.rejected == {}
        peer = new.directory.get(old.peer_id)
        assert peer is not None
        assert peer.outdated
        assert (peer.standing.offences, peer.retry.failures) == (0, 0)

    in_swarm(body)


def test_an_upgraded_peer_is_asked_by_the_newest_version_after_it_greets(in_swarm: InSwarm) -> None:
    async def body(network: MemoryNetwork, old: Side, new: Side) -> None:
        newest = dict(old.transport._handlers)
        make_old(old)
        await new.list_some(8, 64)
        old.transport._handlers = newest
        counts = asked(old)
        await new.list_some(8, 64)
        assert counts == {LIST: 1}, "it is remembered"
        assert await old.exchange.asker.introduce(new.peer_id)
        await new.list_some(8, 64)
        assert counts == {LIST: 1, LIST_2: 1}

    in_swarm(body)


def test_an_old_node_lists_and_pulls_single_answers_of_a_new_one(in_swarm: InSwarm) -> None:
    async def body(network: MemoryNetwork, new: Side, old: Side) -> None:
        await new.publish(0)
        request = wire.pack(wire.ListRequest(epoch=0, since=0, limit=10))
        listed = [
            await old.transport.request(new.peer_id, protocol, request)
            for protocol in (LIST, LIST_2)
        ]
        assert listed[0] == listed[1]
        reply = wire.unpack(wire.ListReply, listed[0], max_bytes=9999)
        assert isinstance(reply, wire.ListReply)
        assert len(reply.items) == 1

    in_swarm(body)


def test_a_protocol_that_no_version_serves_is_counted_and_blames_nobody(in_swarm: InSwarm) -> None:
    async def body(network: MemoryNetwork, old: Side, new: Side) -> None:
        for protocol in (LIST, LIST_2):
            del old.transport._handlers[protocol]
        with pytest.raises(NotServedError):
            await new.transport.request(old.peer_id, LIST, b"")
        await new.list_some(8, 64)
        assert new.rejected == {"not_served": 1}
        peer = new.directory.get(old.peer_id)
        assert peer is not None
        assert (peer.standing.offences, peer.retry.failures) == (0, 0)

    in_swarm(body)
