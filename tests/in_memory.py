"""Nodes of the shipped in-memory parts, on the virtual clock of the simulation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from swarm_node.clock import Clock
from swarm_node.config import Settings, load_settings
from swarm_node.environments.base import Environment
from swarm_node.environments.host import InlineEnvironmentHost
from swarm_node.environments.registry import create_environment
from swarm_node.node.loops.node import Node
from swarm_node.node.loops.node_parts import Parts
from swarm_node.node.start.assembly import assemble
from swarm_node.node.start.derive import trainer_settings
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire.groups import MAX_TEXT_BYTES
from swarm_node.policy.models.text.codec import Codec, load_tokenizer
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.training.processes.inline import InlineTrainer
from swarm_node.rollout import Completion
from swarm_node.simulation.models import SimulatedModel
from swarm_node.simulation.paced import PacedSampler
from swarm_node.simulation.seeded import EPOCH, Seeded
from swarm_node.simulation.virtual_time import VirtualTimeLoop
from swarm_node.storage import Storage

_TOKEN_SECONDS = 0.01
_SMALL = {
    "experience.local": 2,
    "experience.external": 0,
    "network.poll_seconds": 1.0,
    "run.eval_seconds": 86_400,
    "run.eval_tasks": 1,
    "sampling.group_size": 4,
    "sampling.max_concurrent_groups": 2,
}


def small_settings(**changes: Any) -> Settings:
    """Settings of a node that does little. A key is written with `__` for its dot."""
    given = {key.replace("__", "."): value for key, value in changes.items()}
    return load_settings({**_SMALL, **given}, environ={})


class World:
    """The clock, the network and the members of one swarm. Node i lives in `place` / i, where a
    later node finds what an earlier one left."""

    def __init__(self, place: Path, loop: VirtualTimeLoop, members: int = 2) -> None:
        self.clock = Clock(now=loop.time, wall=lambda: EPOCH + loop.time())
        self.network = MemoryNetwork(random.Random(0))
        self.memberships = Seeded(0).memberships(members)
        self._place = place

    def parts(self, settings: Settings, index: int = 0, **changes: Any) -> Parts:
        """New parts of node `index`; `changes` take the place of the usual ones."""
        home = self.home(index)
        parts = Parts(
            transport=MemoryTransport(self.network, self.memberships[index].identity),
            sampler=self.sampler(index),
            trainer=InlineTrainer(**self.training(settings, index)),
            environment=Host(environment()),
            storage=Storage(home / "node.db", wall=self.clock.wall, threads=False),
            codec=tiny().codec,
            policy=tiny().policy,
            clock=self.clock,
            processes=dict,
        )
        return replace(parts, **changes)

    def node(self, settings: Settings, index: int = 0, **changes: Any) -> Node:
        """Node `index` of new parts."""
        return assemble(settings, self.memberships[index], self.parts(settings, index, **changes))

    def sampler(self, index: int = 0, kind: type[Sampler] | None = None) -> Sampler:
        """A new sampler of node `index`, of another `kind` if one is given."""
        return (kind or Sampler)(tiny().sampler(), _TOKEN_SECONDS, 0, self.home(index))

    def training(self, settings: Settings, index: int = 0) -> dict[str, Any]:
        """Arguments of the trainer of node `index`."""
        home = self.home(index)
        weights = home / "weights"
        weights.mkdir(exist_ok=True)
        return {
            "model_dir": tiny().directory,
            "checkpoints": home / "checkpoints",
            "weights": weights,
            "settings": trainer_settings(settings),
            "digest": tiny().policy.model,
            "clock": self.clock,
        }

    def home(self, index: int = 0) -> Path:
        """The directory of node `index`."""
        home = self._place / str(index)
        home.mkdir(exist_ok=True)
        return home


@asynccontextmanager
async def living(*nodes: Node) -> AsyncGenerator[None]:
    """Let nodes run for as long as the block does."""
    lives = [asyncio.create_task(node.run()) for node in nodes]
    try:
        yield
    finally:
        for node in nodes:
            node.stop()
        await asyncio.gather(*lives)


class Host(InlineEnvironmentHost):
    """The inline environment. It remembers that it was closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True
        await super().close()


class Sampler(PacedSampler):
    """The paced sampler. It remembers that it was closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True
        await super().close()


class WordySampler(Sampler):
    """Every other call spells one answer with more text than a peer takes."""

    calls = 0

    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        groups = await super().sample(requests)
        self.calls += 1
        if self.calls % 2:
            (one, *others), *rest = groups
            groups = [(replace(one, text="x" * (MAX_TEXT_BYTES + 1)), *others), *rest]
        return groups


@cache
def tiny() -> SimulatedModel:
    """The tiny model. All tests share it and only read it."""
    return SimulatedModel("tiny")


#: Roles, as the tiny model's tokens allow: a question ends in <sep>, an answer in <eos>.
ROLES = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<bos>' + m.content + '<sep>' }}"
    "{% else %}{{ m.content + '<eos>' }}{% endif %}{% endfor %}"
)


@cache
def talking(positions: int = 1024) -> Codec:
    """The tiny model's codec, with roles in its template."""
    tokenizer = load_tokenizer(tiny().directory)
    tokenizer.chat_template = ROLES
    plain = tiny().codec
    return Codec(tokenizer, plain.vocab_size, [plain.eos_id], positions)


@cache
def environment() -> Environment:
    """The environment of the default settings. All tests share it and only read it."""
    return create_environment("drills", {})
