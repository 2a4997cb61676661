"""The host's end of the environment's process, and of the scoring workers that it forks."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from swarm_node.environments.splits.survey import Survey
from swarm_node.environments.workers.fault_attribution import Reason, WorkerEnd, reason_of
from swarm_node.environments.workers.messages import (
    End,
    EnvironmentStarted,
    Fork,
    Forked,
    Sandbox,
    StartEnvironment,
    WorkerEnded,
)
from swarm_node.environments.workers.messages import Reply as WorkerReply
from swarm_node.environments.workers.scoring_worker import (
    MAX_REPLY_BYTES,
    AnswersScored,
    Check,
    Checked,
    Derive,
    Derived,
    Draw,
    GroupTexts,
    PlainRef,
    Reply,
    Request,
    RerunLine,
    RerunLines,
    RerunRollouts,
    Score,
    ScoreAnswers,
    Scored,
    ScoredGroups,
    ScoreGroups,
    Surveyed,
    TextVerdict,
    Transcript,
    Unknown,
)
from swarm_node.environments.workers.sleep_detection import SleepLimit
from swarm_node.errors import ChildError, ConfigError, UnknownTaskError, words_of
from swarm_node.process import Child, ReportedError, ended_by, exchange

#: `programs` compiles an interpreter at its first start: a minute of processor time.
START_SECONDS = 600.0
#: Forking takes milliseconds, but a busy machine may not run the process for long.
_FORK_SECONDS = 30.0
#: The host ends a scoring worker that does not answer within this many times its processor time, or
#: that has slept for as long as that time itself.
_WALL = 6.0
_SLACK_SECONDS = 2.0
#: A scoring worker is replaced after this many groups, and with it anything that a text left in it.
GROUPS_PER_WORKER = 256
#: The environment variables that an environment inherits. All others, such as tokens and keys, do
#: not reach it. Its owner gives it other values as options.
_VARIABLES = frozenset(
    {
        *("HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "USER"),
        *("VIRTUAL_ENV", "XDG_CACHE_HOME", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
        "HF_DATASETS_OFFLINE",
    }
)
_VARIABLE_PREFIXES = ("LC_", "PYTHON")
#: Some generators iterate over sets of strings, so a fixed hash seed makes all nodes agree. Threads
#: of a numerics library would not survive the fork. A text that an environment prints ends no
#: process where the locale lacks its characters.
_FIXED = {
    "PYTHONHASHSEED": "0",
    "PYTHONIOENCODING": ":backslashreplace",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_Reply = TypeVar(
    "_Reply", Derived, Scored, ScoredGroups, RerunLines, Checked, Surveyed, AnswersScored
)
#: Replies in whose place a scoring worker may say that it cannot make a task.
_OF_TASKS = (Derived, ScoredGroups, Surveyed, AnswersScored)


def variables() -> dict[str, str]:
    """The variables that the environment's process gets."""
    return {name: text for name, text in os.environ.items() if _inherits(name)} | _FIXED


def _inherits(name: str) -> bool:
    return name in _VARIABLES or name.startswith(_VARIABLE_PREFIXES)


class WorkerLostError(ChildError):
    """A scoring worker ended before it answered. In its life it used `processor_seconds`."""

    def __init__(self, reason: Reason, description: str, processor_seconds: float = 0.0) -> None:
        super().__init__(f"a scoring worker ended before it answered ({description})")
        self.reason, self.processor_seconds = reason, processor_seconds


class EnvironmentProcess:
    """The process that holds the environment; restarted after it has died."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._request = StartEnvironment(name, dict(options))
        self._child = Child(
            "environment",
            "swarm_node.environments.workers.worker",
            WorkerReply,
            env=_FIXED,
            inherit=_inherits,
        )
        self._sockets: socket.socket | None = None
        self._forking = asyncio.Lock()
        #: Number of starts of the process.
        self.generation = 0
        self.shares_memory = False
        #: The most turns of a multi-turn rollout.
        self.turns = 1

    @property
    def pid(self) -> int | None:
        return self._child.pid

    async def start(self) -> EnvironmentStarted:
        """Start it and make the environment.

        Raises:
            ConfigError: there is no such environment, or it refuses its options.
            ChildError: the process does not start.
        """
        await self.stop(grace=0.0)
        try:
            parent_end, child_end = socket.socketpair()
            self._sockets = parent_end
            with child_end:
                await self._child.start(str(child_end.fileno()), descriptors=(child_end.fileno(),))
        except OSError as error:  # no descriptor or no process is left for it
            raise ChildError(
                f"the environment process does not start: {words_of(error)}"
            ) from error
        self.generation += 1
        try:
            reply = await self._child.call(
                self._request, EnvironmentStarted, patience=START_SECONDS
            )
        except ChildError as error:
            await self.stop(grace=0.0)  # the process has no environment
            if isinstance(error, ReportedError) and error.kind == ConfigError.__name__:
                raise ConfigError(error.reason) from error
            raise
        self.shares_memory, self.turns = reply.shares_memory, reply.turns
        return reply

    async def fork(self, niceness: int) -> tuple[int, socket.socket]:
        """A new scoring worker: its process id and the socket to it. If the environment's process
        has died, it is started again first.

        Raises:
            ChildError: the process cannot be kept alive.
        """
        async with self._forking:
            try:
                return await self._fork(niceness)
            except ChildError:  # it may have been killed meanwhile: try once more
                return await self._fork(niceness)

    async def end(self, pid: int, generation: int) -> WorkerEnd:
        """End a scoring worker that the environment's process forked in its start number
        `generation`."""
        if generation != self.generation:
            return WorkerEnd(None)
        try:
            reply = await self._child.call(End(pid), WorkerEnded, patience=_FORK_SECONDS)
        except ChildError:
            return WorkerEnd(None)
        return WorkerEnd(reply.status, reply.processor_seconds, reply.grown_bytes)

    async def _fork(self, niceness: int) -> tuple[int, socket.socket]:
        if not self._child.alive:
            await self._restart()
        assert self._sockets is not None
        try:
            parent_end, child_end = socket.socketpair()
        except OSError as error:
            raise ChildError(f"no socket for a scoring worker: {words_of(error)}") from error
        request = Fork(niceness)
        try:
            with child_end:
                socket.send_fds(self._sockets, [b"."], [child_end.fileno()])
                reply = await self._child.call(request, Forked, patience=_FORK_SECONDS)
        except BaseException as error:
            parent_end.close()
            await self.stop(grace=0.0)  # a socket may be in transit without a request
            if isinstance(error, OSError):
                raise ChildError(f"the environment process accepts no socket: {error}") from error
            raise
        return reply.pid, parent_end

    async def _restart(self) -> None:
        try:
            await self.start()
        except ConfigError as error:
            if self.generation == 1:
                raise
            # It took these options before, so the machine is at fault, and may recover.
            raise ChildError(f"the environment does not start again: {error}") from error

    async def stop(self, grace: float = 3.0) -> None:
        """End the process. The kernel ends its scoring workers with it."""
        sockets, self._sockets = self._sockets, None
        if sockets is not None:
            sockets.close()
        await self._child.stop(grace)


class ScoringWorker:
    """One scoring worker at a time, forked on demand. It is replaced when it has died or scored
    GROUPS_PER_WORKER groups.

    Only one coroutine may use it at a time, because `score` refers to the task derived last."""

    def __init__(self, environment: EnvironmentProcess, niceness: int) -> None:
        self._environment = environment
        self._niceness = niceness
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._generation = 0
        self._groups = 0
        self.pid: int | None = None
        #: Number of lost scoring workers: each crashed, ran out of time or sent a bad reply.
        self.losses = 0
        self.sandbox: Sandbox | None = None

    @property
    def fresh(self) -> bool:
        """True if no text has been near the scoring worker that answers next."""
        return self._streams is None or self._groups == 0

    @property
    def is_cramped(self) -> bool:
        """True if the scoring worker that answered last has lower limits than a scoring worker's
        own."""
        return self.sandbox is not None and self.sandbox.is_cramped

    async def derive(self, refs: Sequence[PlainRef], seconds: float) -> tuple[str, ...]:
        """The prompts of `refs`, each made within `seconds` of processor time. `score` then refers
        to the last task.

        Raises:
            WorkerLostError: the scoring worker ended instead.
            UnknownTaskError: one of the tasks cannot be made.
            ConfigError, ChildError: no scoring worker can be started.
        """
        request = Derive(list(refs), seconds)
        patience = seconds * max(len(refs), 1)
        reply = await self._call(
            request, Derived, patience, lambda reply: len(reply.prompts) == len(refs)
        )
        is_shared = self._environment.shares_memory
        self.sandbox = Sandbox(reply.files and not is_shared, reply.system_calls, reply.cramped)
        return tuple(reply.prompts)

    async def score(self, texts: Sequence[str], seconds: float) -> list[TextVerdict]:
        """Verdicts on `texts` for the task derived last, within `seconds` of processor time.

        Raises:
            WorkerLostError: the scoring worker ended instead.
            ConfigError, ChildError: no scoring worker can be started.
        """
        request = Score(list(texts), seconds)
        reply = await self._call(
            request, Scored, seconds, lambda reply: len(reply.verdicts) == len(texts)
        )
        await self._scored_groups(1)
        return reply.verdicts

    async def score_groups(
        self, groups: Sequence[GroupTexts], derive_seconds: float
    ) -> list[tuple[str, list[TextVerdict]]]:
        """Prompts and verdicts of several groups. It may use the processor time of all of them, and
        sleep as long as one of them may.

        Raises:
            WorkerLostError: the scoring worker ended instead.
            UnknownTaskError: one of the tasks cannot be made.
            ConfigError, ChildError: no scoring worker can be started.
        """
        limits = [derive_seconds + group.seconds for group in groups]
        reply = await self._call(
            ScoreGroups(list(groups), derive_seconds),
            ScoredGroups,
            sum(limits),
            lambda reply: (
                [len(group.texts) for group in groups]
                == [len(verdicts) for _, verdicts in reply.groups]
            ),
            sleep=max(limits, default=0.0),
        )
        await self._scored_groups(len(groups))
        return reply.groups

    async def rerun(self, transcripts: Sequence[Transcript], seconds: float) -> list[RerunLine]:
        """`transcripts` re-run for the task derived last, within `seconds` of processor time.

        Raises:
            WorkerLostError: the scoring worker ended instead.
            ConfigError, ChildError: no scoring worker can be started.
        """
        request, max_turns = RerunRollouts(list(transcripts), seconds), self._environment.turns
        reply = await self._call(
            request,
            RerunLines,
            seconds,
            lambda reply: _all_rerun(reply.lines, transcripts, max_turns),
        )
        await self._scored_groups(1)
        return reply.lines

    async def _scored_groups(self, count: int) -> None:
        self._groups += count
        if self._groups >= GROUPS_PER_WORKER:
            await self.close()

    async def check(self, family: str, seconds: float) -> str:
        """Check that training and held-out questions of a family can be kept apart within `seconds`
        of processor time. Returns the reason why not, "" if they can.

        Raises:
            WorkerLostError: the scoring worker ended instead.
            ConfigError, ChildError: no scoring worker can be started.
        """
        request = Check(family, seconds)
        return (await self._call(request, Checked, seconds, lambda _: True)).reason

    async def score_answers(
        self, refs: Sequence[PlainRef], derive_seconds: float, seconds: float, name: bool = False
    ) -> AnswersScored:
        """The right answers of `refs` scored, each made and scored within these seconds of
        processor time. With `name` none is scored, and each is among the failed ones.

        Raises:
            WorkerLostError: the scoring worker ended instead.
            UnknownTaskError: one of the tasks cannot be made.
            ConfigError, ChildError: no scoring worker can be started.
        """
        answer_seconds = derive_seconds + seconds
        reply = await self._call(
            ScoreAnswers(list(refs), derive_seconds, seconds, name),
            AnswersScored,
            answer_seconds * len(refs),
            lambda reply: (
                len(reply.failed) <= reply.known <= len(refs)
                and all(failure.index < len(refs) for failure in reply.failed)
            ),
            sleep=answer_seconds,
            min_seconds=min(derive_seconds, seconds),
        )
        await self._scored_groups(len(refs))
        return reply

    async def survey(self, family: str, draws: int, seconds: float) -> Survey:
        """Survey `draws` tasks of a family, or as many as `seconds` allow.

        Raises:
            WorkerLostError: the scoring worker ended instead.
            UnknownTaskError: one of the tasks cannot be made.
            ConfigError, ChildError: no scoring worker can be started.
        """
        request = Draw(family, draws, seconds)
        return (await self._call(request, Surveyed, 2 * seconds, lambda _: True)).survey

    async def close(self) -> None:
        await self._end()

    async def _call(
        self,
        request: Request,
        reply_type: type[_Reply],
        seconds: float,
        is_valid: Callable[[Any], bool],
        sleep: float | None = None,
        min_seconds: float | None = None,
    ) -> _Reply:
        """Send one request, in which the scoring worker may compute for `seconds` and sleep for as
        long, or for `sleep`. Its first timer ends it after `min_seconds`, `seconds` by default. If
        the scoring worker sends another reply or none, or if the call is cancelled, the state of
        the scoring worker is unknown, so it is ended."""
        if self._streams is None:
            await self._fork()
        assert self._streams is not None
        assert self.pid is not None
        body, patience = msgspec.msgpack.encode(request), _WALL * seconds + _SLACK_SECONDS
        # A text that knew the number could reply in place of its scoring worker.
        number, is_answered = secrets.randbits(63), False
        deadline = asyncio.timeout(patience)
        sleep_seconds = seconds if sleep is None else sleep
        sleeping = SleepLimit(self.pid, sleep_seconds + _SLACK_SECONDS, deadline)
        try:
            async with deadline:
                with sleeping:
                    raw = await exchange(*self._streams, number, body, MAX_REPLY_BYTES)
            reply = _replies.decode(raw)
            is_answered = (
                is_valid(reply)
                if isinstance(reply, reply_type)
                else isinstance(reply, Unknown) and reply_type in _OF_TASKS
            )
            if not is_answered:
                # It counts against the author, or a text could use up a scoring worker's time for
                # nothing.
                used_seconds = (await self._end()).processor_seconds
                raise self._note_loss("forged", "its reply does not fit the request", used_seconds)
        except TimeoutError:
            used_seconds = (await self._end()).processor_seconds
            if sleeping.is_reached:
                raise self._note_loss(
                    "asleep", "it slept and did not answer", used_seconds
                ) from None
            raise self._note_loss("stuck", f"no answer in {patience:g} s", used_seconds) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise self._note_death(
                await self._end(), seconds if min_seconds is None else min_seconds
            ) from None
        except (ValueError, UnicodeDecodeError, RecursionError, MemoryError):
            used_seconds = (await self._end()).processor_seconds
            raise self._note_loss("forged", "its reply cannot be decoded", used_seconds) from None
        finally:
            if not is_answered:
                await self._end()
        if isinstance(reply, Unknown):
            raise UnknownTaskError(reply.reason)
        assert isinstance(reply, reply_type)
        return reply

    async def _fork(self) -> None:
        self.pid, channel = await self._environment.fork(self._niceness)
        self._generation, self._groups = self._environment.generation, 0
        self._streams = await asyncio.open_connection(sock=channel)

    async def _end(self) -> WorkerEnd:
        """End the scoring worker, if there is one."""
        streams, self._streams = self._streams, None
        pid, self.pid = self.pid, None
        if streams is not None:
            streams[1].transport.abort()
        return (
            WorkerEnd(None) if pid is None else await self._environment.end(pid, self._generation)
        )

    def _note_death(self, end: WorkerEnd, seconds: float) -> WorkerLostError:
        """The error for a scoring worker that ended so, at a request of `seconds` of processor
        time."""
        description = (
            "with the environment's process" if end.status is None else ended_by(end.status)
        )
        return self._note_loss(reason_of(end, seconds), description, end.processor_seconds)

    def _note_loss(
        self, reason: Reason, description: str, used_seconds: float = 0.0
    ) -> WorkerLostError:
        self.losses += 1
        return WorkerLostError(reason, description, used_seconds)


def _all_rerun(
    lines: Sequence[RerunLine], transcripts: Sequence[Transcript], max_turns: int
) -> bool:
    """Check that there is one line for each multi-turn rollout of at most `max_turns`, with one
    observation after each turn that has one."""
    return len(lines) == len(transcripts) and all(
        _agree(line, len(transcript.texts), max_turns)
        for line, transcript in zip(lines, transcripts, strict=True)
    )


def _agree(line: RerunLine, turns: int, max_turns: int) -> bool:
    """Check that a line has as many observations as a multi-turn environment of `turns` turns can
    have with that end, and that one of `max_turns` turns is over. Rows are built from them, and
    need one between every two turns. A scoring worker that was taken over could make a policy talk
    for ever."""
    if not line.over:
        return turns < max_turns and len(line.observations) == turns and line.verdict is None
    if line.verdict is None or line.verdict.fault == "observation":
        return len(line.observations) < turns
    return len(line.observations) == turns - 1
