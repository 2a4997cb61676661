"""A class that was written for TRL's trainers (`environment_factory`), as a multi-turn environment.

`reset` begins an episode, public methods are tools that a model calls, and `get_reward` ends it
(TRL 1.16, "Environments" of its page on GRPO). Nothing of TRL is imported. Each re-run makes a new
object, and calls all that the model called so far. So an observation depends on the task and on the
model's texts, if the class does."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec

from swarm_node.environments.adapters.common import (
    Episode,
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
_RESERVED = ("reset", "get_reward")
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FORM = '{"name": …, "arguments": {…}}'
#: The words and tags of Qwen2.5's and Qwen3's chat templates, which such models were trained on.
_OFFER = """You may call functions. Their signatures, within <tools></tools>:
<tools>
{tools}
</tools>
For each call, write a JSON object with its name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>

"""
_Result = TypeVar("_Result")


class ToolCall(msgspec.Struct, frozen=True):
    """A call as a model writes it."""

    name: str
    arguments: dict[str, Any] = {}


def create(
    cls: type, turns: int = 8, path: str | Sequence[str] | None = None, held_out: float = 0.1
) -> MultiTurnEnvironment:
    """Make a multi-turn environment of a class.

    Args:
        cls: the class. It draws its tasks with `random`, or gets rows.
        turns: most turns of the model, 2 to 16.
        path: JSON Lines files; the fields of a row are the keyword arguments of `reset`.
        held_out: share of the rows kept for evaluation, by a hash of their prompt.

    Raises:
        ConfigError: the class or an option cannot be used; the message says why.
    """
    if not callable(getattr(cls, "get_reward", None)):
        raise ConfigError(
            f"environment.name: {cls.__name__} has no get_reward(): a reward function beside the "
            "class is not read, so move it there"
        )
    tools = {name: _Tool(method) for name, method in _methods(make_object(cls)).items()}
    for name in _RESERVED:
        _refuse_async(getattr(cls, name))
    return _ToolClass(cls, tools, check_turns(turns), Tasks(cls, path, held_out), held_out)


def _methods(environment: object) -> dict[str, Callable[..., Any]]:
    """The tools of an object: its public methods but for the reserved ones, as TRL finds them."""
    members = inspect.getmembers(environment, predicate=inspect.ismethod)
    return {
        name: member
        for name, member in members
        if not name.startswith("_") and name not in _RESERVED
    }


def _refuse_async(method: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(method):
        raise ConfigError(
            f"environment.name: {method.__qualname__} is async: only plain methods can be re-run"
        )


class _Tool:
    """A method that a model may call: its arguments as a type, and its description."""

    def __init__(self, method: Callable[..., Any]) -> None:
        """
        Raises:
            ConfigError: it is async, or the types of its arguments are not known.
        """
        _refuse_async(method)
        self.name = method.__name__
        text = inspect.getdoc(method) or ""
        fields: list[Any] = []
        try:
            hints = get_type_hints(method)
            for parameter in inspect.signature(method).parameters.values():
                fields.append(_field(parameter, hints, text))
            self.arguments = msgspec.defstruct(
                self.name, fields, kw_only=True, forbid_unknown_fields=True
            )
            schema = msgspec.json.schema(self.arguments)
        except (TypeError, NameError, KeyError, ValueError) as error:
            raise ConfigError(
                f"environment.name: the arguments of {method.__qualname__} have no types that "
                f"JSON has ({error}): write them such as (word: str, count: int = 1)"
            ) from error
        parameters = schema["$defs"].pop(self.name)
        parameters.pop("title", None)
        if schema["$defs"]:
            parameters["$defs"] = schema["$defs"]
        described = {"name": self.name, "description": text.split("\n\n")[0].replace("\n", " ")}
        self.offer = json.dumps(
            {"type": "function", "function": {**described, "parameters": parameters}}
        )

    def call(self, environment: object, arguments: Mapping[str, Any]) -> object:
        """Call the method on an object; an error is told to the model, as TRL does."""
        try:
            parameters = msgspec.convert(arguments, self.arguments)
        except msgspec.ValidationError:
            return {"error": f"the arguments of {self.name} are others: see its signature"}
        try:
            return getattr(environment, self.name)(**msgspec.structs.asdict(parameters))
        except Exception as error:  # noqa: BLE001 - foreign code; the model is told
            return {"error": str(error)}


def _field(parameter: inspect.Parameter, hints: Mapping[str, Any], text: str) -> tuple[Any, ...]:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise TypeError(f"{parameter} has no name of its own")
    kind = hints[parameter.name]
    match = re.search(rf"^ *{re.escape(parameter.name)}(?: \([^)]*\))?: *(.+)$", text, re.MULTILINE)
    if match:
        kind = Annotated[kind, msgspec.Meta(description=match[1].strip())]
    if parameter.default is parameter.empty:
        return parameter.name, kind
    return parameter.name, kind, parameter.default


class _ToolClass:
    """Implements `MultiTurnEnvironment`."""

    def __init__(
        self, cls: type, tools: Mapping[str, _Tool], turns: int, tasks: Tasks, held_out: float
    ) -> None:
        self._cls = cls
        self._tools = tools
        self._tasks = tasks
        self.name = cls.__name__
        self.turns = turns
        self.families = tasks.families
        self.held_out_bounds, self.notes = tasks.bounds, tasks.notes
        offers = "\n".join(tool.offer for tool in tools.values())
        self._offer = _OFFER.format(tools=offers) if tools else ""
        self.version = version_of(cls, SCHEME, offers, turns, tasks.digests, held_out)

    def derive(self, ref: TaskRef) -> Task:
        check_ref(self, ref)
        return Task(ref, self._tasks.episode(ref))

    def question(self, task: Task) -> str:
        return self._play_episode(task, (), lambda made, opening, reply: opening)

    def render(self, task: Task) -> str:
        return self._offer + self.question(task)

    def observation(self, task: Task, completions: Sequence[str]) -> str | None:
        return self._play_episode(task, completions, lambda made, opening, reply: reply)

    def reward(self, task: Task, completions: Sequence[str]) -> float:
        return self._play_episode(
            task, completions, lambda made, opening, reply: float(made.get_reward())
        )

    def _play_episode(
        self,
        task: Task,
        completions: Sequence[str],
        result: Callable[[Any, str, str | None], _Result],
    ) -> _Result:
        """Play a new episode up to the last of `completions`, calls of the last turn included.
        `result` is made of the object, the first words and the last observation."""
        episode: Episode = task.payload
        with seed_random(episode.seed):
            environment = self._cls()
            row = episode.row
            observed = environment.reset(**(row.fields if row else {}))
            opening = (row.prompt if row else "") + ("" if observed is None else str(observed))
            if not opening:
                raise ValueError("reset() returns no text, and no row has a prompt")
            reply: str | None = None
            for text in completions:
                reply = self._run_calls(environment, text)
            return result(environment, opening, reply)

    def _run_calls(self, environment: object, text: str) -> str | None:
        """Make the calls in a text, and return their results; None if it has no call."""
        results = [self._call_tool(environment, call) for call in _CALL.findall(text)]
        return (
            "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results) or None
        )

    def _call_tool(self, environment: object, text: str) -> object:
        try:
            call = msgspec.json.decode(text, type=ToolCall)
        except (ValueError, RecursionError):
            return {"error": f"a call must be a JSON object such as {_FORM}"}
        tool = self._tools.get(call.name)
        if tool is None:
            return {"error": f"Tool {call.name} not found."}
        return tool.call(environment, call.arguments)
