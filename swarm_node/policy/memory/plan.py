"""The division of one GPU between sampler and trainer. Pure: from a model's shape and free memory.
If there are several GPUs, the first is planned. It holds most, because a built-in sampler is on it
alone.

Candidate plans are tried in the order of their cost, and the first that fits is taken. The order
is: all weights before LoRA, a whole base before one of four bits a weight, both resident ("split")
before an engine that sleeps while the trainer works ("sleep"), all rows at once before fewer, kept
activations before recomputed ones, large micro-batches before small ones, of which none is larger
than a batch. No candidate depends on the memory. So more memory never gives a worse plan, and a
larger model never a better one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Literal

from swarm_node.policy.memory.footprint import (
    PREFILL_TOKENS,
    PROMPT_TOKENS,
    REPLY_TOKENS,
    Footprint,
    TrainingMethod,
    engine_cards,
    footprint,
    group_tokens,
    longest_tokens,
)
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.placement import Precision

Sharing = Literal["split", "sleep"]
#: The default rank: reinforcement learning loses little at far lower ranks
#: (thinkingmachines.ai/blog/lora, 2025).
DEFAULT_RANK = 32
#: The share of memory that allocators lose to fragments and rounding.
SPARE = 0.05
#: vLLM refuses to start where less than this share of the GPU is free. With the bytes of its cache
#: given, it sizes nothing by it (vllm/v1/worker/utils.py, gpu_worker.py). It is small, so that an
#: engine that replaces a crashed one starts beside a trainer that has grown meanwhile.
START_SHARE = 0.02
_KEPT_TOKENS = (8192, 4096, 2048)
_RECOMPUTED_TOKENS = (8192, 4096, 2048, 1024)
#: The same on a CPU, which gains nothing from larger ones (docs/gpus.md has the measurement).
_CPU_TOKENS = (1024, 512)
#: A smaller micro-batch is rounded up to so many tokens.
_ROUNDED = 128
#: Rows that are tried below those that are wanted.
_FEWER_ROWS = (192, 128, 96, 64, 48, 32, 24, 16, 12, 8)
#: Setting -> for each try, in order: True for a frozen base of four bits a weight.
_BASES = {"auto": (False, True), "whole": (False,), "nf4": (True,)}


@dataclass(frozen=True, slots=True)
class Job:
    """The work to plan for: `rows` answers of at most `max_new_tokens` at once, or multi-turn
    rollouts of `turns` turns, each as long as an answer. `lora_rank` is the user's choice; None
    leaves it to the plan. `dtype` is the type of matrix products and of the sampler. With
    `eight_bit`, the optimizer's moments have eight bits. With `can_sleep`, the engine can free its
    memory while the trainer works. With `one_base`, the sampler shares the trainer's frozen
    weights. With `vllm`, vLLM samples. `base` says how a frozen base may be held. `processes`
    processes train, each on a GPU of its own, and an engine may be spread over `cards` of these.
    For `repeats_heads` see `TrainingMethod`. A prompt has `prompt_tokens`, and the batch of an
    update at most `groups` groups of `group_size` answers."""

    rows: int = 64
    max_new_tokens: int = 24
    lora_rank: int | None = None
    dtype: Precision = "bfloat16"
    eight_bit: bool = False
    can_sleep: bool = False
    one_base: bool = False
    vllm: bool = False
    base: Literal["auto", "whole", "nf4"] = "whole"
    processes: int = 1
    cards: int = 1
    turns: int = 1
    repeats_heads: bool = False
    prompt_tokens: int = PROMPT_TOKENS
    groups: int = 8
    group_size: int = 8

    @property
    def batch_tokens(self) -> int:
        """Tokens of the largest batch of an update, rounded up."""
        group = group_tokens(self.prompt_tokens, self.longest, self.group_size)
        return -(-self.groups * group // _ROUNDED) * _ROUNDED

    @property
    def longest(self) -> int:
        """Tokens that may follow a prompt: all turns, and the observations between them."""
        return self.turns * self.max_new_tokens + (self.turns - 1) * REPLY_TOKENS

    def describe(self) -> str:
        """The lengths in words."""
        tokens = f"{self.max_new_tokens:,} tokens"
        if self.turns == 1:
            return f"completions of up to {tokens}"
        return f"rollouts of up to {self.turns} turns of up to {tokens}"


@dataclass(frozen=True, slots=True)
class EngineShare:
    """An inference engine's part of a GPU. At most `max_rows` sequences of `max_model_len` tokens,
    prompts included, run at once. A step computes at most `prefill_tokens`. `kv_bytes` hold keys
    and values, on each of the `cards` over which it is spread."""

    max_model_len: int
    max_rows: int
    prefill_tokens: int
    kv_bytes: int
    sleep_level: int
    cards: int = 1

    def vllm_arguments(self) -> dict[str, int | float | bool]:
        """The share as keyword arguments of vLLM 0.32's `AsyncEngineArgs`. Its default
        `max_num_batched_tokens`, and so its temporary memory, depend on the GPU. Sleep mode needs
        CUDA; each `sleep` gives the level."""
        return {
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_rows,
            "max_num_batched_tokens": max(self.prefill_tokens, self.max_rows),
            "kv_cache_memory_bytes": self.kv_bytes,
            "gpu_memory_utilization": START_SHARE,
            "enable_sleep_mode": self.sleep_level > 0,
            "tensor_parallel_size": self.cards,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """The use of a GPU with `vram` free bytes. At most `rows` answers are sampled at once, in
    sequences of at most `max_model_len` tokens. An engine is spread over `cards` GPUs."""

    vram: int
    training: TrainingMethod
    sharing: Sharing
    rows: int
    max_model_len: int
    parts: Footprint
    cards: int = 1

    @property
    def total(self) -> int:
        """Bytes at the peak, without the spare share."""
        return self.parts.total(is_asleep=self.sharing == "sleep")

    def fits(self, extra_bytes: int = 0) -> bool:
        """Check that the plan, and `extra_bytes` bytes beside it, fit the GPU."""
        return self.total + extra_bytes <= self.vram * (1 - SPARE)

    @property
    def engine(self) -> EngineShare:
        """The part of a sampler that is an engine."""
        return EngineShare(
            max_model_len=self.max_model_len,
            max_rows=self.rows,
            prefill_tokens=PREFILL_TOKENS,
            kv_bytes=self.parts.kv,
            sleep_level=self.sleep_level,
            cards=self.cards,
        )

    @property
    def sleep_level(self) -> int:
        """vLLM's sleep level (docs.vllm.ai, Sleep Mode). 0 never sleeps. 1 keeps the base weights
        of adapters in main memory. 2 discards the weights, because the next version has all."""
        if self.sharing == "split":
            return 0
        return 1 if self.training.lora_rank else 2

    def describe(self) -> str:
        """The settings in one line."""
        training = self.training
        kind = f"LoRA of rank {training.lora_rank}" if training.lora_rank else "full fine-tuning"
        kind += " on a 4-bit base (nf4)" * training.nf4
        kind += f" in {training.dtype}" * (training.dtype != "float32")
        recompute = ", activations recomputed" if training.checkpointing else ""
        workers = f" by {training.processes} processes" * (training.processes > 1)
        sleep = f", sampler asleep meanwhile (level {self.sleep_level})" * (self.sharing == "sleep")
        return (
            f"{kind}{workers}{recompute}, micro-batches of {training.micro_batch_tokens:,} tokens, "
            f"{self.rows} concurrent sequences{sleep}"
        )


def make_plan(model: ModelConfig, job: Job, vram: int) -> Plan | None:
    """The first plan for `job` with `model` that fits `vram` free bytes; None if none does."""
    ways = (way for total, way in _ways(model, job) if total <= vram * (1 - SPARE))
    return next((replace(way, vram=vram) for way in ways), None)


def least_plan(model: ModelConfig, job: Job, vram: int) -> Plan:
    """The plan that needs the least memory, whether it fits or not."""
    return replace(min(_ways(model, job), key=lambda way: way[0])[1], vram=vram)


@lru_cache(maxsize=64)  # remedies ask for the same ways again and again
def _ways(model: ModelConfig, job: Job) -> tuple[tuple[int, Plan], ...]:
    """The candidate plans, each with its total in bytes. Their `vram` is 0, because none depends on
    it."""
    return tuple((plan.total, plan) for plan in _make_plans(model, job))


def _make_plans(model: ModelConfig, job: Job) -> Iterator[Plan]:
    max_model_len = longest_tokens(model, job.longest)
    cards = engine_cards(model, job.cards)
    sharings: tuple[Sharing, ...] = ("split", "sleep") if job.can_sleep else ("split",)
    for nf4, rank in _frozen_and_ranks(job):
        for sharing, rows in product(sharings, (job.rows, *_fewer(job.rows))):
            for training in _ways_to_train(rank, job, nf4=nf4):
                parts = footprint(
                    model,
                    training,
                    device="cuda",
                    rows=rows,
                    max_new_tokens=job.longest,
                    one_base=job.one_base,
                    vllm=job.vllm,
                    cards=cards,
                    prompt_tokens=job.prompt_tokens,
                )
                yield Plan(0, training, sharing, rows, max_model_len, parts, cards)


def unplanned_ways(job: Job, *, is_small: bool = False) -> Iterator[TrainingMethod]:
    """The ways to train in the order of their cost, where no GPU is planned for. On a model so so
    small (`is_small`) that its operations take no time beside their calls, micro-batches are large
    ones."""
    sizes = (_KEPT_TOKENS, _RECOMPUTED_TOKENS) if is_small else (_CPU_TOKENS, _CPU_TOKENS)
    for nf4, rank in _frozen_and_ranks(job):
        yield from _ways_to_train(rank, job, nf4=nf4, sizes=sizes)


def _frozen_and_ranks(job: Job) -> Iterator[tuple[bool, int]]:
    """Pairs of "the base has four bits" and the rank. All weights (0) come before adapters, unless
    the user chose."""
    ranks = (0, DEFAULT_RANK) if job.lora_rank is None else (job.lora_rank,)
    return ((nf4, rank) for nf4, rank in product(_BASES[job.base], ranks) if rank or not nf4)


def _ways_to_train(
    rank: int,
    job: Job,
    *,
    nf4: bool,
    sizes: tuple[Sequence[int], Sequence[int]] = (_KEPT_TOKENS, _RECOMPUTED_TOKENS),
) -> Iterator[TrainingMethod]:
    """The ways to train `rank` in the order of their cost: the last takes the least memory. `sizes`
    are micro-batches of which activations are kept, and those of which they are recomputed."""
    for recompute in (False, True):
        for tokens in dict.fromkeys(min(size, job.batch_tokens) for size in sizes[recompute]):
            yield TrainingMethod(
                lora_rank=rank,
                checkpointing=recompute,
                micro_batch_tokens=tokens,
                dtype=job.dtype,
                eight_bit=job.eight_bit,
                nf4=nf4,
                processes=job.processes,
                repeats_heads=job.repeats_heads,
            )


def _fewer(rows: int) -> Iterator[int]:
    return (fewer for fewer in _FEWER_ROWS if fewer < rows)
