"""The history of a node as records, as a data frame and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, overload

import msgspec

from swarm_node.errors import SwarmNodeError, extra_of
from swarm_node.node.metrics.history import HistoryRow
from swarm_node.simulation.report import Drawing, drawing


class NodeHistory(Sequence[HistoryRow]):
    """Rows of a node's history, the oldest first. The fields of a row are those of `metrics.jsonl`
    and of `GET /v1/history`."""

    def __init__(self, rows: Sequence[HistoryRow]) -> None:
        self._rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> HistoryRow: ...
    @overload
    def __getitem__(self, index: slice) -> NodeHistory: ...
    def __getitem__(self, index: int | slice) -> HistoryRow | NodeHistory:
        selection = self._rows[index]
        return NodeHistory(selection) if isinstance(selection, tuple) else selection

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[HistoryRow]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"<NodeHistory of {len(self)} rows>"

    def curve(self, family: str | None = None) -> list[tuple[float, float]]:
        """Return pairs of seconds since the first row and eval reward: of one
        `family`, or the mean over all. Only the newest split has points, because rewards of two
        splits do not compare."""
        eval_rows = [row for row in self._rows if row.eval_reward]
        split = eval_rows[-1].split_version if eval_rows else None
        return [
            (row.time - self._rows[0].time, reward)
            for row in eval_rows
            if row.split_version == split
            and (reward := _reward(row.eval_reward or {}, family)) is not None
        ]

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a line for each row. Its index is the time (UTC), its
        columns are the other fields; rewards by family are columns such as `eval_reward.sorting`.

        Raises:
            SwarmNodeError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise SwarmNodeError("to_pandas needs pandas", f"run {extra_of('pandas')}") from error
        names = [name for name in HistoryRow.__struct_fields__ if name not in _BY_FAMILY]
        frame = pandas.DataFrame([_flat(row) for row in self._rows])
        family_columns = [name for name in frame.columns if name not in names]
        frame = frame.reindex(columns=[*names, *sorted(family_columns)])
        frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
        return frame.set_index("time")

    def plot(self) -> Drawing:
        """Draw the curve; a notebook shows it.

        Raises:
            SwarmNodeError: matplotlib is not installed.
        """
        return drawing((7, 3.6), self._draw)

    def _draw(self, figure: Any) -> None:
        panel = figure.subplots()
        if curve := self.curve():
            panel.plot(*zip(*curve, strict=True), marker=".", label="held-out prompts")
        first = self._rows[0].time if self._rows else 0.0
        if train := [
            (r.time - first, r.eval_reward_train)
            for r in self._rows
            if r.eval_reward_train is not None
        ]:
            panel.plot(
                *zip(*train, strict=True), color="grey", linewidth=0.8, label="training prompts"
            )
        panel.set(xlabel="seconds", ylabel="eval reward", ylim=(0, 1))
        panel.grid(alpha=0.3)
        if curve or train:
            panel.legend()


#: Fields of a row with a value for each family.
_BY_FAMILY = ("eval_reward", "best_of_k")


def _reward(rewards: Mapping[str, float], family: str | None) -> float | None:
    return fmean(rewards.values()) if family is None else rewards.get(family)


def _flat(row: HistoryRow) -> dict[str, Any]:
    """A row with a field for each family in the place of a mapping."""
    fields = msgspec.structs.asdict(row)
    for name in _BY_FAMILY:
        rewards = fields.pop(name) or {}
        fields |= {f"{name}.{family}": reward for family, reward in rewards.items()}
    return fields
