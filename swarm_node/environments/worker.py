"""The environment's process: derives tasks and scores texts for `host.ProcessEnvironmentHost`.

The environment is code its owner chose to run; the texts it scores are anybody's. One text may make
a scorer raise, run for ever, or take the process down, and none of these may touch the node.
"""

from __future__ import annotations

import contextlib
import math
import resource
import signal
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from swarm_node.child import serve
from swarm_node.environments.base import Environment, Task
from swarm_node.environments.registry import create_environment
from swarm_node.errors import ConfigError, UnknownTaskError
from swarm_node.rollout import TaskRef

MAX_MEMORY_BYTES = 4 << 30
_Result = TypeVar("_Result")


def score_text(environment: Environment, task: Task, text: str) -> tuple[float, str]:
    """The reward of one text, and "" or the fault ("raised", "out_of_range") that made it zero."""
    reward, error = _attempt(lambda: float(environment.score(task, text)))
    if error is not None or reward is None:
        return 0.0, "raised"
    if not (math.isfinite(reward) and 0.0 <= reward <= 1.0):
        return 0.0, "out_of_range"
    return reward, ""


def derive_prompt(environment: Environment, ref: TaskRef) -> tuple[Task, str]:
    """The task `ref` names and its prompt.

    Raises:
        UnknownTaskError: it has no such task, or fails to make it.
    """

    def derived() -> tuple[Task, str]:
        task = environment.derive(ref)
        return task, environment.render(task)

    result, error = _attempt(derived)
    if isinstance(error, UnknownTaskError):
        raise error
    if error is not None or result is None:
        raise UnknownTaskError(
            f"{environment.name} fails to make the task {ref.family}/{ref.seed} "
            f"({type(error).__name__}: {error}); leave that family out"
        )
    return result


def _attempt(call: Callable[[], _Result]) -> tuple[_Result | None, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001 - foreign code on hostile text may raise anything
        return None, error


class _Worker:
    """Answers the host's requests; holds nothing that a restart would lose."""

    def __init__(self) -> None:
        self._environment: Environment | None = None
        self._time_limit = 0.0

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            match request["op"]:
                case "start":
                    return self._start(request)
                case "render":
                    return self._render(request)
                case "judge":
                    return self._judge(request)
                case other:
                    raise ValueError(f"unknown operation {other!r}")
        except UnknownTaskError as error:
            return {"unknown": str(error)}
        except ConfigError as error:
            return {"config": str(error)}

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        self._environment = create_environment(request["name"], request["options"])
        self._time_limit = request["time_limit"]
        return {
            "name": self._environment.name,
            "version": self._environment.version,
            "families": list(self._environment.families),
        }

    def _render(self, request: dict[str, Any]) -> dict[str, Any]:
        prompts = []
        for ref in request["refs"]:
            with self._alarm():
                prompts.append(derive_prompt(self._ready(), TaskRef(*ref))[1])
        return {"prompts": prompts}

    def _judge(self, request: dict[str, Any]) -> dict[str, Any]:
        environment = self._ready()
        with self._alarm():
            task, prompt = derive_prompt(environment, TaskRef(*request["ref"]))
        verdicts = []
        for text in request["texts"]:
            with self._alarm():
                verdicts.append(score_text(environment, task, text))
        return {"prompt": prompt, "verdicts": verdicts}

    def _ready(self) -> Environment:
        if self._environment is None:
            raise ValueError("the environment was not started")
        return self._environment

    @contextlib.contextmanager
    def _alarm(self) -> Iterator[None]:
        # SIGALRM keeps its default action, which ends the process: no handler written in Python
        # runs while a regular expression or big-number arithmetic holds the interpreter.
        signal.setitimer(signal.ITIMER_REAL, self._time_limit)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)


def _limit_resources() -> None:
    for kind, limit in ((resource.RLIMIT_AS, MAX_MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        # A platform may refuse a limit, or already have a lower one.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))


if __name__ == "__main__":
    _limit_resources()
    serve(_Worker().handle)
