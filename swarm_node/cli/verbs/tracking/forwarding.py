"""A home's figures, answers and checkpoints on their way to a tracker (`track`)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import asdict

from swarm_node.cli.home import ask
from swarm_node.cli.verbs.tracking.trackers import AnswerRow, Lineage, RunName, Tracker
from swarm_node.durable import replace_private
from swarm_node.errors import CheckpointError, Rejected, SwarmNodeError
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.history import HistoryRow, MetricsFile
from swarm_node.node.metrics.samples import SampleRow
from swarm_node.policy.training.checkpoints.stored import checkpoints, head
from swarm_node.program.commands import printable

#: Trackers keep every table: at most twelve an hour, of 64 rows, of some 900 characters each.
_ANSWERS_SECONDS: Final = 300.0
_ANSWERS: Final = 64


class Mark(msgspec.Struct):
    """Position up to which a data directory was passed on to one tracker: the time of its last row,
    and the last checkpoint."""

    until: float = 0.0
    updates: int = 0
    checkpoint: str = ""


class Forwarder:
    """One data directory on its way to one tracker."""

    def __init__(self, place: Home, tracker: Tracker, mark: Path) -> None:
        self._place, self._tracker, self._file = place, tracker, mark
        try:
            self._mark = msgspec.json.decode(mark.read_bytes(), type=Mark)
        except (OSError, msgspec.DecodeError):  # everything is passed on again
            self._mark = Mark()
        self._size = -1
        self._requested_at = -math.inf
        self._answers: list[AnswerRow] = []

    def once(self) -> int:
        """Pass on what is new, and note how far it came. Return how many rows were new."""
        try:
            return self._pass_on()
        finally:
            replace_private(self._file, msgspec.json.encode(self._mark))

    def _pass_on(self) -> int:
        mark, count = self._mark, 0
        for row in self._rows():
            self._tracker.log(figures(row), row.steps, row.time)
            mark.until, mark.updates = row.time, row.steps
            count += 1
        for lineage in lineages(self._place.checkpoints, mark.checkpoint):
            self._tracker.checkpoint(lineage, mark.updates, time.time())
            mark.checkpoint = lineage.name
        if time.monotonic() - self._requested_at >= _ANSWERS_SECONDS:
            self._pass_answers()
        return count

    def _rows(self) -> Iterator[HistoryRow]:
        file = self._place.metrics
        previous_size, self._size = self._size, file.stat().st_size if file.exists() else 0
        # What was there before is read once; a file that became smaller was moved away.
        for row in MetricsFile(file).read(
            previous_size if 0 <= previous_size <= self._size else None
        ):
            if row.time > self._mark.until:
                yield row

    def _pass_answers(self) -> None:
        with suppress(SwarmNodeError):  # no node runs, or it is too busy: later
            reply = ask(self._place.path, lambda client: client.samples())
            self._requested_at = time.monotonic()
            rows = answers(reply.samples)
            if rows and rows != self._answers:
                self._tracker.answers(rows, self._mark.updates, time.time())
                self._answers = rows


def run_name(place: Home) -> RunName:
    """The names of a data directory's node and of its swarm. A data directory without a swarm has
    none yet."""
    key = place.identity().peer_id[-8:]
    if not place.has_swarm:
        return RunName("no swarm", key, key)
    member = place.membership()
    contents = member.open_chain()
    name = key if isinstance(contents, Rejected) else contents[1].name
    return RunName(printable(member.swarm.name), printable(name), key)


def answers(rows: Sequence[SampleRow]) -> list[AnswerRow]:
    """The answers of a node and its peers as rows of one line a text."""
    return [
        AnswerRow(
            printable(row.family),
            row.author[-8:] or "local",
            row.version,
            row.reward,
            printable(row.prompt),
            printable(row.completion),
        )
        for row in rows[:_ANSWERS]
    ]


def lineages(store: Path, name: str) -> list[Lineage]:
    """The checkpoints below `store` that are newer than `name`, the oldest first. The parent of
    one is the newest before it that was there when somebody looked."""
    entries, parent = [], name
    for path in reversed(checkpoints(store)):
        if path.name <= name:
            continue
        with suppress(CheckpointError, OSError):  # removed meanwhile, or damaged
            header = head(path)
            entries.append(
                Lineage(
                    path.name,
                    header.version,
                    parent,
                    header.model.hex(),
                    header.weights.hex(),
                    header.bytes,
                    header.rank,
                )
            )
            parent = path.name
    return entries


def figures(row: HistoryRow) -> dict[str, float]:
    """The known numbers of a row, by name. Rewards of families are also given as their mean."""
    numbers = {}
    for name, value in asdict(row).items():
        if isinstance(value, int | float) and name not in ("time", "k", "split_version"):
            numbers[name] = float(value)
        elif isinstance(value, dict) and value:
            numbers |= {f"{name}/{family}": reward for family, reward in value.items()}
            numbers[f"{name}/all"] = sum(value.values()) / len(value)
    return numbers
