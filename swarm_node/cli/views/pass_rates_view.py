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
    has_pass_k = report.k > 1
    table.add_column("checkpoint", overflow="fold")
    for part in ("held-out", "train"):
        table.add_column(f"{part} pass@1", no_wrap=True)
        if has_pass_k:
            table.add_column(f"{part} pass@{report.k}", no_wrap=True)
    is_single = len(report.checkpoints) == 1
    for checkpoint in report.checkpoints:
        table.add_row(plain(checkpoint.checkpoint), *_cells(checkpoint, has_pass_k))
        if is_single and len(checkpoint.families) > 1:
            for family, rates in checkpoint.families.items():
                table.add_row(plain(f"  {family}"), *_cells(rates, has_pass_k))
    return Group(table, *map(plain, _notes(report)))


def _cells(rates: CheckpointRates | FamilyRates, has_pass_k: bool) -> Iterator[str]:
    for part in (rates.held_out, rates.train):
        yield _cell(part.pass_1 if part else None)
        if has_pass_k:
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
    parts = [("held-out", first.held_out), ("training", first.train)]
    counts = [f"{number_of(part.tasks, f'{name} prompt')}" for name, part in parts if part]
    samples = number_of(report.completions, "completion")
    yield (
        f"{report.environment} {report.environment_version}: {', '.join(counts)}, {samples} each, "
        f"temperature {report.temperature:g}"
    )
    methods = sorted(_methods(first.held_out, first.train))
    yield f"rate and 95% interval ({' and '.join(methods)}), mean over tasks, then over families"


def _methods(*parts: PassRates | None) -> set[str]:
    names = {"wilson": "Wilson's", "bootstrap": "bootstrap over tasks"}
    rates = [rate for part in parts if part for rate in (part.pass_1, part.pass_k) if rate]
    return {names[rate.interval] for rate in rates}
