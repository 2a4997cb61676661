"""The skeleton of every experiment.

An experiment lists the cases it compares, and makes the tables and the picture of their reports.
The skeleton runs every case over the declared seeds, prints the tables and draws the picture.

Each run leaves a report.json in a directory of its own. The skeleton takes a stored report as it is
if the file is whole and was made with the same scenario, settings and models. An interrupted
experiment therefore goes on where it stopped.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from research.estimates import Estimate, declared_seeds
from research.scenario import StudyScenario
from research.swarm import simulate
from swarm_node.simulation.report import (
    REPORT_FILE,
    SimulationReport,
    load_report,
    save_picture,
    save_report,
)
from swarm_node.simulation.run import progress_bar, simulation_settings
from swarm_node.simulation.swarm import describe

Key = TypeVar("Key")
#: The title of the tables with the figure that counts.
HELD_OUT = "held-out reward, mean ± 95% confidence interval over seeds"
#: The reports of each case, in the order of the seeds.
Results = Mapping[Key, Sequence[SimulationReport]]


@dataclass(frozen=True, slots=True)
class Case:
    """One of the things compared. `name` is its directory and `flags` are settings by dotted key.
    Each run replaces the seed of `scenario`."""

    name: str
    scenario: StudyScenario
    flags: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Experiment(ABC, Generic[Key]):
    """Base of all experiments: `flags` are settings by dotted key that every case shares, `name`
    chooses the seeds, `picture` is a file name and `size` its inches. `Key` tells cases apart."""

    name: ClassVar[str]
    picture: ClassVar[str]
    size: ClassVar[tuple[float, float]]

    nodes: int
    rounds: int
    seeds: int
    flags: Mapping[str, Any] = field(hash=False)

    @property
    def place(self) -> str:
        """The directory of the runs, below that of the reports."""
        return f"n{self.nodes}-r{self.rounds}"

    def run(self, directory: Path) -> None:
        """Make the missing runs below `directory`, then print the tables and draw the picture.

        Raises:
            SwarmNodeError: a name or a setting is impossible, a model cannot be made, or the
                directory cannot be written.
        """
        place = directory / self.place
        try:
            results = _reports(self, self.cases(directory), place)
        except KeyboardInterrupt:
            text = f"finished runs are kept in {place}: give the same command again to go on"
            print(f"swarm-node: stopped; {text}", file=sys.stderr)
            raise
        console = Console(highlight=False)
        for table in self.tables(results):
            console.print(table)
        path = place / self.picture
        for file in save_picture(path, self.size, lambda figure: self.draw(figure, results)):
            print(f"wrote {file}")

    def declared(self) -> Mapping[int, int]:
        """The seeds of the runs, by their index among the declared ones."""
        return dict(enumerate(declared_seeds(self.seeds, self.name)))

    @abstractmethod
    def cases(self, directory: Path) -> Mapping[Key, Case]:
        """The cases to compare. Models that have to be built go below `directory`."""

    @abstractmethod
    def tables(self, results: Results[Key]) -> Iterable[Table]:
        """The tables to print."""

    @abstractmethod
    def draw(self, figure: Any, results: Results[Key]) -> None:
        """Fill the matplotlib figure."""


def results_table(title: str, labels: Sequence[str], figures: Sequence[str]) -> Table:
    """An empty table in the style of all experiments: columns of labels, then of figures."""
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for heading in labels:
        table.add_column(heading, no_wrap=True, overflow="fold")
    for heading in figures:
        table.add_column(heading, justify="right")
    return table


def _reports(
    experiment: Experiment[Key], cases: Mapping[Key, Case], place: Path
) -> dict[Key, list[SimulationReport]]:
    reports: dict[Key, list[SimulationReport]] = {key: [] for key in cases}
    total = experiment.seeds * len(cases) * experiment.nodes * experiment.rounds
    with progress_bar(experiment.name, total) as advance:
        # All cases of one seed come before the next seed. An experiment that is cut short has
        # then compared its cases over the same seeds.
        for index, seed in experiment.declared().items():
            for key, case in cases.items():
                scenario = replace(case.scenario, seed=seed)
                run = place / case.name / f"seed-{index}"
                reports[key].append(_report(scenario, case.flags, run, advance))
    return reports


def _report(
    scenario: StudyScenario, flags: Mapping[str, Any], directory: Path, advance: Callable[[], None]
) -> SimulationReport:
    settings = simulation_settings(scenario.seed, flags)
    report = load_report(directory / REPORT_FILE)
    if report is not None and report.settings == describe(scenario, settings):
        for _ in range(scenario.nodes * scenario.rounds):
            advance()
        return report
    report = simulate(scenario, settings, advance)
    save_report(report, directory)
    return report


def draw_band(
    panel: Any, places: Sequence[float], points: Sequence[Estimate], label: str, **style: Any
) -> Any:
    """Draw a line with its confidence interval; returns its colour."""
    means = [point.mean for point in points]
    (line,) = panel.plot(places, means, label=label, **style)
    halves = _half_widths(points)
    low = [mean - half for mean, half in zip(means, halves, strict=True)]
    high = [mean + half for mean, half in zip(means, halves, strict=True)]
    panel.fill_between(places, low, high, alpha=0.15, color=line.get_color())
    return line.get_color()


def draw_bars(panel: Any, places: Sequence[float], points: Sequence[Estimate], label: str) -> None:
    """Draw a line with its confidence intervals as bars."""
    means = [point.mean for point in points]
    panel.errorbar(places, means, _half_widths(points), capsize=3, label=label)


def finish(panels: Sequence[Any], legend: str | None = None) -> None:
    """Give each panel a grid and a legend with a title."""
    for panel in panels:
        panel.grid(alpha=0.3)
        panel.legend(title=legend)


def _half_widths(points: Sequence[Estimate]) -> list[float]:
    """Half-widths of the confidence intervals; 0 where one seed allows none."""
    return [0.0 if math.isnan(point.half) else point.half for point in points]
