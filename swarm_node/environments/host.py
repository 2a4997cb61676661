"""Where the node gets prompts and rewards: an environment behind a process boundary.

The node never imports an environment. Each completion has its own time limit, so one that hangs or
kills the scorer costs itself, and the others of its group keep their rewards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from swarm_node.child import Child
from swarm_node.environments.base import Environment
from swarm_node.environments.worker import derive_prompt, score_text
from swarm_node.errors import ChildError, ConfigError, UnknownTaskError
from swarm_node.rollout import TaskRef

MAX_TEXTS = 64
MAX_TEXT_BYTES = 64 * 1024
#: A judgement may end the process this often one text at a time; what is left is not tried.
MAX_LOST_PROCESSES = 2
_START_SECONDS = 120.0
#: The process ends itself at the time limit; only one that cannot is ended from here, this much
#: later.
_SLACK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """What an environment says of itself."""

    name: str
    version: str
    families: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Prompt and rewards (one per text, each in [0, 1]) of a group.

    `faults` of the rewards are zero because scoring failed; `fault_reason` says how the first did:
    "raised", "out_of_range", "unsendable", "timeout", "crashed", "abandoned", or "" for none."""

    prompt: str
    rewards: tuple[float, ...]
    faults: int
    fault_reason: str


class EnvironmentHost(Protocol):
    """What the node needs from whoever runs the environment."""

    async def start(self) -> EnvironmentInfo:
        """Make the environment ready.

        Raises:
            ConfigError: there is no such environment, or it refuses its options.
            ChildError: its process does not start.
        """
        ...

    async def render(self, refs: Sequence[TaskRef]) -> list[str]:
        """The prompts of `refs`, in their order.

        Raises:
            UnknownTaskError: one of them cannot be derived here.
            ChildError: the process cannot be kept alive.
        """
        ...

    async def judge(self, ref: TaskRef, texts: Sequence[str]) -> Judgement:
        """Derive the task and score `texts`, at most MAX_TEXTS. Whatever a text does to its
        scorer ends as a zero and a fault.

        Raises:
            UnknownTaskError: the task cannot be derived here.
            ChildError: the process cannot be restarted.
            ValueError: too many texts.
        """
        ...

    async def close(self) -> None:
        """End the process."""
        ...


class ProcessEnvironmentHost:
    """An `EnvironmentHost` whose environment lives in a child process, restarted when it dies.

    A group is scored in one request. Where that ends the process, its texts are scored again one
    by one in new processes, which tells the guilty from the others, until MAX_LOST_PROCESSES are
    lost. So one judgement takes at most about 3 × (`time_limit` + a start) on top of scoring.
    """

    def __init__(self, name: str, options: Mapping[str, Any], *, time_limit: float = 5.0) -> None:
        """`name` and `options` as for `registry.create_environment`; `time_limit` in seconds for
        deriving a task, and for scoring each text."""
        if time_limit <= 0:
            raise ConfigError("environment.time_limit must be more than 0 seconds")
        self._name = name
        self._options = dict(options)
        self._time_limit = time_limit
        # Some generators iterate over sets of strings: a fixed hash seed makes all nodes agree.
        self._child = Child(
            "environment",
            "swarm_node.environments.worker",
            env={"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._lock = asyncio.Lock()
        #: How often the process was started again because it had died.
        self.restarts = -1

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._child.pid

    async def start(self) -> EnvironmentInfo:
        async with self._lock:
            return await self._start()

    async def render(self, refs: Sequence[TaskRef]) -> list[str]:
        request = {"op": "render", "refs": [_plain(ref) for ref in refs]}
        async with self._lock:
            await self._revive()
            try:
                return await self._prompts(request, len(refs))
            except ChildError:  # perhaps killed from outside: once more
                await self._revive()
                return await self._prompts(request, len(refs))

    async def judge(self, ref: TaskRef, texts: Sequence[str]) -> Judgement:
        _check_count(texts)
        sendable = [text for text in texts if _fits(text)]
        async with self._lock:
            await self._revive()
            try:
                prompt, verdicts = await self._judged(ref, sendable)
            except ChildError:
                prompt, verdicts = await self._judged_singly(ref, sendable)
        return _judgement(prompt, texts, verdicts)

    async def close(self) -> None:
        await self._child.stop()

    async def _start(self) -> EnvironmentInfo:
        request = {
            "op": "start",
            "name": self._name,
            "options": self._options,
            "time_limit": self._time_limit,
        }
        await self._child.start()
        self.restarts += 1
        try:
            reply = await self._call(request, _START_SECONDS)
        except (ConfigError, ChildError):
            await self._child.stop(grace=0.0)  # alive without an environment is no use to anybody
            raise
        return EnvironmentInfo(reply["name"], reply["version"], tuple(reply["families"]))

    async def _revive(self) -> None:
        if not self._child.alive:
            await self._start()

    async def _prompts(self, request: Mapping[str, Any], count: int) -> list[str]:
        reply = await self._call(request, self._patience(count))
        prompts: list[str] = reply["prompts"]
        return prompts

    async def _judged(
        self, ref: TaskRef, texts: Sequence[str]
    ) -> tuple[str, list[tuple[float, str]]]:
        request = {"op": "judge", "ref": _plain(ref), "texts": list(texts)}
        reply = await self._call(request, self._patience(1 + len(texts)))
        return reply["prompt"], [(reward, fault) for reward, fault in reply["verdicts"]]

    async def _judged_singly(
        self, ref: TaskRef, texts: Sequence[str]
    ) -> tuple[str, list[tuple[float, str]]]:
        await self._revive()
        try:
            (prompt,) = await self._prompts({"op": "render", "refs": [_plain(ref)]}, 1)
        except ChildError as error:
            raise UnknownTaskError(
                f"making the task {ref.family}/{ref.seed} ended the environment's process "
                f"({error}); leave that family out"
            ) from error
        verdicts: list[tuple[float, str]] = []
        lost = 0
        for text in texts:
            if lost == MAX_LOST_PROCESSES:
                verdicts.append((0.0, "abandoned"))
                continue
            await self._revive()
            began = asyncio.get_running_loop().time()
            try:
                verdicts.extend((await self._judged(ref, [text]))[1])
            except ChildError:
                lost += 1
                took = asyncio.get_running_loop().time() - began
                verdicts.append((0.0, "timeout" if took >= self._time_limit else "crashed"))
        return prompt, verdicts

    def _patience(self, steps: int) -> float:
        return self._time_limit * max(steps, 1) + _SLACK_SECONDS

    async def _call(self, request: Mapping[str, Any], patience: float) -> dict[str, Any]:
        reply = await self._child.call(request, patience=patience)
        if "unknown" in reply:
            raise UnknownTaskError(reply["unknown"])
        if "config" in reply:
            raise ConfigError(reply["config"])
        return reply


class InlineEnvironmentHost:
    """An `EnvironmentHost` in this process, for simulations of trusted nodes: the same rewards,
    but no time limit and nothing that survives a scorer which kills its process."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def start(self) -> EnvironmentInfo:
        environment = self._environment
        return EnvironmentInfo(environment.name, environment.version, environment.families)

    async def render(self, refs: Sequence[TaskRef]) -> list[str]:
        return [derive_prompt(self._environment, ref)[1] for ref in refs]

    async def judge(self, ref: TaskRef, texts: Sequence[str]) -> Judgement:
        _check_count(texts)
        task, prompt = derive_prompt(self._environment, ref)
        verdicts = [score_text(self._environment, task, text) for text in texts if _fits(text)]
        return _judgement(prompt, texts, verdicts)

    async def close(self) -> None:
        return None


def _plain(ref: TaskRef) -> list[str | int]:
    return [ref.environment, ref.version, ref.family, ref.seed]


def _check_count(texts: Sequence[str]) -> None:
    if len(texts) > MAX_TEXTS:
        raise ValueError(f"{len(texts)} texts in one judgement: send at most {MAX_TEXTS}")


def _fits(text: str) -> bool:
    """Short enough, and free of the lone surrogates that no frame can carry."""
    try:
        return len(text) <= MAX_TEXT_BYTES and len(text.encode()) <= MAX_TEXT_BYTES
    except UnicodeEncodeError:
        return False


def _judgement(
    prompt: str, texts: Sequence[str], verdicts: Sequence[tuple[float, str]]
) -> Judgement:
    """Put the verdicts on the texts that were sent back among those that were not."""
    sent = iter(verdicts)
    whole = [next(sent) if _fits(text) else (0.0, "unsendable") for text in texts]
    faults = [fault for _, fault in whole if fault]
    return Judgement(
        prompt=prompt,
        rewards=tuple(reward for reward, _ in whole),
        faults=len(faults),
        fault_reason=faults[0] if faults else "",
    )
