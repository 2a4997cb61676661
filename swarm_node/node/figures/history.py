"""The table of the figures that a node counts, and their history: one row per interval, in memory
and in `metrics.jsonl`.

Each is a field of `GroupCounts`, `UpdateRow` or `HistoryRow`, whose `figure` is what Prometheus,
the live view and the schemas say of it. `CHARTS` is what the page draws. `MetricsFile` writes, and
reads what an earlier run wrote. All else is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import msgspec

from swarm_node.durable import Journal
from swarm_node.errors import HomeError

#: Rows held in memory. Beyond it, the older half is thinned.
MAX_ROWS = 4096
#: Two files of this size hold a day or two of rows at the highest rate.
MAX_FILE_BYTES = 16 << 20
#: Seconds between two rows: the least between rows of updates, and the most between any two.
LEAST_SECONDS, MOST_SECONDS = 5.0, 60.0


class Figure(NamedTuple):
    """What a figure is (`said`), its name in `GET /metrics`, which ends with the unit, its value of
    the label `origin` there, and its text in the live view; "" for none."""

    said: str
    metric: str
    origin: str
    live: str


def figure(said: str, metric: str = "", *, origin: str = "", live: str = "") -> msgspec.Meta:
    """Return what makes a field a `Figure`, as its annotation. Schemas have what is `said`."""
    return msgspec.Meta(description=said, extra={"figure": Figure(said, metric, origin, live)})


def figures(row: msgspec.Struct | None) -> Iterator[tuple[str, Figure, Any]]:
    """Yield the figures of a row whose values are known: name, figure and value."""
    for name, each in _table(type(row)).items() if row is not None else ():
        if (value := getattr(row, name)) is not None:
            yield name, each, value


@cache
def _table(kind: type[msgspec.Struct]) -> Mapping[str, Figure]:
    return {
        field.name: meta.extra["figure"]
        for field in msgspec.structs.fields(kind)
        for meta in getattr(field.type, "__metadata__", ())
    }


class GroupCounts(msgspec.Struct, kw_only=True):
    """Counts of rollout groups since this home was created, and of the answers in those made."""

    published: Annotated[int, figure("Groups sampled here.", "groups_made")] = 0
    announced: Annotated[
        int, figure("Groups made here that peers can use.", "groups_announced")
    ] = 0
    taken: Annotated[int, figure("Pulls of groups that this node answered.", "groups_taken")] = 0
    received: Annotated[int, figure("Peers' groups pulled and verified.", "groups_received")] = 0
    trained_own: Annotated[int, figure("Groups trained on.", "groups_trained", origin="own")] = 0
    trained_external: Annotated[
        int, figure("Peers' groups trained on.", "groups_trained", origin="peers")
    ] = 0
    trained_again: Annotated[
        int, figure("Own groups trained on again.", "groups_trained", origin="again")
    ] = 0
    answers: Annotated[int, figure("Answers in the groups sampled here.", "answers_made")] = 0
    cut: Annotated[
        int, figure("Of these, answers that sampling.max_new_tokens cut.", "answers_cut")
    ] = 0


class UpdateRow(msgspec.Struct, frozen=True, kw_only=True):
    """The newest update in figures; all but `mean_reward` are those of `UpdateStats`. `kl` and
    `entropy` are in nats."""

    loss: Annotated[float, figure("Loss of the newest update.", "loss", live="loss {:.2g}")]
    mean_reward: Annotated[float, figure("Mean reward of its groups.", live="reward {:.2f}")]
    kl: Annotated[
        float, figure("Divergence from the sampling policy.", "kl_nats", live="KL {:.1g}")
    ]
    entropy: Annotated[
        float, figure("Entropy of the policy per token.", "entropy_nats", live="entropy {:.2g}")
    ] = 0.0
    clipped_share: Annotated[float, figure("Share of clipped tokens.", "clipped_ratio")]
    grad_norm: Annotated[float, figure("Norm of the gradient before clipping.", "gradient_norm")]
    tokens: int
    seconds: float


@dataclass
class Totals:
    """Running sums since the start. The difference of two gives a row its means.

    The loops count over groups trained on: `rows` with an advantage, rows of the own past included;
    `own_reward`, `own_answers` and `own_turns` of own groups; their `lag` in versions; the `age` of
    peers' groups in updates; and `trained_tokens`. `sampled_tokens` are those of own answers.

    The others are found when a row is made. `seconds` is the node's clock. `own` and `external` are
    groups trained on in `updates`. `made` are own groups, of which
    `informative` have different rewards. They have `answers`, of which `cut` ran out of tokens.
    `sampling` and `updating` are seconds of work.
    """

    rows: int = 0
    own_reward: float = 0.0
    own_answers: int = 0
    own_turns: int = 0
    lag: int = 0
    age: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0
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


#: Names in the history that differ from those in the status.
_RENAMED = {"published": "made", "trained_external": "trained_peers", "grad_norm": "gradient_norm"}
#: None without values.
Mean = float | None


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node at `time`, and its work in the `seconds` since the row before. None: not known, or no
    values for a mean.

    Counted since the home was made are `updates`, and groups: `made` by this node, `announced` to
    peers, `taken` (pulls that this node answered), `received` from peers, and trained on. The
    groups made have `answers`, of which `cut` ran out of tokens. `loss` to `gradient_norm` are of
    the newest update that was not skipped; `kl` and `entropy` are in nats. `lag` is in versions,
    `age` in updates, `memory` in bytes. `pass_1` to `split` are None unless they were measured
    since the row before.
    """

    time: Annotated[float, figure("Unix seconds.")]
    seconds: float
    version: Annotated[int, figure("Version of the policy.")]
    updates: int
    made: int
    announced: int
    taken: int
    received: int
    trained_own: int
    trained_peers: int
    trained_again: int = 0
    answers: int = 0
    cut: int = 0
    own_per_update: Annotated[Mean, figure("Own groups in an update.")] = None
    peers_per_update: Annotated[Mean, figure("Peers' groups in an update.")] = None
    rows: Annotated[int, figure("Answers with an advantage that were trained on.")]
    lag: Annotated[Mean, figure("Mean lag of the own groups trained on.", "lag_versions")] = None
    age: Annotated[Mean, figure("Mean age of the peers' groups trained on.", "age_updates")] = None
    updates_per_second: float
    sampled_tokens_per_second: Annotated[float, figure("Tokens of own groups.")]
    trained_tokens_per_second: float
    sampler_busy: Annotated[float, figure("Share of the time.")]
    trainer_busy: Annotated[float, figure("Share of the time.")]
    own_reward: Annotated[
        Mean, figure("Mean reward of the own groups trained on.", "own_reward")
    ] = None
    turns: Annotated[
        Mean,
        figure("Mean turns of the own dialogues trained on; 1 for single answers.", "turns"),
    ] = None
    informative_share: Annotated[
        Mean, figure("Own groups whose rewards differ.", "informative_ratio")
    ] = None
    cut_share: Annotated[
        Mean, figure("Own answers that sampling.max_new_tokens cut.", "cut_ratio")
    ] = None
    loss: float | None = None
    kl: float | None = None
    entropy: float | None = None
    clipped_share: float | None = None
    gradient_norm: float | None = None
    pass_1: Annotated[dict[str, float] | None, figure("Reward on unseen texts by family.")] = None
    pass_k: Annotated[dict[str, float] | None, figure("The same, of the best of `k`.")] = None
    k: int | None = None
    seen_1: Annotated[float | None, figure("Reward on seen texts, over all families.")] = None
    split: Annotated[int | None, figure("Number of the rule that holds texts out.")] = None
    memory: Annotated[int, figure("Memory of all processes of the node.", "memory_bytes")]
    refused: Annotated[int, figure("Messages of peers that were refused since the start.")]
    replay: Annotated[int, figure("Of these, dialogues that end elsewhere when replayed.")] = 0
    peers: Annotated[int, figure("Peers heard in the last minute.")]

    @classmethod
    def of(
        cls, before: Totals, now: Totals, *parts: GroupCounts | UpdateRow | None, **more: Any
    ) -> HistoryRow:
        """Make a row of the means between two moments, of what Prometheus has of `parts`, and of
        `more`. An update counts as a whole in the interval in which it ends, so a share of the time
        is cut at 1."""
        d = now.since(before)
        seconds = max(d.seconds, 1e-9)
        return cls(
            seconds=d.seconds,
            updates_per_second=d.updates / seconds,
            rows=d.rows,
            sampled_tokens_per_second=d.sampled_tokens / seconds,
            trained_tokens_per_second=d.trained_tokens / seconds,
            sampler_busy=min(1.0, d.sampling / seconds),
            trainer_busy=min(1.0, d.updating / seconds),
            own_per_update=_ratio(d.own, d.updates),
            peers_per_update=_ratio(d.external, d.updates),
            own_reward=_ratio(d.own_reward, d.own_answers),
            turns=_ratio(d.own_turns, d.own_answers),
            informative_share=_ratio(d.informative, d.made),
            cut_share=_ratio(d.cut, d.answers),
            lag=_ratio(d.lag, d.own),
            age=_ratio(d.age, d.external),
            **{
                _RENAMED.get(name, name): value
                for part in parts
                for name, each, value in figures(part)
                if each.metric
            },
            **more,
        )


#: The charts of the page: the figures of rows by the labels of their lines. A title ends with the
#: unit, if that is not the row's.
CHARTS: Mapping[str, Mapping[str, str]] = {
    "groups a minute": {"given": "taken", "got": "received"},
    "groups in an update": {"own": "own_per_update", "of peers": "peers_per_update"},
    "age of what is trained on": {"own, in versions": "lag", "peers', in updates": "age"},
    "updates a second": {"updates": "updates_per_second"},
    "tokens a second": {
        "sampled": "sampled_tokens_per_second",
        "trained on": "trained_tokens_per_second",
    },
    "share of groups with mixed rewards": {"own": "informative_share"},
    "share of answers that max_new_tokens cut": {"own": "cut_share"},
    "reward of own groups": {"own": "own_reward"},
    "turns of a dialogue": {"own": "turns"},
    "loss": {"loss": "loss"},
    "KL to the policy before": {"KL": "kl"},
    "entropy": {"entropy": "entropy"},
    "share of clipped tokens": {"clipped": "clipped_share"},
    "busy share": {"sampler": "sampler_busy", "trainer": "trainer_busy"},
    "memory in MB": {"all processes": "memory"},
    "refused messages": {"refused": "refused", "dialogues that end elsewhere": "replay"},
}


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
