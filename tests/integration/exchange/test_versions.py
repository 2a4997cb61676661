"""Nodes of two versions of the wire in one swarm: docs/protocol.md, "Versions"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
import pytest
from exchange_sides import POLICY, Side, in_swarm, make_group, right_answer

from swarm_node.errors import NotServedError
from swarm_node.p2p.transports.memory import MemoryNetwork
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.dialogues import announced_dialogues, pack_dialogues
from swarm_node.p2p.wire.envelope import Kind, content_id, seal
from swarm_node.p2p.wire.protocols import LIST, PULL, PULL_2


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
    for protocol in (LIST, PULL, PULL_2):
        if protocol in handlers:
            handlers[protocol] = counting(protocol, handlers[protocol])
    return counts


@in_swarm()
async def test_a_protocol_that_is_not_served_is_counted_and_blames_nobody(
    network: MemoryNetwork, old: Side, new: Side
) -> None:
    del old.transport._handlers[LIST]
    with pytest.raises(NotServedError):
        await new.transport.request(old.peer_id, LIST, b"")
    await new.list_some(8, 64)
    assert new.rejected == {"not_served": 1}
    peer = new.directory.get(old.peer_id)
    assert (peer.standing.offences, peer.retry.failures) == (0, 0)


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

    def serve(self, items: Sequence[bytes], groups: Mapping[str, bytes]) -> None:
        """List these records, answer these protocols with these groups, and no other of both
        versions."""
        handlers = self.side.transport._handlers
        for protocol in (LIST, PULL, PULL_2):
            handlers.pop(protocol, None)
        handlers[LIST] = always(wire.pack(wire.ListReply(self.epoch, len(items), 0, tuple(items))))
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
    # the versions of what it lists, what it serves at pull/1 and pull/2, and its reader's reasons
    "dialogues to a reader of answers": ("2", "", "2", {"elsewhere": 1}),
    "a dialogue for an announced answer": ("1", "2", "", {"kind": 1}),
    "an answer at pull/2 alone": ("1", "", "1", {"not_served": 3, "not_here": 3}),
    "both versions of one number": ("12", "1", "2", {"elsewhere": 1}),
}


@pytest.mark.parametrize("name", ATTACKS)
@in_swarm(3)
async def test_whatever_a_member_serves_in_which_version_its_reader_blames_it_alone(
    network: MemoryNetwork, author: Side, reader: Side, honest: Side, name: str
) -> None:
    listed, one, two, reasons = ATTACKS[name]

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
        [records[each] for each in listed],
        {protocol: groups[each] for protocol, each in ((PULL, one), (PULL_2, two)) if each},
    )
    counts = asked(author)
    await honest.publish(7)
    taken = [group.author for group in await reader.fetch()]
    assert taken.count(honest.peer_id) == 1
    assert taken.count(author.peer_id) == (name == "both versions of one number")
    assert counts[PULL_2] == 0, "it trains on single answers"
    assert reader.rejected == reasons
    blamed = reader.directory.get(honest.peer_id)
    assert blamed.standing.offences == blamed.standing.strikes == 0
