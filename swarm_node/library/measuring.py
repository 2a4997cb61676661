"""Pass rates of stored checkpoints on tasks of any environment, also while no node runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.config import load_settings
from swarm_node.environments.host import EnvironmentInfo, ProcessEnvironmentHost
from swarm_node.environments.splits.seeds import held_out_seed, task_seed
from swarm_node.library.pass_rates import PassRates, Rewards, pass_rates
from swarm_node.library.resolve_names import chosen_tasks, require_measured
from swarm_node.library.stored_policy import StoredPolicy, holding, open_sampler, stored_policies
from swarm_node.node.home.home import Home
from swarm_node.node.loops.reporting.evaluation import Examiner, seen_tasks
from swarm_node.node.loops.sampling.fit import check_groups
from swarm_node.node.metrics.snapshot import SCHEMA
from swarm_node.node.preflight.defaults import for_model, torch_threads
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import hardware, place
from swarm_node.rollout import HELD_OUT_SEED, TaskRef

#: Answers that are sampled between two lines of progress.
_ANSWERS_AT_ONCE = 1024


class FamilyRates(msgspec.Struct, frozen=True):
    """Pass rates of one family. A part without tasks is None."""

    held_out: PassRates | None
    train: PassRates | None


class CheckpointRates(msgspec.Struct, frozen=True):
    """Pass rates of one policy: over all families, and by family."""

    checkpoint: str
    version: int
    held_out: PassRates | None
    train: PassRates | None
    families: dict[str, FamilyRates]


class CheckpointsReport(msgspec.Struct, frozen=True):
    """Report of `swarm-node eval --tasks … --checkpoint …`: `completions` of each task of an
    environment, sampled at `temperature`. `k` is that of pass@k."""

    schema: int
    model: str
    environment: str
    environment_version: str
    completions: int
    k: int
    temperature: float
    max_new_tokens: int
    checkpoints: list[CheckpointRates]


class Progress(NamedTuple):
    """Tasks that a policy has answered, of how many."""

    checkpoint: str
    finished_tasks: int
    tasks: int


async def measure(
    tasks: str | None = None,
    checkpoint: str | None = None,
    *,
    completions: int = 4,
    k: int | None = None,
    limit: int | None = None,
    home: Path | None = None,
    model: str | None = None,
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    tell: Callable[[Progress], object] = lambda progress: None,
    on_replaced: Callable[[str], object] = lambda name: None,
) -> CheckpointsReport:
    """Measure the policies that `checkpoint` names (see `stored_policies`) on `tasks`: a JSON Lines
    file, hub:OWNER/NAME, an environment, or None for the one that the home trains on.

    A list of questions is measured whole, or at `limit` questions of each part, drawn by chance but
    always the same. For a generator, each family has the held-out and training tasks of the node's
    own evaluations, or `limit` held-out ones. Checkpoints stay until they are measured, although a
    running node replaces them; `on_replaced` gets the name of one that was replaced before.
    `overrides` are settings by dotted key.

    Raises:
        CheckpointError, ModelError: see `stored_policies` and `open_sampler`.
        ConfigError: a setting or a file cannot be used; the message says why.
        ChildError: the environment's process cannot be kept alive.
    """
    flags = {"home": home, "model": model, **(overrides or {})}
    settings = load_settings(flags, config=config, with_home=True)
    require_measured(settings, tasks, checkpoint, overrides or {}, k, completions)
    name, options = chosen_tasks(settings, tasks, overrides or {})
    directory = resolve(settings.model)
    store = Home(settings.home).checkpoints
    shape = ModelConfig.from_directory(directory)
    settings = for_model(settings, shape)
    threads = torch_threads(settings, shape)
    run, sampling = settings.run, settings.sampling
    placement = place(run.device, settings.training.dtype, hardware(run.device))
    rows = []
    with holding(store) as hold:
        policies = stored_policies(checkpoint, store, directory, hold, on_replaced)
        environment = ProcessEnvironmentHost(name, options)
        try:
            info = await environment.start()
            task_refs = list(_tasks(info, limit, run.eval_tasks))
            for policy in policies:
                codec = Codec.from_directory(policy.model).asking(environment.system)
                check_groups(info, codec, sampling)
                sampler = await open_sampler(policy, codec, placement, threads)
                examiner = Examiner(sampler, codec, environment, sampling, info.turns, SYSTEM_CLOCK)
                task_rewards = await _measure_rewards(
                    examiner, task_refs, completions, policy, tell
                )
                rows.append(_rates(policy, info, task_rewards, k or completions))
        finally:
            await environment.close()
    eval_fields = info.name, info.version, completions, k or completions
    decoding = sampling.temperature, sampling.max_new_tokens
    return CheckpointsReport(SCHEMA, settings.model, *eval_fields, *decoding, rows)


def _tasks(info: EnvironmentInfo, limit: int | None, default_count: int) -> Iterator[TaskRef]:
    """The tasks to measure. Those of a generator are the ones that a node measures."""

    def ref(family: str, seed: int) -> TaskRef:
        return TaskRef(info.name, info.version, family, seed)

    for family in info.families:
        if family in info.sizes:
            training, held_out = info.sizes[family]
            # A seed names the row at the seed modulo their number.
            first = HELD_OUT_SEED + -HELD_OUT_SEED % held_out
            yield from (ref(family, first + row) for row in _chosen(held_out, limit))
            yield from (ref(family, row) for row in _chosen(training, limit))
        else:
            count = limit or default_count
            for index in range(count):
                yield ref(family, held_out_seed(family, index))
            for index in range(seen_tasks(count)):
                yield ref(family, task_seed("seen", "", family, index))


def _chosen(rows: int, limit: int | None) -> Sequence[int]:
    """All rows, or `limit` of them: drawn, because files are often sorted."""
    if limit is None or limit >= rows:
        return range(rows)
    rng = random.Random(rows)  # noqa: S311 - the same rows in every run
    return sorted(rng.sample(range(rows), limit))


async def _measure_rewards(
    examiner: Examiner,
    tasks: Sequence[TaskRef],
    answers: int,
    policy: StoredPolicy,
    tell: Callable[[Progress], object],
) -> dict[TaskRef, Sequence[float]]:
    """The rewards of the answers to each task; closes the sampler. A task whose prompt and answer
    exceed the model's positions is answered wrongly."""
    task_rewards = dict[TaskRef, Sequence[float]]()
    left = iter(tasks)
    tell(Progress(policy.name, 0, len(tasks)))
    try:
        while part := list(islice(left, max(1, _ANSWERS_AT_ONCE // answers))):
            requests = await examiner.requests(dict.fromkeys(part, answers))
            rewards, _ = await examiner.rewards(requests)
            task_rewards |= dict.fromkeys(part, [0.0] * answers) | rewards
            tell(Progress(policy.name, len(task_rewards), len(tasks)))
    finally:
        await examiner.sampler.close()
    return task_rewards


def _rates(
    policy: StoredPolicy,
    info: EnvironmentInfo,
    task_rewards: Mapping[TaskRef, Sequence[float]],
    k: int,
) -> CheckpointRates:
    def part(held_out: bool) -> Rewards:
        return {
            family: [
                r
                for ref, r in task_rewards.items()
                if (ref.family, ref.held_out) == (family, held_out)
            ]
            for family in info.families
        }

    held_out_part, training_part = part(True), part(False)
    return CheckpointRates(
        policy.name,
        policy.version,
        pass_rates(held_out_part, k),
        pass_rates(training_part, k),
        {
            family: FamilyRates(
                pass_rates({family: held_out_part[family]}, k),
                pass_rates({family: training_part[family]}, k),
            )
            for family in info.families
        },
    )
