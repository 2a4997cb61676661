"""Makes and cuts links to peers, by what answers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from swarm_node.p2p.hivemind.addresses import Address, accepts
from swarm_node.p2p.hivemind.daemon import RPC_SECONDS, DhtNode
from swarm_node.p2p.reach.returning import PING_SECONDS, Rounds


async def connect(node: DhtNode, target: Address, patience: float) -> bool:
    """Whether a member answered there within `patience` seconds.

    p2pd is asked to dial only what accepts a connection: after a failure it leaves an address
    alone, up to five minutes after some. So it dials at once when a cut has healed.
    """
    if not await accepts(target, patience):
        linked = await node.connections(RPC_SECONDS) or ()
        if target.peer_id not in linked:
            return False
    return await node.connect(target, patience)


async def cut_silent(
    node: DhtNode, rounds: Rounds, linked: Collection[str], moved: bool
) -> frozenset[str]:
    """Ping some of the links, cut those over which nothing comes back, and return their peers.
    `moved` says that this node has other addresses than before."""
    silent = rounds.next(linked)
    for _ in range(1 if moved else 2):
        answers = await asyncio.gather(*(node.answers(peer, PING_SECONDS) for peer in silent))
        silent = [peer for peer, heard in zip(silent, answers, strict=True) if not heard]
    await asyncio.gather(*(node.disconnect(peer) for peer in silent))
    return frozenset(silent)
