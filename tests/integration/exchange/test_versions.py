"""Nodes of two versions of the wire in one swarm: docs/protocol.md, "Versions"."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from exchange_sides import POLICY, Side, make_group, right_answer
from in_memory import Sampler, World, small_settings, tiny

from swarm_node.errors import NotServedError
from swarm_node.node.start.assembly import assemble
from swarm_node.p2p.transports.memory import MemoryNetwork
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.dialogues import announced_dialogues, pack_dialogues
from swarm_node.p2p.wire.envelope import Kind, content_id, seal
from swarm_node.p2p.wire.protocols import LIST, LIST_2, PULL, PULL_2
from swarm_node.p2p.wire.reasons import REASONS, Blame
from swarm_node.simulation.virtual_time import VirtualTimeLoop, run_virtual

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


class Hostile:
    """A member that announces and sends whatever it likes in either version."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.epoch = side.storage.epoch

    async def sealed(self, kind: Kind, seq: int) -> bytes:
        """A group with a right answer, of one version or the other."""
        ref = self.side.task(seq)
        group = make_group(ref, [await right_answer(self.side, ref), "wrong"], [1.0, 0.0])
        pack = pack_dialogues if kind is Kind.ROLLOUT_2 else wire.pack_group
        return self._sealed(kind, pack(group, epoch=self.epoch, seq=seq, created_ms=0))

    def record(self, kind: Kind, sealed: bytes, seq: int) -> bytes:
        entry = wire.Announcement(
            v=1,
            epoch=self.epoch,
            seq=seq,
            id=content_id(sealed),
            size=len(sealed),
            environment=self.side.info.name,
            version=self.side.info.version,
            family="alphabet",
            model=POLICY.model,
            tokenizer=POLICY.tokenizer,
            policy_version=0,
            completions=2,
            mixed=True,
        )
        body: msgspec.Struct = announced_dialogues(entry, 2) if kind is Kind.RECORD_2 else entry
        return self._sealed(kind, wire.pack(body))

    def serve(self, lists: Mapping[str, Sequence[bytes]], groups: Mapping[str, bytes]) -> None:
        """Answer these protocols with these records and groups, and no other of both versions."""
        handlers = self.side.transport._handlers
        for protocol in (LIST, LIST_2, PULL, PULL_2):
            handlers.pop(protocol, None)
        for protocol, items in lists.items():
            handlers[protocol] = always(
                wire.pack(wire.ListReply(self.epoch, len(items), 0, tuple(items)))
            )
        for protocol, sealed in groups.items():
            handlers[protocol] = always(sealed)

    def _sealed(self, kind: Kind, body: bytes) -> bytes:
        membership = self.side.membership
        return seal(membership.identity, membership.swarm.swarm_id, kind, body)


def always(reply: bytes) -> Callable[[str, bytes], Awaitable[bytes]]:
    async def answer(caller: str, payload: bytes) -> bytes:
        return reply

    return answer


ATTACKS = {
    # what it serves at list/1 and list/2, at pull/1 and pull/2, and the reasons of its reader
    "dialogues to a reader of answers": ("", "2", "", "2", {"elsewhere": 1}),
    "dialogues at list/1": ("2", "", "", "2", {"kind": 1}),
    "a dialogue for an announced answer": ("", "1", "2", "", {"kind": 1}),
    "an answer at pull/2 alone": ("", "1", "", "1", {"not_served": 3, "not_here": 3}),
    "both versions of one number": ("", "12", "1", "2", {"elsewhere": 1}),
    "one version at each list": ("2", "1", "1", "2", {}),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_whatever_a_member_serves_in_which_version_its_reader_blames_it_alone(
    in_swarm: InSwarm, name: str
) -> None:
    first, second, one, two, reasons = ATTACKS[name]

    async def body(network: MemoryNetwork, author: Side, reader: Side, honest: Side) -> None:
        hostile = Hostile(author)
        groups = {
            "1": await hostile.sealed(Kind.ROLLOUT, 1),
            "2": await hostile.sealed(Kind.ROLLOUT_2, 1),
        }
        # A group can be announced by the version that it does not have.
        sent = groups[one or two]
        records = {
            "1": hostile.record(Kind.RECORD, sent, 1),
            "2": hostile.record(Kind.RECORD_2, groups["2"], 1),
        }
        hostile.serve(
            {
                protocol: [records[each] for each in listed]
                for protocol, listed in ((LIST, first), (LIST_2, second))
                if listed
            },
            {protocol: groups[each] for protocol, each in ((PULL, one), (PULL_2, two)) if each},
        )
        counts = asked(author)
        await honest.publish(7)
        taken = [group.author for group in await reader.fetch()]
        assert taken.count(honest.peer_id) == 1
        assert taken.count(author.peer_id) == (name in TAKEN)
        assert counts[PULL_2] == 0, "it trains on single answers"
        assert reader.rejected == reasons
        blamed = reader.directory.get(honest.peer_id)
        assert blamed is not None
        assert blamed.standing.offences == blamed.standing.strikes == 0

    in_swarm(body, 3)


#: Attacks that come with an honest answer.
TAKEN = {"both versions of one number", "one version at each list"}


@pytest.mark.slow(reason="two nodes sample and train for ten minutes of virtual time")
def test_for_ten_minutes_nodes_of_both_versions_take_each_others_answers(tmp_path: Path) -> None:
    async def scenario(loop: VirtualTimeLoop) -> None:
        world = World(tmp_path, loop, members=2)
        settings = small_settings(
            **{
                "experience__external": 2,
                "network__poll_seconds": 5.0,
                "sampling__max_new_tokens": 8,
            }
        )
        nodes = [
            assemble(
                settings,
                membership,
                world.parts(
                    settings,
                    index,
                    sampler=Sampler(tiny().sampler(), 4.0, 0, world.home(index)),
                ),
            )
            for index, membership in enumerate(world.memberships)
        ]
        lives = [asyncio.create_task(node.run()) for node in nodes]
        await asyncio.sleep(1)
        old = nodes[0].snapshot().peer_id
        for protocol in (LIST_2, PULL_2):
            del world.network._running[old]._handlers[protocol]
        await asyncio.sleep(600)
        shots = [node.snapshot() for node in nodes]
        for shot in shots:
            assert shot.faults == {}
            reasons = set(shot.rejected)
            assert not {each for each in reasons if REASONS[each].blame is Blame.VIOLATION}
            assert "not_served" not in reasons
            received = {peer.peer_id: peer.received for peer in shot.peers}
            assert len(received) == 1
            assert all(received.values()), "the old node's answers too, and the old node others'"
        for node in nodes:
            node.stop()
        await asyncio.gather(*lives)

    run_virtual(scenario)
