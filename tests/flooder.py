"""A member with nothing but a network: `python flooder.py KIND HOME TICKET-FILE ADDRESS`.

It joins, and sends requests to ADDRESS as fast as it can until it is stopped: `junk` (a third each
malformed, badly signed and repeated) or `leech` (lists and pulls everything again and again, and
rests when it is told to slow down). When its link is cut it dials again. Each second it prints what
it got, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from swarm_node.errors import RefusedError, TransportError
from swarm_node.node.home.home import Home, Membership
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.p2p.transports.hivemind.transport import HivemindTransport
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.protocols import HELLO, LIST, PULL

WORKERS = {"junk": 32, "leech": 4}
REST_SECONDS = 5.0
Request = tuple[str, bytes]


def _hello(chain: tuple[bytes, ...]) -> bytes:
    return wire.pack(wire.HelloRequest(chain, "swarm-node", (), revoked=0, secret=0))


def _list(limit: int) -> Request:
    return LIST, wire.pack(wire.ListRequest(epoch=0, since=0, limit=limit))


def _junk(membership: Membership) -> Iterator[Request]:
    issuer, member = membership.chain
    damaged = member[:-1] + bytes([member[-1] ^ 1])
    return itertools.cycle(((LIST, b"\xc1"), (HELLO, _hello((issuer, damaged))), _list(1)))


class Flooder:
    """Sends and counts."""

    def __init__(self, kind: str, membership: Membership, transport: HivemindTransport) -> None:
        self._kind = kind
        self._membership = membership
        self._transport = transport
        self._ids: list[bytes] = []
        self._sent = _junk(membership) if kind == "junk" else self._downloads()
        self.counts: Counter[str] = Counter()

    def _downloads(self) -> Iterator[Request]:
        while True:
            yield _list(wire.MAX_LIST_ITEMS)
            for identifier in list(self._ids):
                yield PULL, wire.pack(wire.PullRequest(id=identifier))

    async def work(self, address: str) -> None:
        """Send one request after the other."""
        victim = address.rpartition("/")[2]
        hello = _hello(self._membership.chain)
        await self._transport.dial([address])
        with contextlib.suppress(TransportError):
            await self._transport.request(victim, HELLO, hello)
        while True:
            protocol, payload = next(self._sent)
            try:
                async with asyncio.timeout(10.0):
                    reply = await self._transport.request(victim, protocol, payload)
            except RefusedError:
                self.counts["refused"] += 1
                if self._kind == "leech":
                    await asyncio.sleep(REST_SECONDS)
            except (TransportError, TimeoutError):
                self.counts["cut"] += 1
                await self._transport.dial([address])
            else:
                self.counts["answered"] += 1
                self.counts["bytes"] += len(reply)
                if protocol == LIST and self._kind == "leech":
                    self._note(reply)

    def _note(self, reply: bytes) -> None:
        listed = wire.unpack(wire.ListReply, reply, max_bytes=len(reply))
        if isinstance(listed, wire.ListReply):  # a content id begins with its multihash code
            self._ids = [
                raw[at : at + 34] for raw in listed.items if (at := raw.find(b"\x12\x20")) > 0
            ]


async def main(kind: str, home: Path, ticket: str, address: str) -> None:
    now = time.time()
    membership = Home(home).join_swarm(parse_ticket(ticket, now), now)
    transport = HivemindTransport(
        membership.identity,
        swarm_id=membership.swarm.swarm_id,
        secret=membership.swarm.secret,
        listen=["/ip4/127.0.0.1/tcp/0"],
        state_dir=home,
        rng=random.Random(0),
    )
    await transport.start()
    flooder = Flooder(kind, membership, transport)
    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS[kind]):
            group.create_task(flooder.work(address))
        while True:
            said = {"peer": transport.peer_id, "pid": transport.daemon_pid, **flooder.counts}
            print(json.dumps(said), flush=True)
            await asyncio.sleep(1.0)


if __name__ == "__main__":
    kind, home, ticket, address = sys.argv[1:]
    asyncio.run(main(kind, Path(home), Path(ticket).read_text(), address))
