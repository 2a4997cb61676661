"""A running `tests/obedient.py`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

import obedient
import pytest

from swarm_node.process import Child

WithChild = Callable[..., None]


@pytest.fixture
def with_child(request: pytest.FixtureRequest) -> WithChild:
    """Run a test's body with the child; a module with CONCURRENT set gets a concurrent one, and so
    does who asks for it."""
    usual = getattr(request.module, "CONCURRENT", False)
    search = os.pathsep.join(filter(None, sys.path))

    def run(body: Callable[[Child], Awaitable[None]], concurrent: bool = usual) -> None:
        async def main() -> None:
            env = {"PYTHONPATH": search}
            child = Child("echo", "obedient", obedient.Reply, concurrent=concurrent, env=env)
            await child.start("concurrent" if concurrent else "in-order")
            try:
                await body(child)
            finally:
                await child.stop()
            assert not child.alive
            assert child.pid is None

        asyncio.run(main())

    return run
