"""Expelling a member and changing the secret over real links and a real DHT."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from swarm_keys import Swarm

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.errors import TransportError
from swarm_node.node.home.home import Membership
from swarm_node.p2p.exchange.affairs import Affairs
from swarm_node.p2p.exchange.asking import Asker
from swarm_node.p2p.exchange.meeting import Meeting
from swarm_node.p2p.exchange.serving import Server
from swarm_node.p2p.limits.budgets import Traffic, Wants
from swarm_node.p2p.membership.credentials import Credentials, MemoryOffice
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.membership.stewards import next_list, next_secret
from swarm_node.p2p.peers.addressbook import AddressBook
from swarm_node.p2p.peers.peers import Directory
from swarm_node.p2p.transports.hivemind.transport import HivemindTransport
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.protocols import PEERS
from swarm_node.storage import Storage


class Peer:
    """A member's transport, server and heartbeat; no groups."""

    def __init__(self, place: Path, membership: Membership) -> None:
        self.peer_id = membership.identity.peer_id
        self.transport = HivemindTransport(
            membership.identity,
            swarm_id=membership.swarm.swarm_id,
            secret=membership.swarm.secret,
            listen=["/ip4/127.0.0.1/tcp/0"],
            state_dir=place / self.peer_id,
            rng=random.Random(0),
        )
        self.rejected: Counter[str] = Counter()
        self.office = MemoryOffice()
        self.members = Members(membership.swarm, SYSTEM_CLOCK.wall, self.office)
        self.own = Credentials(
            membership.identity,
            membership.swarm,
            membership.chain,
            members=self.members,
            office=self.office,
            wall=SYSTEM_CLOCK.wall,
            use_secret=self.transport.use_secret,
        )
        self.directory = Directory(self.peer_id)
        self.storage = Storage(place / f"{self.peer_id}.db")
        self.storage.begin_epoch()
        rng = random.Random(1)
        Server(
            transport=self.transport,
            credentials=self.own,
            storage=self.storage,
            members=self.members,
            directory=self.directory,
            traffic=Traffic(Wants(8.0, 1 << 20, 1.0), self.members.issuer),
            rejected=self.rejected,
            clock=SYSTEM_CLOCK,
            rng=rng,
        )
        asker = Asker(
            transport=self.transport,
            swarm_id=membership.swarm.swarm_id,
            credentials=self.own,
            members=self.members,
            directory=self.directory,
            rejected=self.rejected,
            clock=SYSTEM_CLOCK,
        )
        let_go = self.directory.forget
        affairs = Affairs(asker, self.own, self.members, self.directory, let_go, SYSTEM_CLOCK, rng)
        self.meeting = Meeting(
            asker,
            AddressBook(membership.identity.peer_id, membership.identity.seed()),
            transport=self.transport,
            identity=membership.identity,
            credentials=self.own,
            members=self.members,
            affairs=affairs,
            swarm_id=membership.swarm.swarm_id,
            storage=self.storage,
            directory=self.directory,
            clock=SYSTEM_CLOCK,
            rng=rng,
            relays=lambda: False,
        )

    async def beat(self) -> None:
        await self.meeting.beat(0, 20.0)

    async def found(self) -> set[str]:
        return set(await self.transport.heartbeats())


@pytest.mark.slow(reason="four network daemons")
def test_an_expelled_member_is_out_and_the_others_change_the_secret(tmp_path: Path) -> None:
    async def main() -> None:
        swarm = Swarm(begin=int(time.time()) - 60)
        owner, other, expelled, away = peers = [
            Peer(tmp_path, swarm.member(index, swarm.issuer(f"guest {index}"), f"guest {index}"))
            for index in range(1, 5)
        ]
        async with contextlib.AsyncExitStack() as stack:
            for peer in peers:
                stack.callback(peer.storage.close)
                stack.push_async_callback(peer.transport.stop)
                await peer.transport.start()
            for peer in (other, expelled):
                assert await peer.transport.dial(owner.transport.addresses()) == 1
            for _ in range(2):
                for peer in (owner, other, expelled):
                    await peer.beat()
            assert await owner.found() == {other.peer_id, expelled.peer_id}
            assert owner.directory.get(expelled.peer_id) is not None

            now = SYSTEM_CLOCK.wall()
            key = expelled.own.identity.public_key
            owner.office.save("revoked", next_list(swarm.steward, swarm.info, None, [key], now).raw)
            secret = next_secret(swarm.steward, swarm.info, b"n" * 32, now)
            owner.office.save("secret", secret.raw)
            await owner.beat()
            await other.beat()
            assert [peer.own.lists.number for peer in (owner, other)] == [1, 1]
            assert [peer.own.secrets.number for peer in peers] == [1, 1, 0, 0]
            for peer in (owner, other):
                assert peer.directory.get(expelled.peer_id) is None
            assert await owner.found() == {other.peer_id}
            assert await other.found() == {owner.peer_id}
            request = wire.pack(wire.PeersRequest(limit=8))
            for peer in (owner, other):
                with pytest.raises(TransportError, match="hello"):
                    await expelled.transport.request(peer.peer_id, PEERS, request)
            await expelled.beat()
            assert expelled.own.secrets.number == 0
            assert await owner.found() == {other.peer_id}

            for peer in (owner, other):  # the time of the old secret is over
                peer.transport._authorizer._previous = None
            known = away.directory.meet(owner.peer_id, SYSTEM_CLOCK.now())
            known.addresses = tuple(owner.transport.addresses())
            for _ in range(3):
                await away.beat()
            assert away.own.secrets.number == 1
            assert owner.peer_id in await away.found()

    asyncio.run(main())
