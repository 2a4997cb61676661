"""The host's end of the environment's process, and of the judges that it forks."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Mapping
from typing import Any

from swarm_node.child import Child, exchange
from swarm_node.environments.judge import DERIVING_TOO_LONG, SCORING_TOO_LONG
from swarm_node.environments.sandbox import Sandbox
from swarm_node.errors import ChildError, ConfigError, UnknownTaskError

_START_SECONDS = 120.0
_FORK_SECONDS = 10.0
#: What an environment may need of this process's variables; the rest, tokens and keys among it,
#: stays here. Its owner passes on what else it needs as an option.
_VARIABLES = frozenset(
    {
        *("HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "USER"),
        *("VIRTUAL_ENV", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"),
    }
)
_VARIABLE_PREFIXES = ("LC_", "PYTHON")
#: Some generators iterate over sets of strings: a fixed hash seed makes all nodes agree. Threads of
#: a numerics library would not survive the fork.
_FIXED = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class JudgeLostError(ChildError):
    """A judge ended before it answered; `reason` is "crashed", "timeout" (it used up the time for
    scoring), "derive" (the time for making the task) or "stuck" (it did not answer)."""

    def __init__(self, reason: str, how: str) -> None:
        super().__init__(f"a judge ended before it answered ({how})")
        self.reason = reason


class EnvironmentProcess:
    """The process that holds the environment; started again when it has died."""

    def __init__(self, name: str, options: Mapping[str, Any], derive_seconds: float) -> None:
        self._request = {
            "op": "start",
            "name": name,
            "options": dict(options),
            "derive_seconds": derive_seconds,
        }
        self._child = Child(
            "environment",
            "swarm_node.environments.worker",
            env=_FIXED,
            inherit=lambda name: name in _VARIABLES or name.startswith(_VARIABLE_PREFIXES),
        )
        self._sockets: socket.socket | None = None
        self._forking = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return self._child.pid

    async def start(self) -> dict[str, Any]:
        """Start it and make the environment; what the environment says of itself.

        Raises:
            ConfigError: there is no such environment, or it refuses its options.
            ChildError: the process does not start.
        """
        await self.stop(grace=0.0)
        ours, theirs = socket.socketpair()
        self._sockets = ours
        with theirs:
            await self._child.start(str(theirs.fileno()), descriptors=(theirs.fileno(),))
        try:
            reply = await self._child.call(self._request, patience=_START_SECONDS)
        except ChildError:
            await self.stop(grace=0.0)
            raise
        if "config" in reply:
            await self.stop(grace=0.0)  # alive without an environment is no use to anybody
            raise ConfigError(reply["config"])
        return reply

    async def fork(self, niceness: int) -> tuple[int, socket.socket]:
        """A new judge: its process id and the socket to it. The environment is made anew first, if
        its process has died.

        Raises:
            ConfigError, ChildError: as from `start`.
        """
        async with self._forking:
            if not self._child.alive:
                await self.start()
            assert self._sockets is not None
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    socket.send_fds(self._sockets, [b"."], [theirs.fileno()])
                    reply = await self._child.call(
                        {"op": "fork", "niceness": niceness}, patience=_FORK_SECONDS
                    )
            except BaseException as error:
                ours.close()
                if isinstance(error, OSError):
                    raise ChildError(f"the environment process takes no socket: {error}") from error
                raise
            return reply["pid"], ours

    async def end(self, pid: int) -> int | None:
        """End a judge; how it ended, as `Popen.returncode` says it, or None when that died with the
        environment's process."""
        try:
            reply = await self._child.call({"op": "end", "pid": pid}, patience=_FORK_SECONDS)
        except ChildError:
            return None
        return int(reply["status"])

    async def stop(self, grace: float = 3.0) -> None:
        """End the process; the system ends its judges with it."""
        sockets, self._sockets = self._sockets, None
        if sockets is not None:
            sockets.close()
        await self._child.stop(grace)


class JudgeProcess:
    """One judge, forked when it is first needed and again when it has died."""

    def __init__(self, environment: EnvironmentProcess, niceness: int) -> None:
        self._environment = environment
        self._niceness = niceness
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()
        self.pid: int | None = None
        #: How often a judge was replaced.
        self.restarts = -1

    async def sandbox(self) -> Sandbox:
        """What confines the judge."""
        reply = await self.call({"op": "sandbox"}, patience=_FORK_SECONDS)
        return Sandbox(files=reply["files"], system_calls=reply["calls"])

    async def call(self, request: Mapping[str, Any], patience: float) -> dict[str, Any]:
        """Its answer; callers take turns. One that does not answer within `patience` seconds, or
        whose call is cancelled, is ended: its state is unknown.

        Raises:
            JudgeLostError: it ended instead.
            UnknownTaskError: it cannot make the task.
            ConfigError, ChildError: no judge can be had.
        """
        async with self._lock:
            if self._streams is None:
                await self._fork()
            assert self._streams is not None
            answered = False
            try:
                async with asyncio.timeout(patience):
                    reply = await exchange(*self._streams, request)
                answered = True
            except TimeoutError:
                raise JudgeLostError("stuck", f"no answer in {patience:g} s") from None
            except (asyncio.IncompleteReadError, ConnectionError, ValueError):
                raise _lost(await self._end()) from None
            finally:
                if not answered:
                    await self._end()
        if "unknown" in reply:
            raise UnknownTaskError(reply["unknown"])
        if "error" in reply:
            raise ChildError(f"environment: {reply['error']}")
        return reply

    async def close(self) -> None:
        async with self._lock:
            await self._end()

    async def _fork(self) -> None:
        self.pid, channel = await self._environment.fork(self._niceness)
        self._streams = await asyncio.open_connection(sock=channel)
        self.restarts += 1

    async def _end(self) -> int | None:
        """End it, if there is one; how it ended, if that is known."""
        streams, self._streams = self._streams, None
        pid, self.pid = self.pid, None
        if streams is not None:
            streams[1].transport.abort()
        return None if pid is None else await self._environment.end(pid)


def _lost(status: int | None) -> JudgeLostError:
    """The error for a judge that ended with this status."""
    if status is None:
        return JudgeLostError("crashed", "with the environment's process")
    if status >= 0:
        return JudgeLostError("crashed", f"exit code {status}")
    reasons = {SCORING_TOO_LONG: "timeout", DERIVING_TOO_LONG: "derive"}
    number = signal.Signals(-status)
    return JudgeLostError(reasons.get(number, "crashed"), f"signal {number.name}")
