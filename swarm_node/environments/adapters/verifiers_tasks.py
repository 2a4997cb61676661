"""Tasksets of the `verifiers` package (0.4, `verifiers.v1`) as an environment.

It uses the tasks of a taskset and their rewards: one question, one answer, scored without a
runtime. A taskset that needs more (tools, containers, a judge model, several agents) is refused,
and the message names the need. Its rewards are functions of its own, which nothing here can read.
So its owner vouches that they run nothing of an answer."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import inspect
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from swarm_node.environments.base import Environment, Task, check_ref, split_held_out
from swarm_node.environments.extras import refusal
from swarm_node.errors import ConfigError
from swarm_node.rollout import TaskRef

#: Counts changes of how this module turns a seed into a task or a text into a score.
#: 2: the canonical text of a question decides its part.
SCHEME = 2


def create(
    taskset: str,
    options: Mapping[str, Any] | None = None,
    limit: int = 10_000,
    held_out: float = 0.1,
    runs_no_code: bool = False,
) -> Environment:
    """The factory behind the entry point `verifiers`.

    Args:
        taskset: id of an installed taskset, which is the name of its module.
        options: the taskset's own settings.
        limit: how many of its tasks are used, counted from the first.
        held_out: share of the tasks kept for evaluation, by a hash of their canonical text.
        runs_no_code: the owner's word that the taskset's rewards run nothing of an answer.

    Raises:
        ConfigError: nobody vouches for the taskset, it or verifiers is not installed, an option
            makes no sense, or its tasks need more than one question and one answer.
    """
    if not 0 < held_out < 1 or limit < 2:
        raise ConfigError("environment.options: held_out is a share, limit is 2 or more")
    if runs_no_code is not True:
        raise ConfigError(
            f"environment.options.runs_no_code: the rewards of {taskset} see what every member "
            "answers. Read them. If they treat an answer as text, set this to true. If they run "
            "it, it can set its own reward: use the environment programs"
        )
    try:
        import verifiers.v1 as vf
    except ImportError as error:
        raise ConfigError(refusal("verifiers")) from error
    try:
        config = vf.SingleAgentEnvConfig(taskset={**(options or {}), "id": taskset})
        environment = vf.load_environment(config)
        tasks = list(islice(environment.taskset, limit))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"environment.options.taskset: {taskset!r}: {error}") from error
    if not isinstance(environment, vf.SingleAgentEnv):
        raise ConfigError(f"environment.options.taskset: {taskset} needs several agents")
    if tasks and (needs := _needs(tasks[0], environment.taskset)):
        raise ConfigError(f"environment.options.taskset: the tasks of {taskset} need {needs}")
    return _Verifiers(taskset, tasks, held_out)


class _Verifiers:
    """Implements `Environment`. A seed names the task at the seed modulo the number of tasks."""

    name = "verifiers"

    def __init__(self, taskset: str, tasks: Sequence[Any], held_out: float) -> None:
        parts = split_held_out(tasks, [_prompt(task) for task in tasks], held_out)
        self._training, self._held_out, bound = parts
        if not self._training or not self._held_out:
            raise ConfigError(
                f"environment.options.taskset: {taskset} has fewer than two different tasks"
            )
        self.families: tuple[str, ...] = (taskset.rsplit("/", 1)[-1],)
        self.held_out_bounds = dict.fromkeys(self.families, bound)
        size = len(self._training), len(self._held_out)
        self.sizes = dict.fromkeys(self.families, size)
        self.version = _version(taskset, tasks, held_out)

    def derive(self, ref: TaskRef) -> Task:
        check_ref(self, ref)
        tasks = self._held_out if ref.held_out else self._training
        return Task(ref, tasks[ref.seed % len(tasks)])

    def render(self, task: Task) -> str:
        return _prompt(task.payload)

    def score(self, task: Task, text: str) -> float:
        """The weighted sum of the task's rewards. Must not be called in a running event loop."""
        return asyncio.run(_reward(task.payload, text))


def _prompt(task: Any) -> str:
    data = task.data
    return "\n\n".join(part for part in (data.system_prompt, data.prompt_text) if part)


async def _reward(task: Any, text: str) -> float:
    import verifiers.v1 as vf

    trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=[
            vf.MessageNode(message=vf.UserMessage(content=task.data.prompt_text)),
            vf.MessageNode(parent=0, message=vf.AssistantMessage(content=text), sampled=True),
        ],
        is_completed=True,
    )
    await task.score(trace, None)
    return float(trace.reward)


def _needs(task: Any, taskset: Any) -> str:
    """Needs of the task that this environment lacks; "" for none."""
    import verifiers.v1 as vf

    kind = type(task)
    scored_in_runtime = [
        function.__name__ for function in task.hooks("reward") if _requires(function, "runtime")
    ]
    reasons = {
        "a container": task.NEEDS_CONTAINER or bool(task.data.image),
        "tools": bool(kind.toolsets(task.config) or type(taskset).toolsets(taskset.config)),
        "a judge model": bool(task.config.judges),
        "a runtime to set up": kind.setup is not vf.Task.setup,
        "a runtime to finish in": kind.finalize is not vf.Task.finalize,
        f"a runtime for {', '.join(scored_in_runtime)}": bool(scored_in_runtime),
        "a user who speaks first": not task.data.prompt_text,
        "a reward": not task.hooks("reward"),
    }
    return ", ".join(name for name, is_needed in reasons.items() if is_needed)


def _requires(function: Any, name: str) -> bool:
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _version(taskset: str, tasks: Sequence[Any], held_out: float) -> str:
    """A version that covers every task and the module that scores it."""
    module = inspect.getmodule(type(tasks[0]))
    source = inspect.getsource(module) if module is not None else ""
    inputs = [taskset, held_out, source, [task.hash for task in tasks], str(tasks[0].config)]
    digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:24]
    return f"{importlib.metadata.version('verifiers')}-{SCHEME}-{digest}"
