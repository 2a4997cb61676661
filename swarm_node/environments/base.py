"""The protocols of environments. Writing one takes three methods, four for a multi-turn one; see
docs/environments.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from swarm_node.environments.splits.split import bound_of, position, release_needed
from swarm_node.errors import UnknownTaskError
from swarm_node.rollout import SEED_LIMIT, TaskRef

#: Longest observation of a multi-turn rollout.
MAX_OBSERVATION_CHARS = 1024
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Task:
    """A task derived from its reference; `payload` belongs to the environment that made it."""

    ref: TaskRef
    payload: Any


class TaskMaker(Protocol):
    """Derives tasks from references. Must be deterministic: every peer that holds the same
    `version` derives the same task, gives the same observations and the same rewards."""

    name: str
    #: Changes whenever the same reference could mean another task or another score.
    version: str
    families: tuple[str, ...]
    # Optional: `question(task)`, the text that decides whether a task is held out, where
    # `render` adds something that all tasks share; `answer(task)`, the right answer or None;
    # `reference_completion(task)`, a completion that must score 1, where the prompt asks for more
    # than the answer alone; `place(task)`, where the row of a list stands, such as "line 3";
    # `notes`, sentences for the owner, and `warnings`;
    # `held_out_bounds`, for a list of questions that is split already: by family the
    # `split.position` below which its questions are held out; `sizes`, for a list: by family
    # its numbers of rows for training and held out, of which a seed names the one at the seed
    # modulo their number;
    # `score_seconds`, the processor time of a group of eight, where the usual is too short.

    def derive(self, ref: TaskRef) -> Task:
        """The task that `ref` names.

        Raises:
            UnknownTaskError: another environment, version or family, or a seed out of range.
        """
        ...

    def render(self, task: Task) -> str:
        """The prompt text."""
        ...


class Environment(TaskMaker, Protocol):
    """Tasks of one question and one answer."""

    def score(self, task: Task, text: str) -> float:
        """A reward in [0, 1]. May raise on hostile text, which then scores zero."""
        ...


class MultiTurnEnvironment(TaskMaker, Protocol):
    """Tasks of several turns. Both methods are pure: they depend on their arguments alone, so that
    every peer can re-run a multi-turn rollout from what the model said."""

    #: Most turns of the model, 2 to 16.
    turns: int

    def observation(self, task: Task, completions: Sequence[str]) -> str | None:
        """The environment's next words after the model's `completions`, at most 1,024 characters;
        None once the multi-turn rollout is over. It is not asked after turn number `turns`."""
        ...

    def reward(self, task: Task, completions: Sequence[str]) -> float:
        """A reward in [0, 1] for a multi-turn rollout that is over. May raise, which scores
        zero."""
        ...


def check_ref(environment: TaskMaker, ref: TaskRef) -> None:
    """
    Raises:
        UnknownTaskError: `ref` names another environment, version or family, or its seed is out of
            range.
    """
    if (ref.environment, ref.version) != (environment.name, environment.version):
        is_same = ref.environment == environment.name
        advice = release_needed(ref.version) if is_same else ""
        remedy = "give all nodes the same files, packages and options of the environment"
        raise UnknownTaskError(
            f"the task is for {ref.environment} {ref.version}, this node has {environment.name} "
            f"{environment.version}: {advice or remedy}"
        )
    if ref.family not in environment.families:
        raise UnknownTaskError(
            f"unknown family {ref.family!r}: use one of {', '.join(environment.families)}"
        )
    if not 0 <= ref.seed < SEED_LIMIT:
        raise UnknownTaskError(f"seed {ref.seed} is not within [0, 2^62): use seeds.task_seed")


def split_held_out(
    items: Sequence[_Item], questions: Sequence[str], share: float
) -> tuple[list[_Item], list[_Item], int]:
    """The items for training, the held-out items (about a `share` of all), and the position below
    which a question is held out. If two questions differ, both parts have an item. Items of one
    question are in the same part. They stay there when more are added, except to a short list."""
    places = [position(question) for question in questions]
    positions = sorted(set(places))
    bound = bound_of(share)
    if len(positions) > 1:
        bound = min(max(bound, positions[0] + 1), positions[-1])
    pairs = list(zip(items, places, strict=True))
    training = [item for item, place in pairs if place >= bound]
    return training, [item for item, place in pairs if place < bound], bound
