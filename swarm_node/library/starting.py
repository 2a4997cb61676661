"""A node of a program's own: `start` runs `swarm-node join` in a child process."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import tomlkit

from swarm_node.config import load_settings
from swarm_node.errors import (
    NOT_ADMITTED,
    ChildError,
    ConfigError,
    MembershipError,
    NotRunningError,
    SlowNodeError,
    SwarmNodeError,
)
from swarm_node.library.running import RunningNode
from swarm_node.library.temporary import TemporaryHome
from swarm_node.node.control.control import LEAVE_SECONDS
from swarm_node.process import ended_by
from swarm_node.process.leader import child_command
from swarm_node.program.commands import printable

#: An inference engine takes long to import and start.
_START_SECONDS = 900.0
_POLL_SECONDS = 0.2
#: A node that has closed its control API stores a checkpoint, and ends.
_END_SECONDS = 20.0
#: Its last line may come a moment after its end.
_LAST_SECONDS = 1.0
_LINES, _LINE_BYTES = 20, 1000
_Result = TypeVar("_Result")


def start(
    model: str | None = "tiny",
    settings: Mapping[str, Any] | None = None,
    *,
    home: str | Path | None = None,
    ticket: str | Path | None = None,
    alone: bool = False,
    timeout: float = _START_SECONDS,
) -> StartedNode:
    """Start a node in a child process, and return it once it runs. Use it in a `with` block, at
    whose end it stops, or call `stop`. It ends with this process, and with the thread that called.

    `settings` are keys of `swarm-node config` such as `{"run.eval_seconds": 5}`; `model` None
    leaves the model to them. Without a `home` it is a temporary one, which is deleted at the end.
    `ticket` is its text, or the path of its file; without one it goes on in the swarm of its home,
    or creates one. A node that its swarm refuses ends, unless it may train `alone`.

    Raises:
        ConfigError: a setting is unknown or impossible; no process was started.
        MembershipError: the swarm does not admit it.
        ChildError: the node ended; the message has its last lines.
        SlowNodeError: it does not run after `timeout` seconds.
    """
    options = {} if settings is None else dict(settings)
    if reserved_keys := {"home", "ticket"} & options.keys():
        raise ConfigError(f"{min(reserved_keys)} is an argument of start, and none of its settings")
    if model is not None:
        options["model"] = model
    arguments = [f"--set={key}={_toml(key, value)}" for key, value in options.items()]
    arguments += ["--alone"] * alone
    load_settings({**options, **({} if home is None else {"home": Path(home)})})
    node = StartedNode(home, arguments, ticket)
    try:
        node._until_running(timeout)
    except BaseException:
        node._end(0.0)
        raise
    return node


def _toml(key: str, value: object) -> str:
    """The value of a setting as `--set` takes it."""
    try:
        if isinstance(value, Mapping):
            table = tomlkit.inline_table()
            table.update(value)
            return table.as_string()
        return tomlkit.item(str(value) if isinstance(value, Path) else value).as_string()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{key}: {value!r} is no value of a setting") from error


class StartedNode(RunningNode):
    """A node in a child process of this program. Its calls raise, besides what `RunningNode` names:

    ChildError: the process has ended; the message has its last lines.
    MembershipError: so it has, because the swarm does not admit the node, or no more.
    """

    def __init__(
        self, home: str | Path | None, arguments: list[str], ticket: str | Path | None
    ) -> None:
        self._temp_home = None
        if home is None:
            self._temp_home = TemporaryHome()
            home = self._temp_home.path
        super().__init__(Path(home).expanduser().absolute())
        by_input = isinstance(ticket, str)  # others would see a ticket among the arguments
        file = [f"--ticket-file={'-' if by_input else ticket}"] if ticket is not None else []
        self._process = subprocess.Popen(  # noqa: S603 - our own program; no shell reads it
            child_command("-m", "swarm_node", "join", f"--home={self.home}", *file, *arguments),
            stdin=subprocess.PIPE if by_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the program, which stops its node
        )
        self._last: deque[str] = deque(maxlen=_LINES)
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=[self._process.stdout], daemon=True)
        self._reader.start()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError), self._process.stdin as stdin:  # its last lines say why
                stdin.write(str(ticket).encode())
        self._runs = self._is_stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except (ChildError, MembershipError, SlowNodeError):
            if kind is None:  # else the block's own error says more
                raise

    @property
    def pid(self) -> int:
        """The process id of the node."""
        return self._process.pid

    def stop(self, timeout: float = LEAVE_SECONDS) -> None:
        """Stop the node, and return once it has stored its checkpoint and left. A second call does
        nothing.

        Raises:
            SlowNodeError: it had not left after `timeout` seconds, and was killed.
            ChildError, MembershipError: it ended with an error, now or before.
        """
        if self._is_stopped:
            return
        if not self._end(timeout):
            raise SlowNodeError(f"the node had not left after {timeout:g} s, and was killed")
        if self._process.returncode:
            raise self._end_error()

    def _until_running(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            # Another node may run in this home: then this one ends, and says so.
            if self._process.poll() is not None:
                raise self._end_error()
            with suppress(SwarmNodeError):  # it does not answer yet
                shot = self.status()
                if shot.state == "running" and self._client.pid() == self.pid:
                    self._runs = True
                    return
            if time.monotonic() > deadline:
                raise SlowNodeError(f"the node does not run after {timeout:g} s:\n{self._tail()}")
            time.sleep(_POLL_SECONDS)

    def _ask(self, question: Coroutine[Any, Any, _Result]) -> _Result:
        try:
            return super()._ask(question)
        except NotRunningError:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS if self._runs else 0.0)
                raise self._end_error() from None
            raise

    def _end(self, timeout: float) -> bool:
        """End the process and clean up; False if it had to be killed."""
        self._is_stopped, left = True, True
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                left = False
                self._process.kill()
                self._process.wait()
        self._reader.join(_END_SECONDS)  # until its last child is gone, too
        if self._temp_home is not None:
            self._temp_home.cleanup()
        return left

    def _end_error(self) -> ChildError | MembershipError:
        self._reader.join(_LAST_SECONDS)
        code = self._process.returncode
        kind = MembershipError if code == NOT_ADMITTED else ChildError
        return kind(f"the node ended with {ended_by(code)}:\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self._last) or "(it said nothing)"

    def _read(self, output: IO[bytes]) -> None:
        """Keep the last lines of the process, until it has closed its output."""
        with output:
            while line := output.readline(_LINE_BYTES):
                self._last.append(printable(line.decode("utf-8", "replace").rstrip("\n")))
