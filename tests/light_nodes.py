"""Nodes without environment, sampler and trainer: a real server, exchange and company, in memory.

Their logs are empty, so all they do is to meet, greet and list each other. Whoever does not run is
silent, as behind a power cut: each try costs its caller the whole patience.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from builders import replay_settings

from swarm_node.clock import Clock
from swarm_node.environments.host import InlineEnvironmentHost
from swarm_node.environments.registry import create_environment
from swarm_node.errors import TransportError
from swarm_node.node.home.home import Membership
from swarm_node.node.loops.node_parts import Shared, Tally
from swarm_node.node.loops.peers.connectivity import Connectivity
from swarm_node.node.loops.supervisor import Supervisor
from swarm_node.p2p.exchange.exchange import open_exchange
from swarm_node.p2p.exchange.serving import Server
from swarm_node.p2p.exchange.verify import Expected, GroupVerifier
from swarm_node.p2p.limits.budgets import Effort, Traffic, Wants
from swarm_node.p2p.limits.gates import SizeGate
from swarm_node.p2p.membership.credentials import Credentials, MemoryOffice
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.peers.peers import Peer
from swarm_node.p2p.reach.probe import Knock, Prober, ProbeServer
from swarm_node.p2p.reach.reachability import Reach, Relay
from swarm_node.p2p.reach.transport import ReachingTransport
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.protocols import LIST, PEERS, PROBE, PROBE_FOR
from swarm_node.p2p.wire.transport import MAX_REPLY_BYTES, Transport
from swarm_node.policy.experience.replay import ReplayBuffer
from swarm_node.policy.experience.slots import Slots
from swarm_node.rollout import PolicyRef
from swarm_node.simulation.seeded import EPOCH
from swarm_node.simulation.virtual_time import VirtualTimeLoop
from swarm_node.storage import Storage

POLL_SECONDS = 2.0
WANTS = Wants(groups=50.0, size=4096, external_ratio=1.0)
#: As the real transport waits for a stream that nobody opens.
OPEN_SECONDS = 10.0


def shared_state(local: LocalNode, issuer: Callable[[str], str], wants: Wants = WANTS) -> Shared:
    """What the loops of a node share, before any of them ran."""
    buffer = ReplayBuffer(replay_settings())
    return Shared(
        local=local,
        tally=Tally(),
        wants=wants,
        traffic=Traffic(wants, issuer),
        effort=Effort(1.0, issuer),
        buffer=buffer,
        slots=Slots(buffer, 8),
    )


class SilentNetwork(MemoryNetwork):
    """Whoever does not run, or is cut off, is silent."""

    async def exchange(
        self, source: MemoryTransport, target: str, protocol: str, payload: bytes, max_reply: int
    ) -> bytes:
        if self.running(target) is None or not self.is_reachable(source.peer_id, target):
            await asyncio.sleep(OPEN_SECONDS)
            raise TransportError(f"{target} did not answer")
        return await super().exchange(source, target, protocol, payload, max_reply)


class Counting:
    """A transport that counts: `reached` the requests that were answered, by protocol, `dialled`
    how often each address was."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reached: Counter[str] = Counter()
        self.dialled: Counter[str] = Counter()

    async def request(
        self, peer: str, protocol: str, payload: bytes, *, max_reply: int = MAX_REPLY_BYTES
    ) -> bytes:
        reply: bytes = await super().request(peer, protocol, payload, max_reply=max_reply)  # type: ignore[misc]
        self.reached[protocol] += 1
        return reply

    @property
    def lists(self) -> int:
        return self.reached[LIST]


class SilentTransport(Counting, MemoryTransport):
    async def dial(
        self, addresses: Sequence[str], patience: float = 4.0, *, is_punch: bool = False
    ) -> int:
        self.dialled.update(addresses)
        reached = await super().dial(addresses, patience)
        if not reached:
            await asyncio.sleep(patience)
        return reached


class LightNode:
    """One node. It lives until `stop`; started again, it finds what the last one stored."""

    def __init__(
        self,
        place: Path,
        clock: Clock,
        transport: Transport,
        membership: Membership,
        bootstrap: Sequence[str] = (),
        knock: Knock | None = None,
    ) -> None:
        self.membership = membership
        self.peer_id = membership.identity.peer_id
        self.clock = clock
        self.transport = transport
        self.local = local = LocalNode.of(membership.identity, membership.swarm, clock)
        self.members, self.directory, self.rejected = local.members, local.directory, local.rejected
        self.faults: Counter[str] = Counter()
        self.supervisor = Supervisor(self.faults, {}, clock)
        self.storage = Storage(place / f"{self.peer_id}.db", wall=self.clock.wall, threads=False)
        self.storage.begin_epoch()
        self.dialable: bool | None = None
        self.reach = Reach()
        self.reaching = ReachingTransport(
            local,
            transport,
            mode="auto",
            is_dialable=lambda: self.dialable if knock is None else self.reach.dialable(),
            wants=WANTS,
            rng=random.Random(f"reach {self.peer_id}"),
        )
        shared: dict[str, Any] = {
            "transport": self.reaching,
            "credentials": Credentials(
                local,
                membership.chain,
                office=MemoryOffice(),
                use_secret=transport.use_secret,
            ),
            "storage": self.storage,
            "rng": random.Random(self.peer_id),
        }
        traffic = Traffic(WANTS, self.members.issuer)
        self.exchange = open_exchange(
            local,
            traffic=traffic,
            effort=Effort(1.0, self.members.issuer),
            verifier=_verifier(membership, self.storage),
            let_go=self.directory.forget,
            relays=lambda: self.reaching.serves,
            **shared,
        )
        self.reaching.relays.introduce = self.exchange.asker.introduce
        self.connectivity = Connectivity(
            self.exchange.discovery,
            reaching=self.reaching,
            storage=self.storage,
            directory=self.directory,
            clock=self.clock,
            bootstrap=bootstrap,
            poll_seconds=POLL_SECONDS,
            version=lambda: 0,
        )
        probing: dict[str, Any] = {
            "transport": self.reaching,
            "rng": random.Random(f"probe {self.peer_id}"),
        }
        self.reach.relays = lambda: [
            Relay(relay) for relay in self.reaching.relays.relay_addresses()
        ]
        asker = self.exchange.asker
        further = {}
        if knock is not None:
            self.probes = ProbeServer(local, asker, knock=knock, **probing)
            further = {PROBE: self.probes.answer, PROBE_FOR: self.probes.answer_for}
        self.server = Server(local, traffic=traffic, extra_handlers=further, **shared)
        self.prober = Prober(local, asker, self.reach, **probing)
        self._probes = knock is not None
        self.task: asyncio.Task[None] | None = None

    def start(self) -> LightNode:
        self.task = asyncio.get_running_loop().create_task(self._live())
        return self

    async def stop(self) -> None:
        """Stop without a goodbye, as a power cut does."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait({self.task})
        await self.transport.stop()
        self.storage.close()

    def partners(self) -> list[str]:
        return [peer.peer_id for peer in self.directory.partners(self.clock.now())]

    async def _live(self) -> None:
        await self.transport.start()
        async with asyncio.TaskGroup() as group:
            company = self.connectivity
            steps = [company.meet, company.repair, company.try_peers, company.relay, company.link]
            steps += [self.prober.step] if self._probes else []
            for step in steps:
                group.create_task(self.supervisor.repeat(step.__name__, step))
            while True:  # as Node._list
                for turn in self.exchange.puller.turns(3, 64):
                    group.create_task(self.exchange.puller.list_one(turn))
                await asyncio.sleep(POLL_SECONDS)


class HostileNode(LightNode):
    """A member that names only those whose heartbeats are `named`, greets `victims` once a minute,
    and does nothing else."""

    named: Sequence[bytes] = ()
    victims: Sequence[str] = ()

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.transport.serve(PEERS, self._invent)
        self._rng = random.Random(f"hostile {self.peer_id}")

    async def _live(self) -> None:
        await self.transport.start()
        while True:
            for victim in self.victims:
                await self.exchange.asker.greet(Peer(victim, 0.0))
            await asyncio.sleep(60.0)

    async def _invent(self, caller: str, payload: bytes) -> bytes:
        self.directory.heartbeat = b""
        chosen = self._rng.sample(list(self.named), min(8, len(self.named)))
        return wire.pack(wire.PeersReply(presences=tuple(chosen)))


def heartbeat(membership: Membership, now: float, address: str | None = None) -> bytes:
    """What a member that lives at `address` would publish at Unix second `now`."""
    body = wire.Heartbeat(
        v=1,
        addresses=(address or address_of(membership),),
        policy_version=0,
        epoch=1,
        head=0,
        issued_ms=int(now * 1000),
        agent="swarm-node",
        revoked=0,
        secret=0,
        delegate=False,
        relays=False,
    )
    head = seal(membership.identity, membership.swarm.swarm_id, Kind.HEAD, wire.pack(body))
    return wire.pack(wire.Presence(head, *membership.chain))


def address_of(membership: Membership) -> str:
    return f"/memory/p2p/{membership.identity.peer_id}"


def _verifier(membership: Membership, storage: Storage) -> GroupVerifier:
    """Nobody publishes a group here, so it never judges one."""
    environment = InlineEnvironmentHost(create_environment("drills", {}))
    return GroupVerifier(
        membership.swarm.swarm_id,
        Expected(
            "drills",
            "1",
            frozenset(),
            PolicyRef(bytes(32), bytes(32), 0),
            SizeGate.of(group_size=4, max_new_tokens=24),
            peer_id=membership.identity.peer_id,
        ),
        storage,
        lambda ref, texts, author: environment.score(ref, texts),
        lambda group: None,
        lambda text: (),
    )


def virtual(loop: VirtualTimeLoop) -> Clock:
    """The clock of a simulation, at which the certificates of `Seeded` begin."""
    return Clock(now=loop.time, wall=lambda: EPOCH + loop.time())
