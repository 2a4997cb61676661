"""Real nodes beside simulated ones at the same pace: reward over updates, and answers per update.

Four real nodes on this machine (the launcher of `swarm-node demo`) sample all families until each
has made its updates. Their pace, seconds per sampled token and per update, is the mean of what they
measured. Then the simulator runs as many nodes with that pace and the same settings. Real nodes
share the cores, so other work on the machine changes their pace, and not the comparison.

    python benchmarks/real_beside_simulated.py [--nodes 4] [--updates 120] [--seed 0]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from research.prediction import between
from research.scenario import StudyScenario
from research.swarm import simulate
from swarm_node.demo.nodes import DemoNode, make_swarm
from swarm_node.demo.tasks import FAMILIES
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.snapshot import Snapshot
from swarm_node.simulation.paced import Pace
from swarm_node.simulation.run import progress_bar, simulation_settings

_EVAL_TASKS, _EVAL_SECONDS = 32, 20
#: Both kinds of nodes have these; the launcher sets the first two.
_SHARED = {"training.learning_rate": 3e-5, "network.poll_seconds": 0.5}
#: Goals: the largest differences of the curves, and of the answers per update.
CURVE_WITHIN, ANSWERS_WITHIN = 0.03, 0.15


@dataclass(frozen=True)
class Measured:
    """Updates at which reward was measured, the rewards, and answers per update and node."""

    updates: Sequence[float]
    reward: Sequence[float]
    answers: float


def pace_of(snapshots: Sequence[Snapshot]) -> Pace:
    """Seconds of a node per sampled token and per update, mean over nodes."""
    tokens, updates = [], []
    for snapshot in snapshots:
        assert snapshot.busy is not None
        assert snapshot.tokens is not None
        tokens.append(snapshot.busy.sampler / snapshot.tokens.sampled)
        updates.append(snapshot.busy.trainer / (snapshot.steps + snapshot.skipped_batches))
    return Pace(sum(tokens) / len(tokens), sum(updates) / len(updates))


def real(snapshots: Sequence[Snapshot], at: Sequence[int], group_size: int) -> Measured:
    """The mean of the nodes' curves at these updates, and their answers."""
    curves = [
        [
            between([p.version for p in shot.evals], [p.reward for p in shot.evals], update)
            for update in at
        ]
        for shot in snapshots
    ]
    updates = sum(shot.steps + shot.skipped_batches for shot in snapshots)
    group_count = sum(shot.groups.sampled for shot in snapshots)
    reward = [sum(values) / len(values) for values in zip(*curves, strict=True)]
    return Measured(at, reward, group_size * group_count / updates)


async def run_real(directory: Path, nodes: int, updates: int, seed: int) -> list[Snapshot]:
    """Run the nodes until each has made its updates; their last snapshots."""
    assignments = (
        f"run.seed={seed}",
        f"run.eval_seconds={_EVAL_SECONDS}",
        f"run.eval_tasks={_EVAL_TASKS}",
    )
    swarm = [
        DemoNode(
            f"node {index + 1}", Home(directory / str(index)), FAMILIES, assignments=assignments
        )
        for index in range(nodes)
    ]
    for node in swarm:
        node.home.begin()
    make_swarm("bench", swarm, time.time())
    try:
        await asyncio.gather(*(node.start() for node in swarm))
        while not all(node.snapshot and node.snapshot.steps >= updates for node in swarm):
            await asyncio.sleep(0.5)
            await asyncio.gather(*(node.poll() for node in swarm))
        return [node.snapshot for node in swarm if node.snapshot is not None]
    finally:
        await asyncio.gather(*(node.stop() for node in swarm))


def run_simulated(pace: Pace, nodes: int, at: Sequence[int], seed: int) -> Measured:
    """The same nodes in the simulator."""
    scenario = StudyScenario(
        nodes, at[-1], seed=seed, pace=pace, eval_at=tuple(at), eval_tasks=_EVAL_TASKS
    )
    settings = simulation_settings(seed, _SHARED)
    with progress_bar("simulating", nodes * at[-1]) as advance:
        report = simulate(scenario, settings, advance)
    curve = report.eval_reward.curve
    answer_rate = settings.sampling.group_size * report.sampled / (nodes * at[-1])
    return Measured([entry for entry, _ in curve], [reward for _, reward in curve], answer_rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--updates", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    at = sorted({max(1, round(options.updates * part / 6)) for part in range(1, 7)})
    with tempfile.TemporaryDirectory(prefix="swarm-node-bench-") as directory:
        snapshots = asyncio.run(
            run_real(Path(directory), options.nodes, options.updates, options.seed)
        )
    pace = pace_of(snapshots)
    size = simulation_settings(options.seed, _SHARED).sampling.group_size
    real_run = real(snapshots, [0, *at], size)
    simulation = run_simulated(pace, options.nodes, at, options.seed)
    print(f"pace: {pace.token_seconds:.6f} s a token, {pace.update_seconds:.4f} s an update")
    print("updates   real  simulated  difference")
    gaps = [a - b for a, b in zip(real_run.reward, simulation.reward, strict=True)]
    for entry, real_reward, simulated_reward, gap in zip(
        real_run.updates, real_run.reward, simulation.reward, gaps, strict=True
    ):
        print(f"{entry:7.0f}  {real_reward:.3f}      {simulated_reward:.3f}      {gap:+.3f}")
    answer_gap = real_run.answers / simulation.answers - 1
    print(
        f"answers an update: {real_run.answers:.1f} real, {simulation.answers:.1f} simulated "
        f"({answer_gap:+.0%})"
    )
    is_met = max(map(abs, gaps)) <= CURVE_WITHIN and abs(answer_gap) <= ANSWERS_WITHIN
    aim = f"curve within {CURVE_WITHIN}, answers within {ANSWERS_WITHIN:.0%}"
    print(f"{aim}: {'met' if is_met else 'missed'}")


if __name__ == "__main__":
    main()
