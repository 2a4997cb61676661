"""Hosts of environments that tests start; one may last for many tests, as a node's does for many
groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from swarm_node.environments.host import EnvironmentHost, EnvironmentInfo, ProcessEnvironmentHost

_Result = TypeVar("_Result")


class LastingHost:
    """A host, what it said at its start, and the event loop that it lives in."""

    def __init__(self, host: ProcessEnvironmentHost, runner: asyncio.Runner) -> None:
        self.host, self._runner = host, runner
        self.info: EnvironmentInfo = runner.run(host.start())

    def use(self, use: Callable[[ProcessEnvironmentHost], Awaitable[_Result]]) -> _Result:
        """What `use` makes of the host."""

        async def main() -> _Result:
            return await use(self.host)

        return self._runner.run(main())

    @property
    def pids(self) -> set[int]:
        """The processes of the host."""
        return {pid for pid in self.host.pids.values() if pid is not None}


@contextmanager
def lasting_host(host: ProcessEnvironmentHost) -> Iterator[LastingHost]:
    """A host that is started, and closed in the end."""
    with asyncio.Runner() as runner:
        try:
            yield LastingHost(host, runner)
        finally:
            runner.run(host.close())


@asynccontextmanager
async def started(host: EnvironmentHost) -> AsyncGenerator[EnvironmentInfo]:
    """Start a host, which is closed in the end, even if its start fails."""
    try:
        yield await host.start()
    finally:
        await host.close()
