"""Builds a real node from its settings: the one place that picks engines and network stacks.

This module makes the parts, and `assembly.py` assembles them.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.config import Settings
from swarm_node.config.model import public_values
from swarm_node.config.reloading import Reloaded, Reloading
from swarm_node.durable import Journal
from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.errors import UnmappedError
from swarm_node.node.control.control import ControlServer
from swarm_node.node.control.openai import OpenAIServer, model_name
from swarm_node.node.home.home import Home, Membership, listen_addresses
from swarm_node.node.loops.node_parts import Parts
from swarm_node.node.loops.openai_requests import OpenAIRequests
from swarm_node.node.members.admitting import followed_names
from swarm_node.node.members.blocks import Blocks
from swarm_node.node.metrics.history import HistoryReport, MetricsFile, Ring
from swarm_node.node.metrics.snapshot import SCHEMA
from swarm_node.node.preflight.defaults import torch_threads
from swarm_node.node.start.admission import check_positions
from swarm_node.node.start.assembly import assemble
from swarm_node.node.start.derive import (
    Resolved,
    cache_shape,
    engine_plan,
    most_rows,
    trainer_settings,
)
from swarm_node.node.start.progress import NodeProgress
from swarm_node.node.start.system import on_hangup
from swarm_node.node.start.tracking import make_tracker
from swarm_node.p2p.reach.address_check import knock
from swarm_node.p2p.reach.lan import Lan
from swarm_node.p2p.reach.reachability import Reach
from swarm_node.p2p.reach.relayed import JOURNAL_BYTES
from swarm_node.p2p.transports.hivemind.transport import HivemindTransport
from swarm_node.policy.memory.free import memory_in_use
from swarm_node.policy.models.model import Model
from swarm_node.policy.planning.demand import PRETRAINED_WEIGHTS
from swarm_node.policy.planning.disk_space import shared_bytes
from swarm_node.policy.planning.fit import Fit
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.processes.process import ProcessTrainer
from swarm_node.policy.weights.store import shared_memory_dir
from swarm_node.program.logs import set_up_logging
from swarm_node.storage import Storage

if TYPE_CHECKING:
    from swarm_node.p2p.transports.libp2p.transport import Libp2pTransport
    from swarm_node.policy.sampling.fallback import FallbackSampler

#: Between two checkpoints, also where updates take long.
_CHECKPOINT_SECONDS = 120.0
_log = structlog.get_logger(__name__)


def build_parts(
    settings: Settings, home: Home, membership: Membership, model: Model, model_fit: Fit
) -> Parts:
    """Make the parts of a real node that trains `model` as `model_fit` says.

    Raises:
        ModelError, HomeError: the model or the home cannot be used.
        ConfigError: settings do not fit together, or the machine.
        WeightsError: there is no room for policy versions.
    """
    sampler = make_sampler(settings, model, model_fit)
    environment = make_environment(settings)
    codec = model.codec.within(sampler.positions).asking(environment.system)
    check_positions(codec, settings.sampling.max_new_tokens)  # the sampler's may be fewer
    trainer = _make_trainer(settings, home, membership.identity.peer_id, model, model_fit)

    def children() -> dict[str, int | None]:
        return {"trainer": trainer.pid, "engine": sampler.pid}

    return Parts(
        sampler=sampler,
        trainer=trainer,
        codec=codec,
        policy=model.policy,
        engine=lambda: sampler.description,
        memory=memory_in_use,
        guests=OpenAIRequests(sampler),
        tracker=make_tracker(settings.run.track, home),
        checkpoint_seconds=_CHECKPOINT_SECONDS,
        turns=model_fit.job.turns,
        climbs=model.config.weight_count >= PRETRAINED_WEIGHTS,
        **parts_of_home(settings, home, membership, environment, children),
    )


def make_environment(settings: Settings) -> ProcessEnvironmentHost:
    """Make the process of the environment that `settings` choose."""
    table = settings.environment
    return ProcessEnvironmentHost(table.name, table.options, table.families)


def parts_of_home(
    settings: Settings,
    home: Home,
    membership: Membership,
    environment: ProcessEnvironmentHost,
    children: Callable[[], dict[str, int | None]],
) -> dict[str, Any]:
    """Make the parts of a node and of a member alike. `children` returns the process ids of further
    child processes, by name."""
    swarm, reach = membership.swarm, Reach()
    transport = _make_transport(settings, home, membership, reach)
    storage = Storage(home.database)
    storage.begin_epoch()
    metrics = MetricsFile(home.metrics)

    def processes() -> dict[str, int]:
        """Return the process ids of the running child processes, by name."""
        pids = {**children(), "network": transport.daemon_pid, **environment.pids}
        return {name: pid for name, pid in pids.items() if pid is not None}

    return {
        "transport": transport,
        "environment": environment,
        "storage": storage,
        "clock": SYSTEM_CLOCK,
        "processes": processes,
        "metrics": metrics,
        "history": Ring(metrics.read()),
        "office": home,
        "block_list": Blocks(home).blocked_keys,
        "names": followed_names(home).now,
        "knock": knock,
        "reach": reach,
        "is_dialable": reach.dialable,
        "lan": Lan(membership.identity, swarm.swarm_id, swarm.secret, SYSTEM_CLOCK),
        "relay_journal": Journal(home.path / "answered", JOURNAL_BYTES),
    }


def _make_transport(
    settings: Settings, home: Home, membership: Membership, reach: Reach
) -> HivemindTransport | Libp2pTransport:
    listen = listen_addresses(settings.network.listen, home.port)
    network, rng = settings.network, random.Random()  # noqa: S311 - spreads retries, no secret
    if network.backend == "libp2p":
        from swarm_node.p2p.transports.libp2p.transport import Libp2pTransport

        return Libp2pTransport(
            membership.identity,
            listen=listen,
            announce=network.advertise,
            bootstrap=network.bootstrap,
            seen_addresses=reach.reachable_addresses,
            rng=rng,
        )
    return HivemindTransport(
        membership.identity,
        swarm_id=membership.swarm.swarm_id,
        secret=membership.swarm.secret,
        listen=listen,
        announce=network.advertise,
        bootstrap=network.bootstrap,
        seen_addresses=reach.reachable_addresses,
        state_dir=home.path,
        rng=rng,
    )


def _make_trainer(
    settings: Settings, home: Home, peer_id: str, model: Model, model_fit: Fit
) -> ProcessTrainer:
    run, hosts = settings.run, None
    threads = torch_threads(settings, model.config)
    if run.trainer_hosts:
        from swarm_node.node.hosts.hosts import Hosts, Needs

        needs = Needs(model.policy.model, run.trainer_processes, run.device, threads)
        hosts = Hosts(run.trainer_hosts, home.site_key(), needs)
    return ProcessTrainer(
        model.directory,
        home.checkpoints,
        shared_memory_dir(peer_id, need=shared_bytes(model.config, model_fit)),
        trainer_settings(settings, model_fit),
        digest=model.policy.model,
        threads=threads,
        hosts=hosts,
    )


def make_sampler(
    settings: Settings, model: Model, model_fit: Fit
) -> TorchSampler | FallbackSampler:
    """Make the sampler. `model_fit` says which one, and its share of the GPU.

    Raises:
        ModelError: the model cannot be sampled by it, or vLLM is not installed.
        ConfigError: it cannot do what the settings ask.
    """
    if not model_fit.vllm:
        return make_built_in(settings, model, model_fit)
    from swarm_node.policy.sampling.fallback import FallbackSampler
    from swarm_node.policy.sampling.vllm.sampler import VllmSampler

    plan = engine_plan(settings, model.config, model_fit)
    engine = VllmSampler.from_directory(model.directory, plan, codec=model.codec)
    return FallbackSampler(engine, partial(make_built_in, settings, model, model_fit))


def make_built_in(settings: Settings, model: Model, model_fit: Fit) -> TorchSampler:
    """Make the built-in sampler, by choice or in place of an engine that failed.

    Raises:
        ModelError, ConfigError: see `TorchSampler.from_directory`.
    """
    return TorchSampler.from_directory(
        model.directory,
        model_fit.placement,
        codec=model.codec,
        max_rows=most_rows(model.config, model_fit),
        shape=cache_shape(settings, model.config, model_fit),
        threads=torch_threads(settings, model.config),
        shares=model_fit.shares_base,
        nf4=model_fit.training.nf4,
    )


def _openai(parts: Parts, model: Model, token_limit: Callable[[], int]) -> OpenAIServer | None:
    if parts.guests is None:
        return None
    return OpenAIServer(
        parts.guests, parts.codec, model=model_name(model.name), token_limit=token_limit
    )


async def run_node(
    start: Resolved,
    home: Home,
    membership: Membership,
    model: Model,
    screen: NodeProgress,
    reloading: Reloading,
    on_running: Callable[[Sequence[str]], object] = lambda addresses: None,
    *,
    alone: bool = False,
) -> None:
    """Run a node with its control API until it is stopped (by API, SIGINT or SIGTERM). `screen`
    shows its progress. `on_running` gets the node's addresses once others can dial it. `reloading`
    reads its settings again (by API or SIGHUP). A node that its swarm refuses ends, unless it may
    train `alone`.

    Where the sampler cannot map the trainer's memory, although the probe's process could, the node
    starts once more, and each has weights of its own.

    Raises:
        MembershipError: the swarm refuses it.
        SwarmNodeError: it cannot start.
    """
    place = home, membership, model, screen, reloading, on_running, alone
    try:
        await _run(start, *place)
    except UnmappedError as error:
        if not (start.fit.shares_base or start.fit.ipc):
            raise
        _log.warning("starting again without shared memory of the GPU", error=str(error))
        await _run(replace(start, fit=start.unshared()), *place)


async def _run(
    start: Resolved,
    home: Home,
    membership: Membership,
    model: Model,
    screen: NodeProgress,
    reloading: Reloading,
    on_running: Callable[[Sequence[str]], object],
    alone: bool,
) -> None:
    parts = build_parts(start.settings, home, membership, model, start.fit)
    node = assemble(start.settings, membership, parts)
    if not alone:
        node.leave_if_refused(home.bootstraps())

    def reload() -> Reloaded:
        settings, report = reloading.reload(node.settings)
        node.adopt(settings)
        set_up_logging(settings.verbose, settings.log_format, warnings_only=screen.draws)
        return report

    control = ControlServer(
        home.control_file,
        snapshot=node.snapshot,
        history=lambda start_time: HistoryReport(SCHEMA, parts.history.since(start_time)),
        network=node.network,
        evaluate=node.evaluate,
        ping=node.ping,
        stop=node.stop,
        samples=node.samples,
        settings=lambda: public_values(node.settings),
        log=node.events,
        reload=reload,
        openai=_openai(parts, model, lambda: node.settings.sampling.max_new_tokens),
    )
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGINT: node.stop, signal.SIGTERM: node.stop}
    for number, handler in {**handlers, signal.SIGHUP: on_hangup(reload, node.stop)}.items():
        with suppress(NotImplementedError):  # no signal handlers on this platform's loop
            loop.add_signal_handler(number, handler)
    screen.attach(loop, node.snapshot, node.stop)
    try:
        await control.start()
    except BaseException:
        await node.close()
        raise
    else:
        end = await node.run(on_running, screen.step)
        if end is not None:
            screen.show_end(end)
        if node.membership_check is not None and node.membership_check.refusal is not None:
            raise node.membership_check.refusal
    finally:
        screen.detach()
        await control.close()
