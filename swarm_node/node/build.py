"""Builds a real node from its settings: the one place that picks engines and network stacks.

This module makes the parts, and `assembly.py` makes the node of them.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import structlog

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.config import Settings
from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.errors import ConfigError, ModelError
from swarm_node.node.assembly import assemble
from swarm_node.node.control import ControlServer
from swarm_node.node.derive import (
    cache_shape,
    engine_plan,
    listen_addresses,
    published,
    trainer_settings,
)
from swarm_node.node.fit import Fit
from swarm_node.node.home import Home, Membership
from swarm_node.node.parts import Parts
from swarm_node.p2p.hivemind.transport import HivemindTransport
from swarm_node.policy.models.config import weight_files
from swarm_node.policy.models.model import Model
from swarm_node.policy.sampling.fallback import FallbackSampler
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.sampling.vllm.sampler import MAX_TEMPERATURE, VllmSampler
from swarm_node.policy.training.process import ProcessTrainer
from swarm_node.policy.weights.store import shared_memory_dir
from swarm_node.storage import Storage

_log = structlog.get_logger(__name__)


def build_parts(
    settings: Settings, home: Home, membership: Membership, model: Model, found: Fit
) -> Parts:
    """The parts of a real node that trains `model` as `found` says.

    Raises:
        ModelError, HomeError: the model or the home cannot be used.
        ConfigError: settings do not fit together, or the machine.
    """
    if found.plan is not None:
        _log.info(
            "planned for the GPU",
            gib=round(found.plan.total / 2**30, 1),
            how=found.plan.described(),
        )
    training = trainer_settings(settings, found.plan)
    rank = training.lora_rank
    sampler = make_sampler(settings, model, found, rank)
    codec = model.codec.within(sampler.positions)
    if not codec.fits((), settings.sampling.max_new_tokens + 1):
        raise ModelError(
            f"sampling.max_new_tokens is {settings.sampling.max_new_tokens} and the model has "
            f"{codec.positions} positions, for prompt and answer together: lower it"
        )
    trainer = ProcessTrainer(
        model.directory,
        home.checkpoints,
        shared_memory_dir(
            membership.identity.peer_id,
            need=3 * sum(file.stat().st_size for file in weight_files(model.directory)),
        ),
        replace(training, published=published(settings, found, rank)),
        digest=model.policy.model,
        threads=settings.run.threads,
    )
    transport = HivemindTransport(
        membership.identity,
        swarm_id=membership.swarm.swarm_id,
        secret=membership.swarm.secret,
        listen=listen_addresses(settings, home.port),
        announce=settings.network.announce,
        state_dir=home.path,
        rng=random.Random(),  # noqa: S311 - spreads retries, keeps no secret
    )
    environment = ProcessEnvironmentHost(settings.environment.name, settings.environment.options)
    return Parts(
        transport=transport,
        sampler=sampler,
        trainer=trainer,
        environment=environment,
        storage=Storage(home.database),
        codec=codec,
        policy=model.policy,
        clock=SYSTEM_CLOCK,
        processes=lambda: _processes(trainer, transport, environment, sampler),
        engine=lambda: sampler.described if isinstance(sampler, FallbackSampler) else "torch",
    )


def make_sampler(
    settings: Settings, model: Model, found: Fit, rank: int
) -> TorchSampler | FallbackSampler:
    """The sampler for a trainer of adapters of `rank`, if it is not 0; `found` says which one, and
    how much of the GPU it may take.

    Raises:
        ModelError: the model cannot be sampled by it, or vLLM is not installed.
        ConfigError: it cannot do what the settings ask.
    """
    sampling = settings.sampling
    built_in = partial(
        TorchSampler.from_directory,
        model.directory,
        found.where,
        codec=model.codec,
        shape=cache_shape(settings, model.config, found),
        threads=settings.run.threads,
    )
    if not found.vllm:
        if sampling.over_provision > 1:
            raise ConfigError(
                "sampling.over_provision: only vLLM can interrupt answers; set sampling.engine"
            )
        if sampling.sync != "file":
            raise ConfigError("sampling.sync: only vLLM shares the GPU's memory; set it to file")
        return built_in()
    if sampling.temperature > MAX_TEMPERATURE:
        raise ConfigError(f"sampling.temperature: vLLM takes {MAX_TEMPERATURE:g} at most")
    if sampling.sync == "ipc" and (found.where.device == "cpu" or rank):
        raise ConfigError(
            'sampling.sync = "ipc" is for all weights on a GPU (adapters are files): set it to file'
        )
    plan = engine_plan(settings, model.config, found, rank)
    engine = VllmSampler.from_directory(model.directory, plan, codec=model.codec)
    return FallbackSampler(engine, built_in)


async def run_node(
    settings: Settings,
    home: Home,
    membership: Membership,
    model: Model,
    found: Fit,
    on_running: Callable[[Sequence[str]], None] | None = None,
) -> None:
    """Run a node with its control API until it is stopped (by API, SIGINT or SIGTERM).
    `on_running` is told the node's addresses once others can dial it.

    Raises:
        SwarmNodeError: it cannot start.
    """
    parts = build_parts(settings, home, membership, model, found)
    node = assemble(settings, membership, parts)
    control = ControlServer(
        home.control_file,
        snapshot=node.snapshot,
        evaluate=node.evaluate,
        stop=node.stop,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # no signal handlers on this platform's loop
            loop.add_signal_handler(number, node.stop)
    try:
        await control.start()
        await node.run(on_running)
    finally:
        await control.close()


def _processes(
    trainer: ProcessTrainer,
    transport: HivemindTransport,
    environment: ProcessEnvironmentHost,
    sampler: TorchSampler | FallbackSampler,
) -> dict[str, int]:
    """Process ids of the running ones, by name."""
    pids = {
        "trainer": trainer.pid,
        "network": transport.daemon_pid,
        "engine": sampler.pid if isinstance(sampler, FallbackSampler) else None,
        **environment.pids,
    }
    return {name: pid for name, pid in pids.items() if pid is not None}
