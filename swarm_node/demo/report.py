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
from swarm_node.node.metrics.snapshot import SCHEMA, EvalPoint
from swarm_node.simulation.report import save_json, save_picture

#: The node that has no peers.
ISOLATED = "isolated"
#: The summary shows the rewards of so many families one by one.
_SHOWN_FAMILIES = 5


class NodeReport(msgspec.Struct, frozen=True):
    """One node's result. It `samples` these families. Rewards on held-out prompts are `families_…`
    by family, `reward_…` over all families, and `external_only_…` over those that it never sampled
    itself. `train_…` are means on training prompts. A node that was measured once has nothing in
    `…_end`. `rejected` counts by reason."""

    name: str
    peer_id: str
    steps: int
    samples: list[str]
    families_start: dict[str, float]
    families_end: dict[str, float]
    reward_start: float
    reward_end: float | None
    external_only_start: float | None
    external_only_end: float | None
    train_start: float | None
    train_end: float | None
    groups_sampled: int
    groups_trained_local: int
    groups_trained_external: int
    rejected: dict[str, int]


def result_of(node: DemoNode) -> NodeReport:
    """Return the result of a node that was measured."""
    shot = node.snapshot
    assert shot is not None
    first, *later_evals = shot.evals
    last = later_evals[-1] if later_evals else None
    return NodeReport(
        name=node.name,
        peer_id=shot.peer_id,
        steps=shot.steps,
        samples=list(node.families),
        families_start=first.families,
        families_end=last.families if last else {},
        reward_start=first.reward,
        reward_end=last.reward if last else None,
        external_only_start=first.external_only,
        external_only_end=last.external_only if last else None,
        train_start=first.train,
        train_end=last.train if last else None,
        groups_sampled=shot.groups.sampled,
        groups_trained_local=shot.groups.trained_local,
        groups_trained_external=shot.groups.trained_external,
        rejected=shot.rejected,
    )


def summary(ground: DemoTasks, results: Sequence[NodeReport]) -> Iterator[str]:
    """Yield the lines about the results: of few families one by one, the node's own marked."""
    for result in results:
        external_change = change(result.external_only_start, result.external_only_end)
        yield (
            f"{result.name}: {ground.all} {change(result.reward_start, result.reward_end)}, "
            f"external-only families {external_change}, training prompts "
            f"{change(result.train_start, result.train_end)}, {result.steps} steps"
        )
        if len(ground.kinds) <= _SHOWN_FAMILIES:
            family_texts = (
                f"{family}{' (samples it)' * (family in result.samples)} "
                + change(result.families_start.get(family), result.families_end.get(family))
                for family in ground.families
                if family in result.families_start
            )
            yield f"  {', '.join(family_texts)}"
    yield (
        "Rewards are on held-out prompts, unless marked as training prompts. "
        "isolated: like node 1, without peers. What the others gain over it on external-only "
        "families, they learned from each other."
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
    directory = _unused_directory(directory)
    report = {"schema": SCHEMA, "seconds": round(seconds, 1), "nodes": nodes}
    path, size = save_json(report, directory), (4 * len(curves), 3.9)
    picture = directory / "learning.png"
    return [path, *save_picture(picture, size, lambda figure: _draw(figure, curves))]


def _unused_directory(directory: Path) -> Path:
    """`directory`, or its first relative with a number that holds no report."""
    siblings = (directory.with_name(f"{directory.name}-{n}") for n in itertools.count(2))
    places = itertools.chain([directory], siblings)
    return next(place for place in places if not (place / "report.json").exists())


def _draw(figure: Any, curves: Mapping[str, Sequence[EvalPoint]]) -> None:
    """One panel per node: eval reward over time on local and on external-only families, beside what
    the isolated node reaches on the latter, and, thinner, the reward on training prompts."""
    swarm = {name: points for name, points in curves.items() if name != ISOLATED} or curves
    isolated_curve = [
        (p.seconds, p.external_only)
        for p in curves.get(ISOLATED, ())
        if p.external_only is not None
    ]
    panels = figure.subplots(1, len(swarm), sharey=True, squeeze=False)[0]
    for panel, (name, points) in zip(panels, swarm.items(), strict=True):
        seconds = [point.seconds for point in points]
        panel.plot(seconds, [point.local for point in points], label="local families")
        if external_curve := [
            (p.seconds, p.external_only) for p in points if p.external_only is not None
        ]:
            panel.plot(*zip(*external_curve, strict=True), "--", label="external-only families")
        if train := [(p.seconds, p.train) for p in points if p.train is not None]:
            label = "training prompts, all families"
            panel.plot(*zip(*train, strict=True), color="silver", linewidth=0.8, label=label)
        if isolated_curve:
            panel.plot(
                *zip(*isolated_curve, strict=True),
                ":",
                color="grey",
                label="the same, isolated node",
            )
        panel.set(title=name, xlabel="seconds", ylim=(0, 1))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("eval reward")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
