"""Shares experience: publishes own groups; meets peers; lists, draws and pulls their groups.

No call waits for all peers. It asks a few random ones, each with a deadline, and returns their
answers. `serving.py` answers the same protocols. `verify.py` decides on admission.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from swarm_node.p2p.exchange.discovery import Discovery
from swarm_node.p2p.exchange.membership_sync import MembershipSync
from swarm_node.p2p.exchange.publishing import Publisher
from swarm_node.p2p.exchange.pulling import Puller
from swarm_node.p2p.exchange.requests import Asker
from swarm_node.p2p.exchange.verify import GroupVerifier
from swarm_node.p2p.limits.budgets import Effort, Traffic
from swarm_node.p2p.membership.credentials import Credentials
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.peers.addressbook import AddressBook
from swarm_node.p2p.wire.transport import Transport
from swarm_node.storage import Storage


@dataclass(frozen=True)
class Exchange:
    """The parts that send this node's requests and publish its groups."""

    asker: Asker
    discovery: Discovery
    publisher: Publisher
    puller: Puller
    verifier: GroupVerifier


def open_exchange(
    local: LocalNode,
    *,
    transport: Transport,
    credentials: Credentials,
    let_go: Callable[[str], None],
    storage: Storage,
    verifier: GroupVerifier,
    traffic: Traffic,
    effort: Effort,
    rng: random.Random,
    relays: Callable[[], bool] = lambda: False,
    publisher: Callable[..., Publisher] = Publisher,
) -> Exchange:
    """Build the parts over their shared values. `relays` returns true while this node forwards
    requests. `publisher` makes the publisher, as its class does."""
    asker = Asker(local, transport=transport, credentials=credentials)
    discovery = Discovery(
        local,
        asker,
        AddressBook(local.peer_id, local.identity.seed()),
        transport=transport,
        credentials=credentials,
        membership_sync=MembershipSync(local, asker, credentials, let_go, rng),
        storage=storage,
        rng=rng,
        relays=relays,
    )
    puller = Puller(local, asker, verifier=verifier, traffic=traffic, effort=effort, rng=rng)
    publishes = publisher(local, storage=storage, verifier=verifier)
    return Exchange(asker, discovery, publishes, puller, verifier)
