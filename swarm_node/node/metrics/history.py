"""The table of a node's metrics, and their history: one row per interval, in memory and in
`metrics.jsonl`.

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
    """What a figure is (`description`), its name in `GET /metrics`, which ends with the unit, its
    value of the label `origin` there, and its text in the live view; "" for none."""

    description: str
    metric: str
    origin: str
    live_format: str


def figure(
    description: str, metric: str = "", *, origin: str = "", live_format: str = ""
) -> msgspec.Meta:
    """Return what makes a field a `Figure`, as its annotation. Schemas have the `description`."""
    return msgspec.Meta(
        description=description, extra={"figure": Figure(description, metric, origin, live_format)}
    )


def figures(row: msgspec.Struct | None) -> Iterator[tuple[str, Figure, Any]]:
    """Yield the figures of a row whose values are known: name, figure and value."""
    for name, spec in _table(type(row)).items() if row is not None else ():
        if (value := getattr(row, name)) is not None:
            yield name, spec, value


@cache
def _table(kind: type[msgspec.Struct]) -> Mapping[str, Figure]:
    return {
        field.name: meta.extra["figure"]
        for field in msgspec.structs.fields(kind)
        for meta in getattr(field.type, "__metadata__", ())
    }


class GroupCounts(msgspec.Struct, kw_only=True):
    """Counts of rollout groups since this home was created, and of the completions in the local
    ones."""

    sampled: Annotated[int, figure("Groups sampled here.", "groups_sampled")] = 0
    announced: Annotated[int, figure("Local groups that peers can use.", "groups_announced")] = 0
    sent: Annotated[int, figure("Local groups sent to peers.", "groups_sent")] = 0
    accepted: Annotated[int, figure("External groups verified.", "groups_accepted")] = 0
    trained_local: Annotated[
        int, figure("Groups trained on.", "groups_trained", origin="local")
    ] = 0
    trained_external: Annotated[
        int, figure("External groups trained on.", "groups_trained", origin="external")
    ] = 0
    trained_replay: Annotated[
        int, figure("Local groups trained on again.", "groups_trained", origin="replay")
    ] = 0
    completions: Annotated[int, figure("Completions sampled here.", "completions")] = 0
    truncated: Annotated[
        int, figure("Of these, completions that max_new_tokens ended.", "completions_truncated")
    ] = 0


class UpdateRow(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of the newest step; all but `mean_reward` are those of `UpdateStats`. `mismatch_kl`
    and `entropy` are in nats."""

    loss: Annotated[float, figure("Loss of the newest step.", "loss", live_format="loss {:.2g}")]
    mean_reward: Annotated[float, figure("Mean reward of its groups.", live_format="reward {:.2f}")]
    mismatch_kl: Annotated[
        float,
        figure("KL to the sampling policy.", "mismatch_kl_nats", live_format="mismatch KL {:.1g}"),
    ]
    entropy: Annotated[
        float,
        figure("Entropy of the policy per token.", "entropy_nats", live_format="entropy {:.2g}"),
    ]
    clip_ratio: Annotated[float, figure("Fraction of clipped tokens.", "clip_ratio")]
    grad_norm: Annotated[float, figure("Norm of the gradient before clipping.", "grad_norm")]
    tokens: int
    seconds: float


@dataclass
class Totals:
    """Running sums since the start. The difference of two gives a row its means.

    The loops count over groups trained on: `rollouts` with an advantage, replay included;
    `rollout_reward`, `local_rollouts` and `local_turns` of local groups; their `staleness` in
    versions; the `external_age` of external groups in steps; and `trained_tokens`.
    `sampled_tokens` are those of local groups.

    The others are read when a row is made. `seconds` is the node's clock. `local` and `external`
    are groups trained on in `steps`. Of the `sampled` groups, `mixed_rewards` have different
    rewards. They have `completions`, of which `truncated` ran out of tokens. `sampling` and
    `updating` are seconds of work.
    """

    rollouts: int = 0
    rollout_reward: float = 0.0
    local_rollouts: int = 0
    local_turns: int = 0
    staleness: int = 0
    external_age: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    local: int = 0
    external: int = 0
    sampled: int = 0
    mixed_rewards: int = 0
    completions: int = 0
    truncated: int = 0
    sampling: float = 0.0
    updating: float = 0.0

    def since(self, start: Self) -> Self:
        """Return what was added after `start`."""
        pairs = zip(astuple(start), astuple(self), strict=True)
        return type(self)(*(end_value - start_value for start_value, end_value in pairs))


#: None without values.
Mean = float | None


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node at `time`, and its work in the `seconds` since the row before. None: not known, or no
    values for a mean.

    Counted since the home was made are `steps`, and groups: `sampled` by this node, `announced` to
    peers, `sent` to them, `accepted` from them, and trained on. The groups sampled have
    `completions`, of which `truncated` ran out of tokens. `loss` to `grad_norm` are of the newest
    step that was not skipped; `mismatch_kl` and `entropy` are in nats. `staleness` is in versions,
    `external_age` in steps, `memory` in bytes. `eval_reward` to `split_version` are None unless
    they were measured since the row before.
    """

    time: Annotated[float, figure("Unix seconds.")]
    seconds: float
    version: Annotated[int, figure("Version of the policy.")]
    steps: int
    sampled: int
    announced: int
    sent: int
    accepted: int
    trained_local: int
    trained_external: int
    trained_replay: int = 0
    completions: int = 0
    truncated: int = 0
    local_per_step: Annotated[Mean, figure("Local groups in a step.")] = None
    external_per_step: Annotated[Mean, figure("External groups in a step.")] = None
    rollouts: Annotated[int, figure("Rollouts with an advantage that were trained on.")]
    staleness: Annotated[
        Mean, figure("Mean staleness of the local groups trained on.", "staleness_versions")
    ] = None
    external_age: Annotated[
        Mean, figure("Mean age of the external groups trained on.", "external_age_steps")
    ] = None
    steps_per_second: float
    sampled_tokens_per_second: Annotated[float, figure("Tokens of local groups.")]
    trained_tokens_per_second: float
    sampler_busy: Annotated[float, figure("Fraction of the time.")]
    trainer_busy: Annotated[float, figure("Fraction of the time.")]
    rollout_reward: Annotated[
        Mean, figure("Mean reward of the local groups trained on.", "rollout_reward")
    ] = None
    turns: Annotated[
        Mean,
        figure("Mean turns of the local rollouts trained on; 1 for single-turn tasks.", "turns"),
    ] = None
    mixed_reward_ratio: Annotated[
        Mean, figure("Fraction of local groups with mixed rewards.", "mixed_reward_ratio")
    ] = None
    truncated_ratio: Annotated[
        Mean, figure("Fraction of completions that max_new_tokens ended.", "truncated_ratio")
    ] = None
    loss: float | None = None
    mismatch_kl: float | None = None
    entropy: float | None = None
    clip_ratio: float | None = None
    grad_norm: float | None = None
    eval_reward: Annotated[
        dict[str, float] | None, figure("Reward on held-out prompts, by family.")
    ] = None
    best_of_k: Annotated[
        dict[str, float] | None, figure("The same, of the best of `k` completions.")
    ] = None
    k: int | None = None
    eval_reward_train: Annotated[float | None, figure("Reward on training prompts.")] = None
    split_version: Annotated[int | None, figure("Version of the split.")] = None
    memory: Annotated[int, figure("Memory of all processes of the node.", "memory_bytes")]
    rejected: Annotated[int, figure("Messages of peers that were rejected since the start.")]
    rerun_mismatch: Annotated[
        int, figure("Of these, multi-turn rollouts that end elsewhere when re-run.")
    ] = 0
    peers: Annotated[int, figure("Peers heard in the last minute.")]

    @classmethod
    def of(
        cls, start: Totals, now: Totals, *parts: GroupCounts | UpdateRow | None, **fields: Any
    ) -> HistoryRow:
        """Make a row of the means between two moments, of what Prometheus has of `parts`, and of
        `fields`. A step counts as a whole in the interval in which it ends, so a fraction of the
        time is limited to 1."""
        d = now.since(start)
        seconds = max(d.seconds, 1e-9)
        return cls(
            seconds=d.seconds,
            steps_per_second=d.steps / seconds,
            rollouts=d.rollouts,
            sampled_tokens_per_second=d.sampled_tokens / seconds,
            trained_tokens_per_second=d.trained_tokens / seconds,
            sampler_busy=min(1.0, d.sampling / seconds),
            trainer_busy=min(1.0, d.updating / seconds),
            local_per_step=_ratio(d.local, d.steps),
            external_per_step=_ratio(d.external, d.steps),
            rollout_reward=_ratio(d.rollout_reward, d.local_rollouts),
            turns=_ratio(d.local_turns, d.local_rollouts),
            mixed_reward_ratio=_ratio(d.mixed_rewards, d.sampled),
            truncated_ratio=_ratio(d.truncated, d.completions),
            staleness=_ratio(d.staleness, d.local),
            external_age=_ratio(d.external_age, d.external),
            **{name: value for part in parts for name, spec, value in figures(part) if spec.metric},
            **fields,
        )


#: The charts of the page: the figures of rows by the labels of their lines. A title ends with the
#: unit, if that is not the row's.
CHARTS: Mapping[str, Mapping[str, str]] = {
    "groups per minute": {"sent": "sent", "accepted": "accepted"},
    "groups in a step": {"local": "local_per_step", "external": "external_per_step"},
    "age of the groups trained on": {
        "local, in versions": "staleness",
        "external, in steps": "external_age",
    },
    "steps per second": {"steps": "steps_per_second"},
    "tokens per second": {
        "sampled": "sampled_tokens_per_second",
        "trained on": "trained_tokens_per_second",
    },
    "fraction of groups with mixed rewards": {"local": "mixed_reward_ratio"},
    "fraction of completions truncated": {"local": "truncated_ratio"},
    "rollout reward": {"local": "rollout_reward"},
    "turns per rollout": {"local": "turns"},
    "loss": {"loss": "loss"},
    "mismatch KL": {"mismatch KL": "mismatch_kl"},
    "entropy": {"entropy": "entropy"},
    "fraction of tokens clipped": {"clipped": "clip_ratio"},
    "fraction of the time busy": {"sampler": "sampler_busy", "trainer": "trainer_busy"},
    "memory in MB": {"all processes": "memory"},
    "rejected messages": {"rejected": "rejected", "re-run mismatch": "rerun_mismatch"},
}


class HistoryReport(msgspec.Struct, frozen=True):
    """Rows of a node's history, the oldest first."""

    schema: int
    rows: list[HistoryRow]


def _ratio(part: float, total: float) -> float | None:
    return part / total if total else None


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
            middle = len(self._rows) // 2
            self._rows[:middle] = self._rows[:middle:2]

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

    def read(self, offset: int | None = None) -> Iterator[HistoryRow]:
        """Return the rows of earlier runs, the oldest first, or those after `offset` bytes of the
        newer file. Lines that a crash cut, or that another version wrote, are skipped."""
        decoder = msgspec.json.Decoder(HistoryRow)
        for line in self._journal.lines(offset):
            with suppress(ValueError, RecursionError):
                yield decoder.decode(line)
