"""Finds environments: installed ones by entry point, any other as "module:factory". A class for
TRL's or OpenEnv's programs is a factory too."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from swarm_node.durable import open_regular
from swarm_node.environments.splits.splitting import Asking, SplitEnvironment
from swarm_node.errors import ConfigError, instead, reason_of

GROUP = "swarm_node.environments"
#: What the name of a data set of a model hub begins with.
HUB: Final = "hub:"
#: Environments of rows in files, which their option `path` names.
_OF_ROWS: Final = ("jsonl", "programs")


def available() -> list[str]:
    """Names of the installed environments."""
    return sorted({point.name for point in _points()})


def chosen_environment(text: str) -> dict[str, str]:
    """The settings, by dotted key, of the environment that a person named on a command line: an
    installed one, module:factory, or what `jsonl` reads, which is a file of rows or a data set of a
    hub. A name with a point or a slash and without a colon is a file, also if it is not there."""
    if text.startswith(HUB):
        return {"environment.name": "jsonl", "environment.options.path": text}
    path = Path(text).expanduser()
    looks = ":" not in text and ("." in text or "/" in text)
    if text not in available() and (looks or path.is_file()):
        # The home remembers it, and may be started from another directory.
        return {"environment.name": "jsonl", "environment.options.path": str(path.absolute())}
    return {"environment.name": text}


def create_environment(name: str, options: Mapping[str, Any]) -> SplitEnvironment:
    """Call the factory called `name` with `options` as keyword arguments, and split its questions
    by text. The options of `Asking` are for every environment, and no factory gets them.

    `name` is an entry point of the group "swarm_node.environments", or "module:factory" for a
    module that can be imported. It comes from this node's own settings, never from a peer.

    Raises:
        ConfigError: no such environment, it cannot be imported, it does not take `options`, or what
            it makes is no environment.
    """
    asking = Asking.of(options)
    return SplitEnvironment(factory_taking(name, options)(**_own_options(options)), asking)


def _own_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in Asking._fields}


def factory_taking(name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Import the function that makes the environment called `name`, and check that it takes
    `options`.

    Raises:
        ConfigError: see `create`.
    """
    factory = factory_of(name)
    try:
        inspect.signature(factory).bind(**_own_options(options))
    except TypeError as error:
        option_names = ", ".join([*inspect.signature(factory).parameters, *Asking._fields])
        raise ConfigError(
            f"environment.options for {name}: {error}; it takes: {option_names}"
        ) from error
    return factory


def factory_of(name: str) -> Callable[..., Any]:
    """Import the function that makes the environment called `name`.

    Raises:
        ConfigError: no such environment, or it cannot be imported.
    """
    if name.startswith(HUB):
        raise _not_a_name(name)
    if "://" in name:
        raise ConfigError(
            f"environment.name: {name[:80]!r} is a server, and no member can run it again",
            "name the class that it runs, as module:Class",
        )
    return _adapt_factory(_import_factory(name)) if ":" in name else _load_installed_factory(name)


def require_environment(name: str, options: Mapping[str, Any]) -> None:
    """Refuse an environment that is not installed, and files of rows that cannot be opened. Nothing
    is imported for it, so this comes before all that takes longer.

    Raises:
        ConfigError: the message says what there is.
    """
    if (":" not in name and name not in available()) or name.startswith(HUB):
        raise unknown_name(name)
    path = options.get("path") if name in _OF_ROWS else None
    for item in path if isinstance(path, list | tuple) else [path]:
        if isinstance(item, str) and not item.startswith(HUB):
            file = Path(item).expanduser()
            try:
                open_regular(file).close()
            except OSError as error:
                raise unreadable(file, error) from error


def unreadable(path: Path, error: OSError) -> ConfigError:
    """Make the error about a file of rows."""
    return ConfigError(
        f"environment.options.path: cannot read {path}: {reason_of(error)}",
        "name a file of questions",
    )


def unknown_name(name: str) -> ConfigError:
    """Make the error about a name that no installed environment has."""
    if "environment.options.path" in chosen_environment(name):
        return _not_a_name(name)
    return ConfigError(
        f"environment.name: there is no environment {name!r}",
        *instead(name, available()),
        "name one of your own as module:factory, and a file of questions with its ending",
    )


def _not_a_name(path: str) -> ConfigError:
    return ConfigError(
        f"environment.name: {path[:80]!r} holds questions and is no environment",
        f"say --environment {path[:80]}, or set environment.name=jsonl and "
        "environment.options.path",
    )


@cache
def _points() -> tuple[EntryPoint, ...]:
    """The installed environments. To find them, the files of all installed packages are read."""
    return tuple(entry_points(group=GROUP))


def _load_installed_factory(name: str) -> Callable[..., Any]:
    for point in _points():
        if point.name == name:
            return _load_factory(name, point.load)
    raise unknown_name(name)


def _import_factory(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")

    def load() -> Any:
        return getattr(importlib.import_module(module), attribute)

    return _load_factory(name, load)


def _adapt_factory(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a class that is no factory of an environment but has `reset`: with `step` OpenEnv's,
    else TRL's."""
    if not inspect.isclass(factory) or hasattr(factory, "derive") or not hasattr(factory, "reset"):
        return factory
    # Imported here: scoring workers of other environments need neither.
    if hasattr(factory, "step") and hasattr(factory, "state"):
        from swarm_node.environments.adapters import openenv

        return partial(openenv.create, factory)
    from swarm_node.environments.adapters import trl

    return partial(trl.create, factory)


def _load_factory(name: str, load: Callable[[], Any]) -> Callable[..., Any]:
    try:
        factory = load()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"environment.name: {name!r} cannot be imported ({error})",
            "check its spelling and that its folder is on PYTHONPATH",
        ) from error
    if not callable(factory):
        raise ConfigError(f"environment.name: {name!r} is not a function that makes an environment")
    result: Callable[..., Any] = factory
    return result
