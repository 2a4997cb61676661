"""Pass rates of checkpoints as a table of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table

from swarm_node.cli.views.views import number_of, plain

if TYPE_CHECKING:
    from swarm_node.library.measuring import CheckpointRates, CheckpointsReport, FamilyRates
    from swarm_node.library.pass_rates import PassRate, PassRates


def pass_rates_view(report: CheckpointsReport) -> RenderableType:
    """A line per checkpoint; of a single one, a line per family too."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    more = report.k > 1
    table.add_column("checkpoint", overflow="fold")
    for part in ("held-out", "train"):
        table.add_column(f"{part} pass@1", no_wrap=True)
        if more:
            table.add_column(f"{part} pass@{report.k}", no_wrap=True)
    one = len(report.checkpoints) == 1
    for each in report.checkpoints:
        table.add_row(plain(each.checkpoint), *_cells(each, more))
        if one and len(each.families) > 1:
            for family, rates in each.families.items():
                table.add_row(plain(f"  {family}"), *_cells(rates, more))
    return Group(table, *map(plain, _notes(report)))


def _cells(rates: CheckpointRates | FamilyRates, more: bool) -> Iterator[str]:
    for part in (rates.held_out, rates.train):
        yield _cell(part.pass_1 if part else None)
        if more:
            yield _cell(part.pass_k if part else None)


def _cell(rate: PassRate | None) -> str:
    if rate is None:
        return "-"
    return f"{rate.rate:.3f} {_short(rate.low)}-{_short(rate.high)}"


def _short(value: float) -> str:
    """Two digits without the zero: .07, 1.0."""
    return f"{value:.2f}".removeprefix("0") if value < 0.995 else "1.0"


def _notes(report: CheckpointsReport) -> Iterator[str]:
    first = report.checkpoints[0]
    shown = [("held-out", first.held_out), ("training", first.train)]
    counted = [f"{number_of(part.tasks, f'{name} prompt')}" for name, part in shown if part]
    each = number_of(report.completions, "completion")
    yield (
        f"{report.environment} {report.environment_version}: {', '.join(counted)}, {each} each, "
        f"temperature {report.temperature:g}"
    )
    methods = sorted(_methods(first.held_out, first.train))
    yield f"rate and 95% interval ({' and '.join(methods)}), mean over tasks, then over families"


def _methods(*parts: PassRates | None) -> set[str]:
    said = {"wilson": "Wilson's", "bootstrap": "bootstrap over tasks"}
    rates = [rate for part in parts if part for rate in (part.pass_1, part.pass_k) if rate]
    return {said[rate.interval] for rate in rates}
