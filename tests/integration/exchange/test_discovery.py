"""Who is met: heartbeats, greetings, and the peers that a node was told of."""

from __future__ import annotations

import asyncio

import pytest
from exchange_sides import Side, in_swarm

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.errors import Rejected, TransportError
from swarm_node.p2p.exchange.serving import hello_body
from swarm_node.p2p.membership.delegates import issue_renewal
from swarm_node.p2p.membership.members import Member
from swarm_node.p2p.membership.statements import revocations
from swarm_node.p2p.peers.peers import PARTNERS
from swarm_node.p2p.transports.memory import MemoryNetwork
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import PEERS


def _readers(network: MemoryNetwork) -> list[str]:
    """Who reads heartbeats from the network from now on."""
    readers: list[str] = []
    read = network.heartbeats

    def noted(reader: str) -> dict[str, bytes]:
        readers.append(reader)
        return read(reader)

    network.heartbeats = noted  # type: ignore[method-assign]
    return readers


@in_swarm(10)
async def test_with_peers_enough_heartbeats_are_read_rarely(
    network: MemoryNetwork, *sides: Side
) -> None:
    readers = _readers(network)
    for side in sides[1:]:
        await side.exchange.discovery.send_heartbeat(0, 20.0)
    for _ in range(258):  # two periods of a node that has peers enough
        await sides[0].exchange.discovery.send_heartbeat(0, 20.0)
    assert readers.count(sides[0].peer_id) == 2


@in_swarm()
async def test_invented_heartbeats_enter_no_directory_and_cost_their_teller(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    await bob.exchange.discovery.send_heartbeat(0, 30)
    await alice.exchange.discovery.send_heartbeat(0, 30)
    asked = alice.directory.get(bob.peer_id)
    assert asked is not None

    async def invented(caller: str, payload: bytes) -> bytes:
        made = []
        for _ in range(50):
            ghost = Identity.generate()
            head = wire.Heartbeat(
                *(1, ("/ip4/192.0.2.1/tcp/4001/p2p/" + ghost.peer_id,), 0, 1, 0),
                *(int(SYSTEM_CLOCK.wall() * 1000), "ghost", 0, 0, False, False),
            )
            sealed = seal(ghost, alice.membership.swarm.swarm_id, Kind.HEAD, wire.pack(head))
            made.append(wire.pack(wire.Presence(sealed, *bob.membership.chain)))
        return wire.pack(wire.PeersReply(tuple(made)))

    bob.transport._handlers[PEERS] = invented
    await alice.exchange.discovery.send_heartbeat(0, 30)
    assert len(alice.directory) == 1
    assert alice.rejected["wrong_subject"] > 0
    assert asked.standing.cut_until > SYSTEM_CLOCK.now()


@in_swarm(3)
async def test_a_node_passes_on_what_members_said_of_themselves_but_not_to_themselves(
    network: MemoryNetwork, alice: Side, bob: Side, carol: Side
) -> None:
    async def told() -> set[bytes]:
        request = wire.pack(wire.PeersRequest(100))
        reply = await bob.transport.request(alice.peer_id, PEERS, request)
        listed = wire.unpack(wire.PeersReply, reply, max_bytes=len(reply))
        return set(listed.presences)

    for side in (bob, carol, alice):
        await side.exchange.discovery.send_heartbeat(0, 20.0)
    own = alice.directory.heartbeat
    caller, other = (alice.directory.get(side.peer_id) for side in (bob, carol))
    assert caller.heartbeat
    assert await told() == {other.heartbeat, own}
    heard, other.heartbeat = other.heartbeat, b""
    assert await told() == {own}
    other.heartbeat, now = heard, SYSTEM_CLOCK.wall()
    alice.members.obey(revocations(1, now, now + 60, [carol.membership.identity.public_key]))
    assert await told() == {own}


@in_swarm(1)
async def test_a_greeting_leaves_out_addresses_that_are_too_long(
    network: MemoryNetwork, alice: Side
) -> None:
    alice.transport.addresses = lambda: ["/" + "x" * 160, "/short"]  # type: ignore[method-assign]
    own = alice.exchange.discovery._credentials
    assert hello_body(wire.HelloRequest, own, alice.transport).addresses == ("/short",)


@in_swarm()
async def test_a_beat_stores_the_peers_only_if_they_changed(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    (stored,) = bob.storage.known_peers(9)
    assert (stored.peer_id, stored.failures, stored.anchor) == (alice.peer_id, 0, True)
    before = bob.storage._connection.total_changes
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    assert bob.storage._connection.total_changes == before
    bob.exchange.discovery._book.record_failure(alice.peer_id, SYSTEM_CLOCK.now(), float("inf"))
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    (stored,) = bob.storage.known_peers(9)
    assert stored.failures == 1
    assert bob.storage._connection.total_changes > before


@in_swarm()
async def test_a_member_that_was_let_go_must_greet_again(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    alice.directory.forget(bob.peer_id)
    assert alice.members.is_member(bob.peer_id)
    with pytest.raises(TransportError, match="hello"):
        await bob.transport.request(alice.peer_id, PEERS, wire.pack(wire.PeersRequest(limit=1)))


@in_swarm()
async def test_a_renewed_member_counts_for_the_issuer_that_admitted_it(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    delegate = alice.home.delegate()
    member = bob.members.admit(bob.membership.chain, bob.peer_id)
    assert delegate is not None
    assert isinstance(member, Member)
    later = SYSTEM_CLOCK.wall() + 60
    chain = issue_renewal(delegate, alice.membership.swarm, member, later)
    assert not isinstance(chain, Rejected)
    assert bob.exchange.discovery._credentials.adopt(chain) is None
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    peer = alice.directory.meet(bob.peer_id, SYSTEM_CLOCK.now())
    heard = (await alice.transport.heartbeats())[bob.peer_id]
    alice.exchange.discovery._add_presence(heard, author_id=bob.peer_id, teller=None)
    assert peer.heartbeat == heard
    assert (
        alice.members.issuer(bob.peer_id)
        == member.admitted_by.hex()
        != delegate.key.public_key.hex()
    )


@in_swarm(1)
async def test_who_does_not_answer_is_not_met(network: MemoryNetwork, alice: Side) -> None:
    alice.exchange.discovery.name([_nowhere()])
    assert await alice.exchange.discovery.try_peer() is False
    assert len(alice.directory) == 0


@in_swarm(1)
async def test_with_all_partners_a_node_tries_a_new_peer_once_in_minutes(
    network: MemoryNetwork, alice: Side
) -> None:
    now = SYSTEM_CLOCK.now()
    for _ in range(PARTNERS):
        partner = alice.directory.meet(Identity.generate().peer_id, now)
        partner.partner_since = now
    alice.exchange.discovery.name([_nowhere(), _nowhere()])
    assert await alice.exchange.discovery.try_peer() is False
    assert await alice.exchange.discovery.try_peer() is None
    partner.record_failure(now)  # the last one; its own retry waits for a second
    assert await alice.exchange.discovery.try_peer() is False


def _nowhere() -> str:
    return "/memory/p2p/" + Identity.generate().peer_id


@in_swarm()
async def test_who_came_by_itself_becomes_a_partner_once_it_is_named(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    peer = alice.directory.get(bob.peer_id)
    peer.partner_since = None
    alice.exchange.discovery.name(bob.transport.addresses())
    assert await alice.exchange.discovery.try_peer() is True
    assert peer.partner_since is not None


@in_swarm()
async def test_who_asks_this_node_is_not_silent_though_it_cannot_be_dialled(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    meeting, now = alice.exchange.discovery, SYSTEM_CLOCK.now()
    await meeting.send_heartbeat(0, 20.0)
    meeting._book.record_answer(bob.peer_id, now, "")
    meeting._book.record_failure(bob.peer_id, now, float("inf"))
    assert not meeting._silent(now)
    alice.directory.forget(bob.peer_id)
    assert set(meeting._silent(now)) == {bob.peer_id}


@in_swarm()
async def test_with_few_peers_heartbeats_are_read_at_each_beat(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    readers = _readers(network)
    for _ in range(3):
        await alice.exchange.discovery.send_heartbeat(0, 20.0)
    assert readers == [alice.peer_id] * 3


@in_swarm()
async def test_an_older_heartbeat_takes_nothing_back(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    await bob.exchange.discovery.send_heartbeat(1, 20.0)
    older = network.heartbeats(alice.peer_id)[bob.peer_id]
    await asyncio.sleep(0.002)  # a heartbeat states milliseconds
    await bob.exchange.discovery.send_heartbeat(2, 20.0)
    newer = network.heartbeats(alice.peer_id)[bob.peer_id]
    alice.exchange.discovery.add_presences([newer, older])
    peer = alice.directory.get(bob.peer_id)
    assert (peer.heartbeat, peer.version) == (newer, 2)
