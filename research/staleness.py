"""`python -m research staleness`: training on old groups over a bad network.

At a lag of L a node trains on no own group older than L updates (`experience.max_staleness`). Its
sampler gets the weights L − 1 updates late, and one more update passes while a group is made, as in
any asynchronous node. Most own groups are therefore as old as they may be. The network delays,
reorders and loses messages. The table shows the lags that were counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from research.arms import batch_of
from research.estimates import all_nodes, held_out, per_update
from research.scenario import StudyScenario
from research.skeleton import (
    HELD_OUT,
    Case,
    Experiment,
    Results,
    draw_bars,
    finish,
    results_table,
)
from swarm_node.errors import ConfigError
from swarm_node.policy.choices import LOSS_CHOICES
from swarm_node.simulation.report import SimulationReport

#: Losses that are published with advantages that are not divided by their deviation.
_WITHOUT_DEVIATION = ("dr_grpo", "tba")
#: Corrections of old samples: as a node does by default, as by default but with weights for
#: peers' log-probs, and not at all. The name of a loss stands for that loss, as it is published.
CORRECTIONS: Mapping[str, Mapping[str, Any]] = {
    "positive": {"training.loss": "decoupled", "experience.external_correction": "positive_only"},
    "sampler": {
        "training.loss": "decoupled",
        "experience.external_correction": "importance_sampling",
    },
    "none": {"training.loss": "reinforce", "experience.external_correction": "none"},
    **{
        loss: {
            "training.loss": loss,
            "training.advantage": "dr_grpo" if loss in _WITHOUT_DEVIATION else "grpo",
        }
        for loss in LOSS_CHOICES
    },
}

#: A correction and a lag.
Setting = tuple[str, int]


@dataclass(frozen=True)
class Staleness(Experiment[Setting]):
    """Compares every correction at every lag; `delay` and `message_loss` are those of a
    `StudyScenario`.

    Raises:
        ConfigError: no such correction, a negative lag, or fewer than 3 rounds.
    """

    name = "staleness"
    picture = "staleness.png"
    size = (11, 4)

    lags: tuple[int, ...]
    corrections: tuple[str, ...]
    delay: tuple[float, float]
    message_loss: float

    def __post_init__(self) -> None:
        unknown = [name for name in self.corrections if name not in CORRECTIONS]
        if self.rounds < 3:
            raise ConfigError("held-out reward is shown at thirds: make at least 3 rounds")
        if unknown or min(self.lags) < 0:
            correction_names = ", ".join(CORRECTIONS)
            raise ConfigError(
                f"corrections are {correction_names}, lags 0 or more updates: {unknown or ''}"
            )

    def cases(self, directory: Path) -> Mapping[Setting, Case]:
        return {
            (name, lag): self._case(name, lag) for lag in self.lags for name in self.corrections
        }

    def tables(self, results: Results[Setting]) -> Iterable[Table]:
        """Lags as set and as counted, groups per update (of peers among them), and held-out reward
        at a third, two thirds and the end."""
        headings = ("lag", "own (most)", "peers'", "groups (peers')", "1/3", "2/3", "end")
        table = results_table(HELD_OUT, ("correction",), headings)
        for setting, reports in results.items():
            table.add_row(*map(str, setting), *_figures(reports))
        return [table]

    def draw(self, figure: Any, results: Results[Setting]) -> None:
        """Held-out reward at the end over lags, and over updates at the largest lag."""
        over_lags, over_updates = figure.subplots(1, 2, sharey=True)
        lags = sorted(set(self.lags))
        for name in dict.fromkeys(self.corrections):
            ends = [held_out(results[name, lag])[1][-1] for lag in lags]
            draw_bars(over_lags, range(len(lags)), ends, name)
            rounds, points = held_out(results[name, lags[-1]])
            over_updates.plot(rounds, [point.mean for point in points], marker=".", label=name)
        over_lags.set_xticks(range(len(lags)), [str(lag) for lag in lags])
        over_lags.set(xlabel="lag as set, updates", ylabel="held-out reward (pass@1)", title="end")
        over_updates.set(xlabel="updates", title=f"lag {lags[-1]}")
        finish((over_lags, over_updates), "correction")

    def _case(self, correction: str, lag: int) -> Case:
        scenario = StudyScenario(
            self.nodes,
            self.rounds,
            delay=self.delay,
            message_loss=self.message_loss,
            behind=max(0, lag - 1),
            eval_rounds=max(1, self.rounds // 3),
        )
        flags = {"experience.max_staleness": lag, **batch_of(4, 4), **self.flags}
        flags |= CORRECTIONS[correction]
        return Case(f"{correction}-lag-{lag}", scenario, flags)


def _figures(reports: Sequence[SimulationReport]) -> tuple[str, ...]:
    nodes = all_nodes(reports)
    trained = per_update(nodes, lambda node: node.trained_local + node.trained_external)
    external = per_update(nodes, lambda node: node.trained_external)
    _, points = held_out(reports)
    own_lag = sum(node.local_staleness for node in nodes) / len(nodes)
    return (
        f"{own_lag:.1f} ({max(node.max_local_staleness for node in nodes)})",
        f"{sum(node.external_staleness for node in nodes) / len(nodes):.1f}",
        f"{trained:.1f} ({external:.1f})",
        *(f"{points[at]:.3f}" for at in (1, 2, -1)),
    )
