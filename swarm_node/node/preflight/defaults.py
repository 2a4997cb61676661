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
#: Presets of environments that ship, for pretrained models.
PRESETS = {"drills": "graded", "reasoning_gym": "chat"}
LONGEST_ANSWER = 512
#: The same for presets whose answers are a number alone.
LONGEST_NUMBER = 24
_NUMBERS = frozenset({("drills", "graded")})
#: Fewest groups of a sampling batch that a pretrained model gets, and most.
_LEAST_TASKS, _MOST_TASKS = 8, 16
#: More than the cores of one socket cost more to keep together than they compute: a guess.
_MOST_THREADS = 32
_ADAPTER_RATE, _WHOLE_RATE = 1e-5, 1e-6
#: A model with fewer weights learns at higher rates.
_SMALL_WEIGHTS, _SMALL_ADAPTER_RATE, _SMALL_WHOLE_RATE = 300_000_000, 1e-4, 1e-5
#: Own groups of an update of a pretrained model on a CPU. A node alone trains on twice as many.
_CPU_OWN = 2
#: A pretrained model's softmax temperature, and the rank of its adapters on a CPU.
_TEMPERATURE, _CPU_RANK = 0.7, 16


def for_model(settings: Settings, shape: ModelConfig) -> Settings:
    """Return `settings` with the defaults for a model of this shape. Settings of the user stay."""
    if shape.weight_count < PRETRAINED_WEIGHTS:
        return settings
    environment = settings.environment
    named = {"preset", "families", "datasets"} & set(environment.options)
    if environment.name in PRESETS and not named:
        options = {**environment.options, "preset": PRESETS[environment.name]}
        environment = environment.model_copy(update={"options": options})
    # Whoever names an instruction may have asked for reasoning.
    short = (environment.name, environment.options.get("preset")) in _NUMBERS
    own = {"families", "instruction"} & set(environment.options)
    longest = LONGEST_NUMBER if short and not own else LONGEST_ANSWER
    chosen = {"max_new_tokens": longest, "group_size": 8, "temperature": _TEMPERATURE}
    sampling = _unless_set(settings.sampling, chosen)
    return settings.model_copy(update={"sampling": sampling, "environment": environment})


def _unless_set(table: Table, values: Mapping[str, Any]) -> Table:
    """Return `table` with those of `values` that the user did not set."""
    others = {key: value for key, value in values.items() if key not in table.model_fields_set}
    return table.model_copy(update=others)


def lora_rank(settings: Settings, shape: ModelConfig, *, on_gpu: bool) -> int | None:
    """Return the rank of the adapters to train, 0 for all weights, None where the plan of a GPU
    decides. On a CPU, all weights of a pretrained model would take six times their memory."""
    if "lora_rank" in settings.training.model_fields_set:
        return settings.training.lora_rank
    if on_gpu or shape.weight_count < PRETRAINED_WEIGHTS:
        return None
    return _CPU_RANK


def tasks_per_call(settings: Settings, shape: ModelConfig, rows: int | None) -> int:
    """Return the most groups of a sampling batch for a model of this shape: the number that the
    user set, or as many as `rows` answers at once allow. `rows` is None for the most that a GPU may
    be planned for, and 0 for a CPU."""
    sampling = settings.sampling
    if "tasks_per_call" in sampling.model_fields_set or shape.weight_count < PRETRAINED_WEIGHTS:
        return sampling.tasks_per_call
    if rows is None:
        return _MOST_TASKS
    if not rows:
        return min(_LEAST_TASKS, batch_groups(settings, shape, on_gpu=False))
    return min(_MOST_TASKS, max(_LEAST_TASKS, rows // sampling.group_size))


def for_training(
    settings: Settings, shape: ModelConfig, training: TrainingMethod, rows: int
) -> Settings:
    """Return `settings` with the defaults for a model of this shape, a training method, and a plan
    of a GPU with `rows` rows; 0 on a CPU."""
    if shape.weight_count < PRETRAINED_WEIGHTS:
        return settings
    small = shape.weight_count < _SMALL_WEIGHTS
    adapters, whole = _ADAPTER_RATE, _WHOLE_RATE
    if small:
        adapters, whole = _SMALL_ADAPTER_RATE, _SMALL_WHOLE_RATE
    rate = adapters if training.lora_rank else whole
    tasks = tasks_per_call(settings, shape, rows)
    own = own_groups(settings, shape, on_gpu=bool(rows))
    changed = {
        "experience": settings.experience.model_copy(update={"own": own}),
        "training": _unless_set(settings.training, {"learning_rate": rate}),
        "sampling": settings.sampling.model_copy(update={"tasks_per_call": tasks}),
    }
    return settings.model_copy(update=changed)


def torch_threads(settings: Settings, shape: ModelConfig) -> int:
    """Return the threads of the sampler, and of the trainer: those that the user set, or half of
    the cores that this process may use, because both compute at the same time. The products of a
    model that is not pretrained are too small to be shared by threads."""
    asked = settings.run.threads
    if asked != "auto":
        return asked
    if shape.weight_count < PRETRAINED_WEIGHTS:
        return 1
    # Not every system can say to which cores a process is bound.
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(_MOST_THREADS, max(1, cores // 2))


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
        batch = batch_groups(settings, shape, on_gpu=True)
        # Without peers, own groups fill the batch.
        own = batch if experience.external == "auto" else experience.own
        slots = most_at_once(own, batch, experience.max_lag, asked)
        tasks = min(slots, asked)
        if interleaved:
            tasks = min(slots, provision(tasks, OVER_PROVISION, 0))
    return min(MAX_ROWS, settings.sampling.group_size * tasks)


def own_groups(settings: Settings, shape: ModelConfig, *, on_gpu: bool) -> int:
    """Return the own groups of an update for a model of this shape. Who sets the number of peers'
    groups gets as many own ones as documented."""
    experience = settings.experience
    chosen = on_gpu or "own" in experience.model_fields_set or experience.external != "auto"
    if chosen or shape.weight_count < PRETRAINED_WEIGHTS:
        return experience.own
    return _CPU_OWN


def batch_groups(settings: Settings, shape: ModelConfig, *, on_gpu: bool) -> int:
    """Return the most groups of an update's batch."""
    own, others = own_groups(settings, shape, on_gpu=on_gpu), settings.experience.external
    return own + (own if others == "auto" else int(others))
