"""What of a node's settings each component gets: the only place that translates them. Pure, but for
`resumed`, which reads what the newest checkpoint trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from swarm_node.config import Settings
from swarm_node.node.fit import Fit
from swarm_node.policy.memory.footprint import context_tokens
from swarm_node.policy.memory.plan import Plan
from swarm_node.policy.models.config import Qwen2Config
from swarm_node.policy.sampling.decoding import CacheShape
from swarm_node.policy.sampling.sampler import MAX_ROWS
from swarm_node.policy.sampling.vllm.engine import EnginePlan, plan_engine
from swarm_node.policy.training.checkpoint import stored_rank
from swarm_node.policy.training.trainer import Published, TrainerSettings


def resumed(settings: Settings, checkpoints: Path) -> Settings:
    """`settings` with the adapters of the newest checkpoint, unless the user says otherwise: a plan
    of the GPU that has less free memory than last time must not put an end to what was begun."""
    rank = stored_rank(checkpoints)
    if rank is None or "lora_rank" in settings.training.model_fields_set:
        return settings
    training = settings.training.model_copy(update={"lora_rank": rank})
    return settings.model_copy(update={"training": training})


def trainer_settings(settings: Settings, plan: Plan | None = None) -> TrainerSettings:
    """What of a node's settings the trainer needs; a `plan` of the GPU decides what the user left
    open (it has kept to the rest)."""
    chosen = TrainerSettings(
        loss=settings.training.loss,
        learning_rate=settings.training.learning_rate,
        temperature=settings.sampling.temperature,
        longest_answer=settings.sampling.max_new_tokens,
        activation_checkpointing=settings.training.activation_checkpointing,
        lora_rank=settings.training.lora_rank,
        optimizer=settings.training.optimizer,
        device=settings.run.device,
        dtype=settings.training.dtype,
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


def published(settings: Settings, found: Fit, rank: int) -> Published:
    """What the trainer must publish for the sampler of these settings: vLLM swaps adapters in
    place, the built-in sampler takes them merged."""
    if not found.vllm:
        return "merged"
    if rank:
        return "adapter"
    return "ipc" if settings.sampling.sync == "ipc" else "merged"


def engine_plan(settings: Settings, model: Qwen2Config, found: Fit, rank: int) -> EnginePlan:
    """What vLLM may use: as the plan of the GPU says, where there is one.

    Raises:
        ModelError: see `plan_engine`.
    """
    sampling = settings.sampling
    return plan_engine(
        model,
        where=found.where,
        max_rows=min(MAX_ROWS, sampling.group_size * sampling.tasks_per_call),
        max_new_tokens=sampling.max_new_tokens,
        lora_rank=rank,
        threads=settings.run.threads,
        share=None if found.plan is None else found.plan.engine,
    )


def cache_shape(settings: Settings, model: Qwen2Config, found: Fit) -> CacheShape | None:
    """The cache of the built-in sampler on a GPU, as the plan says where there is one; None on a
    CPU, where it takes what each batch needs."""
    if found.where.device == "cpu":
        return None
    sampling = settings.sampling
    rows = min(MAX_ROWS, sampling.group_size * sampling.tasks_per_call)
    # Matrix products on a GPU want rows of 16 bytes.
    context = -(-context_tokens(model, sampling.max_new_tokens) // 8) * 8
    return CacheShape(rows if found.plan is None else found.plan.rows, context)


def listen_addresses(settings: Settings, own_port: Callable[[], int]) -> list[str]:
    """The addresses to listen on; port 0 becomes the home's own, so that tickets stay good after a
    restart."""

    def fixed(address: str) -> str:
        head, found, tail = address.partition("/tcp/0")
        return f"{head}/tcp/{own_port()}{tail}" if found else address

    return [fixed(address) for address in settings.network.listen]
