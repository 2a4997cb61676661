"""Settings of a start, resolved once (`resolve_start`), and their translation into those of the
components: the only place for both. Pure, but for `with_stored_rank`, which reads what the newest
checkpoint trains."""

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


def with_stored_rank(settings: Settings, checkpoints: Path) -> Settings:
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
    user_settings: Settings,
    origins: Mapping[str, str],
    home: Home,
    addresses: Sequence[str],
    shape: ModelConfig,
    machine: Machine,
    trial: Tried | None = None,
) -> Resolved:
    """Resolve the `user_settings` of a start, once: by the newest checkpoint of `home`, a model of
    `shape`, the `machine`, the environment's `trial` (None: one of unknown questions), and
    the ticket's `addresses`. What the user set stays.

    Raises:
        ModelError, ConfigError: see `fit`.
    """
    going_on = with_stored_rank(user_settings, home.checkpoints)
    model_settings = for_model(going_on, shape)
    lengths = Lengths()
    if trial is not None:
        lengths = Lengths(trial.turns, prompt_bytes(trial, model_settings.environment.options))
    demand = demand_of(model_settings, shape, lengths)
    model_fit = fit(demand, machine)
    rows = 0 if model_fit.plan is None else model_fit.plan.rows
    tuned_settings = for_training(model_settings, demand, model_fit.training, rows)
    settings = _dialling(tuned_settings, addresses)
    sources, previous_layer = dict(origins), user_settings
    for source, next_layer in (
        ("the newest checkpoint", going_on),
        ("the model", model_settings),
        ("what is trained", tuned_settings),
        ("the ticket", settings),
    ):
        sources |= dict.fromkeys(differing(previous_layer, next_layer), source)
        previous_layer = next_layer
    unshared_fit = partial(fit, demand, replace(machine, ipc=False))
    return Resolved(settings, model_fit, sources, unshared_fit)


def _dialling(settings: Settings, addresses: Sequence[str]) -> Settings:
    """Return `settings` with the peers and the coordinator among `addresses`."""
    network, urls = settings.network, [coordinator_url(address) for address in addresses]
    peers = [address for address, url in zip(addresses, urls, strict=True) if url is None]
    updates: dict[str, Any] = {"bootstrap": [*network.bootstrap, *peers]}
    updates["coordinator"] = network.coordinator or next(filter(None, urls), "")
    return settings.model_copy(update={"network": network.model_copy(update=updates)})


def member_settings(
    user_settings: Settings, shape: ModelConfig, addresses: Sequence[str]
) -> Settings:
    """Return the settings of a member for a program that trains a model of `shape`. "auto" is a
    choice of the trainer that it does not have."""
    settings = _dialling(for_model(user_settings, shape), addresses)
    if settings.experience.external != "auto":
        return settings
    experience = settings.experience.model_copy(update={"external": _MOST_DRAWN})
    return settings.model_copy(update={"experience": experience})


def trainer_settings(settings: Settings, model_fit: Fit | None = None) -> TrainerSettings:
    """Return the trainer's settings. `model_fit` fills in the settings that the user left open, and
    keeps the others. Without `model_fit`, all is as set, and no memory is spared."""
    device, dtype, canary = settings.run.device, settings.training.dtype, True
    if model_fit is None:
        model_fit = Fit(ON_CPU, vllm=False, training=_as_set(settings))
    else:  # what the start decided is not decided once more
        device, dtype = model_fit.placement.device, model_fit.placement.products
        canary = model_fit.vllm or dtype == "float16"  # which it shows to overflow
    training = model_fit.training
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
        published=_choose_publishing(model_fit),
        optimizer=settings.training.optimizer,
        device=device,
        dtype=dtype,
        processes=settings.run.trainer_processes,
        hosts=settings.run.hosts,
        gives_back=model_fit.plan is not None and model_fit.plan.sharing == "sleep",
        canary=canary,
        seed=settings.run.seed,
    )


def _as_set(settings: Settings) -> TrainingMethod:
    return TrainingMethod(settings.training.lora_rank, nf4=settings.training.base == "nf4")


def engine_plan(settings: Settings, model: ModelConfig, model_fit: Fit) -> EnginePlan:
    """Return the limits of vLLM: those in the plan of the GPU, if there is one.

    Raises:
        ModelError: see `plan_engine`.
    """
    return plan_engine(
        model,
        placement=model_fit.placement,
        max_rows=model_fit.job.rows,
        max_new_tokens=_longest(settings, model_fit),
        lora_rank=model_fit.training.lora_rank,
        threads=torch_threads(settings, model),
        share=None if model_fit.plan is None else model_fit.plan.engine,
        nf4=model_fit.training.nf4,
        shares_base=model_fit.shares_base,
    )


def cache_shape(settings: Settings, model: ModelConfig, model_fit: Fit) -> CacheShape | None:
    """Return the shape of the built-in sampler's cache on a GPU, from the plan if there is one.
    None on a CPU, where the cache grows with each batch."""
    if model_fit.placement.device == "cpu":
        return None
    rows = model_fit.job.rows if model_fit.plan is None else model_fit.plan.rows
    # Matrix products on a GPU want rows of 16 bytes.
    context = context_tokens(model, _longest(settings, model_fit), model_fit.job.prompt_tokens)
    return CacheShape(rows, -(-context // 8) * 8)


def most_rows(model: ModelConfig, model_fit: Fit) -> int:
    """Return the most answers that the built-in sampler samples at once. On a CPU, where the cache
    grows with each batch, an evaluation has no more of them than the plan. Those of a small model
    take next to nothing, and it is faster with many."""
    planned = model_fit.placement.device == "cpu" and model.weight_count >= PRETRAINED_WEIGHTS
    return min(MAX_ROWS, model_fit.job.rows) if planned else MAX_ROWS


def _longest(settings: Settings, model_fit: Fit) -> int:
    """Tokens that may follow a prompt in all turns that were planned for."""
    return replace(model_fit.job, max_new_tokens=settings.sampling.max_new_tokens).longest


def replay_settings(settings: Settings) -> ReplaySettings:
    """Return the replay buffer's settings. With `external = "auto"` it has space for any
    mixture."""
    experience, mixture = settings.experience, mixture_settings(settings)
    if mixture is None:
        local_groups, external_groups = experience.local, int(experience.external)
    else:
        local_groups, external_groups = mixture.batch - mixture.most_external, mixture.most_external
    return ReplaySettings(
        local=local_groups,
        external=external_groups,
        max_staleness=experience.max_staleness,
        past=experience.replay,
    )


def mixture_settings(settings: Settings) -> MixtureSettings | None:
    """Return the settings of the mixture's controller, None if the mixture is fixed. The controller
    begins with `own` groups of each kind and keeps their sum."""
    experience = settings.experience
    return MixtureSettings(batch=2 * experience.local) if experience.external == "auto" else None


def peers_wants(settings: Settings, turns: int = 1) -> Wants:
    """Return this node's own demand, with multi-turn rollouts of up to `turns` turns. Peers'
    requests are limited in proportion to it."""
    replay = replay_settings(settings)
    return Wants.of(
        local_groups=replay.local,
        external_groups=replay.external,
        batches=replay.external_batches,
        poll=settings.network.poll_seconds,
        answers=settings.sampling.group_size,
        tokens=turns * settings.sampling.max_new_tokens,
    )


def _choose_publishing(model_fit: Fit) -> Published:
    """Choose how weights reach the sampler. Both samplers take adapters as they are, on a base of
    their own or on that of a trainer of one process."""
    if model_fit.training.lora_rank:
        return "shared" if model_fit.shares_base else "adapter"
    return "ipc" if model_fit.ipc else "merged"
