"""The environment's process: makes the environment once, then forks the scoring workers that use
it.

It runs code that its owner chose and never sees a text. The scoring workers score texts. This
process forks them on request, each with its own socket to the host. A scoring worker shares this
process's memory, is replaced within milliseconds, and has a single thread, which the sandbox needs.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.environments.workers.messages import (
    End,
    EnvironmentStarted,
    Fork,
    Forked,
    Reply,
    Request,
    StartEnvironment,
    WorkerEnded,
)
from swarm_node.environments.workers.sandbox import code_paths, confine, shares_memory
from swarm_node.environments.workers.scoring_worker import Scorer
from swarm_node.process import die_with_parent, serve, serve_frames

_MOST_DESCRIPTORS = (1 << 31) - 1
#: Bytes in the unit of `ru_maxrss`.
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


class _Worker:
    """Answers the host: `StartEnvironment`, then `Fork` and `End` as often as needed."""

    def __init__(self, sockets: socket.socket) -> None:
        """The host sends the socket of each scoring worker over `sockets`, before its request."""
        self._sockets = sockets
        self._environment: SplitEnvironment | None = None
        self._code: Sequence[Path] = ()
        self._scoring_workers: set[int] = set()

    def handle(self, request: Request) -> Reply:
        match request:
            case StartEnvironment():
                return self._start(request)
            case Fork():
                return Forked(self._fork(request))
            case End():
                return self._end(request.pid)

    def _start(self, request: StartEnvironment) -> EnvironmentStarted:
        environment = create_environment(request.name, request.options)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else no scoring worker could be waited for
        self._environment = environment
        self._code = list(code_paths())
        gc.collect()
        gc.freeze()  # else a collection in a scoring worker copies the pages it shares
        return EnvironmentStarted(
            environment.name,
            environment.version,
            environment.families,
            shares_memory(),
            environment.notes,
            environment.turns,
            environment.score_seconds,
            dict(environment.sizes),
            environment.warnings,
        )

    def _fork(self, request: Fork) -> int:
        _, (descriptor, *_), *_ = socket.recv_fds(self._sockets, 1, 1)
        if self._environment is None:
            os.close(descriptor)
            raise ValueError("the environment was not started")
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._run_scorer(self._environment, descriptor, parent, request.niceness)
        os.close(descriptor)
        self._scoring_workers.add(pid)
        return pid

    def _end(self, pid: int) -> WorkerEnded:
        if pid not in self._scoring_workers:  # it belonged to an earlier process
            raise ValueError(f"no scoring worker {pid}")
        self._scoring_workers.remove(pid)
        os.kill(pid, signal.SIGKILL)  # the id is not reused before the wait below
        _, status, usage = os.wait4(pid, 0)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # a fork begins with its pages
        return WorkerEnded(
            os.waitstatus_to_exitcode(status),
            usage.ru_utime + usage.ru_stime,
            max(usage.ru_maxrss - peak, 0) * _PEAK_UNIT,
        )

    def _run_scorer(
        self, environment: SplitEnvironment, descriptor: int, parent: int, niceness: int
    ) -> NoReturn:
        """Run a scoring worker. It must not return into the loop of this process. Its output is
        discarded: it would reach the terminal or the log of this process, which is open for
        writing."""
        code = 1
        try:
            os.dup2(descriptor, 0)
            os.dup2(descriptor, 1)
            os.closerange(3, _MOST_DESCRIPTORS)
            with open(os.devnull, "wb") as devnull:
                os.dup2(devnull.fileno(), 2)
            os.nice(niceness)
            die_with_parent(parent)
            scorer = Scorer(environment)

            def ready() -> None:
                sandbox = confine(self._code)
                scorer.confinement = (sandbox.files, sandbox.system_calls)
                scorer.is_cramped = sandbox.is_cramped

            serve_frames(scorer.answer, ready)
            code = 0
        finally:
            os._exit(code)  # also after an exception: the parent's stack must not unwind here


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _sockets:
        serve(_Worker(_sockets).handle, Request)
