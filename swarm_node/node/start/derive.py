"""Settings of a start, resolved once (`resolve_start`), and their translation into those of the
components: the only place for both. Pure, but for `resumed`, which reads what the newest checkpoint
trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from swarm_node.config import Settings
from swarm_node.config.model import differing
from swarm_node.environments.presets import Tried, prompt_bytes
from swarm_node.node.home.home import Home
from swarm_node.node.preflight.defaults import (
    demand_of,
    for_model,
    for_training,
    torch_threads,
)
from swarm_node.p2p.addresses.addresses import coordinator_url
from swarm_node.p2p.limits.budgets import Wants
from swarm_node.policy.experience.mixture import MixtureSettings
from swarm_node.policy.experience.replay import ReplaySettings
from swarm_node.policy.memory.footprint import TrainingMethod, context_tokens
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.placement import ON_CPU
from swarm_node.policy.planning.demand import PRETRAINED_WEIGHTS, Lengths
from swarm_node.policy.planning.fit import Fit, Machine, fit
from swarm_node.policy.sampling.decoding import CacheShape
from swarm_node.policy.sampling.sampler import MAX_ROWS
from swarm_node.policy.sampling.vllm.engine import EnginePlan, plan_engine
from swarm_node.policy.training.checkpoints.stored import stored_rank
from swarm_node.policy.training.update.settings import Published, TrainerSettings

#: Groups that one draw of a member takes at most, unless `experience.external` says it.
_MOST_DRAWN = 16


def resumed(settings: Settings, checkpoints: Path) -> Settings:
    """Return `settings` with the adapters of the newest checkpoint, unless the user set otherwise.
    A GPU with less free memory than last time must not end a training run that has begun."""
    rank = stored_rank(checkpoints)
    if rank is None or "lora_rank" in settings.training.model_fields_set:
        return settings
    training = settings.training.model_copy(update={"lora_rank": rank})
    return settings.model_copy(update={"training": training})


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings of one start with nothing left open, and the use of the machine. `origins` has the
    source of every key that is not at its default. `unshared` makes the fit of the same machine
    where processes cannot share the GPU's memory.

    Raises, from `unshared`:
        ModelError: no plan fits so.
    """

    settings: Settings
    fit: Fit
    origins: Mapping[str, str]
    unshared: Callable[[], Fit]


def resolve_start(
    given: Settings,
    origins: Mapping[str, str],
    home: Home,
    named: Sequence[str],
    shape: ModelConfig,
    machine: Machine,
    tried: Tried | None = None,
) -> Resolved:
    """Resolve the settings `given` of a start, once: by the newest checkpoint of `home`, a model of
    `shape`, the `machine`, the environment that was `tried` (None: one of unknown questions), and
    the addresses that the ticket `named`. What the user set stays.

    Raises:
        ModelError, ConfigError: see `fit`.
    """
    going_on = resumed(given, home.checkpoints)
    suited = for_model(going_on, shape)
    lengths = Lengths()
    if tried is not None:
        lengths = Lengths(tried.turns, prompt_bytes(tried, suited.environment.options))
    demand = demand_of(suited, shape, lengths)
    found = fit(demand, machine)
    rows = 0 if found.plan is None else found.plan.rows
    trained = for_training(suited, demand, found.training, rows)
    settings = _dialling(trained, named)
    told, before = dict(origins), given
    for source, after in (
        ("the newest checkpoint", going_on),
        ("the model", suited),
        ("what is trained", trained),
        ("the ticket", settings),
    ):
        told |= dict.fromkeys(differing(before, after), source)
        before = after
    alone = partial(fit, demand, replace(machine, ipc=False))
    return Resolved(settings, found, told, alone)


def _dialling(settings: Settings, named: Sequence[str]) -> Settings:
    """Return `settings` with the peers and the coordinator among the addresses `named`."""
    network, urls = settings.network, [coordinator_url(address) for address in named]
    peers = [address for address, url in zip(named, urls, strict=True) if url is None]
    changed: dict[str, Any] = {"bootstrap": [*network.bootstrap, *peers]}
    changed["coordinator"] = network.coordinator or next(filter(None, urls), "")
    return settings.model_copy(update={"network": network.model_copy(update=changed)})


def member_settings(given: Settings, shape: ModelConfig, named: Sequence[str]) -> Settings:
    """Return the settings of a member for a program that trains a model of `shape`. "auto" is a
    choice of the trainer that it does not have."""
    settings = _dialling(for_model(given, shape), named)
    if settings.experience.external != "auto":
        return settings
    experience = settings.experience.model_copy(update={"external": _MOST_DRAWN})
    return settings.model_copy(update={"experience": experience})


def trainer_settings(settings: Settings, found: Fit | None = None) -> TrainerSettings:
    """Return the trainer's settings. `found` fills in the settings that the user left open, and
    keeps the others. Without `found`, all is as set, and no memory is spared."""
    device, dtype, canary = settings.run.device, settings.training.dtype, True
    if found is None:
        found = Fit(ON_CPU, vllm=False, training=_as_set(settings))
    else:  # what the start decided is not decided once more
        device, dtype = found.where.device, found.where.products
        canary = found.vllm or dtype == "float16"  # which it shows to overflow
    training = found.training
    return TrainerSettings(
        loss=settings.training.loss,
        learning_rate=settings.training.learning_rate,
        lr_decay_steps=settings.training.lr_decay_steps,
        temperature=settings.sampling.temperature,
        longest_answer=settings.sampling.max_new_tokens,
        micro_batch_tokens=training.micro_batch_tokens,
        activation_checkpointing=training.checkpointing,
        lora_rank=training.lora_rank,
        base="nf4" if training.nf4 else "whole",
        published=_published(found),
        optimizer=settings.training.optimizer,
        device=device,
        dtype=dtype,
        processes=settings.run.trainer_processes,
        hosts=settings.run.hosts,
        gives_back=found.plan is not None and found.plan.sharing == "sleep",
        canary=canary,
        seed=settings.run.seed,
    )


def _as_set(settings: Settings) -> TrainingMethod:
    return TrainingMethod(settings.training.lora_rank, nf4=settings.training.base == "nf4")


def engine_plan(settings: Settings, model: ModelConfig, found: Fit) -> EnginePlan:
    """Return the limits of vLLM: those in the plan of the GPU, if there is one.

    Raises:
        ModelError: see `plan_engine`.
    """
    return plan_engine(
        model,
        where=found.where,
        max_rows=found.job.rows,
        max_new_tokens=_longest(settings, found),
        lora_rank=found.training.lora_rank,
        threads=torch_threads(settings, model),
        share=None if found.plan is None else found.plan.engine,
        nf4=found.training.nf4,
        shares_base=found.shares_base,
    )


def cache_shape(settings: Settings, model: ModelConfig, found: Fit) -> CacheShape | None:
    """Return the shape of the built-in sampler's cache on a GPU, from the plan if there is one.
    None on a CPU, where the cache grows with each batch."""
    if found.where.device == "cpu":
        return None
    rows = found.job.rows if found.plan is None else found.plan.rows
    # Matrix products on a GPU want rows of 16 bytes.
    context = context_tokens(model, _longest(settings, found), found.job.prompt_tokens)
    return CacheShape(rows, -(-context // 8) * 8)


def most_rows(model: ModelConfig, found: Fit) -> int:
    """Return the most answers that the built-in sampler samples at once. On a CPU, where the cache
    grows with each batch, an evaluation has no more of them than the plan. Those of a small model
    take next to nothing, and it is faster with many."""
    planned = found.where.device == "cpu" and model.weight_count >= PRETRAINED_WEIGHTS
    return min(MAX_ROWS, found.job.rows) if planned else MAX_ROWS


def _longest(settings: Settings, found: Fit) -> int:
    """Tokens that may follow a prompt in all turns that were planned for."""
    return replace(found.job, max_new_tokens=settings.sampling.max_new_tokens).longest


def replay_settings(settings: Settings) -> ReplaySettings:
    """Return the replay buffer's settings. With `external = "auto"` it has space for any
    mixture."""
    experience, adaptive = settings.experience, mixture_settings(settings)
    if adaptive is None:
        own, external = experience.local, int(experience.external)
    else:
        own, external = adaptive.batch - adaptive.most_external, adaptive.most_external
    return ReplaySettings(
        own=own,
        external=external,
        max_staleness=experience.max_staleness,
        past=experience.replay,
    )


def mixture_settings(settings: Settings) -> MixtureSettings | None:
    """Return the settings of the mixture's controller, None if the mixture is fixed. The controller
    begins with `own` groups of each kind and keeps their sum."""
    experience = settings.experience
    return MixtureSettings(batch=2 * experience.local) if experience.external == "auto" else None


def peers_wants(settings: Settings, turns: int = 1) -> Wants:
    """Return this node's own demand, with dialogues of up to `turns` turns. Peers' requests are
    limited in proportion to it."""
    replay = replay_settings(settings)
    return Wants.of(
        own=replay.own,
        external=replay.external,
        batches=replay.external_batches,
        poll=settings.network.poll_seconds,
        answers=settings.sampling.group_size,
        tokens=turns * settings.sampling.max_new_tokens,
    )


def _published(found: Fit) -> Published:
    """Choose how weights reach the sampler. Both samplers take adapters as they are, on a base of
    their own or on that of a trainer of one process."""
    if found.training.lora_rank:
        return "shared" if found.shares_base else "adapter"
    return "ipc" if found.ipc else "merged"
