"""The node of a home as it would answer if it had another version: it cannot read a greeting.

    other_version.py HOME LISTEN

It prints its first address, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from swarm_node.node.home.home import Home
from swarm_node.p2p.transports.hivemind.transport import HivemindTransport
from swarm_node.p2p.wire.protocols import HELLO
from swarm_node.p2p.wire.reasons import BAD_REQUEST


async def _greeted(caller: str, payload: bytes) -> bytes:
    raise BAD_REQUEST.error("schema")


async def main(home: Home, listen: str) -> None:
    membership = home.membership()
    transport = HivemindTransport(
        membership.identity,
        swarm_id=membership.swarm.swarm_id,
        secret=membership.swarm.secret,
        listen=[listen],
        state_dir=home.path,
        rng=random.Random(0),
    )
    transport.serve(HELLO, _greeted)
    await transport.start()
    print(transport.addresses()[0], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await transport.stop()


if __name__ == "__main__":
    asyncio.run(main(Home(Path(sys.argv[1])), sys.argv[2]))
