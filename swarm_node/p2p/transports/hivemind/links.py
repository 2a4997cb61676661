"""Cuts links that return no bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from swarm_node.p2p.transports.hivemind.daemon import DhtNode
from swarm_node.p2p.transports.returning import PING_SECONDS


async def cut_silent(node: DhtNode, silent: Sequence[str], moved: bool) -> frozenset[str]:
    """Ping the links to these peers, cut those without an answer, and return their peers. `moved`
    means that this node's addresses have changed."""
    for _ in range(1 if moved else 2):
        answers = await asyncio.gather(*(node.answers(peer, PING_SECONDS) for peer in silent))
        silent = [peer for peer, heard in zip(silent, answers, strict=True) if not heard]
    await asyncio.gather(*(node.disconnect(peer) for peer in silent))
    return frozenset(silent)
