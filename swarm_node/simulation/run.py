"""Makes the settings of a simulation, shows its progress, and prints and writes its result."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from swarm_node.config import Settings, load_settings, parse_assignments
from swarm_node.simulation.report import SimulationReport, save_report
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.swarm import simulate

#: Settings in which a simulated node differs from a real one. It polls about once per update, as
#: nodes with larger models do. It hardly evaluates and never checkpoints: the simulation measures
#: reward at no cost to the node, and no simulated node ever resumes.
_DEFAULTS: Mapping[str, Any] = {
    "network.poll_seconds": 1.0,
    "run.eval_seconds": 86_400,
    "run.eval_tasks": 1,
    "run.save_steps": 1_000_000,
}


def simulation_settings(
    seed: int, flags: Mapping[str, Any], assignments: Sequence[str] = ()
) -> Settings:
    """The nodes' settings, from the command line alone. A file or a variable that is set on one
    machine only must not change a result. `assignments` override `flags`.

    Raises:
        ConfigError: an unknown key or an impossible value, by name.
    """
    options = {key: value for key, value in flags.items() if value is not None}
    overrides = parse_assignments(list(assignments))
    return load_settings({**_DEFAULTS, "run.seed": seed, **options, **overrides}, environ={})


def run_simulation(scenario: Scenario, settings: Settings, directory: Path | None) -> None:
    """Simulate with a progress bar, print the result and write the report.

    Raises:
        SwarmNodeError: it cannot run, or the report cannot be written.
    """
    with progress_bar("simulating", scenario.nodes * scenario.rounds) as advance:
        report = simulate(scenario, settings, advance)
    Console().print(summary(report, scenario.models), highlight=False, soft_wrap=True)
    if directory is not None:
        for path in save_report(report, directory):
            print(f"wrote {path}")


def quiet() -> None:
    """Log errors alone. The lines of a hundred nodes would hide everything else, and their warnings
    are advice to an owner."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


@contextmanager
def quietly() -> Iterator[None]:
    """Be quiet in the block. A program that simulates may log by structlog too."""
    old_config, was_configured = structlog.get_config(), structlog.is_configured()
    quiet()
    try:
        yield
    finally:
        if was_configured:
            structlog.configure(**old_config)
        else:  # what logs later may still choose
            structlog.reset_defaults()


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr over `total` steps; yields a function that advances it by one."""
    quiet()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.update(task, advance=1)


def summary(report: SimulationReport, models: Sequence[str]) -> str:
    """The result in a few lines; `models` are those of the scenario."""
    nodes, held_out = report.nodes, report.eval_reward
    count, updates = len(nodes), sum(node.steps for node in nodes)
    received_bytes = sum(node.bytes_received for node in nodes) / count
    names = dict.fromkeys(models)
    by_model = [
        f"  {name}, {of.nodes} nodes: {of.curve[0][1]:.3f} -> {of.curve[-1][1]:.3f}"
        for name, of in zip(names, report.models, strict=True)
    ]
    return "\n".join(
        (
            f"eval reward          {held_out.start:.3f} -> {held_out.end:.3f}",
            *(
                [f"training prompts     {train_curve.start:.3f} -> {train_curve.end:.3f}"]
                if (train_curve := report.train_reward)
                else []
            ),
            *(by_model if len(by_model) > 1 else ()),
            f"cumulative reward    {report.cumulative_local_reward:.2f} of local groups, "
            f"{report.cumulative_batch_reward:.2f} of training batches",
            f"mixed rewards        {report.mixed_per_step:.2f} groups per step",
            f"groups sampled       {report.sampled} by {count} nodes in {updates} steps",
            f"per node             {received_bytes / 1024:.0f} KiB received, "
            f"{report.cpu_seconds / count:.2f} CPU s",
            f"virtual time         {report.virtual_seconds:.0f} s",
            f"hash                 {report.hash}",
        )
    )
