"""Builds and runs a member for a program, which trains and samples by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarm_node.config import Settings
from swarm_node.node.home.home import Home, Membership
from swarm_node.node.loops.node_parts import Parts
from swarm_node.node.loops.program_node import ProgramNode, ProgramPolicy
from swarm_node.node.start.assembly import Assembly
from swarm_node.node.start.build import make_environment, parts_of_home
from swarm_node.policy.models.model import Model


def member_parts(
    settings: Settings, home: Home, membership: Membership, model: Model, policy: ProgramPolicy
) -> Parts:
    """Make the parts of a member for a program, of which `policy` is trainer and sampler. They load
    no weights.

    Raises:
        HomeError: the home cannot be used.
    """
    environment = make_environment(settings)
    return Parts(
        sampler=policy,
        trainer=policy,
        codec=model.codec.asking(environment.system),
        policy=model.policy,
        engine=lambda: "the program's",
        **parts_of_home(settings, home, membership, environment, dict),
    )


def assemble_member(
    settings: Settings, membership: Membership, parts: Parts, policy: ProgramPolicy
) -> ProgramNode:
    """Make a member of these parts, of which `policy` is trainer and sampler."""
    assembly = Assembly(settings, membership, parts)
    return ProgramNode(policy=policy, rng=assembly.rng("train"), **assembly.of_node())


async def run_member(
    settings: Settings,
    home: Home,
    membership: Membership,
    model: Model,
    on_opened: Callable[[ProgramNode, asyncio.AbstractEventLoop], None],
    on_running: Callable[[], None],
) -> None:
    """Run a member for a program until it is stopped. `on_opened` gets it and its loop before it
    starts, and `on_running` is called once peers can dial it.

    Raises:
        SwarmNodeError: it cannot start, or go on.
    """
    policy = ProgramPolicy(home)
    parts = member_parts(settings, home, membership, model, policy)
    member = assemble_member(settings, membership, parts, policy)
    on_opened(member, asyncio.get_running_loop())
    await member.run(lambda _: on_running())
