"""Parts that the pictures of several experiments share; needs matplotlib (extra `plot`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from research.estimates import Estimate


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
