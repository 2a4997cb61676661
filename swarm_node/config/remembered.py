"""Values that a home remembers (`settings.json`), so that its next start needs no flags.

Each value has its origin: the command line, a settings file, or `config set`. A settings file that
is given again replaces all that an earlier one said. Secrets are never written, nor what a person
says for one start only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from swarm_node.config.model import Settings, value_of
from swarm_node.errors import ConfigError, HomeError
from swarm_node.program.private_directory import PrivateDirectory

FILE = "settings.json"
VERSION = 1
MAX_BYTES = 64 * 1024
#: Never written: the place itself, and secrets.
UNWRITABLE = frozenset({"home", "ticket"})
#: Said for one start. A node that had reached `run.max_steps` would stop at once at its next start.
ONE_START = UNWRITABLE | {"verbose", "log_format", "run.max_steps"}

Origin = Literal["command line", "file", "config set"]


class Remembered(Struct, frozen=True, forbid_unknown_fields=True):
    """A value of one key, and who gave it."""

    value: Any
    origin: Origin


class _Version(Struct):
    version: Annotated[int, Meta(ge=1)]


class _RememberedFile(Struct, forbid_unknown_fields=True):
    version: int
    settings: Annotated[
        dict[Annotated[str, Meta(max_length=128)], Remembered], Meta(max_length=256)
    ]


def recall(home: Path) -> dict[str, Remembered]:
    """Read what `home` remembers, by dotted key. A home without the file remembers nothing.

    Raises:
        ConfigError: the file cannot be read, is damaged, or a later release wrote it.
    """
    place = PrivateDirectory(home)
    path = place.path / FILE
    if not os.path.isfile(path):  # False too where the home is no directory
        return {}
    away = f"move it away (the next start then uses defaults), or restore it: {path}"
    try:
        raw = place.load(FILE) or b""
        if len(raw) > MAX_BYTES:
            raise ConfigError(
                f"the settings that the data directory remembers are too long: {away}"
            )
        version = msgspec.json.decode(raw, type=_Version).version
        if version != VERSION:
            raise ConfigError(
                f"a later release wrote the settings that the data directory remembers "
                f"(version {version}, this release reads {VERSION})",
                f"use that release, or {away}",
            )
        return msgspec.json.decode(raw, type=_RememberedFile).settings
    except HomeError as error:
        raise ConfigError(str(error)) from error
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise ConfigError(
            f"the settings that the data directory remembers are damaged ({error}): {away}"
        ) from error


def change_remembered(home: Path, changes: Mapping[str, Remembered | None]) -> None:
    """Change what `home` remembers; it forgets a key whose value is None. A file that would not
    change is left alone.

    Raises:
        ConfigError, HomeError: see `recall`; or it cannot be written, or gets too long.
    """
    place = PrivateDirectory(home)
    place.create()
    with place.editing():
        old_entries = recall(home)
        new_entries = {
            key: entry for key, entry in (old_entries | dict(changes)).items() if entry is not None
        }
        if new_entries == old_entries:
            return
        data = (
            msgspec.json.format(msgspec.json.encode(_RememberedFile(VERSION, new_entries))) + b"\n"
        )
        if len(data) > MAX_BYTES:
            raise ConfigError(
                f"a data directory remembers {MAX_BYTES} bytes of settings at most",
                "keep long ones in a settings file (--config FILE)",
            )
        place.save(FILE, data)


def portable(settings: Settings, key: str) -> Any:
    """Return the value of a key as any later start understands it: names of files that are there
    become absolute, because that start may run in another directory."""
    value = value_of(settings, key)
    if key == "model":
        return _absolute(value)
    if key == "environment.options" and "path" in value:
        path = value["path"]
        absolute_path = [*map(_absolute, path)] if isinstance(path, list) else _absolute(path)
        return {**value, "path": absolute_path}
    return value


def _absolute(name: Any) -> Any:
    """As `name`, absolute if it is a name of something that is there."""
    if not isinstance(name, str) or not Path(name).expanduser().exists():
        return name
    return str(Path(name).expanduser().absolute())
