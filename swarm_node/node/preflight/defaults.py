"""Defaults of a node's settings, by its model and by the weights that it trains; on a CPU the
number type, by measured times; and the answers that are sampled at once. Pure.

| | trained from nothing, as `tiny` | pretrained: adapters | pretrained: all weights |
| --- | --- | --- | --- |
| preset of drills | short | chat | chat |
| longest answer, tokens | 24 | 512 | 512 |
| answers per group, groups per batch | 4, 8 | 8, 8 | 8, 8 |
| most groups of a sampling batch | 16 | 8 to 16 | 8 to 16 |
| learning rate | 3e-4 | 1e-5 | 1e-6 |

With as many answers in all, small batches teach the tiny model more, in groups of 4 and of 2 alike
(docs/experiments.md). No pretrained model was measured. Each group costs such a model one more long
prompt, and published runs have groups of 8 to 16.

1e-6 is the common learning rate of GRPO on all weights (DeepSeekMath, arXiv 2402.03300; DAPO, arXiv
2503.14476). Adapters take ten times as much (thinkingmachines.ai/blog/lora, 2025). At 5e-5 adapters
of Qwen3-0.6B fell from 57% to 2% on GSM8K. 512 tokens hold the reasoning of a model of this size
about a school problem.

A GPU's sampler makes more tokens a second of more rows. So a pretrained model samples as many
groups at once as the plan has rows for: at least the batch of an update, and at most two batches.
On a CPU the keys and values of more rows would take gigabytes for little gain, so it samples one
batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swarm_node.config import Settings, Table
from swarm_node.node.loops.harvest import OVER_PROVISION, provision
from swarm_node.policy.experience.slots import most_at_once
from swarm_node.policy.memory.footprint import TrainingMethod
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.placement import WORTHWHILE, Placement, ProductTimes
from swarm_node.policy.sampling.sampler import MAX_ROWS

#: A model with fewer weights counts as trained from nothing, on tasks of a few tokens.
PRETRAINED_WEIGHTS = 50_000_000
PRESET, LONGEST_ANSWER = "chat", 512
#: Environments that have this preset.
_WITH_CHAT = frozenset({"drills", "reasoning_gym"})
_SAMPLING = {"max_new_tokens": LONGEST_ANSWER, "group_size": 8}
#: Fewest groups of a sampling batch that a pretrained model gets, and most.
_LEAST_TASKS, _MOST_TASKS = 8, 16
_ADAPTER_RATE, _WHOLE_RATE = 1e-5, 1e-6


def for_model(settings: Settings, shape: ModelConfig) -> Settings:
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


def tasks_per_call(settings: Settings, shape: ModelConfig, rows: int | None) -> int:
    """Return the most groups of a sampling batch for a model of this shape: the number that the
    user set, or as many as `rows` answers at once allow. `rows` is None for the most that a GPU may
    be planned for, and 0 for a CPU."""
    sampling = settings.sampling
    if "tasks_per_call" in sampling.model_fields_set or shape.weight_count < PRETRAINED_WEIGHTS:
        return sampling.tasks_per_call
    if rows is None:
        return _MOST_TASKS
    return min(_MOST_TASKS, max(_LEAST_TASKS, rows // sampling.group_size))


def for_training(
    settings: Settings, shape: ModelConfig, training: TrainingMethod, rows: int
) -> Settings:
    """Return `settings` with the defaults for a model of this shape, a training method, and a plan
    of a GPU with `rows` rows; 0 on a CPU."""
    if shape.weight_count < PRETRAINED_WEIGHTS:
        return settings
    rate = _ADAPTER_RATE if training.lora_rank else _WHOLE_RATE
    tasks = tasks_per_call(settings, shape, rows)
    changed = {
        "training": _unless_set(settings.training, {"learning_rate": rate}),
        "sampling": settings.sampling.model_copy(update={"tasks_per_call": tasks}),
    }
    return settings.model_copy(update=changed)


def times_decide(settings: Settings, shape: ModelConfig) -> bool:
    """Check that on a CPU the number type of a model of this shape is left to a measurement. Small
    models wait for other things than products, and other hosts may have other CPUs."""
    left_open = settings.training.dtype == "auto" and settings.run.hosts == 1
    return left_open and shape.weight_count >= PRETRAINED_WEIGHTS


def typed(
    settings: Settings, shape: ModelConfig, where: Placement, times: ProductTimes | None
) -> tuple[Placement, str]:
    """Return the device with the number type of a model of this shape, and the reason for the type
    if it was left to a measurement. `times` are those of the CPU, None if they were not measured.
    """
    if where.device != "cpu" or not times_decide(settings, shape):
        return where, ""
    if times is None:
        return where, "float32: products in bfloat16 were not timed on this CPU"
    if times.worthwhile:
        told = f"bfloat16: on this CPU products take {times.share:.2f} of float32's time"
        return replace(where, products="bfloat16"), told
    return where, (
        f"float32: on this CPU products in bfloat16 take {times.share:.2f} times as long, and "
        f"{WORTHWHILE:.2f} at most would be worth it"
    )


def rows_at_once(settings: Settings, shape: ModelConfig, *, on_gpu: bool, interleaved: bool) -> int:
    """Return the most answers that are sampled at once: those of a sampling batch, on a GPU no more
    than there are slots for. An engine that is `interleaved` begins more groups than a batch
    takes (`loops/harvest.py`)."""
    if not on_gpu:
        tasks = tasks_per_call(settings, shape, 0)
    else:
        experience, asked = settings.experience, tasks_per_call(settings, shape, None)
        batch = batch_groups(settings)
        # Without peers, own groups fill the batch.
        own = batch if experience.external == "auto" else experience.own
        slots = most_at_once(own, batch, experience.max_lag, asked)
        tasks = min(slots, asked)
        if interleaved:
            tasks = min(slots, provision(tasks, OVER_PROVISION, 0))
    return min(MAX_ROWS, settings.sampling.group_size * tasks)


def batch_groups(settings: Settings) -> int:
    """Return the most groups of an update's batch."""
    experience = settings.experience
    others = experience.external
    return experience.own + (experience.own if others == "auto" else int(others))
