"""Gain of overlap: a node as built against the same node with sampling and training in turns.

Both are real nodes, a swarm of one, on the nine short families at a temperature that makes answers
long-tailed: most end after a few tokens, some run to the limit, and a batch takes as long as its
longest answer. The synchronous arm differs in one setting, `experience.max_staleness=0`: an own
group must be trained on at the version that sampled it, so sampling waits for the update under way
and the update for the batch. The arms alternate; medians are printed. Overlap needs two cores:
where other work shares them, wall time says little, so the CPU seconds of both arms are printed
too.

    python benchmarks/asynchrony.py [--seconds 40] [--repetitions 3] [--set KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from node_process import NodeProcess, cpu_seconds

SETTINGS = (
    "experience.local=8",
    "experience.external=0",  # nobody else is there
    "sampling.max_new_tokens=128",
    "sampling.temperature=1.5",
    "run.threads=1",
    "run.eval_seconds=86400",
    "run.eval_tasks=1",
)
ARMS = {"asynchronous": "experience.max_staleness=8", "synchronous": "experience.max_staleness=0"}


@dataclass(frozen=True)
class ArmFigures:
    """Updates per wall second, seconds per update by wall and CPU, the shares of wall time in
    sampling and in updates, and groups that grew too old to be trained on."""

    updates_per_second: float
    cpu_per_update: float
    sampler: float
    trainer: float
    expired: float


def measure(name: str, seconds: float, extra: list[str]) -> ArmFigures:
    with tempfile.TemporaryDirectory(prefix="swarm-node-bench-") as directory:
        node = NodeProcess(Path(directory), [*SETTINGS, ARMS[name], *extra])
        try:
            node.start()
            time.sleep(3.0)  # first updates allocate
            first, cpu = node.status(), cpu_seconds(node.process.pid)
            time.sleep(seconds)
            last, cpu = node.status(), cpu_seconds(node.process.pid) - cpu
        finally:
            node.stop()
    assert first.busy is not None
    assert last.busy is not None
    updates = last.steps + last.skipped_batches - first.steps - first.skipped_batches
    wall = last.busy.seconds - first.busy.seconds
    return ArmFigures(
        updates_per_second=updates / wall,
        cpu_per_update=cpu / updates,
        sampler=(last.busy.sampler - first.busy.sampler) / wall,
        trainer=(last.busy.trainer - first.busy.trainer) / wall,
        expired=last.buffer["expired"] - first.buffer["expired"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="one more setting of both arms")
    arguments = parser.parse_args()
    print(
        f"python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores, "
        f"load average {os.getloadavg()[0]:.1f} at the start; {arguments.seconds:g} s, median of "
        f"{arguments.repetitions} alternating repetitions"
    )
    runs: dict[str, list[ArmFigures]] = {name: [] for name in ARMS}
    ratios = []
    for _ in range(arguments.repetitions):
        for name in ARMS:
            runs[name].append(measure(name, arguments.seconds, arguments.set))
        pair = [runs[name][-1].updates_per_second for name in ARMS]
        ratios.append(pair[0] / pair[1])
    print(
        f"{'':13} {'updates/s':>9} {'ms/update':>9} {'CPU ms/update':>13} {'sampler busy':>12} "
        f"{'trainer busy':>12} {'expired':>7}"
    )
    for name, arms in runs.items():
        rate = statistics.median(arm.updates_per_second for arm in arms)
        print(
            f"{name:13} {rate:9.2f} {1e3 / rate:9.0f} "
            f"{1e3 * statistics.median(arm.cpu_per_update for arm in arms):13.0f} "
            f"{statistics.median(arm.sampler for arm in arms):12.0%} "
            f"{statistics.median(arm.trainer for arm in arms):12.0%} "
            f"{statistics.median(arm.expired for arm in arms):7.0f}"
        )
    print(
        f"updates per second, asynchronous to synchronous: {statistics.median(ratios):.2f} "
        f"({', '.join(f'{ratio:.2f}' for ratio in ratios)})"
    )


if __name__ == "__main__":
    main()
