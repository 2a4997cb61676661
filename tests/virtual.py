"""Tests on a virtual clock."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from swarm_node.simulation.virtual_time import run_virtual


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a clock that only waiting moves. The test may take that clock's `loop`."""
    signature = inspect.signature(test)
    fixtures = [each for name, each in signature.parameters.items() if name != "loop"]

    @functools.wraps(test)
    def run(**given: Any) -> None:
        clocked = len(fixtures) < len(signature.parameters)
        run_virtual(lambda loop: test(**given, **({"loop": loop} if clocked else {})))

    del run.__wrapped__
    run.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
    return run
