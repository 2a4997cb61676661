"""What of a node's settings each component gets: the only place that translates them. Pure, but for
`resumed`, which reads what the newest checkpoint trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from swarm_node.config import Settings
from swarm_node.node.preflight.fit import Fit, rows_at_once
from swarm_node.p2p.limits.budgets import Wants
from swarm_node.policy.experience.mixture import MixtureSettings
from swarm_node.policy.experience.replay import ReplaySettings
from swarm_node.policy.memory.footprint import TrainingMethod, context_tokens
from swarm_node.policy.models.config import Qwen2Config
from swarm_node.policy.placement import ON_CPU
from swarm_node.policy.sampling.decoding import CacheShape
from swarm_node.policy.sampling.vllm.engine import EnginePlan, plan_engine
from swarm_node.policy.training.checkpoint import stored_rank
from swarm_node.policy.training.settings import Published, TrainerSettings


def resumed(settings: Settings, checkpoints: Path) -> Settings:
    """`settings` with the adapters of the newest checkpoint, unless the user says otherwise: a plan
    of the GPU that has less free memory than last time must not put an end to what was begun."""
    rank = stored_rank(checkpoints)
    if rank is None or "lora_rank" in settings.training.model_fields_set:
        return settings
    training = settings.training.model_copy(update={"lora_rank": rank})
    return settings.model_copy(update={"training": training})


def trainer_settings(settings: Settings, found: Fit | None = None) -> TrainerSettings:
    """The trainer's settings. `found` decides what the user left open, and has kept to the rest;
    without it, all is as set, and nothing is spared."""
    found = found or Fit(ON_CPU, vllm=False, training=_as_set(settings))
    training = found.training
    return TrainerSettings(
        loss=settings.training.loss,
        learning_rate=settings.training.learning_rate,
        temperature=settings.sampling.temperature,
        longest_answer=settings.sampling.max_new_tokens,
        micro_batch_tokens=training.micro_batch_tokens,
        activation_checkpointing=training.checkpointing,
        lora_rank=training.lora_rank,
        base="nf4" if training.nf4 else "whole",
        published=_published(found),
        optimizer=settings.training.optimizer,
        device=settings.run.device,
        dtype=settings.training.dtype,
        processes=settings.run.trainer_processes,
        hosts=settings.run.hosts,
        gives_back=found.plan is not None and found.plan.sharing == "sleep",
        seed=settings.run.seed,
    )


def _as_set(settings: Settings) -> TrainingMethod:
    return TrainingMethod(settings.training.lora_rank, nf4=settings.training.base == "nf4")


def engine_plan(settings: Settings, model: Qwen2Config, found: Fit) -> EnginePlan:
    """What vLLM may use: as the plan of the GPU says, where there is one.

    Raises:
        ModelError: see `plan_engine`.
    """
    return plan_engine(
        model,
        where=found.where,
        max_rows=rows_at_once(settings),
        max_new_tokens=settings.sampling.max_new_tokens,
        lora_rank=found.training.lora_rank,
        threads=settings.run.threads,
        share=None if found.plan is None else found.plan.engine,
        nf4=found.training.nf4,
        shares_base=found.shares_base,
    )


def cache_shape(settings: Settings, model: Qwen2Config, found: Fit) -> CacheShape | None:
    """The cache of the built-in sampler on a GPU, as the plan says where there is one; None on a
    CPU, where it takes what each batch needs."""
    if found.where.device == "cpu":
        return None
    rows = rows_at_once(settings) if found.plan is None else found.plan.rows
    # Matrix products on a GPU want rows of 16 bytes.
    context = -(-context_tokens(model, settings.sampling.max_new_tokens) // 8) * 8
    return CacheShape(rows, context)


def replay_settings(settings: Settings) -> ReplaySettings:
    """Settings of the replay buffer; with `external = "auto"` it has space for any mixture."""
    experience, adaptive = settings.experience, mixture_settings(settings)
    if adaptive is None:
        own, external = experience.own, int(experience.external)
    else:
        own, external = adaptive.batch - adaptive.most_external, adaptive.most_external
    return ReplaySettings(
        own=own,
        external=external,
        max_lag=experience.max_lag,
        max_age=experience.max_age,
        filter_own=experience.filter_own,
        merge=settings.sampling.common_share > 0,
    )


def mixture_settings(settings: Settings) -> MixtureSettings | None:
    """Settings of the mixture's controller, which begins with `own` groups of each kind and keeps
    their sum; None where the mixture is fixed."""
    experience = settings.experience
    return MixtureSettings(batch=2 * experience.own) if experience.external == "auto" else None


def peers_wants(settings: Settings) -> Wants:
    """What this node wants of its peers, by which it measures what they want."""
    replay = replay_settings(settings)
    return Wants.of(
        own=replay.own,
        external=replay.external,
        batches=replay.external_batches,
        poll=settings.network.poll_seconds,
        answers=settings.sampling.group_size,
        tokens=settings.sampling.max_new_tokens,
    )


def listen_addresses(settings: Settings, own_port: Callable[[], int]) -> list[str]:
    """The addresses to listen on; port 0 becomes the home's own, so that tickets stay good after a
    restart."""

    def fixed(address: str) -> str:
        head, found, tail = address.partition("/tcp/0")
        return f"{head}/tcp/{own_port()}{tail}" if found else address

    return [fixed(address) for address in settings.network.listen]


def _published(found: Fit) -> Published:
    """How weights reach the sampler. Both samplers take adapters as they are, and can share
    the base with a trainer of one process."""
    if found.shares_base:
        return "shared"
    if found.vllm and found.training.lora_rank:
        return "adapter"
    return "ipc" if found.ipc else "merged"
