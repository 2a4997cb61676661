"""reasoning-gym's data sets, each imported alone when it is asked for.

The package's own `__init__`s import all of them, and with them sympy and matplotlib: 73 MB and two
seconds that no preset needs, and pycosat, which must be compiled and which one data set needs. So
`reasoning_gym` and its rooms are registered here without running their `__init__`s.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

_PACKAGE = "reasoning_gym"
#: Call that registers a data set with the factory.
_REGISTERS = "register_dataset("


def find(name: str) -> tuple[type[Any], type[Any]] | None:
    """The class of the data set `name` and the class of its settings; None if there is none.

    Raises:
        ModuleNotFoundError: a package that the data set imports is not installed.
    """
    datasets = _import_registry()
    import_error = None
    for module, source in _modules():
        if name in datasets:
            break
        if f'"{name}"' in source:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                import_error = error
    if name not in datasets and import_error is not None:
        raise import_error
    return datasets.get(name)


def names() -> list[str]:
    """The names of all data sets, which are imported for it. Data sets that import a missing
    package are left out."""
    datasets = _import_registry()
    for module, _ in _modules():
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            continue
    return sorted(datasets)


def _import_registry() -> dict[str, tuple[type[Any], type[Any]]]:
    """The data sets imported so far."""
    _initialise_by_nothing(_PACKAGE)
    importlib.import_module(f"{_PACKAGE}.coaching")  # it and the factory import one another
    factory = importlib.import_module(f"{_PACKAGE}.factory")
    return cast(dict[str, tuple[type[Any], type[Any]]], factory.DATASETS)


def _modules() -> Iterator[tuple[str, str]]:
    """Name and source of each module of a room that registers data sets, ready to be imported."""
    directory = _directory()
    for file in sorted(directory.glob("*/**/*.py")):
        source = file.read_text(encoding="utf-8")
        if _REGISTERS in source:
            parts = file.relative_to(directory).with_suffix("").parts
            for depth in range(1, len(parts)):
                _initialise_by_nothing(".".join([_PACKAGE, *parts[:depth]]))
            yield ".".join([_PACKAGE, *parts]), source


def _directory() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    assert spec is not None, "the environment refuses to be made without reasoning-gym"
    assert spec.origin is not None, "it is a package of files"
    return Path(spec.origin).parent


def _initialise_by_nothing(package: str) -> None:
    """Let modules of `package` be imported without running its `__init__`."""
    if package not in sys.modules:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        sys.modules[package] = importlib.util.module_from_spec(spec)
