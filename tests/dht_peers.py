"""Members over real links and a real DHT."""

from __future__ import annotations

import random
from pathlib import Path

from swarm_node.clock import SYSTEM_CLOCK, Clock
from swarm_node.node.home.home import Membership
from swarm_node.p2p.exchange.discovery import Discovery
from swarm_node.p2p.exchange.membership_sync import MembershipSync
from swarm_node.p2p.exchange.requests import Asker
from swarm_node.p2p.exchange.serving import Server
from swarm_node.p2p.limits.budgets import Traffic, Wants
from swarm_node.p2p.membership.credentials import Credentials, MemoryOffice
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.peers.addressbook import AddressBook
from swarm_node.p2p.transports.hivemind.transport import HivemindTransport
from swarm_node.storage import Storage


class Peer:
    """A member's transport, server and heartbeat; no groups."""

    def __init__(self, place: Path, membership: Membership, clock: Clock = SYSTEM_CLOCK) -> None:
        self.peer_id = membership.identity.peer_id
        self.transport = HivemindTransport(
            membership.identity,
            swarm_id=membership.swarm.swarm_id,
            secret=membership.swarm.secret,
            listen=["/ip4/127.0.0.1/tcp/0"],
            state_dir=place / self.peer_id,
            rng=random.Random(0),
        )
        self.office = MemoryOffice()
        self.local = local = LocalNode.of(membership.identity, membership.swarm, clock, self.office)
        self.members, self.directory, self.rejected = local.members, local.directory, local.rejected
        self.own = Credentials(
            local,
            membership.chain,
            office=self.office,
            use_secret=self.transport.use_secret,
        )
        self.storage = Storage(place / f"{self.peer_id}.db")
        self.storage.begin_epoch()
        rng = random.Random(1)
        Server(
            local,
            transport=self.transport,
            credentials=self.own,
            storage=self.storage,
            traffic=Traffic(Wants(8.0, 1 << 20, 1.0), self.members.issuer),
            rng=rng,
        )
        asker = Asker(local, transport=self.transport, credentials=self.own)
        membership_sync = MembershipSync(local, asker, self.own, self.directory.forget, rng)
        self.discovery = Discovery(
            local,
            asker,
            AddressBook(membership.identity.peer_id, membership.identity.seed()),
            transport=self.transport,
            credentials=self.own,
            membership_sync=membership_sync,
            storage=self.storage,
            rng=rng,
            relays=lambda: False,
        )

    async def send_heartbeat(self) -> None:
        await self.discovery.send_heartbeat(0, 20.0)

    async def found(self) -> set[str]:
        return set(await self.transport.heartbeats())
