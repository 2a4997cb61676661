"""Prints the tables of the frontier and draws its pictures, each by one command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from research.constants import best_constants
from research.frontier import Frontier
from research.frontier_arms import (
    DEFAULT,
    EVAL_TASKS,
    GROUNDS,
    settings_of,
)
from research.frontier_tables import (
    claims_table,
    draw,
    ends_tables,
    levels_table,
    prediction_table,
    sizes_table,
)
from research.skeleton import results_table
from swarm_node.errors import ConfigError
from swarm_node.simulation.run import simulation_settings


def show_tables(frontier: Frontier, name: str) -> None:
    """Print a table, for each regime that was asked for.

    Raises:
        ConfigError: there is no such table, or runs that it needs are missing.
    """
    if name not in _TABLES:
        raise ConfigError(f"there is no table {name}: choose from {', '.join(_TABLES)}")
    console = Console(highlight=False)
    for table in _TABLES[name](frontier):
        console.print(table)


def show_picture(frontier: Frontier, path: Path) -> None:
    """Draw the first regime that was asked for.

    Raises:
        ConfigError: runs that it needs are missing.
    """
    for file in draw(frontier.raw, frontier.stage, frontier.regimes[0], path):
        print(f"wrote {file}")


def _ends(frontier: Frontier) -> Iterator[Table]:
    for regime in frontier.regimes:
        yield from ends_tables(frontier.raw, frontier.stage, regime)


def _levels(frontier: Frontier) -> Iterator[Table]:
    return (levels_table(frontier.raw, frontier.stage, regime) for regime in frontier.regimes)


def _claims(frontier: Frontier) -> Iterator[Table]:
    yield claims_table(frontier.raw, frontier.regimes, frontier.sizes)


def _sizes(frontier: Frontier) -> Iterator[Table]:
    return (sizes_table(frontier.raw, regime, frontier.sizes) for regime in frontier.regimes)


def _prediction(frontier: Frontier) -> Iterator[Table]:
    return (prediction_table(frontier.raw, regime, frontier.sizes) for regime in frontier.regimes)


def _constant(frontier: Frontier) -> Iterator[Table]:
    """Score of the most frequent right answer of each family."""
    for regime in frontier.regimes:
        ground = GROUNDS[regime]
        settings = simulation_settings(0, settings_of(DEFAULT, ground, 1, 1.0))
        table = results_table(f"{regime}: constant answers", ("family", "answer"), ("reward",))
        found = best_constants(settings.environment.name, settings.environment.options, EVAL_TASKS)
        for family, constant in found.items():
            table.add_row(family, constant.answer, f"{constant.reward:.3f}")
        whole = sum(constant.reward for constant in found.values()) / len(found)
        table.add_row("all", "", f"{whole:.3f}")
        yield table


_TABLES: dict[str, Callable[[Frontier], Iterator[Table]]] = {
    "ends": _ends,
    "levels": _levels,
    "claims": _claims,
    "sizes": _sizes,
    "prediction": _prediction,
    "constant": _constant,
}
