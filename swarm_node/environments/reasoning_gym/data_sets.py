"""reasoning-gym's data sets, each imported alone when it is asked for.

The package's own `__init__`s import all of them, and with them sympy and matplotlib: 73 MB and two
seconds that no preset needs. So `reasoning_gym` is registered here without running its `__init__`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

_PACKAGE = "reasoning_gym"


def find(name: str) -> tuple[type[Any], type[Any]] | None:
    """The class of the data set `name` and the class of its settings; None if there is none."""
    registered = _registered()
    for module in _modules_that_name(name):
        if name in registered:
            break
        with contextlib.ExitStack() as rooms:
            parts = module.split(".")
            for depth in range(2, len(parts)):
                rooms.enter_context(_initialised_by_nothing(".".join(parts[:depth])))
            importlib.import_module(module)
    if name not in registered:
        names()  # its module may spell the name in a way that the search does not see
    return registered.get(name)


def names() -> list[str]:
    """The names of all data sets, which are imported for it."""
    _registered()
    for room in _directory().glob("*/__init__.py"):
        importlib.import_module(f"{_PACKAGE}.{room.parent.name}")
    return sorted(_registered())


def _registered() -> dict[str, tuple[type[Any], type[Any]]]:
    """The data sets imported so far."""
    with _initialised_by_nothing(_PACKAGE, keep=True):
        importlib.import_module(f"{_PACKAGE}.coaching")  # it and the factory import one another
        factory = importlib.import_module(f"{_PACKAGE}.factory")
    return cast(dict[str, tuple[type[Any], type[Any]]], factory.DATASETS)


def _modules_that_name(data_set: str) -> Iterator[str]:
    directory = _directory()
    for file in (*sorted(directory.glob("*/*.py")), *sorted(directory.glob("*/*/*.py"))):
        if file.name != "__init__.py" and f'"{data_set}"' in file.read_text(encoding="utf-8"):
            yield ".".join((_PACKAGE, *file.relative_to(directory).with_suffix("").parts))


def _directory() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    assert spec is not None, "reasoning-gym is a dependency"
    assert spec.origin is not None, "it is a package of files"
    return Path(spec.origin).parent


@contextlib.contextmanager
def _initialised_by_nothing(package: str, *, keep: bool = False) -> Iterator[None]:
    """Let modules of `package` be imported without running its `__init__`."""
    if package in sys.modules:
        yield
        return
    spec = importlib.util.find_spec(package)
    assert spec is not None
    sys.modules[package] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        if not keep:
            del sys.modules[package]
