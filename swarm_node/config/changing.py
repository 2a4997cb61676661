"""Change a settings file by a command: its comments stay, and no bad value gets in."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomlkit

from swarm_node.config.sources import key_parts, read_toml, text_of, validate
from swarm_node.durable import replace_like
from swarm_node.errors import ConfigError


def change_file(path: Path, changes: Mapping[str, Any]) -> None:
    """Write `changes`, values by dotted key, into a settings file. A missing file is made.

    Raises:
        ConfigError: a key or a value is refused as a start would refuse it, or the file cannot be
            read or written. The file is then as it was.
    """
    path = path.resolve()
    with _alone(path):
        text = text_of(path) if path.exists() else ""
        new_values = read_toml(text, path)
        document = tomlkit.parse(text)
        for key, value in changes.items():
            _set_value(new_values, key, value)
            _set_value(document, key, value)
        new_text = tomlkit.dumps(document)
        if read_toml(new_text, path) != new_values:
            raise ConfigError(f"{path} cannot be changed without loss: edit it by hand")
        validate(new_values)
        try:
            replace_like(path, new_text.encode())
        except OSError as error:
            raise _unwritable(path, error) from error


def _set_value(place: MutableMapping[str, Any], key: str, value: Any) -> None:
    *tables, last = key_parts(key)
    for table in tables:
        place = place.setdefault(table, {})
        if not isinstance(place, MutableMapping):
            raise ConfigError(f"{table} is no table in this settings file: correct it by hand")
    place[last] = value


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of this directory's settings files; other commands wait."""
    try:
        descriptor = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write the settings file {path}: {error.strerror}")
