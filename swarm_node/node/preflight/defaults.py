"""Defaults of a node's settings, by its model and by the weights that it trains. Pure.

| | trained from nothing, as `tiny` | pretrained: adapters | pretrained: all weights |
| --- | --- | --- | --- |
| preset of drills | short | chat | chat |
| longest answer, tokens | 24 | 512 | 512 |
| answers per group, groups per batch | 4, 8 | 8, 8 | 8, 8 |
| learning rate | 3e-4 | 1e-5 | 1e-6 |

With as many answers in all, small batches teach the tiny model more, in groups of 4 and of 2 alike
(docs/experiments.md). No pretrained model was measured. Each group costs such a model one more long
prompt, and published runs have groups of 8 to 16.

1e-6 is the common learning rate of GRPO on all weights (DeepSeekMath, arXiv 2402.03300; DAPO, arXiv
2503.14476). Adapters take ten times as much (thinkingmachines.ai/blog/lora, 2025). At 5e-5 adapters
of Qwen3-0.6B fell from 57% to 2% on GSM8K. 512 tokens hold the reasoning of a model of this size
about a school problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swarm_node.config import Settings, Table
from swarm_node.policy.memory.footprint import TrainingMethod
from swarm_node.policy.models.config import Qwen2Config

#: A model with fewer weights counts as trained from nothing, on tasks of a few tokens.
PRETRAINED_WEIGHTS = 50_000_000
PRESET, LONGEST_ANSWER = "chat", 512
#: Environments that have this preset.
_WITH_CHAT = frozenset({"drills", "reasoning_gym"})
_SAMPLING = {"max_new_tokens": LONGEST_ANSWER, "group_size": 8, "tasks_per_call": 8}
_ADAPTER_RATE, _WHOLE_RATE = 1e-5, 1e-6


def for_model(settings: Settings, shape: Qwen2Config) -> Settings:
    """Return `settings` with the defaults for a model of this shape. Settings of the user stay."""
    if shape.weight_count < PRETRAINED_WEIGHTS:
        return settings
    changed: dict[str, Any] = {
        "sampling": _unless_set(settings.sampling, _SAMPLING),
    }
    environment = settings.environment
    if environment.name in _WITH_CHAT and not {"preset", "families", "datasets"} & set(
        environment.options
    ):
        options = {**environment.options, "preset": PRESET}
        changed["environment"] = environment.model_copy(update={"options": options})
    return settings.model_copy(update=changed)


def _unless_set(table: Table, values: Mapping[str, Any]) -> Table:
    """Return `table` with those of `values` that the user did not set."""
    others = {key: value for key, value in values.items() if key not in table.model_fields_set}
    return table.model_copy(update=others)


def for_training(settings: Settings, shape: Qwen2Config, training: TrainingMethod) -> Settings:
    """Return `settings` with the defaults for a model of this shape and a training method."""
    chosen = "learning_rate" in settings.training.model_fields_set
    if chosen or shape.weight_count < PRETRAINED_WEIGHTS:
        return settings
    rate = _ADAPTER_RATE if training.lora_rank else _WHOLE_RATE
    changed = settings.training.model_copy(update={"learning_rate": rate})
    return settings.model_copy(update={"training": changed})
