"""Nodes that ask each other how they are reached: in memory, where a table says what a router lets
in, and the member's end against callers that misuse it."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from light_nodes import LightNode, address_of, virtual
from swarm_keys import Swarm
from virtual import in_virtual_time

from swarm_node.clock import Clock
from swarm_node.errors import Rejected, TransportError
from swarm_node.p2p.peers.liveness import PROBE_ROUND
from swarm_node.p2p.reach.probe import (
    PortOutcome,
    ProbeForReply,
    ProbeForRequest,
    ProbeReply,
    ProbeRequest,
    ports_of,
)
from swarm_node.p2p.reach.reachability import Outcome
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import PROBE, PROBE_FOR
from swarm_node.simulation.virtual_time import VirtualTimeLoop

PORT = 31330
#: Seconds in which nodes that know each other's addresses have met and asked each other.
MET = 60.0


def public(number: int) -> str:
    return f"/ip4/11.0.0.{number}/tcp/{PORT}"


class Site:
    """Nodes at public addresses, and what the router of the first one lets in."""

    def __init__(
        self, loop: VirtualTimeLoop, place: Path, count: int, names: Sequence[str] = ()
    ) -> None:
        self.loop = loop
        self.place = place
        self.network = MemoryNetwork(random.Random(0), delay=(0.01, 0.02))
        swarm, names = Swarm(), names or ["owner"] * count
        self.members = [
            swarm.member(index, swarm.issuer(name), name) for index, name in enumerate(names)
        ]
        self.first = self.members[0].identity.peer_id
        self.lets_in: Callable[[int], Outcome] = lambda index: "open"
        self.asked = 0
        self.nodes: list[LightNode] = []
        for index in range(count):
            self.see(index, public(index + 1))

    def see(self, index: int, *seen: str) -> None:
        """Others see the member at these addresses."""
        self.network.place(self.members[index].identity.peer_id, *seen)

    async def knock(self, index: int, ip: str, port: int, peer_id: str) -> Outcome:
        """How a connection by the member number `index` ends."""
        if peer_id != self.first:
            return "open"
        self.asked += 1
        return self.lets_in(index)

    def start(self, index: int, stranger: bool = False) -> LightNode:
        """Start a node. A stranger has no link to the first one."""
        member = self.members[index]
        known = [address_of(other) for other in self.members[: index + 1] if other is not member]
        transport = Stranger(self.network, member.identity)
        transport.to = self.first if stranger else ""
        knock = functools.partial(self.knock, index)
        node = LightNode(self.place, virtual(self.loop), transport, member, known, knock)
        self.nodes.append(node)
        return node.start()

    def begin(self, count: int) -> LightNode:
        """Start the nodes below `count`. Returns the first one."""
        first, *_ = [self.start(index) for index in range(count)]
        return first

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()


class Stranger(MemoryTransport):
    """A transport that has no link `to` one peer, although it could make one."""

    to = ""

    async def observed_address(self, peer: str) -> str | None:
        return None if peer == self.to else await super().observed_address(peer)


def at_site(
    count: int, names: Sequence[str] = ()
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run a test with a site. `names` are those of the members' issuers, one for all if none."""
    return in_virtual_time(lambda loop, place, **_: Site(loop, place, count, names))


@at_site(5)
async def test_a_node_learns_that_it_is_reached_and_what_shields_it(site: Site) -> None:
    first = site.start(0)
    assert first.reach.verdict().kind == "unknown"
    for index in (1, 2, 3):
        site.start(index)
    await asyncio.sleep(MET)
    verdict = first.reach.verdict()
    assert (verdict.kind, verdict.nat, first.reach.dialable()) == ("direct", "open", True)
    assert len(verdict.probes) == 3, "of more members three are asked"
    assert first.reach.reachable_addresses() == [public(1)]
    assert all(abs(probe.ahead) < 0.1 for probe in verdict.probes)
    others = {node.peer_id for node in site.nodes[1:]}
    assert {probe.peer_id for probe in verdict.probes} <= others


@pytest.mark.slow(reason="nodes meet for minutes of virtual time")
@at_site(4)
async def test_a_node_behind_a_router_learns_which_kind_it_is(site: Site) -> None:
    kinds = (
        (("/ip4/11.0.9.1/tcp/9",), "timeout", "restricted"),
        (("/ip4/11.0.9.1/tcp/9",), "refused", "reject"),
        (tuple(f"/ip4/11.0.9.1/tcp/{port}" for port in range(9, 13)), "timeout", "symmetric"),
    )
    first = site.begin(4)
    for seen, outcome, nat in kinds:
        site.see(0, *seen)
        site.lets_in = lambda index, outcome=outcome: outcome  # type: ignore[misc]
        await asyncio.sleep(MET)
        await first.prober.refresh()
        assert first.reach.dialable() is False
        await asyncio.sleep(MET)  # it looks for relays
        verdict = first.reach.verdict()
        assert (verdict.kind, verdict.nat) == ("relayed", nat)
        assert "; unreachable, because" in verdict.text
        assert first.reach.reachable_addresses() == []


@pytest.mark.slow(reason="four nodes for almost an hour")
@at_site(4)
async def test_a_node_asks_every_ten_minutes_and_when_those_it_asked_are_gone(site: Site) -> None:
    first = site.begin(3)
    await asyncio.sleep(MET)
    before = site.asked
    await asyncio.sleep(500.0)
    assert site.asked == before
    await asyncio.sleep(200.0)
    assert site.asked == before + 2
    for node in site.nodes[1:]:
        site.network.cut(node.peer_id)
    site.start(3)
    await asyncio.sleep(PROBE_ROUND.first + MET)
    assert [probe.peer_id for probe in first.reach.probes] == [site.nodes[3].peer_id]
    site.network.cut(site.nodes[3].peer_id)
    await asyncio.sleep(2400.0)
    assert first.reach.verdict().kind == "unknown", "what was found long ago holds no more"


@at_site(3)
async def test_who_sees_the_node_on_its_own_machine_saw_a_link_passed_on(site: Site) -> None:
    site.see(0, "/ip4/11.0.9.1/tcp/9", "/ip4/11.0.9.1/tcp/9", "/ip6/::1/tcp/9")
    site.lets_in = lambda index: "timeout"
    first = site.begin(3)
    await asyncio.sleep(MET)
    assert [probe.seen_ip for probe in first.reach.probes] == ["11.0.9.1"]


@at_site(2)
async def test_the_first_peer_is_asked_within_two_seconds(site: Site) -> None:
    first = site.start(0)
    await asyncio.sleep(31.0)
    site.start(1)
    while not first.directory.draw(random.Random(0), 1, site.loop.time()):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    await asyncio.sleep(2.0)
    assert first.reach.probes


@at_site(4)
async def test_the_first_member_of_the_internet_is_asked_at_once(site: Site) -> None:
    site.see(0, "/ip4/192.168.1.11/tcp/9")
    for index in (1, 2):
        site.network.place(site.members[index].identity.peer_id, f"/ip4/192.168.1.2{index}/tcp/9")
    first = site.begin(3)
    await asyncio.sleep(MET)
    assert first.reach.verdict().kind == "local"
    assert first.reach.dialable() is True
    site.see(0, "/ip4/11.0.9.1/tcp/9")
    site.lets_in = lambda index: "timeout"
    site.start(3)
    await asyncio.sleep(90.0)
    assert [probe.peer_id for probe in first.reach.probes] == [site.nodes[3].peer_id]
    text = first.reach.verdict().text
    assert "11.0.9.1:9" in text
    assert first.reach.probes[0].name in text
    assert first.reach.dialable() is False


class Member:
    """A member's end with an address of its own, and a caller that it sees at `seen`."""

    def __init__(self, place: Path, seen: str, announced: Sequence[str] = ()) -> None:
        self.now = 1000.0
        self.outcome: Outcome = "refused"
        self.dialled: list[tuple[str, int]] = []
        self.network = MemoryNetwork(random.Random(0))
        membership = Swarm().member(0)
        self.transport = Addressed(self.network, membership.identity)
        clock = Clock(now=lambda: self.now, wall=lambda: self.now)
        self.node = LightNode(place, clock, self.transport, membership, knock=self._knock)
        self.directory = self.node.directory
        self.calls(Identity.generate(), seen, announced)

    def calls(self, identity: Identity, seen: str, announced: Sequence[str] = ()) -> None:
        """From now on this one calls."""
        self.caller = MemoryTransport(self.network, identity)
        self.network.place(identity.peer_id, seen)
        self.directory.meet(identity.peer_id, self.now).addresses = tuple(announced)

    async def _knock(self, ip: str, port: int, peer_id: str) -> Outcome:
        self.dialled.append((ip, port))
        return self.outcome

    def ask(self, *ports: int, linked: bool = True) -> dict[int, Outcome]:
        """The outcomes by port."""
        body = wire.pack(ProbeRequest(ports))
        raw = self._while_running(
            lambda: self.node.probes.answer(self.caller.peer_id, body), linked
        )
        reply = wire.unpack(ProbeReply, raw, max_bytes=512)
        assert isinstance(reply, ProbeReply)
        assert reply.wall_ms == int(self.now * 1000)
        assert bool(reply.seen) is linked
        assert reply.stranger == "untried"
        return {each.port: each.outcome for each in reply.outcomes}

    def ask_for(self, peer_id: str, address: str, linked: bool = False) -> Outcome:
        """The outcome when another member asks for the sake of a node."""
        body = wire.pack(ProbeForRequest(peer_id, address))
        raw = self._while_running(lambda: self.node.probes.answer_for("another", body), linked)
        reply = wire.unpack(ProbeForReply, raw, max_bytes=512)
        assert isinstance(reply, ProbeForReply)
        return reply.outcome

    def _while_running(
        self, question: Callable[[], Awaitable[bytes | Rejected]], linked: bool
    ) -> bytes:
        async def main() -> bytes:
            await self.transport.start()
            if linked:
                await self.caller.start()
            raw = await question()
            await self.caller.stop()
            await self.transport.stop()
            assert isinstance(raw, bytes)
            return raw

        return asyncio.run(main())


class Addressed(MemoryTransport):
    """A transport that others dial at an address of the Internet."""

    own = "/ip4/11.0.0.1/tcp/7/p2p/"

    def addresses(self) -> list[str]:
        return [self.own + self.peer_id]


def announced(ip: str, port: int) -> str:
    return f"/ip4/{ip}/tcp/{port}/p2p/{Identity.generate().peer_id}"


def test_a_member_dials_only_where_it_sees_its_caller(tmp_path: Path) -> None:
    member = Member(tmp_path, "/ip4/11.0.9.1/tcp/9", [announced("11.7.7.7", 80)])
    assert member.ask(80, 22) == {80: "refused", 22: "untried", 9: "refused"}
    assert set(member.dialled) == {("11.0.9.1", 80), ("11.0.9.1", 9)}
    assert member.ask(80, linked=False) == {}


def test_only_members_of_the_internet_are_asked_to_be_strangers(tmp_path: Path) -> None:
    member = Member(tmp_path, "/ip4/11.0.9.1/tcp/9")
    asked: list[str] = []

    def other(number: int, seen: str) -> MemoryTransport:
        membership = Swarm().member(number)
        transport = MemoryTransport(member.network, membership.identity)
        member.network.place(transport.peer_id, seen)
        member.directory.meet(transport.peer_id, member.now).is_greeted = True

        async def stranger(caller: str, payload: bytes) -> bytes:
            asked.append(seen)
            return wire.pack(ProbeForReply("timeout"))

        transport.serve(PROBE_FOR, stranger)
        return transport

    near, far = other(1, "/ip4/192.168.1.5/tcp/9"), other(2, "/ip4/11.5.5.5/tcp/9")
    other(3, "/ip4/11.6.6.6/tcp/9")  # it does not run, so there is no link to it

    async def answered() -> ProbeReply:
        transports = (member.transport, member.caller, near, far)
        for transport in transports:
            await transport.start()
        raw = await member.node.probes.answer(member.caller.peer_id, wire.pack(ProbeRequest(())))
        for transport in transports:
            await transport.stop()
        reply = wire.unpack(ProbeReply, raw, max_bytes=512)
        assert isinstance(reply, ProbeReply)
        return reply

    assert asyncio.run(answered()).stranger == "untried"
    assert not asked, "to a port that this node found closed nobody else is sent"
    member.outcome = "open"
    assert asyncio.run(answered()).stranger == "timeout"
    assert asked == ["/ip4/11.5.5.5/tcp/9"]


def test_a_circuit_address_does_not_announce_the_port_of_its_relay(tmp_path: Path) -> None:
    relay, own = announced("11.7.7.7", 80), Identity.generate().peer_id
    assert ports_of([f"{relay}/p2p-circuit", f"/ip4/11.0.0.1/tcp/7/p2p/{own}"]) == [7]
    member = Member(tmp_path, "/ip4/11.0.9.1/tcp/9", [f"{relay}/p2p-circuit"])
    assert member.ask(80) == {80: "untried", 9: "refused"}


def test_a_member_with_an_address_of_its_own_dials_nothing_on_its_machine(tmp_path: Path) -> None:
    member = Member(tmp_path, "/ip4/127.0.0.1/tcp/9")
    assert member.ask() == {9: "untried"}
    member.transport.own = "/ip4/127.0.0.1/tcp/7/p2p/"
    assert member.ask() == {9: "refused"}


@pytest.mark.parametrize(
    ("own", "outcome"),
    [
        ("/ip6/2a00:11::1/tcp/7/p2p/", "untried"),
        ("/ip6/::1/tcp/7/p2p/", "timeout"),  # it may have any other
        ("/ip4/192.168.1.11/tcp/7/p2p/", "timeout"),
    ],
)
def test_a_member_without_ipv4_says_nothing_of_who_has_it(
    tmp_path: Path, own: str, outcome: Outcome
) -> None:
    member = Member(tmp_path, "/ip4/11.0.9.1/tcp/9")
    member.transport.own = own
    assert member.ask_for(Identity.generate().peer_id, "/ip4/11.0.9.2/tcp/9") == outcome


def test_a_caller_gets_few_probes_and_a_host_few_ports(tmp_path: Path) -> None:
    member = Member(tmp_path, "/ip4/11.0.9.1/tcp/9")
    assert [member.ask()[9] for _ in range(5)] == ["refused"] * 4 + ["untried"]
    member.now += 61.0
    assert [member.ask()[9] for _ in range(2)] == ["refused", "untried"]

    member = Member(tmp_path, "/ip4/11.0.9.1/tcp/9")
    for _ in range(60):  # many members behind one address, each with four ports of its own
        identity = Identity.generate()
        ports = random.Random(identity.peer_id).sample(range(1000, 9999), 4)
        known = [announced("11.0.9.1", port) for port in ports]
        member.calls(identity, "/ip4/11.0.9.1/tcp/9", known)
        member.ask(*ports)
        member.now += 2.0
    assert 40 <= len(member.dialled) <= 40 + 60 * 2 / 15


def test_who_asks_for_many_probes_leaves_some_to_others(tmp_path: Path) -> None:
    member = Member(tmp_path, "/ip4/11.0.9.1/tcp/9")
    swarm, issuers = Swarm(begin=1000), ("owner", "alice")

    def probed(index: int, issuer: str) -> bool:
        caller = swarm.member(index, swarm.issuer(issuer), issuer)
        admitted = member.node.members.admit(caller.chain, caller.identity.peer_id)
        assert not isinstance(admitted, Rejected)
        member.calls(caller.identity, f"/ip4/11.1.0.{index}/tcp/9")
        return member.ask() == {9: "refused"}

    # One member asks it to dial hosts for others, as often as it can.
    node = Identity.generate().peer_id
    asked = [member.ask_for(node, f"/ip4/11.3.0.{n}/tcp/80") for n in range(60)]
    assert asked.count("timeout") == 8
    assert sum(probed(index, issuers[0]) for index in range(1, 61)) == 8, "of 60 keys of a ticket"
    assert sum(probed(index, issuers[1]) for index in range(61, 81)) >= 4, "of another ticket"


def test_a_stranger_dials_public_addresses_only_and_says_little(tmp_path: Path) -> None:
    member = Member(tmp_path, "/ip4/11.0.9.1/tcp/9")
    node, public = Identity.generate().peer_id, "/ip4/11.0.9.1/tcp/80"
    assert member.ask_for(node, public) == "timeout", "what is there is nobody's business"
    assert member.dialled == [("11.0.9.1", 80)]
    assert member.ask_for(member.caller.peer_id, public, linked=True) == "untried"
    for peer_id, address in (
        (node, "/ip4/192.168.1.1/tcp/80"),
        (node, "/ip4/127.0.0.1/tcp/80"),
        (node, "/ip4/224.0.0.251/tcp/80"),
        (node, "/ip6/64:ff9b::c0a8:101/tcp/80"),
        (node, "/dns4/example.org/tcp/80"),
        (node, "/ip4/11.0.9.1/tcp/0"),
        (member.transport.peer_id, public),
        ("nobody", public),
    ):
        assert member.ask_for(peer_id, address) == "untried"
    assert [member.ask_for(node, public) for _ in range(4)] == [*["timeout"] * 2, *["untried"] * 2]
    assert len(member.dialled) == 3, "a host is dialled three times a minute"


def test_what_is_no_probe_is_refused_as_such(tmp_path: Path) -> None:
    member = Member(tmp_path, "/ip4/11.0.9.1/tcp/9")
    probes = member.node.probes
    for junk in (b"", b"\x91\x90\x90", wire.pack(wire.PeersRequest(limit=3)), bytes(600)):
        for answer in (probes.answer, probes.answer_for):
            refused = asyncio.run(answer(member.caller.peer_id, junk))
            assert refused.reason in ("schema", "size")


@pytest.mark.slow(reason="nodes meet for minutes of virtual time")
@at_site(6)
async def test_a_router_that_lets_in_whom_a_node_sent_to_is_seen_by_strangers(site: Site) -> None:
    site.see(0, "/ip4/11.0.9.1/tcp/9")
    site.see(5, "/ip4/11.0.9.1/tcp/10")  # a neighbour, which is not asked
    site.lets_in = lambda index: "timeout" if index in (3, 4) else "open"
    first = site.begin(3)
    await asyncio.sleep(MET)
    assert first.reach.dialable() is True, "nobody could know better yet"
    for index in (3, 4, 5):
        site.start(index, stranger=True)
    await asyncio.sleep(MET)
    for node in site.nodes[3:]:  # the first node has no link to them either
        first.directory.forget(node.peer_id)
    await first.prober.refresh()
    members = {node.peer_id for node in site.nodes[1:3]}
    assert {probe.peer_id for probe in first.reach.probes} == members
    assert first.reach.dialable() is False
    assert first.reach.reachable_addresses() == []
    verdict = first.reach.verdict()
    assert verdict.nat == "address"
    assert "11.0.9.1:9" in verdict.text

    site.lets_in = lambda index: "open"
    await asyncio.sleep(MET)
    for node in site.nodes[3:]:
        first.directory.forget(node.peer_id)
    await first.prober.refresh()
    assert {probe.stranger for probe in first.reach.probes} == {"open"}
    assert first.reach.dialable() is True


@at_site(4)
async def test_members_that_lie_do_not_make_a_node_dialable(site: Site) -> None:
    site.see(0, "/ip4/11.0.9.1/tcp/9")
    site.lets_in = lambda index: "timeout"
    first = site.begin(4)

    async def lie(caller: str, payload: bytes) -> bytes:
        outcomes = (PortOutcome(9, "open"), PortOutcome(666, "open"))
        return wire.pack(ProbeReply("/ip4/11.6.6.6/tcp/9", outcomes, "open", 0))

    liar = site.nodes[1]
    liar.transport._handlers[PROBE] = lie  # type: ignore[attr-defined]
    await asyncio.sleep(MET)
    assert first.reach.dialable() is False
    assert first.reach.reachable_addresses() == []
    (said,) = [p for p in first.reach.probes if p.peer_id == liar.peer_id]
    assert said.outcomes == {9: "open"}, "of ports that were not asked nothing is kept"
    assert said.ahead < -1e9
    assert "11.0.9.1" in first.reach.verdict().text


@pytest.mark.slow(reason="nodes meet for minutes of virtual time")
@pytest.mark.parametrize(
    ("reply", "counted"),
    [
        (None, "unreachable"),
        (b"\xc1", "schema"),
        (wire.pack(ProbeReply("", (), "untried", 0)), ""),
        (wire.pack(ProbeReply(public(1), (PortOutcome(PORT, "untried"),), "untried", 0)), ""),
    ],
    ids=["nothing", "no reply", "it has no link", "it dialled nobody"],
)
@at_site(4)
async def test_a_member_that_found_out_nothing_gives_no_verdict(
    site: Site, reply: bytes | None, counted: str
) -> None:
    async def useless(caller: str, payload: bytes) -> bytes:
        if reply is None:
            raise TransportError("not now")
        return reply

    first = site.start(0)
    for index in (1, 2):
        transport = site.start(index).transport
        transport._handlers[PROBE] = useless  # type: ignore[attr-defined]
    await asyncio.sleep(MET)
    assert first.reach.probes == ()
    assert first.reach.dialable() is None
    if counted != "schema":  # those links are cut
        assert first.reach.verdict().text.endswith("could tell")
    assert bool(first.rejected[counted]) is bool(counted)
    assert not first.task.done()
    site.start(3)
    await asyncio.sleep(2 * MET)
    assert site.nodes[3].peer_id in {probe.peer_id for probe in first.reach.probes}
    assert first.reach.verdict().kind == "direct"


@at_site(2)
async def test_a_peer_that_is_forgotten_meanwhile_is_not_asked(site: Site) -> None:
    first = site.begin(2)
    await asyncio.sleep(MET)
    seen = first.transport.observed_address

    async def forgetting(peer: str) -> str | None:
        first.directory.forget(peer)
        return await seen(peer)

    first.transport.observed_address = forgetting  # type: ignore[method-assign]
    asked = site.asked
    first.prober._last_round_at -= PROBE_ROUND.first
    await first.prober.refresh()
    assert len(first.directory) == 0
    assert site.asked == asked


@pytest.mark.slow(reason="nodes meet for minutes of virtual time")
@at_site(8, ["owner", "alice", "bob", *["liars"] * 5])
async def test_of_several_issuers_one_member_each_is_asked(site: Site) -> None:
    first = site.begin(8)
    await asyncio.sleep(2 * MET)
    await first.prober.refresh()
    assert sorted(probe.name for probe in first.reach.probes) == ["alice", "bob", "liars"]


@at_site(6)
async def test_members_at_one_host_count_once_where_there_are_others(site: Site) -> None:
    for index in (1, 2, 3, 4):
        site.see(index, f"/ip4/11.5.5.5/tcp/{index}")
    first = site.begin(6)
    await asyncio.sleep(2 * MET)
    await first.prober.refresh()
    assert sorted(probe.at for probe in first.reach.probes) == ["11.0.0.6", "11.5.5.5"]
