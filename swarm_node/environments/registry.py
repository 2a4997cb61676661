"""Finds environments: installed ones by entry point, any other as "module:factory". A class for
TRL's or OpenEnv's programs is a factory too."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from swarm_node.environments.splitting import SplitEnvironment
from swarm_node.errors import ConfigError, instead

GROUP = "swarm_node.environments"


def available() -> list[str]:
    """Names of the installed environments."""
    return sorted({point.name for point in _points()})


def create_environment(name: str, options: Mapping[str, Any]) -> SplitEnvironment:
    """Call the factory called `name` with `options` as keyword arguments, and split its questions
    by text.

    `name` is an entry point of the group "swarm_node.environments", or "module:factory" for a
    module that can be imported. It comes from this node's own settings, never from a peer.

    Raises:
        ConfigError: no such environment, it cannot be imported, it does not take `options`, or what
            it makes is no environment.
    """
    return SplitEnvironment(factory_taking(name, options)(**options))


def factory_taking(name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Import the function that makes the environment called `name`, and check that it takes
    `options`.

    Raises:
        ConfigError: see `create`.
    """
    factory = factory_of(name)
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(factory).parameters) or "none"
        raise ConfigError(f"environment.options for {name}: {error}; it takes: {known}") from error
    return factory


def factory_of(name: str) -> Callable[..., Any]:
    """Import the function that makes the environment called `name`.

    Raises:
        ConfigError: no such environment, or it cannot be imported.
    """
    if "://" in name:
        raise ConfigError(
            f"environment.name: {name[:80]!r} is a server, and no member can replay what it said: "
            "name the class that it runs, as module:Class"
        )
    return _adapted(_imported(name)) if ":" in name else _installed(name)


def unknown_name(name: str) -> ConfigError:
    """Make the error about a name that no installed environment has."""
    return ConfigError(
        f"environment.name: there is no environment {name!r}{instead(name, available())}; "
        "module:factory is for your own"
    )


@cache
def _points() -> tuple[EntryPoint, ...]:
    """The installed environments. To find them, the files of all installed packages are read."""
    return tuple(entry_points(group=GROUP))


def _installed(name: str) -> Callable[..., Any]:
    for point in _points():
        if point.name == name:
            return _loaded(name, point.load)
    raise unknown_name(name)


def _imported(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")

    def load() -> Any:
        return getattr(importlib.import_module(module), attribute)

    return _loaded(name, load)


def _adapted(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a class that is no factory of an environment but has `reset`: with `step` OpenEnv's,
    else TRL's."""
    if not inspect.isclass(factory) or hasattr(factory, "derive") or not hasattr(factory, "reset"):
        return factory
    # Imported here: judges of other environments need neither.
    if hasattr(factory, "step") and hasattr(factory, "state"):
        from swarm_node.environments.adapters import openenv

        return partial(openenv.create, factory)
    from swarm_node.environments.adapters import trl

    return partial(trl.create, factory)


def _loaded(name: str, load: Callable[[], Any]) -> Callable[..., Any]:
    try:
        factory = load()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"environment.name: {name!r} cannot be imported ({error}); "
            "check its spelling and that its folder is on PYTHONPATH"
        ) from error
    if not callable(factory):
        raise ConfigError(f"environment.name: {name!r} is not a function that makes an environment")
    result: Callable[..., Any] = factory
    return result
