"""What a demo leaves: a result for each node, sentences about them, and two files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from swarm_node.demo.nodes import DemoNode
from swarm_node.demo.tasks import DemoTasks
from swarm_node.node.figures.snapshot import SCHEMA, EvalPoint
from swarm_node.simulation.report import save_json, save_picture

#: The node that has no peers.
ALONE = "alone"
#: The summary shows the rewards of so many families one by one.
_SHOWN_FAMILIES = 5


class NodeReport(msgspec.Struct, frozen=True):
    """One node's result. It `samples` these families. Rewards on unseen texts are `families_…` by
    family, `reward_…` over all families, and `borrowed_…` over those that it never sampled itself.
    `seen_…` are means on texts that training may draw. A node that was measured once has nothing in
    `…_end`. `rejected` counts by reason."""

    name: str
    peer_id: str
    updates: int
    samples: list[str]
    families_start: dict[str, float]
    families_end: dict[str, float]
    reward_start: float
    reward_end: float | None
    borrowed_start: float | None
    borrowed_end: float | None
    seen_start: float | None
    seen_end: float | None
    groups_published: int
    groups_trained_own: int
    groups_trained_external: int
    rejected: dict[str, int]


def result_of(node: DemoNode) -> NodeReport:
    """Return the result of a node that was measured."""
    shot = node.snapshot
    assert shot is not None
    first, *later = shot.evals
    last = later[-1] if later else None
    return NodeReport(
        name=node.name,
        peer_id=shot.peer_id,
        updates=shot.updates,
        samples=list(node.families),
        families_start=first.families,
        families_end=last.families if last else {},
        reward_start=first.all,
        reward_end=last.all if last else None,
        borrowed_start=first.borrowed,
        borrowed_end=last.borrowed if last else None,
        seen_start=first.seen,
        seen_end=last.seen if last else None,
        groups_published=shot.groups.published,
        groups_trained_own=shot.groups.trained_own,
        groups_trained_external=shot.groups.trained_external,
        rejected=shot.rejected,
    )


def summary(ground: DemoTasks, results: Sequence[NodeReport]) -> Iterator[str]:
    """Yield the lines about the results: of few families one by one, the node's own marked."""
    for result in results:
        borrowed = change(result.borrowed_start, result.borrowed_end)
        yield (
            f"{result.name}: {ground.all} {change(result.reward_start, result.reward_end)}, "
            f"those that it never samples {borrowed}, seen texts "
            f"{change(result.seen_start, result.seen_end)}, {result.updates} updates"
        )
        if len(ground.kinds) <= _SHOWN_FAMILIES:
            each = (
                f"{family}{' (samples it)' * (family in result.samples)} "
                + change(result.families_start.get(family), result.families_end.get(family))
                for family in ground.families
                if family in result.families_start
            )
            yield f"  {', '.join(each)}"
    yield (
        "Rewards are on unseen texts, except where it says seen. "
        "alone: as node 1, without peers. What the others have more on families that they never "
        "sample, they learnt from each other."
    )


def change(start: float | None, end: float | None) -> str:
    """A reward and what became of it, which is "…" until it is measured again."""
    if start is None or math.isnan(start):
        return "-"
    if end is None or math.isnan(end):
        return f"{start:.2f}→…"
    return f"{start:.2f}→[bold green]{end:.2f}[/bold green]"


def write_report(
    directory: Path,
    seconds: float,
    nodes: Sequence[NodeReport],
    curves: Mapping[str, Sequence[EvalPoint]],
) -> list[Path]:
    """Write report.json and, where matplotlib is installed, learning.png; returns the files.

    An earlier report stays: the directory then gets a number.

    Raises:
        SwarmNodeError: the directory cannot be written.
    """
    directory = _unused(directory)
    report = {"schema": SCHEMA, "seconds": round(seconds, 1), "nodes": nodes}
    path, size = save_json(report, directory), (4 * len(curves), 3.9)
    picture = directory / "learning.png"
    return [path, *save_picture(picture, size, lambda figure: _draw(figure, curves))]


def _unused(directory: Path) -> Path:
    """`directory`, or its first relative with a number that holds no report."""
    numbered = (directory.with_name(f"{directory.name}-{n}") for n in itertools.count(2))
    places = itertools.chain([directory], numbered)
    return next(place for place in places if not (place / "report.json").exists())


def _draw(figure: Any, curves: Mapping[str, Sequence[EvalPoint]]) -> None:
    """One panel per node: reward over time on unseen texts and, thinner, on seen ones, and what the
    one alone reaches on families that it never samples."""
    swarm = {name: points for name, points in curves.items() if name != ALONE} or curves
    alone = [(p.seconds, p.borrowed) for p in curves.get(ALONE, ()) if p.borrowed is not None]
    panels = figure.subplots(1, len(swarm), sharey=True, squeeze=False)[0]
    for panel, (name, points) in zip(panels, swarm.items(), strict=True):
        seconds = [point.seconds for point in points]
        panel.plot(seconds, [point.own for point in points], label="families it samples")
        if borrowed := [(p.seconds, p.borrowed) for p in points if p.borrowed is not None]:
            panel.plot(*zip(*borrowed, strict=True), "--", label="families only in peers' rollouts")
        if seen := [(p.seconds, p.seen) for p in points if p.seen is not None]:
            label = "seen texts, all families"
            panel.plot(*zip(*seen, strict=True), color="silver", linewidth=0.8, label=label)
        if alone:
            panel.plot(*zip(*alone, strict=True), ":", color="grey", label="those, alone")
        panel.set(title=name, xlabel="seconds", ylim=(0, 1))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("reward on unseen texts")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
