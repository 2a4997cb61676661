"""Runs the cases of an experiment over seeds, and does not make again what is there already.

Every run leaves a report.json in a directory of its own. One that is there, whole and made with the
same plan, settings and model is taken as it is, so an interrupted experiment goes on where it
stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from swarm_node.simulation.report import REPORT_FILE, SimulationReport, load_report, save_report
from swarm_node.simulation.run import progress_bar, simulation_settings
from swarm_node.simulation.swarm import Plan, describe, simulate


@dataclass(frozen=True, slots=True)
class Case:
    """One of the things compared: `name` is its directory, `plan` what is simulated (each run sets
    the seed) and `flags` are settings by dotted key."""

    name: str
    plan: Plan
    flags: Mapping[str, Any] = field(hash=False)


def run_cases(
    title: str, cases: Sequence[Case], seeds: Sequence[int], directory: Path
) -> list[list[SimulationReport]]:
    """The reports of each case, in the order of `seeds`, with a progress bar called `title`.

    Raises:
        SwarmNodeError: a setting is impossible, or the directory cannot be written.
    """
    results: list[list[SimulationReport]] = [[] for _ in cases]
    total = len(seeds) * sum(case.plan.nodes * case.plan.rounds for case in cases)
    with progress_bar(title, total) as advance:
        for index, seed in enumerate(seeds):
            # Seed by seed, so that an experiment cut short compares cases over the same seeds.
            for case, reports in zip(cases, results, strict=True):
                run = directory / case.name / f"seed-{index}"
                reports.append(_report(replace(case.plan, seed=seed), case.flags, run, advance))
    return results


def _report(
    plan: Plan, flags: Mapping[str, Any], directory: Path, advance: Callable[[], None]
) -> SimulationReport:
    settings = simulation_settings(plan.seed, flags)
    report = load_report(directory / REPORT_FILE)
    if report is not None and report.settings == describe(plan, settings):
        for _ in range(plan.nodes * plan.rounds):
            advance()
        return report
    report = simulate(plan, settings, advance)
    save_report(report, directory)
    return report
