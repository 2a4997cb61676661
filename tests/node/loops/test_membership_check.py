"""When a node ends because its swarm refuses it, and that no peer can end a member's node."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from light_nodes import LightNode, address_of, virtual
from swarm_keys import DAY, Swarm

from swarm_node.node.home.home import Membership
from swarm_node.node.loops.peers.membership_check import HOLD_SECONDS, MembershipCheck
from swarm_node.p2p.membership.delegates import Signer, next_list
from swarm_node.p2p.membership.statements import revocations, state
from swarm_node.p2p.peers.peers import Peer
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire.protocols import CLAIMS, HELLO, REVOKED
from swarm_node.p2p.wire.reasons import NO_MEMBER
from swarm_node.simulation.seeded import EPOCH
from swarm_node.simulation.virtual_time import VirtualTimeLoop, run_virtual
from swarm_node.storage import KnownPeer

SWARM = Swarm()
REFUSALS = ("revoked 5", "expired 5", "used_up")


class Guest:
    """A node, the host that it greets, and what tells the node whether it belongs to the swarm."""

    def __init__(self, node: LightNode, host: LightNode, invited: bool) -> None:
        self.node, self.host, self.left = node, host, 0
        inviters = [address_of(host.membership)] if invited else []
        self.membership_check = MembershipCheck(node.local, node.storage, inviters, self._leave)
        self.shown = b""

    def _leave(self) -> None:
        self.left += 1

    async def greets(self) -> bool:
        """Greet the host for longer than a newcomer waits. Return True if the node then ends."""
        peer = Peer(self.host.peer_id, 0.0, (address_of(self.host.membership),))
        for _ in range(1 + int(HOLD_SECONDS)):
            await self.node.exchange.asker.greet(peer)
            await self.membership_check.step(self.node.exchange.asker._credentials.me)
        assert self.left == (self.membership_check.refusal is not None)
        return bool(self.left)

    def meets(self) -> None:
        """Have the node remember that a peer admitted it once."""
        self.node.storage.remember_peers([KnownPeer(self.host.peer_id, (), EPOCH)])

    def lie(self, reason: str) -> None:
        """Have the host refuse all for this reason, and show the list that a test sets."""

        async def refuse(caller: str, payload: bytes) -> bytes:
            raise NO_MEMBER.error(reason)

        async def show(caller: str, payload: bytes) -> bytes:
            return self.shown

        self.host.transport.serve(HELLO, refuse)
        self.host.transport.serve(REVOKED, show)


def play(
    place: Path,
    scene: Callable[[Guest], Awaitable[None]],
    member: Membership | None = None,
    invited: bool = False,
    lie: str = "",
) -> None:
    async def run(loop: VirtualTimeLoop) -> None:
        network, clock = MemoryNetwork(random.Random(0)), virtual(loop)
        members = [member or SWARM.member(1, name="guest"), SWARM.member(2, name="host")]
        nodes = [LightNode(place, clock, MemoryTransport(network, m.identity), m) for m in members]
        guest = Guest(nodes[0], nodes[1], invited)
        if lie:
            guest.lie(lie)
        for node in nodes:
            await node.transport.start()
        await scene(guest)
        for node in nodes:
            await node.transport.stop()
            node.storage.close()

    run_virtual(run)


def made_list(signer: Signer, *members: Membership) -> bytes:
    keys = [each.identity.public_key for each in members]
    return next_list(signer, SWARM.info, None, keys, EPOCH).raw


@pytest.mark.parametrize("reason", REFUSALS)
@pytest.mark.parametrize("met", [True, False], ids=["member", "newcomer"])
@pytest.mark.parametrize("invited", [True, False], ids=["inviter", "peer"])
def test_a_peer_that_lies_ends_no_node_that_was_ever_admitted(
    tmp_path: Path, reason: str, met: bool, invited: bool
) -> None:
    async def scene(guest: Guest) -> None:
        if met:
            guest.meets()
        assert await guest.greets() == (reason == "used_up" and invited and not met)

    play(tmp_path, scene, invited=invited, lie=reason)


def test_a_list_that_a_liar_forged_or_that_names_others_ends_no_node(tmp_path: Path) -> None:
    async def scene(guest: Guest) -> None:
        own, other = guest.node.membership, SWARM.member(9)
        body = revocations(1, EPOCH, EPOCH + DAY, [own.identity.public_key])
        for raw in (b"", b"junk", made_list(SWARM.delegate, other)):
            guest.shown = raw
            assert not await guest.greets()
        plain = SWARM.issuer("plain")
        with pytest.raises(ValueError, match="not_delegate"):
            state(plain.key, plain.certificate, SWARM.info, body)
        signed = made_list(SWARM.delegate, own)
        for place in (-1, len(signed) // 2):
            changed = bytearray(signed)
            changed[place] ^= 1
            guest.shown = bytes(changed)
            assert not await guest.greets()

    play(tmp_path, scene, lie="revoked 5")


@pytest.mark.parametrize("signer", ["root", "delegate"])
def test_a_revoked_node_is_shown_the_list_and_ends(tmp_path: Path, signer: str) -> None:
    async def scene(guest: Guest) -> None:
        assert not await guest.greets(), "its host admits it"
        raw = made_list(getattr(SWARM, signer), guest.node.membership)
        assert guest.host.exchange.asker._credentials.lists.offer(raw) is None
        assert await guest.greets()

    play(tmp_path, scene)


def test_only_who_is_on_the_list_is_shown_it_without_being_a_member(tmp_path: Path) -> None:
    async def scene(guest: Guest) -> None:
        host, node = guest.host, guest.node
        raw = made_list(SWARM.delegate, node.membership)
        host.exchange.asker._credentials.lists.offer(raw)
        for protocol in (REVOKED, CLAIMS):
            with pytest.raises(Exception, match="hello"):  # it has shown no chain yet
                await node.transport.request(host.peer_id, protocol, b"")
        await guest.greets()
        assert await node.transport.request(host.peer_id, REVOKED, b"junk") == raw
        assert host.rejected["schema"] == 0, "what it sends is not read"
        with pytest.raises(Exception, match="hello"):
            await node.transport.request(host.peer_id, CLAIMS, b"")

    play(tmp_path, scene)


@pytest.mark.parametrize("agrees", [True, False])
def test_a_node_whose_certificate_has_ended_ends_once_a_peer_says_so(
    tmp_path: Path, agrees: bool
) -> None:
    async def scene(guest: Guest) -> None:
        assert await guest.greets() == agrees

    member = Swarm(begin=EPOCH - 2 * DAY, member_seconds=DAY).member(1, name="guest")
    play(tmp_path, scene, member, lie="" if agrees else "blocked")  # the node's clock may be wrong


def test_a_newcomer_waits_for_another_peer_before_it_believes_an_inviter(tmp_path: Path) -> None:
    async def scene(guest: Guest) -> None:
        peer = Peer(guest.host.peer_id, 0.0, (address_of(guest.host.membership),))
        await guest.node.exchange.asker.greet(peer)
        me = guest.node.exchange.asker._credentials.me
        await guest.membership_check.step(me)
        guest.meets()  # another one admits it
        await asyncio.sleep(2 * HOLD_SECONDS)
        await guest.membership_check.step(me)
        assert not guest.left

    play(tmp_path, scene, invited=True, lie="used_up")


def test_a_ticket_that_was_used_for_another_key_ends_its_second_node(tmp_path: Path) -> None:
    async def scene(guest: Guest) -> None:
        first = SWARM.member(3, SWARM.issuer("once", uses=1), "once")
        guest.host.members.admit(first.chain, first.identity.peer_id)
        assert await guest.greets()

    member = SWARM.member(1, SWARM.issuer("once", uses=1), "once")
    play(tmp_path, scene, member, invited=True)
