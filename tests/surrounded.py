"""Decorators that give a test its surroundings as its first parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


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

    del shown.__wrapped__  # or pytest takes it for a coroutine
    names = {each.name for each in taken} | {"tmp_path"}
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind) for name in sorted(names)]
    shown.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return shown
