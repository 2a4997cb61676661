"""Defaults of a node's settings, by its model and by the weights that it trains; on a CPU the
number type, by measured times; and the answers that are sampled at once. Pure.

| | trained from nothing, as `tiny` | pretrained: adapters | pretrained: all weights |
| --- | --- | --- | --- |
| preset of drills | short | graded | graded |
| longest answer to it, tokens | 24 | 24 | 24 |
| longest answer to other tasks | 24 | 512 | 512 |
| answers per group | 4 | 8 | 8 |
| groups per batch | 8 | 8; on a CPU 4 | 8; on a CPU 4 |
| most groups of a sampling batch | 16 | 8 to 16; on a CPU 4 | 8 to 16; on a CPU 4 |
| temperature | 1 | 0.7 | 0.7 |
| learning rate | 3e-4 | 1e-5; under 300 million weights 1e-4 | 1e-6; under 300 million 1e-5 |
| trained on a CPU | all weights | rank 16 | if set so |

With as many answers in all, small batches teach the tiny model more, in groups of 4 and of 2 alike
(docs/experiments.md). Each group costs a pretrained model one more long prompt, and published runs
have groups of 8 to 16.

SmolLM2-135M was measured (docs/research/benchmarks.md). On a CPU four groups make
twice as many updates of as many answers as eight, and it learns more of them; a GPU makes no more.
Adapters at 3e-4 learn faster than at 1e-4 for 20 updates, and are behind from 35 on. All weights
learn most at 1e-5. Larger models were not measured.

1e-6 is the common learning rate of GRPO on all weights (DeepSeekMath, arXiv 2402.03300; DAPO, arXiv
2503.14476). Adapters take ten times as much (thinkingmachines.ai/blog/lora, 2025). At 5e-5 adapters
of Qwen3-0.6B fell from 57% to 2% on GSM8K. 512 tokens hold the reasoning of a model of this size
about a school problem. The answers of `graded` are a number. 24 tokens hold it after a repetition
of all but the longest questions, also where each digit is a token; with more a model that does not
stop yet writes on, and the last number counts (docs/environments.md).

A GPU's sampler makes more tokens a second of more rows. So a pretrained model samples as many
groups at once as the plan has rows for: at least the batch of an update, and at most two batches.
On a CPU the keys and values of more rows would take gigabytes for little gain, so it samples one
batch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from swarm_node.config import Settings, Table
from swarm_node.policy.memory.footprint import TrainingMethod
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.planning.demand import ONE_ANSWER, PRETRAINED_WEIGHTS, Demand, Lengths

#: Presets of environments that ship, for pretrained models.
PRESETS = {"drills": "graded", "reasoning_gym": "chat"}
LONGEST_ANSWER = 512
#: The same for presets whose answers are a number alone.
LONGEST_NUMBER = 24
_NUMBERS = frozenset({("drills", "graded")})
#: More than the cores of one socket cost more to keep together than they compute: a guess.
_MOST_THREADS = 32
_ADAPTER_RATE, _WHOLE_RATE = 1e-5, 1e-6
#: A model with fewer weights learns at higher rates.
_SMALL_WEIGHTS, _SMALL_ADAPTER_RATE, _SMALL_WHOLE_RATE = 300_000_000, 1e-4, 1e-5
#: A pretrained model's softmax temperature.
_TEMPERATURE = 0.7


def for_model(settings: Settings, shape: ModelConfig) -> Settings:
    """Return `settings` with the defaults for a model of this shape. Settings of the user stay."""
    if shape.weight_count < PRETRAINED_WEIGHTS:
        return settings
    environment = settings.environment
    task_options = {"preset", "families", "datasets"} & set(environment.options)
    if environment.name in PRESETS and not task_options:
        options = {**environment.options, "preset": PRESETS[environment.name]}
        environment = environment.model_copy(update={"options": options})
    # Whoever names an instruction may have asked for reasoning.
    is_short = (environment.name, environment.options.get("preset")) in _NUMBERS
    prompt_options = {"families", "instruction"} & set(environment.options)
    max_tokens = LONGEST_NUMBER if is_short and not prompt_options else LONGEST_ANSWER
    defaults = {"max_new_tokens": max_tokens, "group_size": 8, "temperature": _TEMPERATURE}
    sampling = _unless_set(settings.sampling, defaults)
    return settings.model_copy(update={"sampling": sampling, "environment": environment})


def _unless_set(table: Table, values: Mapping[str, Any]) -> Table:
    """Return `table` with those of `values` that the user did not set."""
    unset_values = {
        key: value for key, value in values.items() if key not in table.model_fields_set
    }
    return table.model_copy(update=unset_values)


def demand_of(settings: Settings, shape: ModelConfig, lengths: Lengths = ONE_ANSWER) -> Demand:
    """Read what a plan depends on: the demands of a node with `settings`, a model of this `shape`
    and tasks of these `lengths`."""
    sampling, experience, training = settings.sampling, settings.experience, settings.training
    tables = (sampling, experience, training)
    return Demand(
        shape=shape,
        lengths=lengths,
        engine=sampling.engine,
        temperature=sampling.temperature,
        max_new_tokens=sampling.max_new_tokens,
        group_size=sampling.group_size,
        max_concurrent_groups=sampling.max_concurrent_groups,
        local=experience.local,
        external=experience.external,
        max_staleness=experience.max_staleness,
        dtype=training.dtype,
        lora_rank=training.lora_rank,
        base=training.base,
        eight_bit=training.optimizer == "adamw8bit",
        processes=settings.run.trainer_processes,
        hosts=settings.run.hosts,
        chosen_names=frozenset().union(*(table.model_fields_set for table in tables)),
    )


def for_training(
    settings: Settings, demand: Demand, training: TrainingMethod, rows: int
) -> Settings:
    """Return `settings`, whose `demand` was planned for, with the defaults for a training method
    and a plan of a GPU with `rows` rows; 0 on a CPU."""
    if not demand.is_pretrained:
        return settings
    is_small = demand.shape.weight_count < _SMALL_WEIGHTS
    lora_rate, full_rate = _ADAPTER_RATE, _WHOLE_RATE
    if is_small:
        lora_rate, full_rate = _SMALL_ADAPTER_RATE, _SMALL_WHOLE_RATE
    rate = lora_rate if training.lora_rank else full_rate
    local_groups = demand.own_groups(on_gpu=bool(rows))
    updates = {
        "experience": settings.experience.model_copy(update={"local": local_groups}),
        "training": _unless_set(settings.training, {"learning_rate": rate}),
        "sampling": settings.sampling.model_copy(
            update={"max_concurrent_groups": demand.tasks(rows)}
        ),
    }
    return settings.model_copy(update=updates)


def torch_threads(settings: Settings, shape: ModelConfig) -> int:
    """Return the threads of the sampler, and of the trainer: those that the user set, or half of
    the cores that this process may use, because both compute at the same time. The products of a
    model that is not pretrained are too small to be shared by threads."""
    threads = settings.run.threads
    if threads != "auto":
        return threads
    if shape.weight_count < PRETRAINED_WEIGHTS:
        return 1
    cores = os.cpu_count() or 1
    if sys.platform == "linux":  # elsewhere nothing says to which cores a process is bound
        cores = len(os.sched_getaffinity(0))
    return min(_MOST_THREADS, max(1, cores // 2))
