"""The parts that all adapters share: chance decided by the task, rows of questions, the version."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm_node.environments.lists.rows import Family, digest_of, read_families, refuse
from swarm_node.errors import ConfigError, reason_of
from swarm_node.rollout import MAX_TURNS, TaskRef

_MAX_ROW_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """The `prompt` of a row, "" if it has none, and all of its fields."""

    prompt: str
    fields: Mapping[str, Any]

    @property
    def question(self) -> str:
        """The text that decides whether the row is held out."""
        return self.prompt or repr(sorted(self.fields.items()))


@dataclass(frozen=True, slots=True)
class Episode:
    """The start of a multi-turn rollout: a seed for all chance, and the row, if there are rows."""

    seed: str
    row: EpisodeRow | None


class Tasks:
    """The tasks of an adapter: rows of JSON Lines files, each file a family; without files a seed
    alone, in one family named after the class."""

    def __init__(self, cls: type, path: str | Sequence[str] | None, held_out: float) -> None:
        """
        Raises:
            ConfigError: a file is missing, too large or malformed.
        """
        self._rows: dict[str, Family[EpisodeRow]] = {}
        self.digests: dict[str, str] = {}
        if path is not None:
            self._rows, self.digests = read_families(path, _row, _MAX_ROW_BYTES, held_out)
        self.families = tuple(self._rows) or (cls.__name__,)
        self.bounds = {name: family.held_out_bound for name, family in self._rows.items()}
        self.notes = tuple(family.note(name) for name, family in self._rows.items())

    def episode(self, ref: TaskRef) -> Episode:
        """The episode that a reference names."""
        rows = self._rows.get(ref.family)
        return Episode(f"{ref.family}/{ref.seed}", rows.row(ref) if rows else None)


def _row(value: dict[str, Any]) -> EpisodeRow:
    prompt = value.get("prompt", "")
    if isinstance(prompt, list):  # messages, of which the user's last one is the question
        if len(prompt) != 1 or not isinstance(prompt[0], dict) or prompt[0].get("role") != "user":
            raise ValueError("'prompt' must be a text or one message of the user")
        prompt = prompt[0].get("content")
    if not isinstance(prompt, str):
        raise ValueError("'prompt' must be a text or one message of the user")
    return EpisodeRow(prompt, value)


def check_turns(turns: object) -> int:
    """
    Raises:
        ConfigError: the number of turns is out of range.
    """
    if not isinstance(turns, int) or isinstance(turns, bool) or not 2 <= turns <= MAX_TURNS:
        raise refuse("turns", f"{turns!r}: give a number from 2 to {MAX_TURNS}")
    return turns


def make_object(cls: type) -> Any:
    """Make an object of a class, as a trainer does for each episode.

    Raises:
        ConfigError: it cannot be made without arguments.
    """
    try:
        return cls()
    except Exception as error:
        raise ConfigError(
            f"environment.name: {cls.__name__} cannot be made ({type(error).__name__}: {error}); "
            "it must need no arguments and no server: every member runs it again by itself"
        ) from error


def version_of(cls: type, scheme: int, *options: object) -> str:
    """Digest the file of a class, the options, and the package that reads the model's calls. Nodes
    with another version refuse each other's tasks. Other files that the class reads are not
    compared."""
    try:
        source = Path(inspect.getfile(cls)).read_bytes()
    except TypeError as error:
        raise ConfigError(f"environment.name: {cls.__name__} is in no file") from error
    except OSError as error:
        reason = reason_of(error)
        raise ConfigError(
            f"environment.name: cannot read {cls.__name__}'s file: {reason}"
        ) from error
    reader = importlib.metadata.version("msgspec")
    return f"{scheme}-{digest_of([hashlib.sha256(source).hexdigest(), reader, *options])}"


@contextmanager
def seed_random(seed: str) -> Iterator[None]:
    """Seed the functions of `random` within the block. Classes draw their tasks with them."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
