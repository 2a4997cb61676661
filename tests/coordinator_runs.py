"""A real coordinator in this process, and members that ask it over HTTP."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import ClientSession
from swarm_keys import DAY, Swarm

from coordinator.server import AdminAddress, Options, serve
from swarm_node.clock import Clock
from swarm_node.node.home.home import Home, Membership
from swarm_node.node.members.issuers import make
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.coordinator.coordination import Call, PeerCounts, Report, show_call
from swarm_node.p2p.membership.membership import SwarmInfo
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.wire import pack
from swarm_node.simulation.seeded import EPOCH


@dataclass
class Hand:
    """A clock that tests move by hand; certificates of `Swarm` begin at EPOCH."""

    seconds: float = 0.0

    def clock(self) -> Clock:
        return Clock(now=lambda: self.seconds, wall=lambda: EPOCH + self.seconds)


@dataclass
class Running:
    """Where a coordinator answers."""

    port: int
    admin_port: int
    data: Path
    hand: Hand
    token: str = field(init=False)

    def __post_init__(self) -> None:
        self.token = (self.data / "admin.token").read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(
        self,
        method: str,
        target: str,
        body: object = None,
        *,
        by: Membership | None = None,
        raw: bytes | None = None,
        call: dict[str, Any] | None = None,
    ) -> tuple[int, Any]:
        """Status and decoded JSON of a request that `by` signs, if anybody. `call` replaces fields
        of what is signed."""
        sent = raw if raw is not None else b"" if body is None else msgspec.json.encode(body)
        headers = {}
        if by is not None:
            wall = EPOCH + self.hand.seconds
            headers["Authorization"] = authorization(by, method, target, sent, wall, call or {})
        return await request(method, self.url + target, sent, headers)

    async def admin(self, method: str, target: str, body: object = None) -> tuple[int, Any]:
        """Status and answer of a request of the operator."""
        sent = b"" if body is None else msgspec.json.encode(body)
        headers = {"Authorization": f"Bearer {self.token}"}
        return await request(method, f"http://127.0.0.1:{self.admin_port}{target}", sent, headers)


async def request(method: str, url: str, sent: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    async with (
        ClientSession() as session,
        session.request(method, url, data=sent, headers=headers, allow_redirects=False) as response,
    ):
        answer = await response.read()
        if "json" not in response.content_type:
            return response.status, answer.decode()
        return response.status, msgspec.json.decode(answer)


def authorization(
    by: Membership, method: str, target: str, sent: bytes, wall: float, changes: dict[str, Any]
) -> str:
    """The header that signs a request, with `changes` of the signed fields."""
    fields: dict[str, Any] = {
        "v": 1,
        "method": method,
        "target": target,
        "issued_ms": int(wall * 1000),
        "nonce": os.urandom(16),
        "digest": hashlib.sha256(sent).digest(),
        **changes,
    }
    shown = show_call(by.identity, by.swarm.swarm_id, by.chain, Call(**fields))
    return api.SCHEME + base64.b64encode(shown).decode()


def sealed_report(by: Membership, wall: float, **changes: Any) -> api.Reported:
    """A report of a node that did little."""
    fields: dict[str, Any] = {
        "v": 1,
        "issued_ms": int(wall * 1000),
        "agent": "test",
        "model": "tiny",
        "reach": "direct",
        "version": 3,
        "steps": 3,
        "sampled": 5,
        "sent": 1,
        "accepted": 2,
        "trained_local": 4,
        "trained_external": 1,
        "eval_reward": (("gcd", 0.25), ("chess", 0.75)),
        "peers": (),
        **changes,
    }
    body = pack(Report(**fields))
    return api.Reported(seal(by.identity, by.swarm.swarm_id, Kind.REPORT, body))


def found(of: Membership, received: int, **refused: int) -> PeerCounts:
    """What a report says of a peer."""
    return PeerCounts(of.identity.public_key, received, tuple(sorted(refused.items())))


def swarm_file(data: Path, swarm: Swarm) -> Path:
    """What `swarm-node id --swarm-file` prints, in the directory of a coordinator."""
    data.mkdir(exist_ok=True, mode=0o700)
    file = data / "swarm.toml"
    file.write_text(f'name = "{swarm.info.name}"\nroot_key = "{swarm.info.root_key.hex()}"\n')
    return file


def issuer_file(place: Path, swarm: Swarm, tickets: int) -> Path:
    """An issuer file of `swarm`, without its delegate."""
    home = Home(place / "root")
    home.create()
    swarm.root.key.save(home.path / "root.key")
    SwarmInfo(swarm.info.name, swarm.info.root_key, swarm.info.secret).save(
        home.path / "swarm.json"
    )
    made = make(
        home,
        "web",
        tickets,
        now=swarm.begin,
        valid_seconds=30 * DAY,
        member_seconds=30 * DAY,
        uses=1,
        delegate=False,
    )
    file = place / "web.issuer"
    file.write_bytes(made.content)
    file.chmod(0o600)
    return file


@asynccontextmanager
async def coordinator(
    data: Path, swarm: Swarm, hand: Hand, **changes: Any
) -> AsyncIterator[Running]:
    """A coordinator of `swarm` on free ports, until the block ends."""
    options = {
        "swarm": swarm_file(data, swarm),
        "data": data,
        "listen": ("127.0.0.1", 0),
        "clock": hand.clock(),
        **changes,
    }
    stop = asyncio.Event()
    started: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        try:
            await serve(Options(**options), stop, lambda *ports: started.set_result(ports))
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run())
        try:
            port, admin_port = await started
            place = msgspec.json.decode((data / "admin.json").read_bytes(), type=AdminAddress)
            assert place.port == admin_port
            yield Running(port, admin_port, data, hand)
        finally:
            stop.set()
            await asyncio.wait({task})
