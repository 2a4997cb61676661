"""Decorators that give a test what is no fixture."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def take_fixtures(run: Callable[..., None], names: Iterable[str]) -> None:
    """Have pytest call the wrapper `run` of a test with these fixtures and `tmp_path`."""
    del run.__wrapped__  # type: ignore[attr-defined] # or pytest takes it for a coroutine
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind) for name in sorted({*names, "tmp_path"})]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]


def surrounded(
    test: Callable[..., Any], run: Callable[..., None], first: int = 1
) -> Callable[..., None]:
    """`run` in the place of `test`, which it calls with the `first` parameters and the fixtures
    that it gets: those that `test` takes after these, and `tmp_path`."""
    taken = list(inspect.signature(test).parameters.values())[first:]

    @functools.wraps(test)
    def shown(tmp_path: Any, **fixtures: Any) -> None:
        if any(each.name == "tmp_path" for each in taken):
            fixtures["tmp_path"] = tmp_path
        run(tmp_path, **fixtures)

    take_fixtures(shown, (each.name for each in taken))
    return shown
