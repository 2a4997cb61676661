"""An environment class of an OpenEnv server, made in this process, as a multi-turn environment.

`reset` and `step` return observations; one that is `done` ends the episode, and the last reward
counts (OpenEnv 0.3, openenv/core/env_server/interfaces.py). Nothing of OpenEnv is imported. Each
re-run makes a new object, and takes all steps so far again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_type_hints

from swarm_node.environments.adapters.common import (
    Tasks,
    check_turns,
    make_object,
    seed_random,
    version_of,
)
from swarm_node.environments.base import MultiTurnEnvironment, Task, check_ref
from swarm_node.errors import ConfigError
from swarm_node.rollout import TaskRef

#: Counts changes of how this module turns a seed into a task, or texts into observations and
#: rewards.
SCHEME = 1
#: Fields of actions and observations that are the protocol's and not the environment's.
_OWN_FIELDS = frozenset({"metadata", "done", "reward"})
#: Of a task's seed: some generators, such as numpy's, take 32 bits at most.
_SEED_BITS = 31
_Result = TypeVar("_Result")


def create(cls: type, turns: int = 8, instruction: str = "") -> MultiTurnEnvironment:
    """Make a multi-turn environment of a class.

    Args:
        cls: a class with `reset(seed)`, `step(action)` and `state`.
        turns: most turns of the model, 2 to 16.
        instruction: words before the first observation.

    Raises:
        ConfigError: the class or an option cannot be used; the message says why.
    """
    try:
        action = get_type_hints(cls.step)["action"]  # type: ignore[attr-defined]
        fields = sorted(set(action.model_fields) - _OWN_FIELDS)
    except (AttributeError, KeyError, NameError, TypeError) as error:
        raise ConfigError(
            f"environment.name: {cls.__name__}.step has no action of a type with fields: write "
            "step(self, action: MyAction), as for OpenEnv's server"
        ) from error
    if not fields:
        raise ConfigError(f"environment.name: {action.__name__} has no field to fill")
    make_object(cls)
    return _ServerClass(cls, action, fields, check_turns(turns), instruction)


class _ServerClass:
    """Implements `MultiTurnEnvironment`. A turn of the model is the one field of an action if that
    is a text, else a JSON object of its fields."""

    def __init__(
        self, cls: type, action: Any, fields: Sequence[str], turns: int, instruction: str
    ) -> None:
        self._cls = cls
        self._action = action
        is_text = len(fields) == 1 and action.model_fields[fields[0]].annotation is str
        self._text_field = fields[0] if is_text else None
        self._instruction = instruction
        self._form = "" if is_text else _form(action, fields)
        self._tasks = Tasks(cls, None, 0.0)
        self.name = cls.__name__
        self.turns = turns
        self.families = self._tasks.families
        self.version = version_of(cls, SCHEME, self._form, turns, instruction)

    def derive(self, ref: TaskRef) -> Task:
        check_ref(self, ref)
        return Task(ref, (ref.seed % (1 << _SEED_BITS), self._tasks.episode(ref)))

    def question(self, task: Task) -> str:
        return self._play_episode(task, (), lambda opening, observation: opening)

    def render(self, task: Task) -> str:
        parts = (self._instruction, self.question(task), self._form)
        return "\n".join(part for part in parts if part)

    def observation(self, task: Task, completions: Sequence[str]) -> str | None:
        def words(opening: str, observation: Any) -> str | None:
            return (
                None if observation is None or observation.done else _observation_text(observation)
            )

        return self._play_episode(task, completions, words)

    def reward(self, task: Task, completions: Sequence[str]) -> float:
        def reward(opening: str, observation: Any) -> float:
            return 0.0 if observation is None else float(observation.reward or 0.0)

        return self._play_episode(task, completions, reward)

    def _play_episode(
        self, task: Task, completions: Sequence[str], result: Callable[[str, Any], _Result]
    ) -> _Result:
        """Play a new episode up to the last of `completions`. `result` is made of the first words
        and the last observation: None after a text that is no action, which ends the episode."""
        seed, episode = task.payload
        with seed_random(episode.seed):
            environment = self._cls()
            observation = environment.reset(seed=seed)
            opening = _observation_text(observation)
            for text in completions:
                action = self._read(text)
                if action is None:
                    return result(opening, None)
                observation = environment.step(action)
                if observation.done:
                    break
            return result(opening, observation)

    def _read(self, text: str) -> Any:
        """The action in a text; None if it has none."""
        try:
            if self._text_field is not None:
                return self._action.model_validate({self._text_field: text})
            return self._action.model_validate_json(text)
        except ValueError:
            return None


def _form(action: Any, fields: Sequence[str]) -> str:
    properties = action.model_json_schema().get("properties", {})
    schemas = {name: properties[name] for name in fields}
    return f"Answer with a JSON object of these fields: {json.dumps(schemas)}"


def _observation_text(observation: Any) -> str:
    """The words of an observation: its only field if that is a text, else all of them as JSON."""
    fields = observation.model_dump(mode="json", exclude=set(_OWN_FIELDS))
    values = list(fields.values())
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(fields, sort_keys=True)
