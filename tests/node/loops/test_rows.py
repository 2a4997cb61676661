"""What a snapshot says of each peer: its link, its figures, and why it is not connected."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from light_nodes import LightNode, SilentNetwork, SilentTransport, address_of, shared_state, virtual
from virtual import in_virtual_time

from swarm_node.errors import SwarmNodeError
from swarm_node.node.loops.peers.dialing import ping
from swarm_node.node.loops.peers.rows import MAX_UNMET, former_rows, of_unmet, peer_rows
from swarm_node.node.metrics.snapshot import PeerRow, PingReport, Said
from swarm_node.p2p.peers.causes import CAUSES, Cause
from swarm_node.p2p.peers.standing import STRIKES
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import PEERS
from swarm_node.rollout import PolicyRef
from swarm_node.simulation.seeded import Seeded
from swarm_node.simulation.virtual_time import VirtualTimeLoop

OWN_POLICY = PolicyRef(b"m" * 32, b"t" * 32, 0)
STRANGER = Identity.from_seed(b"s" * 32).peer_id


class Ranged(SilentTransport):
    """A transport that connects to no address of the documentation's range."""

    def connects_to(self, address: str) -> bool:
        return not address.startswith("/ip4/192.0.2.")


class Scene:
    """Three nodes of one swarm; the first is looked at."""

    def __init__(self, loop: VirtualTimeLoop, place: Path) -> None:
        self.loop = loop
        network, members = SilentNetwork(random.Random(0)), Seeded(0).memberships(3)
        self.nodes = [
            LightNode(place, virtual(loop), Ranged(network, each.identity), each)
            for each in members
        ]
        self.own, self.other, self.third = self.nodes
        self.shared = shared_state(self.own.local, self.own.members.issuer)

    async def start(self, *nodes: LightNode) -> None:
        for node in nodes or self.nodes:
            await node.transport.start()

    async def stop(self) -> None:
        for node in self.nodes:
            await node.transport.stop()
            node.storage.close()

    def rows(self, now: float | None = None) -> list[PeerRow]:
        when = self.own.clock.now() if now is None else now
        return peer_rows(self.shared, self.own.reaching, when, None, OWN_POLICY)

    def unmet(self) -> dict[str, Said]:
        """Why members were not met, by peer id."""
        now, meeting = self.own.clock.now(), self.own.exchange.discovery
        fields = of_unmet(self.shared, self.own.reaching, meeting, now)
        assert len(fields["unmet"]) == min(fields["unmet_total"], MAX_UNMET)
        return {row.peer_id: row.reason for row in fields["unmet"]}

    def tell(self, peer_id: str, *addresses: str) -> None:
        """Let the node hear of a peer."""
        book, now = self.own.exchange.discovery._book, self.own.clock.now()
        book.tell(peer_id, addresses, now, issuer="i", teller="t", telling_issuer="i")

    async def ping(self, peer_id: str) -> PingReport:
        own = self.own
        return await ping(peer_id, 5.0, own.local, own.exchange, own.reaching)


in_scene = in_virtual_time(lambda loop, place, **_: Scene(loop, place))


@in_scene
async def test_a_ping_tells_the_link_and_counts_and_a_silent_peer_has_a_cause(
    scene: Scene,
) -> None:
    await scene.start(scene.own, scene.other)
    other, third = scene.other.peer_id, scene.third.peer_id
    scene.tell(other, address_of(scene.other.membership))
    scene.tell(third, address_of(scene.third.membership))
    assert {why.kind for why in scene.unmet().values()} == {"untried"}
    pong = await scene.ping(other)
    assert pong.seconds is not None
    assert (pong.name, pong.via, pong.reason) == (scene.own.members.name(other), "", None)
    assert pong.address
    assert scene.own.transport.reached[PEERS] == 1, "one small request of the protocol"
    (row,) = scene.rows()
    assert (row.address, row.via, row.reason) == (pong.address, "", None)
    assert row.round_trip is not None
    assert min(row.bytes_in, row.bytes_out) > 0
    lost = await scene.ping(third)
    assert lost.seconds is None
    assert lost.reason.kind == "no_answer"
    assert lost.reason.remedy == CAUSES["no_answer"].advice
    assert scene.unmet()[third].kind == "no_answer", "it is ignored for a while, and still shown"
    await scene.start(scene.third)
    assert (await scene.ping(third)).seconds is not None, (
        "one that is ignored is tried all the same"
    )
    with pytest.raises(SwarmNodeError, match=STRANGER):
        await scene.ping(STRANGER)


@in_scene
async def test_a_member_outside_of_the_ranges_is_named_with_its_address(scene: Scene) -> None:
    await scene.start(scene.own)
    far = scene.other.peer_id
    address = f"/ip4/192.0.2.2/tcp/1/p2p/{far}"
    scene.tell(far, address, f"/ip4/192.0.2.9/tcp/1/p2p/{far}")
    for _ in range(2):  # before it is tried, and after
        why = scene.unmet()[far]
        assert why.kind == "out_of_range"
        assert why.text.startswith("192.0.2.2 (and 1 more) ")
        assert why.remedy == CAUSES["out_of_range"].advice
        assert (await scene.ping(far)).reason == why


@in_scene
async def test_rows_of_many_members_that_were_not_met_are_bounded(scene: Scene) -> None:
    for number in range(4 * MAX_UNMET):
        scene.own.exchange.discovery._book.tell(
            Identity.from_seed(number.to_bytes(32, "big")).peer_id,
            ["/memory/p2p/x"],
            0.0,
            issuer=str(number),
            teller=str(number),
            telling_issuer=str(number),
        )
    assert len(scene.unmet()) == MAX_UNMET


@in_scene
async def test_a_row_says_why_a_peer_is_lost_suspended_or_disconnected(scene: Scene) -> None:
    await scene.start(scene.own, scene.other)
    directory, now = scene.own.directory, scene.own.clock.now()
    peer = directory.meet(scene.other.peer_id, now)
    assert scene.rows()[0].reason is None, "there is a link"
    for _ in range(STRIKES):
        directory.record_rejection(peer.peer_id, "too_long", now)
    why = scene.rows()[0].reason
    assert why.kind == "suspended"
    directory.record_rejection(peer.peer_id, "hash", now + 61.0)
    after = scene.rows(now + 62.0)[0].reason
    assert after.kind == "disconnected"
    await scene.other.transport.stop()
    peer.record_failure(now + 1e6)
    gone = scene.rows(now + 1e6)[0].reason
    assert gone.kind == "no_answer"
    assert gone.remedy != CAUSES["no_answer"].advice, "it answered before"
    directory.failures.record_failure(Cause("revoked", peer.peer_id, "bob"), now + 1e6)
    refused = scene.rows(now + 1e6)[0].reason
    assert refused.kind == "revoked", "what it said counts before what this node concludes"
    scene.shared.former[peer.peer_id] = peer
    directory.forget(peer.peer_id)
    (former,) = former_rows(scene.shared, scene.own.reaching, now)
    assert former.peer_id == peer.peer_id


@in_scene
async def test_rows_say_score_reasons_share_and_pause(scene: Scene) -> None:
    directory, tally = scene.own.directory, scene.shared.tally
    peer = directory.meet("a", 4.0)
    peer.standing.count_useful_group()
    directory.record_rejection("a", "hash", 10.0)
    tally.trained_by.update({"me": 30, "a": 10})
    (row,) = scene.rows(20.0)
    assert (row.trained_fraction, row.rejected_by_reason, row.suspended_seconds) == (
        0.25,
        {"hash": 1},
        50.0,
    )
    assert (row.useful_fraction, row.seconds_since_seen) == (peer.standing.score, 16.0)


@in_scene
async def test_a_row_names_another_model_and_a_peer_that_failed_twice(scene: Scene) -> None:
    peer, own = scene.own.directory.meet("a", 0.0), (OWN_POLICY.model, OWN_POLICY.tokenizer)
    for policy, model in ((None, ""), (own, ""), ((b"\xab" * 32, own[1]), "abababab")):
        peer.policy = policy
        (row,) = scene.rows(1.0)
        assert row.model == model
    for second, lost in ((2.0, False), (9.0, True)):
        peer.record_failure(second)
        (row,) = scene.rows(30.0)
        assert (row.lost, row.present) == (lost, not lost)
