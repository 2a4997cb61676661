"""What a node asks of a peer, over the real parts of two nodes in memory."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from light_nodes import Counting, LightNode, address_of, virtual
from swarm_keys import DAY, Swarm

from swarm_node.clock import Clock
from swarm_node.errors import TransportError
from swarm_node.p2p.membership.membership import create_swarm
from swarm_node.p2p.membership.statements import revocations, state
from swarm_node.p2p.peers.peers import Peer
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.identity import Identity, public_key_of
from swarm_node.p2p.wire.protocols import HELLO, PEERS
from swarm_node.p2p.wire.reasons import BUSY, NO_MEMBER, NOT_HERE, NOT_SERVED, UNKNOWN_MEMBER
from swarm_node.p2p.wire.transport import Handler
from swarm_node.simulation.seeded import EPOCH
from swarm_node.simulation.virtual_time import VirtualTimeLoop, run_virtual


class _Transport(Counting, MemoryTransport):
    """Counts the requests that were sent, answered or not."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sent: list[str] = []

    async def request(self, peer: str, protocol: str, *args: Any, **kwargs: Any) -> bytes:
        self.sent.append(protocol)
        return await super().request(peer, protocol, *args, **kwargs)


Scene = Callable[[Swarm, LightNode, Peer], Awaitable[None]]


def _play(
    place: Path, scene: Scene, *reasons: str, greets: Handler | None = None, runs: bool = True
) -> None:
    """Two nodes. The second refuses requests of the first for these reasons, one after another, and
    then answers. The scene gets the first, and what it knows of the second."""

    async def run(loop: VirtualTimeLoop) -> None:
        swarm, network = Swarm(), MemoryNetwork(random.Random(0))
        nodes = [_node(place, virtual(loop), network, swarm, number) for number in (1, 2)]
        one, two = nodes
        two.transport.serve(PEERS, _refusing(reasons))
        if greets is not None:
            two.transport.serve(HELLO, greets)
        for node in nodes if runs else nodes[:1]:
            await node.transport.start()
        try:
            await scene(swarm, one, one.directory.meet(two.peer_id, loop.time()))
        finally:
            for node in nodes:
                await node.transport.stop()
                node.storage.close()

    run_virtual(run)


def _node(
    place: Path, clock: Clock, network: MemoryNetwork, swarm: Swarm, number: int
) -> LightNode:
    member = swarm.member(number)
    return LightNode(place, clock, _Transport(network, member.identity), member)


def _locate(one: LightNode, peer: Peer) -> None:
    """Let `one` know the address of `peer`."""
    peer.addresses = (address_of(one.membership).replace(one.peer_id, peer.peer_id),)


async def _ask(one: LightNode, peer: Peer, **changes: Any) -> bytes | None:
    _locate(one, peer)
    how = {"max_reply": 65_536, **changes}
    return await one.exchange.asker.ask(peer, PEERS, b"\x91\x08", **how)


def _refusing(reasons: Sequence[str]) -> Handler:
    left = list(reasons)

    async def answer(caller: str, payload: bytes) -> bytes:
        if left:
            raise TransportError(left.pop(0))
        return b"answered"

    return answer


def test_a_peer_that_forgot_this_node_is_greeted_anew_and_asked_again(tmp_path: Path) -> None:
    async def scene(swarm: Swarm, one: LightNode, peer: Peer) -> None:
        assert await _ask(one, peer) == b"answered"
        assert one.transport.sent == [HELLO, PEERS, HELLO, PEERS]
        assert await _ask(one, peer) == b"answered", "a member is asked again and again"
        assert not one.rejected

    _play(tmp_path, scene, UNKNOWN_MEMBER.text)


#: What a peer may say around the words of a refusal, which then are none.
PROSE = ("{}, or not", "they said: {}", " {}", "{}\n", "{}: {}", "{}: ")


@pytest.mark.parametrize(
    ("words", "counted", "told"),
    [
        (NOT_HERE.text, "not_here", ""),
        (NOT_SERVED.words(PEERS), "not_served", ""),
        (NO_MEMBER.words("expired"), "unreachable", "expired"),
        (NO_MEMBER.words("of_a_later_version"), "unreachable", "refused"),
        (BUSY.text, "unreachable", ""),
        ("words of nobody", "unreachable", ""),
        *(
            (prose.format(words, words), "unreachable", "")
            for words in (UNKNOWN_MEMBER.text, NOT_HERE.text, NO_MEMBER.words("expired"))
            for prose in PROSE
        ),
    ],
)
def test_any_other_refusal_is_taken_as_it_is_and_prose_that_quotes_one_is_none(
    tmp_path: Path, words: str, counted: str, told: str
) -> None:
    async def scene(swarm: Swarm, one: LightNode, peer: Peer) -> None:
        assert await _ask(one, peer) is None
        assert one.transport.sent == [HELLO, PEERS], "it is not greeted anew"
        assert one.rejected == {counted: 1}
        # A peer need not hold a group, nor serve each protocol.
        assert peer.retry.failures == (counted == "unreachable")
        assert peer.standing.offences == 0
        causes = [cause.code for cause in one.directory.failures.causes(one.clock.now())]
        assert causes == ([told] if told else []), "only this is for its owner"

    _play(tmp_path, scene, words)


def test_who_was_expelled_is_asked_nothing(tmp_path: Path) -> None:
    async def scene(swarm: Swarm, one: LightNode, peer: Peer) -> None:
        assert await _ask(one, peer) == b"answered"
        keys = [public_key_of(peer.peer_id)]
        body = revocations(1, EPOCH, EPOCH + DAY, keys)
        lists = one.exchange.asker._credentials.lists
        assert lists.offer(state(swarm.root.key, b"", swarm.info, body)) is None
        one.transport.sent.clear()
        assert await _ask(one, peer) is None
        assert one.transport.sent == []
        assert one.rejected == {"revoked": 1}

    _play(tmp_path, scene)


@pytest.mark.parametrize("stated_by", ["the protocol", "the peer", "another"])
def test_a_reply_that_is_too_long_is_the_fault_of_who_stated_its_length(
    tmp_path: Path, stated_by: str
) -> None:
    async def scene(swarm: Swarm, one: LightNode, peer: Peer) -> None:
        said = {"the protocol": None, "the peer": peer.peer_id, "another": "12D3KooWother"}
        assert await _ask(one, peer, max_reply=5, stated_by=said[stated_by]) is None
        assert one.rejected == {"size": 1}
        assert (peer.standing.offences == 1) == (stated_by != "another")

    _play(tmp_path, scene)


def test_a_reply_that_is_not_of_its_kind_is_rejected(tmp_path: Path) -> None:
    async def scene(swarm: Swarm, one: LightNode, peer: Peer) -> None:
        _locate(one, peer)
        assert await one.exchange.asker.ask_for(wire.PeersReply, peer, PEERS, b"") is None
        assert one.rejected == {"schema": 1}
        assert peer.standing.offences == 1

    _play(tmp_path, scene)


def test_who_answers_at_none_of_its_addresses_is_sent_nothing(tmp_path: Path) -> None:
    async def scene(swarm: Swarm, one: LightNode, peer: Peer) -> None:
        assert await _ask(one, peer) is None
        assert one.transport.sent == []
        assert one.rejected == {"unreachable": 1}
        assert await one.exchange.asker.ask_for(wire.PeersReply, peer, PEERS, b"") is None

    _play(tmp_path, scene, runs=False)


def test_who_is_connected_is_greeted_whatever_its_addresses_are(tmp_path: Path) -> None:
    """A member that missed a change of the secret answers no dial."""

    async def scene(swarm: Swarm, one: LightNode, peer: Peer) -> None:
        peer.addresses = ("/ip4/192.0.2.1/tcp/7/p2p/" + peer.peer_id,)
        assert await one.exchange.asker.greet(peer)

    _play(tmp_path, scene)


@pytest.mark.parametrize(
    ("reason", "name"),
    [("schema", ""), ("signature", "day shift"), ("wrong_subject", "night shift")],
)
def test_a_greeting_that_is_none_or_of_no_member_is_refused(
    tmp_path: Path, reason: str, name: str
) -> None:
    async def greets(caller: str, payload: bytes) -> bytes:
        other = Swarm()
        other.info = create_swarm(name or "x", other.root.key, bytes(32))
        chain = other.chain(Identity.generate(), other.issuer("owner"), "owner")
        hello = wire.HelloReply(chain, "", (), 0, 0)
        return wire.pack(hello) if name else b"junk"

    async def scene(swarm: Swarm, one: LightNode, peer: Peer) -> None:
        assert swarm.info.name == "night shift"
        assert not await one.exchange.asker.greet(peer)
        assert one.rejected == {reason: 1, "unreachable": 1}
        assert peer.standing.offences == 1
        assert not peer.is_greeted

    _play(tmp_path, scene, greets=greets)


def test_an_envelope_is_its_authors_or_refused_and_counted(tmp_path: Path) -> None:
    async def scene(swarm: Swarm, one: LightNode, peer: Peer) -> None:
        author = Identity.generate()
        raw = seal(author, swarm.info.swarm_id, Kind.HEAD, b"body")
        opened = one.exchange.asker.open_envelope
        for by in (author.peer_id, None):
            found = opened(raw, Kind.HEAD, 1024, by)
            assert found.body == b"body"
        assert not one.rejected
        assert opened(raw, Kind.HEAD, 1024, peer.peer_id) is None
        assert opened(raw, Kind.RECORD, 1024, None) is None
        assert one.rejected == {"author": 1, "kind": 1}
        assert peer.standing.offences == 1

    _play(tmp_path, scene)
