"""The figures that a node counts, and their history: one row per interval, in memory and in
`metrics.jsonl`.

A new count is a field of `GroupCounts`, and a new mean one of `Sums` and `Means`. The code that
counts and the chart of the page are the only other places. `MetricsFile` writes, and reads what an
earlier run wrote. All else is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from swarm_node.durable import Journal
from swarm_node.errors import HomeError

#: Rows held in memory. Beyond it, the older half is thinned.
MAX_ROWS = 4096
#: Two files of this size hold a day or two of rows at the highest rate.
MAX_FILE_BYTES = 16 << 20
#: Seconds between two rows: the least between rows of updates, and the most between any two.
LEAST_SECONDS, MOST_SECONDS = 5.0, 60.0


class GroupCounts(msgspec.Struct):
    """Counts of rollout groups since this home was created. `published` were made here, of which
    `announced` can teach peers something. `taken` counts the pulls that this node answered,
    `received` the groups that it pulled and verified. `trained_again` counts own groups of the last
    updates that were trained on once more; `trained_own` leaves them out. The groups published have
    `answers`, of which `cut` ran out of tokens."""

    published: int = 0
    trained_own: int = 0
    trained_external: int = 0
    received: int = 0
    announced: int = 0
    taken: int = 0
    trained_again: int = 0
    answers: int = 0
    cut: int = 0


class Metric(NamedTuple):
    """A figure of `GET /metrics`: its name, its line of help, and its value of the label
    `origin`, "" for none."""

    name: str
    said: str
    origin: str = ""


#: The counters among the metrics, by field of `GroupCounts`.
COUNTERS: Mapping[str, Metric] = {
    "published": Metric("groups_made", "Groups sampled here."),
    "announced": Metric("groups_announced", "Groups made here that peers can use."),
    "taken": Metric("groups_taken", "Pulls of groups that this node answered."),
    "received": Metric("groups_received", "Peers' groups pulled and verified."),
    "trained_own": Metric("groups_trained", "Groups trained on.", "own"),
    "trained_external": Metric("groups_trained", "Groups trained on.", "peers"),
    "trained_again": Metric("groups_trained", "Groups trained on.", "again"),
    "answers": Metric("answers_made", "Answers in the groups sampled here."),
    "cut": Metric("answers_cut", "Of these, answers that sampling.max_new_tokens cut."),
}
#: The gauges among the metrics, by field of the newest `HistoryRow`.
GAUGES: Mapping[str, Metric] = {
    "lag": Metric("lag_versions", "Mean lag of the own groups trained on."),
    "age": Metric("age_updates", "Mean age of the peers' groups trained on."),
    "own_reward": Metric("own_reward", "Mean reward of the own groups trained on."),
    "turns": Metric("turns", "Mean turns of the own dialogues trained on; 1 for single answers."),
    "informative_share": Metric("informative_ratio", "Own groups whose rewards differ."),
    "cut_share": Metric("cut_ratio", "Own answers that sampling.max_new_tokens cut."),
    "memory": Metric("memory_bytes", "Memory of all processes of the node."),
}


@dataclass
class Sums:
    """Sums since the start, for the means of the history. Over groups trained on: `rows` with an
    advantage, rows of the own past included; `own_reward`, `own_answers` and `own_turns` of own
    groups; their `lag` in versions; the `age` of peers' groups in updates; and `trained_tokens`.
    `sampled_tokens` are those of own answers."""

    rows: int = 0
    own_reward: float = 0.0
    own_answers: int = 0
    own_turns: int = 0
    lag: int = 0
    age: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0


@dataclass
class Totals(Sums):
    """Running sums since the start. The difference of two gives a row its means. `seconds` is the
    node's clock. `own` and `external` are groups trained on in `batches` updates, skipped ones
    included. `made` are own groups, of which `informative` have different rewards. They have
    `answers`, of which `cut` ran out of tokens. `sampling` and `updating` are seconds of work."""

    seconds: float = 0.0
    batches: int = 0
    updates: int = 0
    own: int = 0
    external: int = 0
    made: int = 0
    informative: int = 0
    answers: int = 0
    cut: int = 0
    sampling: float = 0.0
    updating: float = 0.0

    def since(self, before: Self) -> Self:
        """Return what was added after `before`."""
        pairs = zip(astuple(before), astuple(self), strict=True)
        return type(self)(*(later - earlier for earlier, later in pairs))


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a `HistoryRow` that follow from two `Totals`."""

    seconds: float
    updates_per_second: float
    rows: int
    sampled_tokens_per_second: float
    trained_tokens_per_second: float
    sampler_busy: float
    trainer_busy: float
    own_per_update: float | None = None
    peers_per_update: float | None = None
    own_reward: float | None = None
    turns: float | None = None
    informative_share: float | None = None
    cut_share: float | None = None
    lag: float | None = None
    age: float | None = None

    @classmethod
    def between(cls, before: Totals, now: Totals) -> Means:
        """Return the means between two moments. An update counts as a whole in the interval in
        which it ends, so a share of the time is cut at 1."""
        d = now.since(before)
        seconds = max(d.seconds, 1e-9)
        return Means(
            seconds=d.seconds,
            updates_per_second=d.updates / seconds,
            rows=d.rows,
            sampled_tokens_per_second=d.sampled_tokens / seconds,
            trained_tokens_per_second=d.trained_tokens / seconds,
            sampler_busy=min(1.0, d.sampling / seconds),
            trainer_busy=min(1.0, d.updating / seconds),
            own_per_update=_ratio(d.own, d.batches),
            peers_per_update=_ratio(d.external, d.batches),
            own_reward=_ratio(d.own_reward, d.own_answers),
            turns=_ratio(d.own_turns, d.own_answers),
            informative_share=_ratio(d.informative, d.made),
            cut_share=_ratio(d.cut, d.answers),
            lag=_ratio(d.lag, d.own),
            age=_ratio(d.age, d.external),
        )


class HistoryRow(Means, frozen=True, kw_only=True):
    """A node at `time` (Unix seconds), and its work since the row before. None: not known, or no
    values for a mean.

    Totals since the home was made are `version` (of the policy), `updates`, and groups: `made` by
    this node, `announced` to peers, `taken` (pulls that this node answered), `received` from peers,
    `trained_own`, `trained_peers` and `trained_again`. The groups made have `answers`, of which
    `cut` ran out of tokens. `refused` counts peers' messages since the
    start, without peers that did not answer; `replay` are those whose dialogues end elsewhere when
    replayed.

    `loss`, `kl` and `entropy` (in nats), `clipped_share` and `gradient_norm` are of the newest
    update that was not skipped.

    Over the interval of `seconds`: `own_per_update` and `peers_per_update` are groups. `lag` is
    that of own groups in versions, `age` that of peers' groups in updates. `rows` have an
    advantage. `own_reward` is that of the own groups trained on, `turns` the mean number of turns
    of their dialogues. `informative_share` is that of the own groups made, `cut_share` that of
    their answers. `sampled` (for own groups) and `trained` are tokens a second. `sampler_busy` and
    `trainer_busy` are shares of the time.

    `pass_1` and `pass_k` are the reward on unseen texts by family, of one answer a task and of the
    best of `k`. `seen_1` is the reward on seen texts, over all families. `split` is the number of
    the rule that holds texts out. All are None unless they were measured since the row before.

    `memory` is in bytes, over all processes of the node. `peers` counts those heard in the last
    minute.
    """

    time: float
    version: int
    updates: int
    made: int
    announced: int
    taken: int
    received: int
    trained_own: int
    trained_peers: int
    refused: int
    peers: int
    memory: int
    trained_again: int = 0
    answers: int = 0
    cut: int = 0
    replay: int = 0
    loss: float | None = None
    kl: float | None = None
    entropy: float | None = None
    clipped_share: float | None = None
    gradient_norm: float | None = None
    pass_1: dict[str, float] | None = None
    pass_k: dict[str, float] | None = None
    k: int | None = None
    seen_1: float | None = None
    split: int | None = None

    @classmethod
    def of(cls, groups: GroupCounts, found: Means, **known: Any) -> HistoryRow:
        """Make a row of the counts, the means and what else is `known`."""
        return HistoryRow(
            made=groups.published,
            announced=groups.announced,
            taken=groups.taken,
            received=groups.received,
            trained_own=groups.trained_own,
            trained_peers=groups.trained_external,
            trained_again=groups.trained_again,
            answers=groups.answers,
            cut=groups.cut,
            **msgspec.structs.asdict(found),
            **known,
        )


class HistoryReport(msgspec.Struct, frozen=True):
    """Rows of a node's history, the oldest first."""

    schema: int
    rows: list[HistoryRow]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


class Ring:
    """The rows of a node, the oldest first. At most `limit` are held. Beyond it, every second row
    of the older half is dropped, so the rows still cover the whole time."""

    def __init__(self, rows: Iterable[HistoryRow] = (), limit: int = MAX_ROWS) -> None:
        self._limit = limit
        self._rows: list[HistoryRow] = []
        for row in rows:
            self.add(row)

    def add(self, row: HistoryRow) -> None:
        """Take in the newest row."""
        self._rows.append(row)
        if len(self._rows) > self._limit:
            half = len(self._rows) // 2
            self._rows[:half] = self._rows[:half:2]

    @property
    def latest(self) -> HistoryRow | None:
        return self._rows[-1] if self._rows else None

    def since(self, time: float) -> list[HistoryRow]:
        """The rows later than the Unix second `time`."""
        return [row for row in self._rows if row.time > time]


class MetricsFile:
    """`metrics.jsonl`, one row a line."""

    def __init__(self, path: Path, limit: int = MAX_FILE_BYTES) -> None:
        self._journal = Journal(path, limit)

    def append(self, row: HistoryRow) -> None:
        """Write a row.

        Raises:
            HomeError: the disk is full, or the file cannot be written.
        """
        try:
            self._journal.append(msgspec.json.encode(row))
        except OSError as error:
            raise HomeError(f"cannot write {self._journal.path}: {error.strerror}") from error

    def read(self, since: int | None = None) -> Iterator[HistoryRow]:
        """Return the rows of earlier runs, the oldest first, or those after `since` bytes of the
        newer file. Lines that a crash cut, or that another version wrote, are skipped."""
        decoder = msgspec.json.Decoder(HistoryRow)
        for line in self._journal.lines(since):
            with suppress(ValueError, RecursionError):
                yield decoder.decode(line)
