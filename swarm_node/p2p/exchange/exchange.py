"""Shares experience: publishes own groups; meets peers; lists, draws and pulls their groups.

No call waits for all peers. It asks a few random ones, each with a deadline, and returns their
answers. `serving.py` answers the same protocols. `verify.py` decides on admission.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from swarm_node.clock import Clock
from swarm_node.p2p.exchange.affairs import Affairs
from swarm_node.p2p.exchange.asking import Asker
from swarm_node.p2p.exchange.meeting import Meeting
from swarm_node.p2p.exchange.publishing import Publisher
from swarm_node.p2p.exchange.pulling import Puller
from swarm_node.p2p.exchange.verify import GroupVerifier
from swarm_node.p2p.limits.budgets import Effort, Traffic
from swarm_node.p2p.membership.credentials import Credentials
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.peers.addressbook import AddressBook
from swarm_node.p2p.peers.peers import Directory
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.transport import Transport
from swarm_node.storage import Storage


@dataclass(frozen=True)
class Exchange:
    """The parts that send this node's requests and publish its groups."""

    asker: Asker
    meeting: Meeting
    publisher: Publisher
    puller: Puller


def open_exchange(
    *,
    transport: Transport,
    identity: Identity,
    swarm_id: bytes,
    credentials: Credentials,
    let_go: Callable[[str], None],
    storage: Storage,
    verifier: GroupVerifier,
    members: Members,
    directory: Directory,
    traffic: Traffic,
    effort: Effort,
    rejected: Counter[str],
    clock: Clock,
    rng: random.Random,
    relays: Callable[[], bool] = lambda: False,
) -> Exchange:
    """Build the parts over their shared values. `relays` returns true while this node forwards
    requests."""
    asker = Asker(
        transport=transport,
        swarm_id=swarm_id,
        credentials=credentials,
        members=members,
        directory=directory,
        rejected=rejected,
        clock=clock,
    )
    affairs = Affairs(asker, credentials, members, directory, let_go, clock, rng)
    meeting = Meeting(
        asker,
        AddressBook(identity.peer_id, identity.seed()),
        transport=transport,
        identity=identity,
        credentials=credentials,
        members=members,
        affairs=affairs,
        swarm_id=swarm_id,
        storage=storage,
        directory=directory,
        clock=clock,
        rng=rng,
        relays=relays,
    )
    publisher = Publisher(
        identity=identity, swarm_id=swarm_id, storage=storage, verifier=verifier, clock=clock
    )
    puller = Puller(
        asker,
        verifier=verifier,
        directory=directory,
        members=members,
        traffic=traffic,
        effort=effort,
        clock=clock,
        rng=rng,
    )
    return Exchange(asker, meeting, publisher, puller)
