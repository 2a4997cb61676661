"""Tests on a virtual clock."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from surrounded import surrounded, take_fixtures

from swarm_node.simulation.virtual_time import VirtualTimeLoop, run_virtual


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a clock that only waiting moves. Beside its fixtures the test may take that
    clock's `loop`, and a `world` of two members."""
    wanted = inspect.signature(test).parameters

    @functools.wraps(test)
    def run(tmp_path: Path, **fixtures: Any) -> None:
        async def main(loop: VirtualTimeLoop) -> None:
            known = {"tmp_path": tmp_path, "loop": loop, **fixtures}
            if "world" in wanted:
                from in_memory import World  # imports torch, which most tests do without

                known["world"] = World(tmp_path, loop)
            await test(**{name: known[name] for name in wanted})

        run_virtual(main)

    take_fixtures(run, wanted.keys() - {"loop", "world"})
    return run


def in_virtual_time(
    make: Callable[..., Any],
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run a test on such a clock. Its first parameter is what `make` makes of the clock's loop, a
    directory and the test's fixtures, and stops at the end."""

    def decorated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        def run(place: Path, **fixtures: Any) -> None:
            async def main(loop: VirtualTimeLoop) -> None:
                made = make(loop, place, **fixtures)
                try:
                    await test(made, **fixtures)
                finally:
                    await made.stop()

            run_virtual(main)

        return surrounded(test, run)

    return decorated
