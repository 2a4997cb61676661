"""One judge: derives tasks and scores texts, confined, in a process that a text may end."""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Iterator
from typing import Any

from swarm_node.environments.base import Environment, Task
from swarm_node.environments.sandbox import Sandbox
from swarm_node.errors import UnknownTaskError
from swarm_node.rollout import TaskRef

#: Each ends the process that uses up its timer. They keep their default action, because no handler
#: written in Python runs while a regular expression or big-number arithmetic holds the interpreter.
#: Both count processor time, so that a busy machine makes nobody guilty.
DERIVING_TOO_LONG, SCORING_TOO_LONG = signal.SIGVTALRM, signal.SIGPROF
_DERIVING_TIMER, _SCORING_TIMER = signal.ITIMER_VIRTUAL, signal.ITIMER_PROF


def score_text(environment: Environment, task: Task, text: str) -> tuple[float, str, str]:
    """The reward of one text; "" or the fault ("out_of_range") that made it zero; and "" or the
    name of what the scorer raised, which makes the text a wrong answer."""
    try:
        reward = float(environment.score(task, text))
    except Exception as error:  # noqa: BLE001 - foreign code on hostile text may raise anything
        return 0.0, "", type(error).__name__
    if not (math.isfinite(reward) and 0.0 <= reward <= 1.0):
        return 0.0, "out_of_range", ""
    return reward, "", ""


def derive_prompt(environment: Environment, ref: TaskRef) -> tuple[Task, str]:
    """The task `ref` names and its prompt.

    Raises:
        UnknownTaskError: it has no such task, or fails to make it.
    """
    try:
        task = environment.derive(ref)
        return task, environment.render(task)
    except UnknownTaskError:
        raise
    except Exception as error:
        raise UnknownTaskError(
            f"{environment.name} fails to make the task {ref.family}/{ref.seed} "
            f"({type(error).__name__}: {error}); leave that family out"
        ) from error


class Judge:
    """Answers the host's requests; holds nothing that a restart would lose."""

    def __init__(self, environment: Environment, derive_seconds: float) -> None:
        """`derive_seconds` of processor time for making one task."""
        self._environment = environment
        self._derive_seconds = derive_seconds
        #: Set before the first request.
        self.sandbox = Sandbox(files=False, system_calls=False)

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            match request["op"]:
                case "sandbox":
                    return {"files": self.sandbox.files, "calls": self.sandbox.system_calls}
                case "render":
                    return {"prompts": [self._derive(ref)[1] for ref in request["refs"]]}
                case "judge":
                    return self._judge(request)
                case other:
                    raise ValueError(f"unknown operation {other!r}")
        except UnknownTaskError as error:
            return {"unknown": str(error)}

    def _judge(self, request: dict[str, Any]) -> dict[str, Any]:
        task, prompt = self._derive(request["ref"])
        with _limit(_SCORING_TIMER, request["seconds"]):
            verdicts = [score_text(self._environment, task, text) for text in request["texts"]]
        return {"prompt": prompt, "verdicts": verdicts}

    def _derive(self, ref: list[Any]) -> tuple[Task, str]:
        with _limit(_DERIVING_TIMER, self._derive_seconds):
            return derive_prompt(self._environment, TaskRef(*ref))


@contextlib.contextmanager
def _limit(timer: int, seconds: float) -> Iterator[None]:
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0.0)
