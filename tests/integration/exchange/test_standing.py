"""Who is let in and who is cut off."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from exchange_sides import Side, in_swarm, serve_raw

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.errors import TransportError
from swarm_node.node.home.home import Home
from swarm_node.p2p.membership.statements import NewSecret, Revocations, Signed, revocations
from swarm_node.p2p.peers.liveness import OFFENCE
from swarm_node.p2p.peers.standing import Standing
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import (
    HELLO,
    LIST,
    PEERS,
    PULL,
    RENEW,
    REVOKED,
    SECRET,
)


@in_swarm()
async def test_an_expelled_member_is_neither_asked_nor_answered(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    await bob.publish(0)
    await alice.exchange.discovery.send_heartbeat(0, 20.0)
    await alice.list_some(8, 64)
    assert alice.exchange.puller.on_offer(lambda _: 64) == 1
    key = bob.membership.identity.public_key
    now = SYSTEM_CLOCK.wall()
    alice.members.obey(revocations(1, now, now + 60, [key]))
    assert await alice.pull() == []
    assert alice.rejected["revoked"] == 1
    for protocol in (LIST, PULL, PEERS, REVOKED, SECRET, RENEW):
        with pytest.raises(TransportError, match="hello"):
            await bob.transport.request(alice.peer_id, protocol, b"")
    hello = wire.HelloRequest(bob.membership.chain, "", (), 0, 0)
    with pytest.raises(TransportError, match="revoked"):
        await bob.transport.request(alice.peer_id, HELLO, wire.pack(hello))
    await alice.exchange.discovery.send_heartbeat(0, 20.0)
    assert len(alice.directory) == 0
    assert bob.peer_id not in await alice.transport.heartbeats()


@in_swarm(1)
async def test_who_is_no_member_gets_nothing(
    network: MemoryNetwork, alice: Side, tmp_path: Path
) -> None:
    other = Home(tmp_path / "other").found_swarm("other", SYSTEM_CLOCK.wall())
    # A member's certificates in a stranger's hands: the link says who is calling.
    hellos = {
        "no member": other.chain,
        "wrong_subject": alice.membership.chain,
    }
    payloads = {
        "hello": (LIST, wire.pack(wire.ListRequest(epoch=0, since=0, limit=10))),
        **{
            said: (HELLO, wire.pack(wire.HelloRequest(chain, "swarm-node", (), 0, 0)))
            for said, chain in hellos.items()
        },
    }
    junk = [("bad request", (HELLO, junk)) for junk in (b"", b"\xc1", b"\x91" * 1000)]
    for said, (protocol, payload) in [*payloads.items(), *junk]:
        stranger = MemoryTransport(network, Identity.generate())
        await stranger.start()
        with pytest.raises(TransportError, match=said):
            await stranger.request(alice.peer_id, protocol, payload)
        again = "hello" if said == "hello" else "cut the link"
        with pytest.raises(TransportError, match=again):
            await stranger.request(alice.peer_id, *payloads["hello"])
        await stranger.stop()


@pytest.mark.parametrize("protocol", [LIST, PULL, PEERS, HELLO])
@pytest.mark.parametrize("junk", [b"", b"\xc1", b"\x91" * 1000])
@in_swarm()
async def test_a_malformed_request_of_a_member_is_counted_and_cuts_its_link(
    network: MemoryNetwork, alice: Side, bob: Side, protocol: str, junk: bytes
) -> None:
    await bob.fetch()  # a greeting makes each a member for the other
    peer = alice.directory.get(bob.peer_id)
    assert peer is not None
    with pytest.raises(TransportError, match="bad request"):
        await bob.transport.request(alice.peer_id, protocol, junk)
    assert alice.rejected == peer.rejected == {"schema": 1}
    sound = wire.pack(wire.ListRequest(epoch=0, since=0, limit=10))
    with pytest.raises(TransportError, match="the link"):
        await bob.transport.request(alice.peer_id, LIST, sound)
    assert alice.directory.draw(random.Random(0), 9, SYSTEM_CLOCK.now()) == []
    # A new greeting, or the directory's forgetting, lifts nothing.
    del alice.directory._peers[bob.peer_id]
    assert alice.directory.meet(bob.peer_id, 0.0).retry_at > SYSTEM_CLOCK.now() + 50


@pytest.mark.parametrize("protocol", [REVOKED, SECRET])
@in_swarm()
async def test_a_forged_statement_of_a_member_is_counted_and_cuts_its_link(
    network: MemoryNetwork, alice: Side, bob: Side, protocol: str
) -> None:
    await bob.fetch()
    kind = Kind.REVOKE if protocol == REVOKED else Kind.SECRET
    swarm_id = alice.membership.swarm.swarm_id
    now = SYSTEM_CLOCK.wall()
    made: Revocations | NewSecret = revocations(1, now, now + 60, [b"k" * 32])
    if protocol == SECRET:
        made = NewSecret(1, 1, int(now), b"s" * 32)
    sealed = seal(bob.membership.identity, swarm_id, kind, wire.pack(made))
    forged = wire.pack(Signed(b"", sealed))
    with pytest.raises(TransportError, match="wrong_root"):
        await bob.transport.request(alice.peer_id, protocol, forged)
    assert alice.rejected == {"wrong_root": 1}
    with pytest.raises(TransportError, match="the link"):
        await bob.transport.request(alice.peer_id, protocol, b"")


@in_swarm()
async def test_who_is_no_delegate_says_so_when_asked_for_a_renewal(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    with pytest.raises(TransportError, match="not_delegate"):
        await alice.transport.request(bob.peer_id, RENEW, b"")


@in_swarm()
async def test_who_was_cut_off_before_a_restart_stays_so(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    alice.directory.recall(bob.peer_id, Standing(cut_until=SYSTEM_CLOCK.now() + 60))
    hello = wire.HelloRequest(bob.membership.chain, "", (), 0, 0)
    with pytest.raises(TransportError, match="broke"):
        await bob.transport.request(alice.peer_id, HELLO, wire.pack(hello))
    with pytest.raises(TransportError) as cut:
        await bob.transport.request(alice.peer_id, HELLO, wire.pack(hello))
    assert "broke" not in str(cut.value)  # its link is cut: nobody reads it


@in_swarm()
async def test_a_peer_that_breaks_the_protocol_is_asked_nothing_and_gets_no_answer(
    network: MemoryNetwork, mallory: Side, bob: Side
) -> None:
    await serve_raw(mallory, lambda sealed: sealed[:-1] + bytes([sealed[-1] ^ 1]))
    assert await bob.fetch() == []
    assert bob.rejected == {"signature": 1}
    now = SYSTEM_CLOCK.now()
    assert 50 < bob.directory.cut(mallory.peer_id, now) <= OFFENCE.first
    assert bob.directory.draw(random.Random(0), 9, now) == []
    with pytest.raises(TransportError, match="the link"):
        await mallory.transport.request(bob.peer_id, HELLO, b"")


@in_swarm(3)
async def test_a_holder_that_sends_other_bytes_is_cut_off_and_not_the_author(
    network: MemoryNetwork, alice: Side, liar: Side, bob: Side
) -> None:
    (own,) = await alice.publish(0)
    for side in (alice, liar, bob):
        await side.exchange.discovery.send_heartbeat(0, 20.0)
    await bob.list_some(8, 64)
    size = len(alice.storage.blob(own.id) or b"")

    async def junk(_: str, __: bytes) -> bytes:
        return bytes(size)

    liar.transport._handlers[PULL] = junk
    network.cut(alice.peer_id)
    assert await bob.pull() == []
    now = SYSTEM_CLOCK.now()
    assert bob.rejected["hash"] == 1
    assert bob.directory.cut(liar.peer_id, now) > 0
    assert bob.directory.cut(alice.peer_id, now) == 0


@in_swarm(3)
async def test_an_author_that_states_a_wrong_size_makes_no_holder_guilty(
    network: MemoryNetwork, mallory: Side, carol: Side, bob: Side
) -> None:
    await mallory.publish(0)
    assert len(await carol.fetch()) == 1
    for side in (mallory, carol, bob):
        await side.exchange.discovery.send_heartbeat(0, 20.0)
    await bob.list_some(8, 64)
    peer = bob.directory.get(mallory.peer_id)
    peer.offers[0] = replace(peer.offers[0], size=10)
    network.cut(mallory.peer_id)
    assert await bob.pull() == []
    assert bob.rejected["size"] > 0
    holder = bob.directory.get(carol.peer_id)
    assert (holder.rejected.total(), holder.retry.failures) == (0, 0)


@in_swarm()
async def test_a_reply_over_the_limit_of_the_protocol_cuts_its_sender_off(
    network: MemoryNetwork, mallory: Side, bob: Side
) -> None:
    async def large(_: str, __: bytes) -> bytes:
        return bytes(200_000)

    mallory.transport._handlers[LIST] = large
    await bob.fetch()
    assert bob.rejected == {"size": 1}
    assert bob.directory.cut(mallory.peer_id, SYSTEM_CLOCK.now()) > 0


@in_swarm()
async def test_who_only_downloads_is_told_to_slow_down_and_cut_off_if_it_does_not(
    network: MemoryNetwork, alice: Side, leech: Side
) -> None:
    await leech.fetch()
    request = wire.pack(wire.ListRequest(epoch=0, since=0, limit=wire.MAX_LIST_ITEMS))
    said: Counter[str] = Counter()
    for _ in range(2000):
        try:
            await leech.transport.request(alice.peer_id, LIST, request)
        except TransportError as error:
            said[str(error)] += 1
    slow, cut = (next(n for text, n in said.items() if word in text) for word in ("slow", "cut"))
    assert slow < 100 < cut
    assert alice.rejected["flood"] == 1
