"""A member of a swarm for a trainer of a program's own: `member`.

The network, the checks and the scoring workers run in a thread of their own with an event loop, and
in child processes. Calls wait for that thread, so a program needs no event loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from swarm_node.config import load_settings
from swarm_node.errors import ConfigError, NotRunningError, SlowNodeError, TicketError
from swarm_node.library.temporary import TemporaryHome
from swarm_node.node.metrics.groups import DrawnGroup, MemberTask, PublishedGroup
from swarm_node.node.metrics.snapshot import PeerRow, Snapshot
from swarm_node.p2p.membership.ticket import read_ticket
from swarm_node.policy.models.model import resolve

if TYPE_CHECKING:
    import asyncio

    from swarm_node.node.loops.program_node import ProgramNode

#: Children import an environment, and a network daemon starts.
_START_SECONDS = 300.0
#: A member has no update to finish. Each of its parts bounds the time that its end takes.
_STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_Result = TypeVar("_Result")


def member(
    ticket: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    model: str | Path | None = "tiny",
    home: str | Path | None = None,
    timeout: float = _START_SECONDS,
) -> SwarmMember:
    """Join a swarm for a trainer of your own, and return once peers can be met. Use it in a `with`
    block, or call `close`.

    `ticket` is its text, or the path of its file; without one it goes on in the swarm of `home`.
    Without a `home` it is a temporary one, which is deleted at the end. `model` is the model that
    your trainer began with: its digest and tokenizer decide which peers count as the same model.
    `settings` are keys of `swarm-node config`; `sampling.group_size` and `sampling.max_new_tokens`
    are the sizes of your groups, which bound those of peers, and `experience.external` is the most
    that one draw takes (16).

    Raises:
        TicketError: the ticket cannot be used.
        HomeError: the home cannot be used, or belongs to no swarm and there is no ticket.
        ConfigError, ModelError: a setting is impossible, or there is no such model.
        SlowNodeError: it does not run after `timeout` seconds.
    """
    options = {} if settings is None else dict(settings)
    if reserved_keys := {"home", "ticket", "model"} & options.keys():
        raise ConfigError(
            f"{min(reserved_keys)} is an argument of member, and none of its settings"
        )
    if ticket is None and home is None:
        raise TicketError(
            "a member joins a swarm", "give a ticket, or a data directory that joined one"
        )
    text = read_ticket(ticket) if isinstance(ticket, Path) else ticket
    if model is not None:
        options["model"] = str(model)
    load_settings(options)  # refused before a directory is made
    return SwarmMember(options, text, home, timeout)


class SwarmMember:
    """A member of a swarm, in this process. Its calls may come from any thread, and raise, besides
    what they name:

    NotRunningError: it was closed, or ended; the message says why.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        ticket: str | None,
        home: str | Path | None,
        timeout: float,
    ) -> None:
        self._process = os.getpid()
        self._temp_home = None
        if home is None:
            self._temp_home = TemporaryHome()
            home = self._temp_home.path
        self.home = Path(home).expanduser().absolute()
        self._options = {**options, "home": self.home}
        self._ticket = ticket
        self._member: ProgramNode | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._start_event, self._left = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._live, name="swarm_node member", daemon=True)
        self._thread.start()
        try:
            if not self._start_event.wait(timeout):
                raise SlowNodeError(f"the member does not run after {timeout:g} s")
            if self._error is not None:
                raise self._error
        except BaseException:
            self._end(_STOP_SECONDS)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self.home}>"

    @property
    def model_directory(self) -> Path:
        """The model that your trainer begins with, for transformers."""
        return resolve(load_settings(self._options).model)

    def tasks(self, count: int = 1) -> list[MemberTask]:
        """Return `count` new tasks of `environment.families` for your policy to sample. They are
        this member's own: nobody else is given them, and no later start repeats one.

        Raises:
            ConfigError: the count is impossible, or the prompts do not fit the model.
            ChildError: the environment's process cannot be kept alive.
        """
        return self._ask(lambda member: member.tasks(count))

    def score(self, task: MemberTask, texts: Sequence[str]) -> tuple[float, ...]:
        """Return the reward of each text as a completion of `task`, 0 to 1, as all peers find it.
        The texts are scored in a confined process.

        Raises:
            CompletionError: there are no texts, or too many.
            UnknownTaskError: the environment has no such task.
        """
        return self._ask(lambda member: member.score(task, texts))

    def publish(
        self,
        task: MemberTask,
        completions: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        version: int,
        rewards: Sequence[float] | None = None,
    ) -> PublishedGroup:
        """Sign your completions of `task` and announce them to peers; return with the scoring
        worker's rewards.

        A completion is the token ids that your policy sampled, with the end token if it drew one.
        `logprobs` are natural logs of their probabilities as they were drawn, after temperature.
        `version` counts your updates. `rewards`, if you give them, are compared with the scoring
        worker's. Each task is published once.

        Raises:
            CompletionError: a peer would refuse the group, or a reward is not the scoring worker's.
                Nothing was published.
            StorageError: the group could not be stored.
        """
        return self._ask(
            lambda member: member.publish(task, completions, logprobs, version, rewards)
        )

    def draw(
        self, count: int, *, version: int | None = None, wait: float = 0.0
    ) -> list[DrawnGroup]:
        """Return up to `count` groups of peers that passed all checks of a node, and were scored
        here. None is returned twice. It takes what is there; with `wait`, it waits up to that
        number of seconds until there are `count`. An author has as many places as you published
        groups since the last draw, or an equal part of `count` if that is more.

        `version` counts your updates, by default the newest that you published: groups that lie
        here for more than 32 of them are dropped.

        Raises:
            ConfigError: `count` is not 1 to `experience.external`.
        """
        return self._ask(lambda member: member.draw(count, version, wait), breaks=True)

    def status(self) -> Snapshot:
        """Return the state of the member, in the form of a node's. `causes` and `findings` say why
        it may be alone. `steps` counts draws."""

        async def take_snapshot(member: ProgramNode) -> Snapshot:
            return member.snapshot()

        return self._ask(take_snapshot)

    def peers(self) -> list[PeerRow]:
        """Return the peers that it knows: those of `status()`."""
        return self.status().peers

    def close(self) -> None:
        """Leave the swarm, and end. A second call does nothing.

        Raises:
            SlowNodeError: it does not end; its thread goes on.
        """
        if not self._end(_STOP_SECONDS):
            raise SlowNodeError(f"the member has not ended after {_STOP_SECONDS:g} s")

    def _live(self) -> None:
        """Run the member; the body of its thread."""
        try:
            import structlog

            # Imports torch and the network stack.
            from swarm_node.node.start.join import join_as_member
            from swarm_node.program.logs import set_up_logging

            if not structlog.is_configured():  # a program's own log stays as it is
                set_up_logging(False, warnings_only=True, forwards=False)
            join_as_member(
                load_settings(self._options), self._ticket, self._on_open, self._start_event.set
            )
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            self._error = error
        finally:
            self._start_event.set()

    def _on_open(self, member: ProgramNode, loop: asyncio.AbstractEventLoop) -> None:
        self._member, self._loop = member, loop
        if self._left.is_set():  # the caller waited no longer
            member.stop()

    def _ask(
        self,
        question: Callable[[ProgramNode], Coroutine[Any, Any, _Result]],
        *,
        breaks: bool = False,
    ) -> _Result:
        """Ask in the member's loop, and wait for the answer. Ctrl-C ends the wait, and the work
        too if it `breaks` anywhere without harm."""
        import asyncio

        if self._member is None or self._loop is None or not self._thread.is_alive():
            raise self._end_error()
        coroutine = question(self._member)
        try:
            answer = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # the loop has been closed meanwhile
            coroutine.close()
            raise self._end_error() from None
        try:
            while True:
                try:
                    return answer.result(_LOOK_SECONDS)
                except CancelledError:
                    raise self._end_error() from None
                except FutureTimeoutError:
                    if answer.done():  # the answer's own error
                        raise
                    if not self._thread.is_alive():
                        raise self._end_error() from None
        except KeyboardInterrupt:
            if breaks:
                answer.cancel()
            raise

    def _end_error(self) -> NotRunningError:
        if self._process != os.getpid():
            return NotRunningError(
                f"the member in {self.home} runs in the process that made it, and this is a fork "
                "of it: call it there"
            )
        self._thread.join(_LOOK_SECONDS)
        reason = "it was closed" if self._error is None else str(self._error)
        return NotRunningError(f"the member in {self.home} does not run: {reason}")

    def _end(self, seconds: float) -> bool:
        """Stop and clean up; False if the thread has not ended after `seconds`."""
        if self._process != os.getpid():  # the member is not this fork's to stop
            return True
        self._left.set()
        if self._member is not None and self._loop is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                self._loop.call_soon_threadsafe(self._member.stop)
        self._thread.join(seconds)
        if self._thread.is_alive():
            return False
        if self._temp_home is not None:
            self._temp_home.cleanup()
        return True
