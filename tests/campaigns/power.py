"""States of a disk after a power cut: records the steps of a writer, then makes every state.

The model is POSIX's promise and no file system's habit. Data is on the disk after an fsync of its
file; before, a file may hold what it held, nothing, zeros, or the new data up to a page of 4 KiB.
Names are on the disk after an fsync of their directory; before, any of the changes to that
directory may be there and any other not. A rename is one change.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = 4096
_CALLS = ("fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir")


@dataclass
class Change:
    """One step of a writer: new data of file `node`, new `names` in directory `node` (None: the
    name goes), or neither: a sync of `node`."""

    node: int
    data: bytes | None = None
    names: dict[str, int | None] | None = None


@dataclass
class DiskRecorder:
    """Watches a directory while a writer works in it. Changes without a call are found by a look at
    the files before each call."""

    root: Path
    changes: list[Change] = field(default_factory=list)
    _data: dict[int, bytes] = field(default_factory=dict)
    _names: dict[int, dict[str, int]] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)
    _next: int = 0

    def __post_init__(self) -> None:
        self._numbers[self.root.stat().st_ino] = 0
        self._names[0] = {}
        self.look()
        self.changes.clear()
        self.before = ({**self._data}, {node: {**names} for node, names in self._names.items()})

    def record(self, write: Callable[[], object]) -> None:
        """Let `write` work; all that it does below the root is in `changes` afterwards."""
        real = {name: getattr(os, name) for name in _CALLS}
        try:
            for name, call in real.items():
                setattr(os, name, self._around(name, call))
            write()
        finally:
            for name, call in real.items():
                setattr(os, name, call)
        self.look()

    def look(self, directory: Path | None = None) -> None:
        """Note what has changed since the last look."""
        directory = directory or self.root
        node = self._numbers[directory.stat().st_ino]
        found = {path.name: path for path in directory.iterdir()}
        gone = dict.fromkeys(self._names[node].keys() - found.keys())
        changed: dict[str, int | None] = {**gone}
        fresh = []
        for name, path in sorted(found.items()):
            number = self._numbers.get(path.stat().st_ino)
            if number is None:
                self._next += 1
                number = self._numbers[path.stat().st_ino] = self._next
                if path.is_dir():
                    self._names[number] = {}
                else:
                    self._data[number] = b""
            fresh.append((number, path))
            if self._names[node].get(name) != number:
                changed[name] = number
        if changed:
            self.changes.append(Change(node, names=changed))
            self._names[node] = {
                name: self._numbers[path.stat().st_ino] for name, path in found.items()
            }
        for number, path in fresh:
            if path.is_dir():
                self.look(path)
            elif (data := path.read_bytes()) != self._data[number]:
                self._data[number] = data
                self.changes.append(Change(number, data=data))

    def _around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.look()
            if name == "fsync":
                result = call(*args)
                number = self._numbers.get(os.fstat(args[0]).st_ino)
                if number is not None:
                    self.changes.append(Change(number))
                return result
            place = None
            if name in ("unlink", "rmdir"):  # the number of the inode can be used again
                status = os.stat(args[0], follow_symlinks=False, **kwargs)
                place = status.st_ino if status.st_nlink == 1 or name == "rmdir" else None
            elif name in ("replace", "rename") and os.path.isfile(args[1]):
                place = os.stat(args[1]).st_ino
            result = call(*args, **kwargs)
            if place is not None:
                self._numbers.pop(place, None)
            self.look()
            return result

        return wrapped

    def states(
        self, rng: random.Random, most: int = 300
    ) -> Iterator[tuple[bool, Callable[[Path], None]]]:
        """(whether the writer had returned, a function that makes the state in an empty directory)
        for every step; of more than `most` states after one step, a sample."""
        for steps in range(len(self.changes) + 1):
            choices = self._choices(self.changes[:steps])
            total = 1
            for options in choices.values():
                total *= len(options)
            keys = list(choices)
            if total <= most:
                picked = list(itertools.product(*choices.values()))
            else:
                picked = [tuple(rng.choice(each) for each in choices.values()) for _ in range(most)]
            for state in picked:
                chosen = dict(zip(keys, state, strict=True))
                yield steps == len(self.changes), lambda to, chosen=chosen: _make(chosen, 0, to)

    def _choices(self, changes: list[Change]) -> dict[int, list[Any]]:
        """The data that each file may hold, and the names that each directory may."""
        data, names = self.before
        files = {node: [content] for node, content in data.items()}
        certain = {node: dict[str, int | None](held) for node, held in names.items()}
        open_: dict[int, list[dict[str, int | None]]] = {node: [] for node in certain}
        for change in changes:
            node = change.node
            if change.names is not None:
                certain.setdefault(node, {})
                open_.setdefault(node, []).append(change.names)
            elif change.data is not None:
                files.setdefault(node, [b""]).extend(_torn(change.data))
            elif node in files:
                files[node] = files[node][-1:]
            else:
                for each in open_.get(node, []):
                    certain[node].update(each)
                open_[node] = []
        for node in self._data.keys() - files.keys():
            files[node] = [b""]
        choices: dict[int, list[Any]] = {node: _unique(held) for node, held in files.items()}
        for node, held in certain.items():
            options = []
            for some in itertools.product((False, True), repeat=len(open_[node])):
                state = dict(held)
                for there, change in zip(some, open_[node], strict=True):
                    state.update(change if there else {})
                options.append({name: to for name, to in state.items() if to is not None})
            choices[node] = _unique(options)
        return choices


def _torn(data: bytes) -> list[bytes]:
    """Parts of `data` that may be on the disk, all of it last."""
    cuts = sorted({0, PAGE, len(data) // 2 // PAGE * PAGE, (len(data) - 1) // PAGE * PAGE})
    return [*(data[:cut] for cut in cuts if cut < len(data)), bytes(len(data)), data]


def _unique(options: list[Any]) -> list[Any]:
    return [each for index, each in enumerate(options) if each not in options[:index]]


def _make(chosen: dict[int, Any], node: int, to: Path) -> None:
    for name, number in chosen.get(node, {}).items():
        content = chosen.get(number, {})
        if isinstance(content, bytes):
            (to / name).write_bytes(content)
            (to / name).chmod(0o600)
        else:
            (to / name).mkdir(mode=0o700)
            _make(chosen, number, to / name)
