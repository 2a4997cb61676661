"""A running node as an object: `connect`. It asks the control API, as the command line does."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from swarm_node.config import default_home
from swarm_node.errors import ConfigError, SlowNodeError
from swarm_node.library.history import NodeHistory
from swarm_node.node.control.control import LEAVE_SECONDS, ControlClient
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.samples import SampleRow
from swarm_node.node.metrics.snapshot import EvalPoint, NetworkReport, PeerRow, Snapshot

_POLL_SECONDS = 0.5
_Result = TypeVar("_Result")


def connect(home: str | Path | None = None) -> RunningNode:
    """Return the node that runs in `home`: by default in SWARM_NODE_HOME, or else in the directory
    that the command line uses.

    Raises:
        NotRunningError: no node runs there.
        HomeError: the directory cannot be read.
    """
    node = RunningNode(chosen_home(home))
    node.status()
    return node


def chosen_home(home: str | Path | None) -> Path:
    """The home that a program names, or the command line's."""
    directory = home or os.environ.get("SWARM_NODE_HOME") or default_home()
    return Path(directory).expanduser().absolute()


def elsewhere(work: Callable[[], _Result]) -> _Result:
    """Do `work` in a thread of its own, and return its result. A notebook runs an event loop in the
    caller's thread, where no second one can run. An interrupt leaves the work behind: a thread that
    still waits for an answer holds up no end of the program."""
    future = Future[_Result]()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            future.set_exception(error)

    threading.Thread(target=run, name="swarm_node", daemon=True).start()
    return future.result()


class RunningNode:
    """A node that runs in `home`. Every call asks it anew, and raises:

    NotRunningError: no node runs there any more, or another program has its port.
    HomeError: the file with the node's port cannot be read.
    SlowNodeError: it did not answer in time.
    SwarmNodeError: it refused, or is of another version.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._client = ControlClient(Home(home).control_file)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self.home}>"

    def status(self) -> Snapshot:
        """Return the node's state, as `swarm-node status --json` prints it."""
        return self._ask(self._client.status())

    def history(self, since: float = 0.0) -> NodeHistory:
        """Return the rows of its history after the Unix second `since`, 4,096 at most."""
        return NodeHistory(self._ask(self._client.history(since)).rows)

    def samples(self) -> list[SampleRow]:
        """Return some answers of the node and its peers. Peers wrote some of them: control
        characters are still in them."""
        return self._ask(self._client.samples()).samples

    def peers(self) -> list[PeerRow]:
        """Return the peers that it knows. `status().former` has those that are members no more."""
        return self.status().peers

    def network(self) -> NetworkReport:
        """Return how members reach the node: `swarm-node doctor --network`. It asks members, which
        takes seconds."""
        return self._ask(self._client.network())

    def evaluate(self) -> EvalPoint:
        """Have the node measure its eval reward now, and that on training prompts; return both."""
        return self._ask(self._client.evaluate())

    def export(
        self,
        directory: str | Path,
        form: Literal["hf", "peft"] = "hf",
        *,
        base: str | None = None,
    ) -> int:
        """Write the newest checkpoint to a new or empty `directory`: for transformers ("hf"), or
        its LoRA adapter for peft. `base` is the base model's public name. Returns the policy
        version that was written.

        Raises:
            CheckpointError: there is none yet; a node stores one every `run.save_steps`
                steps, and when it stops.
            ModelError: the directory is not empty or cannot be written.
        """
        from swarm_node.library.exporting import export  # imports torch

        return export(Path(directory), form, home=self.home, base=base)

    def stop(self, timeout: float = LEAVE_SECONDS) -> None:
        """Stop the node, and return once it has stored its checkpoint and left.

        Raises:
            SlowNodeError: it has not left after `timeout` seconds.
        """
        self._ask(self._client.leave(timeout))

    def wait_for(
        self,
        *,
        steps: int | None = None,
        reward: float | None = None,
        timeout: float = 600.0,
        progress: Callable[[str], object] | None = None,
    ) -> Snapshot:
        """Wait until the node has made `steps` steps since its home was created, and until its
        newest eval reward (0 to 1) is at least `reward`. Returns the status
        then. `progress`, such as `print`, is called with each new line about it.

        Raises:
            SlowNodeError: that is not reached after `timeout` seconds.
            ConfigError: neither is given.
        """
        if steps is None and reward is None:
            raise ConfigError("wait_for takes steps=NUMBER, reward=NUMBER, or both")
        deadline, last = time.monotonic() + timeout, ""
        while True:
            with suppress(
                SlowNodeError
            ):  # a busy machine: this question was too much, not the node
                shot = self.status()
                line = _course(shot, steps, reward)
                if progress is not None and line != last:
                    progress(line)
                last = line
                if _has_reached(shot, steps, reward):
                    return shot
            if time.monotonic() >= deadline:
                raise SlowNodeError(
                    f"the node in {self.home} did not reach it in {timeout:g} s: "
                    f"{last or 'it has not answered'}; `swarm-node status` says what it does"
                )
            time.sleep(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))

    def _ask(self, question: Coroutine[Any, Any, _Result]) -> _Result:
        return elsewhere(lambda: asyncio.run(question))


def _has_reached(shot: Snapshot, steps: int | None, reward: float | None) -> bool:
    point = shot.evals[-1] if shot.evals else None
    has_steps = steps is None or shot.steps >= steps
    return has_steps and (reward is None or (point is not None and point.reward >= reward))


def _course(shot: Snapshot, steps: int | None, reward: float | None) -> str:
    point = shot.evals[-1] if shot.evals else None
    steps_text = f"{shot.steps} steps" if steps is None else f"{shot.steps} of {steps} steps"
    reward_text = "not measured yet" if point is None else f"{point.reward:.3f}"
    target_text = "" if reward is None else f", wanted {reward:g}"
    return f"{steps_text}, eval reward {reward_text}{target_text}"
