"""A node's demands on a machine: the settings that a plan depends on, read once. Also the defaults
that depend on the machine. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from swarm_node.policy.experience.slots import OVER_PROVISION, most_at_once, provision
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.placement import DtypeName
from swarm_node.policy.sampling.sampler import MAX_ROWS

#: A model with fewer weights counts as trained from nothing, on tasks of a few tokens.
PRETRAINED_WEIGHTS = 50_000_000
#: Fewest groups of a sampling batch that a pretrained model gets, and most.
_LEAST_TASKS, _MOST_TASKS = 8, 16
#: Own groups of an update of a pretrained model on a CPU. A node alone trains on twice as many.
_CPU_OWN = 2
#: The rank of a pretrained model's adapters on a CPU.
_CPU_RANK = 16


class Lengths(NamedTuple):
    """What an environment's tasks take: the most `turns` of a multi-turn rollout, and the UTF-8
    bytes of the longest of some prompts, 0 if they are not known."""

    turns: int = 1
    prompt_bytes: int = 0


#: The lengths where nothing is known of the tasks.
ONE_ANSWER: Final = Lengths()


@dataclass(frozen=True, slots=True)
class Demand:
    """What a node asks of a machine: a model of `shape`, tasks of these `lengths`, and settings by
    their names. `eight_bit` moments are those of the optimizer. `chosen_names` are the names of the
    fields that the owner set; `local`, `max_concurrent_groups` and `lora_rank` count only then, for
    a pretrained model."""

    shape: ModelConfig
    lengths: Lengths
    engine: Literal["torch", "vllm", "auto"]
    temperature: float
    max_new_tokens: int
    group_size: int
    max_concurrent_groups: int
    local: int
    external: int | Literal["auto"]
    max_staleness: int
    dtype: DtypeName
    lora_rank: int
    base: str
    eight_bit: bool
    processes: int
    hosts: int
    chosen_names: frozenset[str]

    @property
    def is_pretrained(self) -> bool:
        """True unless the model counts as trained from nothing."""
        return self.shape.weight_count >= PRETRAINED_WEIGHTS

    @property
    def ranks(self) -> int:
        """Processes that train, on all hosts."""
        return self.processes * self.hosts

    @property
    def times_decide(self) -> bool:
        """Check that on a CPU the number type is left to a measurement. Small models wait for other
        things than products, and other hosts may have other CPUs."""
        return self.dtype == "auto" and self.hosts == 1 and self.is_pretrained

    def rank(self, *, on_gpu: bool) -> int | None:
        """Return the rank of the adapters to train, 0 for all weights, None where the plan of a GPU
        decides. On a CPU, all weights of a pretrained model would take six times their memory."""
        if "lora_rank" in self.chosen_names:
            return self.lora_rank
        return None if on_gpu or not self.is_pretrained else _CPU_RANK

    def own_groups(self, *, on_gpu: bool) -> int:
        """Return the own groups of an update. Who sets the number of peers' groups gets as many own
        ones as documented."""
        is_chosen = on_gpu or "local" in self.chosen_names or self.external != "auto"
        return self.local if is_chosen or not self.is_pretrained else _CPU_OWN

    def batch_groups(self, *, on_gpu: bool) -> int:
        """Return the most groups of an update's batch."""
        local_count = self.own_groups(on_gpu=on_gpu)
        return local_count + (local_count if self.external == "auto" else int(self.external))

    def tasks(self, rows: int | None) -> int:
        """Return the most groups of a sampling batch: the number that the owner set, or as many as
        `rows` answers at once allow. `rows` is None for the most that a GPU may be planned for, and
        0 for a CPU."""
        if "max_concurrent_groups" in self.chosen_names or not self.is_pretrained:
            return self.max_concurrent_groups
        if rows is None:
            return _MOST_TASKS
        if not rows:
            return min(_LEAST_TASKS, self.batch_groups(on_gpu=False))
        return min(_MOST_TASKS, max(_LEAST_TASKS, rows // self.group_size))

    def rows(self, *, on_gpu: bool, interleaved: bool) -> int:
        """Return the most answers that are sampled at once: those of a sampling batch, on a GPU no
        more than there are slots for. An engine that is `interleaved` begins more groups than a
        batch takes (`loops/sampling/partial_rollouts.py`)."""
        if not on_gpu:
            tasks = self.tasks(0)
        else:
            max_tasks, batch = self.tasks(None), self.batch_groups(on_gpu=True)
            # Without peers, own groups fill the batch.
            local_count = batch if self.external == "auto" else self.local
            slots = most_at_once(local_count, batch, self.max_staleness, max_tasks)
            tasks = min(slots, max_tasks)
            if interleaved:
                tasks = min(slots, provision(tasks, OVER_PROVISION, 0))
        return min(MAX_ROWS, self.group_size * tasks)
