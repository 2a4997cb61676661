"""Members over real links and a real DHT."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.node.home.home import Membership
from swarm_node.p2p.exchange.affairs import Affairs
from swarm_node.p2p.exchange.asking import Asker
from swarm_node.p2p.exchange.meeting import Meeting
from swarm_node.p2p.exchange.serving import Server
from swarm_node.p2p.limits.budgets import Traffic, Wants
from swarm_node.p2p.membership.credentials import Credentials, MemoryOffice
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.peers.addressbook import AddressBook
from swarm_node.p2p.peers.peers import Directory
from swarm_node.p2p.transports.hivemind.transport import HivemindTransport
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
