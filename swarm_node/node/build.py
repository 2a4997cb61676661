"""Builds a real node from its settings: the one place that picks engines and network stacks."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

from swarm_node.cli.plan import plan_node
from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.config import Settings
from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.errors import ConfigError, ModelError
from swarm_node.node.control import ControlServer
from swarm_node.node.home import Home, Membership
from swarm_node.node.node import Node
from swarm_node.node.parts import Parts
from swarm_node.node.status import take_snapshot
from swarm_node.p2p.hivemind.transport import HivemindTransport
from swarm_node.policy.memory.plan import Plan
from swarm_node.policy.models.codec import Codec
from swarm_node.policy.models.config import Qwen2Config, weight_files
from swarm_node.policy.models.model import policy_digests, resolve
from swarm_node.policy.placement import Placement, hardware, place
from swarm_node.policy.sampling.torch_sampler import MAX_ROWS, TorchSampler
from swarm_node.policy.sampling.vllm.engine import EnginePlan, plan_engine, uses_vllm
from swarm_node.policy.sampling.vllm.sampler import MAX_TEMPERATURE, VllmSampler
from swarm_node.policy.training.checkpoint import stored_rank
from swarm_node.policy.training.process import ProcessTrainer
from swarm_node.policy.training.trainer import Published, TrainerSettings
from swarm_node.policy.weights.store import shared_memory_dir
from swarm_node.rollout import PolicyRef
from swarm_node.storage import Storage

_log = structlog.get_logger(__name__)


def build_parts(settings: Settings, home: Home, membership: Membership) -> Parts:
    """The parts of a real node.

    Raises:
        ModelError, HomeError: the model or the home cannot be used.
        ConfigError: settings do not fit together, or the machine.
    """
    processes = settings.run.trainer_processes
    where = place(settings.run.device, settings.policy.dtype, hardware(), ranks=processes)
    model_dir = resolve(settings.model)
    model, tokenizer = policy_digests(model_dir)
    settings = going_on(settings, home.checkpoints)
    plan = plan_node(settings, where, Qwen2Config.from_directory(model_dir))
    if plan is not None:
        _log.info("planned for the GPU", gib=round(plan.total / 2**30, 1), how=plan.described())
    training = trainer_settings(settings, plan)
    rank = training.lora_rank
    sampler = make_sampler(settings, model_dir, where, rank, plan)
    codec = Codec.from_directory(model_dir, sampler.positions)
    if not codec.fits((), settings.sampling.max_new_tokens + 1):
        raise ModelError(
            f"sampling.max_new_tokens is {settings.sampling.max_new_tokens} and the model has "
            f"{codec.positions} positions, for prompt and answer together: lower it"
        )
    trainer = ProcessTrainer(
        model_dir,
        home.checkpoints,
        shared_memory_dir(
            membership.identity.peer_id,
            need=3 * sum(file.stat().st_size for file in weight_files(model_dir)),
        ),
        replace(training, published=published(settings, where, rank)),
        threads=settings.run.threads,
    )
    transport = HivemindTransport(
        membership.identity,
        swarm_id=membership.swarm.swarm_id,
        secret=membership.swarm.secret,
        listen=[_with_port(address, home) for address in settings.network.listen],
        announce=settings.network.announce,
        state_dir=home.path,
        rng=random.Random(),  # noqa: S311 - spreads retries, keeps no secret
    )
    environment = ProcessEnvironmentHost(settings.environment.name, environment_options(settings))
    return Parts(
        transport=transport,
        sampler=sampler,
        trainer=trainer,
        environment=environment,
        storage=Storage(home.database),
        codec=codec,
        policy=PolicyRef(model, tokenizer, 0),
        clock=SYSTEM_CLOCK,
        processes=lambda: _processes(trainer, transport, environment, sampler),
    )


def going_on(settings: Settings, checkpoints: Path) -> Settings:
    """`settings` with the adapters of the newest checkpoint, unless the user says otherwise: a plan
    of the GPU that has less free memory than last time must not put an end to what was begun."""
    rank = stored_rank(checkpoints)
    if rank is None or "lora_rank" in settings.policy.model_fields_set:
        return settings
    policy = settings.policy.model_copy(update={"lora_rank": rank})
    return settings.model_copy(update={"policy": policy})


def make_sampler(
    settings: Settings, model_dir: Path, where: Placement, rank: int, plan: Plan | None = None
) -> TorchSampler | VllmSampler:
    """The sampler that `sampling.engine` names, for a trainer that computes at `where` and trains
    adapters of `rank`, if it is not 0. A `plan` of the GPU says how much it may take.

    Raises:
        ModelError: the model cannot be sampled by it, or vLLM is not installed.
        ConfigError: it cannot do what the settings ask.
    """
    sampling = settings.sampling
    if not uses_vllm(sampling.engine, where.device):
        if sampling.over_provision > 1:
            raise ConfigError(
                "sampling.over_provision: only vLLM can interrupt answers; set sampling.engine"
            )
        if sampling.sync != "file":
            raise ConfigError("sampling.sync: only vLLM shares the GPU's memory; set it to file")
        return TorchSampler.from_directory(
            model_dir,
            where,
            max_rows=MAX_ROWS if plan is None else plan.rows,
            threads=settings.run.threads,
        )
    if sampling.temperature > MAX_TEMPERATURE:
        raise ConfigError(f"sampling.temperature: vLLM takes {MAX_TEMPERATURE:g} at most")
    if sampling.sync == "ipc" and (where.device == "cpu" or rank):
        raise ConfigError(
            'sampling.sync = "ipc" is for all weights on a GPU (adapters are files): set it to file'
        )
    engine = engine_plan(settings, Qwen2Config.from_directory(model_dir), where, rank, plan)
    return VllmSampler.from_directory(model_dir, engine)


def engine_plan(
    settings: Settings, model: Qwen2Config, where: Placement, rank: int, plan: Plan | None = None
) -> EnginePlan:
    """What vLLM may use: as a `plan` of the GPU says, where there is one.

    Raises:
        ModelError: see `plan_engine`.
    """
    sampling = settings.sampling
    return plan_engine(
        model,
        where=where,
        max_rows=min(MAX_ROWS, sampling.group_size * sampling.tasks_per_call),
        max_new_tokens=sampling.max_new_tokens,
        kv_gib=sampling.kv_gib,
        lora_rank=rank,
        threads=settings.run.threads,
        share=None if plan is None else plan.engine,
    )


def published(settings: Settings, where: Placement, rank: int) -> Published:
    """What the trainer must publish for the sampler of these settings: vLLM swaps adapters in
    place, the built-in sampler takes them merged."""
    if not uses_vllm(settings.sampling.engine, where.device):
        return "merged"
    if rank:
        return "adapter"
    return "ipc" if settings.sampling.sync == "ipc" else "merged"


def trainer_settings(settings: Settings, plan: Plan | None = None) -> TrainerSettings:
    """What of a node's settings the trainer needs; a `plan` of the GPU decides what the user left
    open (it has kept to the rest)."""
    chosen = TrainerSettings(
        loss=settings.policy.loss,
        learning_rate=settings.policy.learning_rate,
        temperature=settings.sampling.temperature,
        longest_answer=settings.sampling.max_new_tokens,
        off_policy_mask=settings.policy.off_policy_mask,
        activation_checkpointing=settings.policy.activation_checkpointing,
        lora_rank=settings.policy.lora_rank,
        optimizer=settings.policy.optimizer,
        device=settings.run.device,
        dtype=settings.policy.dtype,
        processes=settings.run.trainer_processes,
        seed=settings.run.seed,
    )
    if plan is None:
        return chosen
    training = plan.training
    return replace(
        chosen,
        lora_rank=training.lora_rank,
        activation_checkpointing=training.checkpointing,
        micro_batch_tokens=training.micro_batch_tokens,
    )


async def run_node(
    settings: Settings,
    home: Home,
    membership: Membership,
    on_running: Callable[[Sequence[str]], None] | None = None,
) -> None:
    """Run a node with its control API until it is stopped (by API, SIGINT or SIGTERM).
    `on_running` is told the node's addresses once others can dial it.

    Raises:
        SwarmNodeError: it cannot start.
    """
    node = Node(settings, membership, build_parts(settings, home, membership))
    control = ControlServer(
        home.control_file,
        snapshot=lambda: take_snapshot(node),
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


def environment_options(settings: Settings) -> dict[str, object]:
    """The options that the environment of these settings is made with."""
    table = settings.environment
    if table.name != "reasoning_gym":
        return dict(table.options)
    chosen: dict[str, object] = {"preset": table.preset, "scoring": table.scoring, **table.options}
    if table.datasets:
        chosen["families"] = table.datasets
    return chosen


def _with_port(address: str, home: Home) -> str:
    """Port 0 becomes the home's own port, so that tickets stay good after a restart."""
    head, found, tail = address.partition("/tcp/0")
    return f"{head}/tcp/{home.port()}{tail}" if found else address


def _processes(
    trainer: ProcessTrainer,
    transport: HivemindTransport,
    environment: ProcessEnvironmentHost,
    sampler: TorchSampler | VllmSampler,
) -> dict[str, int]:
    """Process ids of the running ones, by name."""
    pids = {
        "trainer": trainer.pid,
        "network": transport.daemon_pid,
        "engine": sampler.pid if isinstance(sampler, VllmSampler) else None,
        **environment.pids,
    }
    return {name: pid for name, pid in pids.items() if pid is not None}
