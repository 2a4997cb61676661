"""Tests on a virtual clock."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from in_memory import World

from swarm_node.simulation.virtual_time import VirtualTimeLoop, run_virtual


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a clock that only waiting moves. Beside its fixtures the test may take that
    clock's `loop`, and a `world` of one member."""
    signature = inspect.signature(test)
    wanted = signature.parameters

    @functools.wraps(test)
    def run(tmp_path: Path, **fixtures: Any) -> None:
        async def main(loop: VirtualTimeLoop) -> None:
            known = {"tmp_path": tmp_path, "loop": loop, **fixtures}
            if "world" in wanted:
                known["world"] = World(tmp_path, loop)
            await test(**{name: known[name] for name in wanted})

        run_virtual(main)

    place = inspect.Parameter("tmp_path", inspect.Parameter.KEYWORD_ONLY)
    fixtures = [wanted[name] for name in wanted if name not in ("tmp_path", "loop", "world")]
    del run.__wrapped__  # or pytest takes it for a coroutine
    run.__signature__ = signature.replace(parameters=[*fixtures, place])  # type: ignore[attr-defined]
    return run
