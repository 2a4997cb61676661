"""The rival without a model: in each family, always the answer that is right most often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from swarm_node.environments.registry import create_environment
from swarm_node.environments.seeds import held_out_seed, task_seed
from swarm_node.errors import ConfigError
from swarm_node.rollout import TaskRef

#: Training tasks of a family among which the most frequent answer is looked for.
_DRAWS = 400


class Constant(NamedTuple):
    """One answer to all tasks of a family, and its score on held-out ones."""

    answer: str
    reward: float


def best_constants(name: str, options: Mapping[str, Any], tasks: int) -> dict[str, Constant]:
    """The most frequent right answer among training tasks of each family of an environment, scored
    on `tasks` held-out tasks.

    Raises:
        ConfigError: there is no such environment, or it knows no right answers.
    """
    environment = create_environment(name, dict(options))
    found = {}
    for family in environment.families:

        def ref(seed: int, family: str = family) -> TaskRef:
            return TaskRef(environment.name, environment.version, family, seed)

        drawn = (environment.derive(ref(task_seed("constant", family, i))) for i in range(_DRAWS))
        answers = Counter(right for right in map(environment.answer, drawn) if right is not None)
        if not answers:
            raise ConfigError(f"{name} does not say which answers of {family} are right")
        answer = answers.most_common(1)[0][0]
        held_out = [environment.derive(ref(held_out_seed(family, i))) for i in range(tasks)]
        scores = [environment.score(task, answer) for task in held_out]
        found[family] = Constant(answer, sum(scores) / tasks)
    return found
