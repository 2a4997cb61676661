"""Settings of a trainer, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from swarm_node.errors import ConfigError
from swarm_node.policy.choices import LOSS_CHOICES, LossName
from swarm_node.policy.placement import BaseName, DtypeName, OptimizerName

#: Transport of new weights to the sampler: all weights in a file; the adapter alone; the adapter,
#: beside a base that the sampler shares (`weights/base.py`); or all weights in the memory of the
#: GPU (`weights/device.py`).
Published = Literal["merged", "adapter", "shared", "ipc"]
#: The transports of adapters alone.
ADAPTERS: tuple[Published, ...] = ("adapter", "shared")
#: The share of the learning rate that is left after a decay.
DECAYED = 0.1
#: The user's setting that decides each field. Other fields are constants.
_KEYS = {
    **{
        name: f"training.{name}"
        for name in (
            *("loss", "learning_rate", "lr_decay_steps"),
            *("lora_rank", "base", "optimizer", "dtype"),
        )
    },
    "temperature": "sampling.temperature",
    "longest_answer": "sampling.max_new_tokens",
    "processes": "run.trainer_processes",
    "hosts": "run.trainer_hosts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """Settings of training: AdamW, whose rate is `rate_at`. What a user sets has its default in
    `swarm_node/config`, and none here.

    `temperature` must be the sampler's. `micro_batch_tokens` bounds rows × longest row, and so the
    memory, but not the result. `longest_answer` is the sampler's limit in tokens. With a
    `lora_rank`, only adapters of that rank are trained; 0 trains all weights. `published` can be
    "adapter" or "shared", and `base` "nf4", only with a rank. `activation_checkpointing` saves
    memory, costs time and leaves the result as it is.
    `placement.place` explains `device` and `dtype`. `processes` train together on each of `hosts`,
    each process on a device.
    With `canary`, published weights carry one, which only vLLM reads; without, an update has one
    forward pass less. With `gives_back`, the GPU's memory is free between updates, for an engine
    that wakes up then.

    Raises:
        ConfigError: a value makes no sense; the message names it.
    """

    loss: LossName
    learning_rate: float
    lr_decay_steps: int
    temperature: float
    longest_answer: int
    lora_rank: int
    base: BaseName
    optimizer: OptimizerName
    device: str
    dtype: DtypeName
    processes: int
    hosts: int
    seed: int
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    warmup_updates: int = 10
    clip_low: float = 0.2
    clip_high: float = 0.28
    ratio_cap: float = 5.0
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 8192
    activation_checkpointing: bool = False
    published: Published = "merged"
    gives_back: bool = False
    canary: bool = True

    def __post_init__(self) -> None:
        valid = {
            "loss": self.loss in LOSS_CHOICES,
            "learning_rate": 0 < self.learning_rate < math.inf,
            "betas": len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            "weight_decay": 0 <= self.weight_decay < math.inf,
            "warmup_updates": self.warmup_updates >= 0,
            "lr_decay_steps": self.lr_decay_steps >= 0,
            "clip_low": 0 < self.clip_low <= 1,
            "clip_high": 0 < self.clip_high < math.inf,
            "ratio_cap": 1 + self.clip_high <= self.ratio_cap < math.inf,
            "max_grad_norm": 0 < self.max_grad_norm < math.inf,
            "temperature": 0 < self.temperature < math.inf,
            "micro_batch_tokens": self.micro_batch_tokens > 0,
            "longest_answer": self.longest_answer > 0,
            "lora_rank": 0 <= self.lora_rank <= 1024,
            "base": self.base in get_args(BaseName) and (self.base != "nf4" or self.lora_rank > 0),
            "published": self.published not in ADAPTERS or self.lora_rank > 0,
            "optimizer": self.optimizer in get_args(OptimizerName),
            "dtype": self.dtype in get_args(DtypeName),
            "processes": self.processes >= 1,
            "hosts": self.hosts >= 1,
        }
        invalid_names = [name for name, fine in valid.items() if not fine]
        if invalid_names:
            key = _KEYS.get(invalid_names[0], invalid_names[0])
            raise ConfigError(f"{key} cannot be {getattr(self, invalid_names[0])!r}")
        is_distributed = self.processes * self.hosts > 1
        if self.optimizer == "adamw8bit" and is_distributed:
            raise ConfigError(
                'training.optimizer = "adamw8bit" works in one process: with run.trainer_processes '
                'or run.trainer_hosts set "adamw", whose moments are spread over the GPUs anyway'
            )
        if self.dtype == "float16" and is_distributed:
            raise ConfigError(
                'training.dtype = "float16" works in one process: with run.trainer_processes or '
                'run.trainer_hosts set "float32"'
            )
        if self.base == "nf4" and is_distributed:
            raise ConfigError(
                'training.base = "nf4" works in one process: with run.trainer_processes or '
                'run.trainer_hosts set "whole"'
            )

    def rate_at(self, update: int) -> float:
        """The learning rate of an update, the first being 0. It rises linearly to `learning_rate`
        over `warmup_updates`. Over `lr_decay_steps` after them it falls by half a cosine (arXiv
        1608.03983) to `DECAYED` of it, and stays there: a swarm has no last update. With 0 it does
        not fall."""
        decay_step = update + 1 - max(self.warmup_updates, 1)
        if decay_step < 0:
            return self.learning_rate * (update + 1) / self.warmup_updates
        progress = min(1.0, decay_step / self.lr_decay_steps) if self.lr_decay_steps else 0.0
        share = DECAYED + (1 - DECAYED) * (1 + math.cos(math.pi * progress)) / 2
        return self.learning_rate * share

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> TrainerSettings:
        """The inverse of `plain`, also after MessagePack encoded and decoded the values."""
        return cls(**{**values, "betas": tuple(values["betas"])})

    def plain(self) -> dict[str, Any]:
        """All values by name, in types that MessagePack restores."""
        return {**asdict(self), "betas": list(self.betas)}
