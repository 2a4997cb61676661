"""A process in a bed: a light node over real links that says how it is reached, as often as that
changes, in a line of JSON each. It ends with its standard input.

    probing_node.py NUMBER DIRECTORY LISTEN,… [ADDRESS …]      a member of one swarm for all
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from pathlib import Path

import msgspec
import structlog
from light_nodes import LightNode
from swarm_keys import Swarm

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.p2p.reach.address_check import knock
from swarm_node.p2p.reach.reachability import Reachability
from swarm_node.p2p.transports.hivemind.transport import HivemindTransport

#: In 2026, before any clock on which this runs; certificates hold for ten years.
BEGIN = 1_767_225_600
YEARS = 10 * 365 * 86_400


def swarm() -> Swarm:
    return Swarm(BEGIN, YEARS)


async def main(number: int, place: Path, listen: list[str], bootstrap: list[str]) -> None:
    issuer = f"member {number}"
    membership = swarm().member(number, swarm().issuer(issuer), issuer)
    transport = HivemindTransport(
        membership.identity,
        swarm_id=membership.swarm.swarm_id,
        secret=membership.swarm.secret,
        listen=listen,
        state_dir=place,
        rng=random.Random(number),
        bootstrap=bootstrap,
        seen_addresses=lambda: node.reach.reachable_addresses(),
    )
    node = LightNode(place, SYSTEM_CLOCK, transport, membership, bootstrap, knock)
    node.start()
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    last: Reachability | None = None
    while not ended.done():
        verdict = node.reach.verdict()
        if verdict != last:
            told = {"addresses": transport.addresses(), **msgspec.to_builtins(verdict)}
            print(msgspec.json.encode(told).decode(), flush=True)
            last = verdict
        await asyncio.wait({ended}, timeout=0.5)
    await node.stop()


if __name__ == "__main__":
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:]))
