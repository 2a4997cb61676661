"""Requests through relays in a network where some peers cannot be dialled, and relays that fail."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from light_nodes import WANTS, LightNode, SilentNetwork, SilentTransport, address_of, virtual
from swarm_keys import Swarm

from swarm_node.clock import SYSTEM_CLOCK, Clock
from swarm_node.errors import OversizeError, RefusedError, TransportError
from swarm_node.node.home import Membership
from swarm_node.p2p import wire
from swarm_node.p2p.identity import Identity
from swarm_node.p2p.members import Members
from swarm_node.p2p.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.peers import Directory
from swarm_node.p2p.reach import circuit
from swarm_node.p2p.reach.keeping import _LEFT_ALONE_SECONDS, KEEP
from swarm_node.p2p.reach.lan import Lan
from swarm_node.p2p.reach.transport import Mode, ReachingTransport
from swarm_node.p2p.serving import PEERS
from swarm_node.p2p.transport import RELAY, RELAYED, Onward
from swarm_node.simulation.seeded import Seeded
from swarm_node.simulation.virtual_time import VirtualTimeLoop, run_virtual

WHO = "/swarm-node/who/1"
SIZED = "/swarm-node/sized/1"


class Stating(MemoryTransport):
    """A transport that states other addresses than its own, if there are any."""

    stated: Sequence[str] = ()

    def addresses(self) -> list[str]:
        return list(self.stated) or super().addresses()


class End:
    """A transport of a member that knows all others, without a node around it."""

    def __init__(
        self,
        network: MemoryNetwork,
        swarm: Swarm,
        membership: Membership,
        loop: VirtualTimeLoop,
        mode: Mode = "auto",
        lan: Lan | None = None,
    ) -> None:
        self.identity, self.peer_id = membership.identity, membership.identity.peer_id
        self.dialable: bool | None = None
        self.members = Members(swarm.info, lambda: swarm.begin + loop.time())
        self.directory = Directory(self.peer_id)
        self.rejected: Counter[str] = Counter()
        self.inner = Stating(network, membership.identity)
        self.reaching = ReachingTransport(
            self.inner,
            membership.identity,
            swarm.info.swarm_id,
            mode=mode,
            dialable=lambda: self.dialable,
            members=self.members,
            directory=self.directory,
            wants=WANTS,
            rejected=self.rejected,
            clock=Clock(now=loop.time, wall=lambda: swarm.begin + loop.time()),
            rng=random.Random(self.peer_id),
            lan=lan,
        )
        self.reaching.serve(WHO, self._who)
        self.reaching.serve(SIZED, self._sized)

    async def _who(self, caller: str, payload: bytes) -> bytes:
        if payload == b"no":
            raise TransportError("say hello first")
        return caller.encode()

    async def _sized(self, caller: str, payload: bytes) -> bytes:
        return bytes(int(payload))

    async def keep(self, times: int = 1) -> None:
        for _ in range(times):
            await self.reaching.keep()
            await asyncio.sleep(2.0)

    async def asks(self, other: End, payload: bytes = b"") -> str:
        return (await self.reaching.request(other.peer_id, WHO, payload)).decode()

    async def told_of(self, other: End) -> None:
        """Dial a peer at what it states of itself, as a greeting does."""
        stated = circuit.stated(other.reaching.addresses())
        await self.reaching.dial(circuit.completed(stated, other.peer_id))


class World:
    """Two ends behind NAT, and relays at which they meet."""

    def __init__(self, loop: VirtualTimeLoop, relays: int = 2) -> None:
        self.loop, self.swarm = loop, Swarm()
        self.network = MemoryNetwork(random.Random(0), patience=1.0)
        other = self.swarm.issuer("other")
        self.relays = [
            End(self.network, self.swarm, self.swarm.member(n, other if n % 2 else None), loop)
            for n in range(10, 10 + relays)
        ]
        self.one, self.two = (
            End(self.network, self.swarm, self.swarm.member(n), loop) for n in (1, 2)
        )
        self.ends = [self.one, self.two, *self.relays]

    async def start(self) -> None:
        for each in self.ends:
            await each.reaching.start()
            for other in self.ends:
                self.meet(each, other)
        for relay in self.relays:
            relay.dialable = True
        for hidden in (self.one, self.two):
            hidden.dialable = False
        self.network.hide([self.one.peer_id, self.two.peer_id])

    def meet(self, one: End, other: End) -> None:
        """Let one hear the heartbeat of the other."""
        membership = Membership(
            other.identity,
            self.swarm.info,
            self.swarm.chain(other.identity, self.swarm.steward, "owner"),
        )
        if other in self.relays and self.relays.index(other) % 2:
            issuer = self.swarm.issuer("other")
            membership = Membership(
                other.identity, self.swarm.info, self.swarm.chain(other.identity, issuer, "other")
            )
        heard = one.members.hear(
            self.swarm.presence(
                membership,
                self.loop.time(),
                addresses=circuit.fit_heartbeat(other.reaching.addresses()),
                relays=other in self.relays,
            )
        )
        assert not hasattr(heard, "reason"), heard

    async def joined(self) -> None:
        """Let both hidden ends keep their relays, and one be told of the other."""
        for each in (self.one, self.two):
            await each.keep()
        await self.one.told_of(self.two)


def in_world(body: Callable[[World], Awaitable[None]], relays: int = 2) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        world = World(loop, relays)
        await world.start()
        await body(world)

    run_virtual(main)


def test_two_ends_behind_nat_ask_each_other_through_a_relay() -> None:
    async def body(world: World) -> None:
        one, two = world.one, world.two
        with pytest.raises(TransportError):
            await one.asks(two)
        await world.joined()
        assert len(two.reaching.relays.kept()) == 2
        assert await one.asks(two) == one.peer_id
        # The target knows the way back, and the relay sees neither as a caller of its own.
        assert await two.asks(one) == two.peer_id
        via = one.reaching.usage.via[two.peer_id]
        assert via in two.reaching.relays.kept()
        assert one.reaching.usage.relayed == two.reaching.usage.relayed == 1
        assert sum(relay.reaching.carried.requests for relay in world.relays) == 2
        assert await one.asks(world.relays[0]) == one.peer_id
        assert one.reaching.usage.via[world.relays[0].peer_id] == ""
        assert one.reaching.usage.asked == 3  # with the one that nobody could answer

    in_world(body)


def test_what_the_target_refuses_or_cannot_send_is_its_own_word() -> None:
    async def body(world: World) -> None:
        await world.joined()
        one, two = world.one, world.two
        with pytest.raises(RefusedError, match="say hello first"):
            await one.asks(two, b"no")
        with pytest.raises(RefusedError, match="does not serve"):
            await one.reaching.request(two.peer_id, "/swarm-node/other/1", b"")
        with pytest.raises(OversizeError):
            await one.reaching.request(two.peer_id, SIZED, b"1001", max_reply=1000)
        reply = await one.reaching.request(two.peer_id, SIZED, b"1000000")
        assert reply == bytes(1_000_000)
        assert sum(relay.reaching.carried.requests for relay in world.relays) == 4

    in_world(body)


def test_a_lost_relay_is_replaced_within_ten_seconds_and_the_other_serves_meanwhile() -> None:
    async def body(world: World) -> None:
        await world.joined()
        one, two = world.one, world.two
        before = two.reaching.relays.kept()
        lost = next(relay for relay in world.relays if relay.peer_id in before)
        await lost.reaching.stop()
        assert await one.asks(two) == one.peer_id
        began = world.loop.time()
        while len(two.reaching.relays.kept()) < 2 or lost.peer_id in two.reaching.relays.kept():
            await two.keep()
        assert world.loop.time() - began <= 10
        # Those who greet it again hear of the new one.
        stated = circuit.fit_heartbeat(two.reaching.addresses())
        assert not any(lost.peer_id in address for address in stated)
        for relay in world.relays:
            if relay.peer_id in before:
                await relay.reaching.stop()
        await one.told_of(two)
        assert await one.asks(two) == one.peer_id

    in_world(body, relays=4)


def test_relays_are_of_different_issuers_where_there_are_some() -> None:
    async def body(world: World) -> None:
        await world.joined()
        for each in (world.one, world.two):
            issuers = {each.members.issuer(relay) for relay in each.reaching.relays.kept()}
            assert len(issuers) == 2

    in_world(body, relays=6)


def test_who_can_be_dialled_or_does_not_know_keeps_no_relay() -> None:
    async def body(world: World) -> None:
        for known in (True, None):
            await world.joined()
            assert world.two.reaching.relays.kept()
            world.two.dialable = known
            await world.two.keep()
            assert not world.two.reaching.relays.kept()
            assert world.two.reaching.addresses() == world.two.inner.addresses()
            world.two.dialable = False

    in_world(body)


@pytest.mark.parametrize(
    ("hosts", "keeps"),
    [
        (["ip6/2a00:11::1"], True),
        (["ip6/2a00:11::1", "ip4/192.168.1.5", "ip4/127.0.0.1"], True),
        (["ip6/2a00:11::1", "ip4/11.0.0.1"], False),
        (["ip6/2a00:11::1", "dns4/example.org"], False),
        (["ip6/fd00::1", "ip4/192.168.1.5"], False),
    ],
)
def test_who_can_be_dialled_over_ipv6_alone_keeps_relays_for_those_without_it(
    hosts: Sequence[str], keeps: bool
) -> None:
    async def body(world: World) -> None:
        two = world.two
        two.inner.stated = [f"/{host}/tcp/1/p2p/{two.peer_id}" for host in hosts]
        two.dialable = True
        await two.keep()
        assert bool(two.reaching.relays.kept()) is keeps
        assert two.reaching.serves

    in_world(body)


@pytest.mark.parametrize(("mode", "served"), [("off", [False] * 3), ("serve", [True] * 3)])
def test_a_node_relays_as_its_setting_says(mode: Mode, served: Sequence[bool]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        swarm = Swarm()
        end = End(MemoryNetwork(random.Random(0)), swarm, swarm.member(1), loop, mode)
        states = []
        for end.dialable in (True, False, None):
            states.append(end.reaching.serves)
        assert states == list(served)

    run_virtual(main)


def test_by_itself_a_node_relays_once_it_is_proven_dialable() -> None:
    async def body(world: World) -> None:
        relay = world.relays[0]
        for known, serves in ((None, False), (False, False), (True, True)):
            relay.dialable = known
            assert relay.reaching.serves is serves
        for each in world.relays:
            each.dialable = None
        await world.joined()
        assert not world.two.reaching.relays.kept()

    in_world(body)


def test_a_relay_that_withholds_is_asked_last_from_then_on() -> None:
    async def body(world: World) -> None:
        await world.joined()
        one, two = world.one, world.two
        way = one.reaching._ways[two.peer_id]
        bad = next(relay for relay in world.relays if relay.peer_id == next(iter(way.relays)))

        async def withholds(caller: str, payload: bytes) -> Onward:
            await asyncio.sleep(3600)
            raise TransportError("never")

        bad.inner._routes[RELAY] = withholds
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await one.asks(two)
        for _ in range(3):
            async with asyncio.timeout(1):
                assert await one.asks(two) == one.peer_id
        assert bad.reaching.carried.requests == 0

    in_world(body)


def test_a_relay_that_alters_replies_is_not_believed() -> None:
    async def body(world: World) -> None:
        await world.joined()
        one, two = world.one, world.two
        way = one.reaching._ways[two.peer_id]
        bad = next(relay for relay in world.relays if relay.peer_id == next(iter(way.relays)))

        async def lies(caller: str, payload: bytes) -> bytes:
            return b"\x00\x00lies"

        del bad.inner._routes[RELAY]
        bad.inner._handlers[RELAY] = lies
        assert await one.asks(two) == one.peer_id  # by the other relay, in the same call
        assert one.rejected == {"altered": 1}
        assert list(way.relays)[-1] == bad.peer_id
        assert one.directory.cut(two.peer_id, 0.0) == 0.0  # nobody can tell whose fault it is

    in_world(body)


def test_a_target_that_cut_an_asker_serves_it_through_no_relay_and_blames_none() -> None:
    async def body(world: World) -> None:
        await world.joined()
        one, two = world.one, world.two
        two.reaching.sever(one.peer_id, 60.0)
        with pytest.raises(TransportError, match="broke the protocol"):
            await one.asks(two)
        assert two.rejected == {}
        for relay in world.relays:
            assert await two.asks(relay) == two.peer_id
            assert await relay.asks(two) == relay.peer_id
        await asyncio.sleep(61.0)
        assert await one.asks(two) == one.peer_id

    in_world(body)


def test_a_relay_that_passes_on_what_it_should_not_is_cut_off_and_replaced() -> None:
    async def body(world: World) -> None:
        await world.joined()
        two = world.two
        bad = next(relay for relay in world.relays if relay.peer_id in two.reaching.relays.kept())
        with pytest.raises(TransportError, match="bad request"):
            await bad.inner.request(two.peer_id, RELAYED, b"junk")
        assert two.rejected["schema"] == 1
        with pytest.raises(TransportError, match="cut the link"):
            await bad.asks(two)
        await two.keep()
        assert bad.peer_id not in two.reaching.relays.kept()
        assert len(two.reaching.relays.kept()) == 2

    in_world(body, relays=3)


def test_a_peer_that_can_be_reached_directly_is_not_relayed_for_long() -> None:
    async def body(world: World) -> None:
        await world.joined()
        one, two = world.one, world.two
        await one.asks(two)
        assert one.reaching.usage.via[two.peer_id]
        world.network.hide([one.peer_id])
        await one.keep()
        assert await one.asks(two) == one.peer_id
        assert one.reaching.usage.via[two.peer_id] == ""

    in_world(body)


def test_a_peer_that_may_not_know_yet_where_it_is_is_asked_again_ever_more_seldom() -> None:
    async def body(world: World) -> None:
        await world.joined()
        one, times = world.one, []
        one.directory.meet(world.two.peer_id, 0.0)

        async def punch(peer: str) -> None:
            times.append(world.loop.time())

        one.reaching.punch = punch
        begun = world.loop.time()
        while world.loop.time() < begun + 600.0:
            await one.reaching.upgrade()
            await asyncio.sleep(2.0)
        first = [time - begun for time in times if time < begun + 15.0]
        assert all(later - time < 5.0 for time, later in pairwise(first))
        assert len(first) >= 4
        assert sum(time > begun + 300.0 for time in times) <= 4

    in_world(body)


def test_a_direct_link_that_is_lost_is_opened_anew_at_once() -> None:
    async def body(world: World) -> None:
        await world.joined()
        one, two, punched = world.one, world.two, []
        one.directory.meet(two.peer_id, 0.0)

        async def punch(peer: str) -> bool:
            world.network.hide([one.peer_id])  # two can be dialled
            punched.append(peer)
            return bool(await one.inner.dial([f"/memory/p2p/{two.peer_id}"]))

        one.reaching.punch = punch
        for times in (1, 2):
            await one.asks(two)
            assert one.reaching.usage.via[two.peer_id]
            await one.reaching.upgrade()
            await one.asks(two)
            assert one.reaching.usage.via[two.peer_id] == ""
            assert punched == times * [two.peer_id]
            world.network.hide([one.peer_id, two.peer_id])  # and forgets all links
            for each in (one, two):
                await each.keep()

    in_world(body)


def test_nobody_is_its_own_relay_and_a_relay_of_a_peer_needs_no_other() -> None:
    async def body(world: World) -> None:
        await world.joined()
        relay, two = world.relays[0], world.two
        await relay.told_of(two)
        assert relay.peer_id not in relay.reaching._ways[two.peer_id].relays
        assert await relay.asks(two) == relay.peer_id
        assert relay.reaching.usage.via[two.peer_id] == ""
        own = f"/memory/p2p/{relay.peer_id}/p2p-circuit/p2p/{two.peer_id}"
        assert await two.reaching.dial([own]) == 0  # a circuit to itself

    in_world(body)


def test_direct_addresses_are_kept_for_later_once_a_relay_is_reached() -> None:
    async def body(world: World) -> None:
        await world.joined()
        one, two, dialled = world.one, world.two, list[str]()
        dial = one.inner.dial

        async def counted(addresses: Sequence[str], *rest: float, held: bool = False) -> int:
            dialled.extend(addresses)
            return await dial(addresses, *rest, held=held)

        one.inner.dial = counted  # type: ignore[method-assign]
        stated = circuit.completed(circuit.stated(two.reaching.addresses()), two.peer_id)
        direct = [text for text in stated if circuit.parse(text) is None]
        assert direct
        other = f"/memory/p2p/{world.relays[0].peer_id}"
        assert await one.reaching.dial([*stated, other]) == 2
        assert dialled == [other]
        assert one.reaching._ways[two.peer_id].direct == tuple(direct)
        assert await one.reaching.connected(two.peer_id)
        for relay in world.relays:
            await relay.reaching.stop()
        assert not await one.reaching.connected(two.peer_id)
        assert await one.reaching.dial(stated) == 0
        assert dialled[-len(direct) :] == direct

    in_world(body)


def test_whom_a_node_forgot_or_relays_for_it_does_not_punch() -> None:
    async def body(world: World) -> None:
        punched: list[str] = []

        async def punch(peer: str) -> bool:
            punched.append(peer)
            return False

        (relay,), two = world.relays, world.two
        own = f"/memory/p2p/{relay.peer_id}/p2p-circuit/p2p/{two.peer_id}"
        await relay.reaching.dial([own])
        relay.directory.meet(two.peer_id, 0.0)
        await world.joined()
        await two.reaching.stop()  # or it would be linked, and nothing to do
        for asking in (relay, world.one):
            asking.reaching.punch = punch
            await asking.reaching.upgrade()
        assert not punched
        world.one.directory.meet(two.peer_id, 0.0)
        await world.one.reaching.upgrade()
        assert punched == [two.peer_id]

    in_world(body, relays=1)


class Nodes:
    """Whole nodes, some of which nobody can dial."""

    def __init__(self, loop: VirtualTimeLoop, place: Path, count: int, hidden: int) -> None:
        network = SilentNetwork(random.Random(0))
        members = Seeded(0).memberships(count)
        self.nodes = []
        for member in members:
            transport = SilentTransport(network, member.identity)
            known = [address_of(members[-1])]
            self.nodes.append(LightNode(place, virtual(loop), transport, member, known))
        self.hidden, self.open = self.nodes[:hidden], self.nodes[hidden:]
        for node in self.nodes:
            node.dialable = node in self.open
            node.start()
        network.hide([node.peer_id for node in self.hidden])

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()


def test_a_node_without_a_table_asks_more_peers_also_when_it_hears_presences(
    tmp_path: Path,
) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        swarm = Nodes(loop, tmp_path, count=6, hidden=0)
        without, other = (node.transport for node in swarm.nodes[:2])
        assert isinstance(without, SilentTransport)
        assert isinstance(other, SilentTransport)
        without.has_table = False
        await asyncio.sleep(600.0)
        assert await without.heartbeats()  # as those that came over the own network
        assert without.reached[PEERS] > 3 * other.reached[PEERS]
        await swarm.stop()

    run_virtual(main)


def test_whole_nodes_behind_nat_find_and_list_each_other(tmp_path: Path) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        swarm = Nodes(loop, tmp_path, count=5, hidden=3)
        await asyncio.sleep(180.0)
        for node in swarm.hidden:
            others = {other.peer_id for other in swarm.nodes if other is not node}
            assert set(node.partners()) == others
            via = node.reaching.usage.via
            relays = {relay.peer_id for relay in swarm.open}
            assert {via[other.peer_id] for other in swarm.hidden if other is not node} <= relays
            assert {via[relay] for relay in relays} == {""}
            assert not node.rejected.keys() - {"unreachable", "not_here", "rate"}
            stated = circuit.fit_heartbeat(node.reaching.addresses())
            assert sum(address.endswith("/p2p-circuit") for address in stated) == 2
            assert node.directory.heartbeat
            presence = wire.unpack(wire.Presence, node.directory.heartbeat, max_bytes=2000)
            assert isinstance(presence, wire.Presence)
            assert b"p2p-circuit" in presence.head
        await swarm.stop()

    run_virtual(main)


def test_relays_of_one_issuer_do_not_take_both_places_because_they_answer() -> None:
    async def body(world: World) -> None:
        two = world.two
        for relay in world.relays[::2]:  # of one issuer, and partners
            two.directory.meet(relay.peer_id, 0.0)
        await two.keep()
        issuers = {two.members.issuer(relay) for relay in two.reaching.relays.kept()}
        assert len(issuers) == 2

    in_world(body, relays=12)


def test_a_relay_is_announced_at_its_own_address_only() -> None:
    async def body(world: World) -> None:
        relay, two, victim = world.relays[0], world.two, world.one
        told_address(world, relay, f"/ip4/11.7.7.7/tcp/80/p2p/{victim.peer_id}")
        await two.keep()
        assert relay.peer_id not in two.reaching.relays.kept()
        assert not [text for text in two.reaching.addresses() if "11.7.7.7" in text]

    in_world(body, relays=1)


def announced(secret: bytes, swarm: Swarm, key: bytes, presence: bytes) -> bytes:
    """A datagram as everybody can send it who knows the secret."""
    cipher = Lan(Identity.generate(), swarm.info.swarm_id, secret, SYSTEM_CLOCK)._ciphers[0]
    body = key + len(presence).to_bytes(2, "big") + presence
    return bytes(12) + cipher.encrypt(
        bytes(12), body.ljust(34 + wire.MAX_PRESENCE_BYTES, b"\0"), None
    )


def test_what_is_said_on_the_own_network_is_no_showing_and_hides_nothing_newer() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        swarm, network, secret = Swarm(), MemoryNetwork(random.Random(0)), b"s" * 32
        lan = Lan(Identity.generate(), swarm.info.swarm_id, secret, SYSTEM_CLOCK)
        end = End(network, swarm, swarm.member(1), loop, lan=lan)
        await end.reaching.start()
        honest, evil = swarm.member(2), swarm.issuer("evil")
        peer, key = honest.identity.peer_id, honest.identity.public_key
        end.members.admit(honest.chain, peer)
        issuer = end.members.issuer(peer)

        def hears(presence: bytes) -> None:
            lan.datagram_received(announced(secret, swarm, key, presence), None)

        # A member with a ticket of its own signs a longer membership for another member's key.
        other = swarm.chain(honest.identity, evil, "evil", begin=3600)
        head = wire.unpack(wire.Presence, swarm.presence(honest), max_bytes=wire.MAX_PRESENCE_BYTES)
        assert isinstance(head, wire.Presence)
        await asyncio.sleep(3600)
        for said in (head.head, b"junk"):
            hears(wire.pack(wire.Presence(said, *other)))
        assert end.members.issuer(peer) == issuer
        assert lan.heard(1e9) == {}

        # What was recorded is sent again; the table has what is new.
        recorded, new = (swarm.presence(honest, loop.time() + n) for n in (0, 60))
        await asyncio.sleep(60)
        hears(recorded)
        network.publish(peer, new, 600)
        assert await end.reaching.heartbeats() == {peer: new}
        hears(new)
        network.publish(peer, recorded, 600)
        assert await end.reaching.heartbeats() == {peer: new}
        await asyncio.sleep(1000)
        assert lan.heard(1e9)
        hears(swarm.presence(swarm.member(3), 0))
        assert await end.reaching.heartbeats() == {}
        await end.reaching.stop()

    run_virtual(main)


def told_address(world: World, relay: End, address: str) -> None:
    """Let the second end hear that a relay is at this address."""
    chain = world.swarm.chain(relay.identity, world.swarm.steward, "owner")
    membership = Membership(relay.identity, world.swarm.info, chain)
    stated = {"addresses": (address,), "relays": True}
    heard = world.two.members.hear(world.swarm.presence(membership, world.loop.time(), **stated))
    assert not hasattr(heard, "reason"), heard


def counting(relay: End) -> list[str]:
    """Whoever asks a relay from now on whether it relays."""
    asked, answer = [], relay.inner._handlers[KEEP]

    async def counted(caller: str, payload: bytes) -> bytes:
        asked.append(caller)
        return await answer(caller, payload)

    relay.inner._handlers[KEEP] = counted
    return asked


@pytest.mark.parametrize("relays", [1, 5])
def test_a_relay_is_asked_once_a_look_and_no_more_than_are_kept(relays: int) -> None:
    async def body(world: World) -> None:
        await world.joined()
        asked = [counting(relay) for relay in world.relays]
        await world.two.keep(3)
        assert sum(map(len, asked)) == 3 * min(relays, 2)

    in_world(body, relays)


def test_a_relay_that_failed_or_was_cut_or_cannot_be_named_is_left_alone() -> None:
    async def body(world: World) -> None:
        silent, cut, long = world.relays
        silent.dialable = False
        world.two.reaching.sever(cut.peer_id, 3600.0)
        told_address(world, long, f"/dns4/{'a' * 90}/tcp/1/p2p/{long.peer_id}")
        asked = [counting(relay) for relay in world.relays]
        await world.two.keep(2)
        assert list(map(len, asked)) == [1, 0, 0]
        await asyncio.sleep(_LEFT_ALONE_SECONDS)  # less long, because there is no other
        await world.two.keep()
        assert list(map(len, asked)) == [2, 0, 0]
        assert not world.two.reaching.relays.kept()

    in_world(body, relays=3)


def test_relays_that_stopped_answering_are_tried_after_the_others() -> None:
    async def body(world: World) -> None:
        directory = world.two.directory
        for number, relay in enumerate(world.relays[::2]):  # of one issuer
            peer = directory.meet(relay.peer_id, 0.0)
            if number:
                peer.failed(0.0)
        for _ in range(8):
            first = next(
                r for r, _ in world.two.reaching.relays._candidates(0.0) if directory.get(r)
            )
            assert first == world.relays[0].peer_id

    in_world(body, relays=10)


def test_a_relay_that_forgot_a_node_is_greeted_and_others_are_not() -> None:
    async def body(world: World) -> None:
        (relay,), two, greeted = world.relays, world.two, list[str]()
        relays, chain = two.reaching.relays, world.swarm.member(2).chain
        answers = False

        async def greet(peer: str) -> bool:
            greeted.append(peer)
            with suppress(TransportError):
                await relays.ask(peer, KEEP, b"", 0)  # as a greeting through this relay does
            if answers:
                relay.members.admit(chain, two.peer_id)
            return answers

        asked = counting(relay)
        relay.members._forget(two.peer_id)
        await two.keep()
        assert not relays.kept()  # this node cannot greet yet
        relays.introduce = greet
        await asyncio.sleep(30.0)
        await two.keep()
        assert (len(greeted), len(asked)) == (1, 3)  # and not asked again in vain
        answers = True
        await asyncio.sleep(30.0)
        await two.keep()
        assert list(relays.kept()) == [relay.peer_id]
        assert len(greeted) == 2
        relay.dialable = False  # a refusal for another reason
        await two.keep(2)
        assert not relays.kept()
        assert len(greeted) == 2

    in_world(body, relays=1)


class Unlinked(MemoryTransport):
    """It is linked to whom it dialled only."""

    linked = False

    async def connected(self, peer: str) -> bool:
        return self.linked

    async def dial(
        self, addresses: Sequence[str], patience: float = 4.0, *, held: bool = False
    ) -> int:
        reached = await super().dial(addresses, patience)
        self.linked = self.linked or reached > 0
        return reached


def test_a_relay_is_joined_once_it_is_dialled_and_a_member() -> None:
    async def body(world: World) -> None:
        (relay,), two, greeted = world.relays, world.two, list[str]()
        two.inner.__class__ = Unlinked
        relays, address = two.reaching.relays, f"/memory/p2p/{relay.peer_id}"
        told_address(world, relay, f"/ip4/11.0.0.9/tcp/1/p2p/{relay.peer_id}")  # nobody is there
        assert not await relays.joined(relay.peer_id, "", 1.0)
        assert not await relays.joined(relay.peer_id, "/memory/p2p/nobody", 1.0)
        assert await relays.joined(relay.peer_id, address, 1.0)

        await asyncio.sleep(1.0)
        told_address(world, relay, address)
        two.inner.linked = False  # type: ignore[attr-defined]
        named = f"/ip6/2a00:11::1/tcp/1/p2p/{relay.peer_id}"  # by who has another version of IP
        assert await relays.joined(relay.peer_id, named, 1.0)

        async def greet(peer: str) -> bool:
            greeted.append(peer)
            return len(greeted) > 1

        two.members._forget(relay.peer_id)
        assert not await relays.joined(relay.peer_id, address, 1.0)
        relays.introduce = greet
        assert not await relays.joined(relay.peer_id, address, 1.0)
        assert await relays.joined(relay.peer_id, address, 1.0)

    in_world(body, relays=1)
