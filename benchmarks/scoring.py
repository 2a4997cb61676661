"""Cost of a text to its scoring workers: CPU milliseconds per data set over hostile texts, and a
group's.

    python benchmarks/scoring.py [--families gcd,bf] [--groups 200]

Every data set that can be chosen scores texts of 4,096 characters made to be slow (hostile.py of
the tests) and six of 64 kB, of which only the end is scored. Printed is the slowest of each data
set, by the best of three takes. Then the process that a node runs scores groups of eight
honest texts."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hostile import shapes

from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.environments.reasoning_gym.environment import choosable, create
from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.rollout import TaskRef

LIMIT_MS = 50.0
LONG = [
    unit * (65536 // len(unit)) for unit in ("<answer>", "9", "((1+", "[1,", "~", " 1 <answer>")
]


def slowest(family: str) -> tuple[float, str]:
    """CPU milliseconds of the slowest text, and how that begins."""
    environment = create({family: {}}, scoring="native")
    task = environment.derive(TaskRef(environment.name, environment.version, family, 12345))
    environment.score(task, "1")
    worst = (0.0, "")
    for text in (*shapes(task.payload["answer"]), *LONG):
        takes = []
        for _ in range(3):
            begin = time.process_time()
            environment.score(task, text)
            takes.append(time.process_time() - begin)
        worst = max(worst, (1000 * min(takes), f"{text[:24]!r}"))
    return worst


async def group_milliseconds(groups: int) -> list[float]:
    """Wall milliseconds of scoring eight honest texts, per group."""
    chosen = "drills", {"preset": "short"}
    host = ProcessEnvironmentHost(*chosen)
    try:
        info = await host.start()
        local = create_environment(*chosen)
        took = []
        for index in range(groups):
            family = info.families[index % len(info.families)]
            ref = TaskRef(info.name, info.version, family, task_seed("judging", index))
            right = str(local.answer(local.derive(ref)))
            texts = [right, f"It is <answer>{right}</answer>.", f"{right}0", "7"] * 2
            begin = time.perf_counter()
            await host.score(ref, texts)
            took.append(1000 * (time.perf_counter() - begin))
        return took
    finally:
        await host.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", help="separated by commas; all without it")
    parser.add_argument("--groups", type=int, default=200)
    options = parser.parse_args()
    families = options.families.split(",") if options.families else choosable()
    overall = (0.0, "", "")
    for family in families:
        worst, text = slowest(family)
        print(f"{family:26} {worst:8.2f} ms  {text}", flush=True)
        overall = max(overall, (worst, family, text))
    verdict = "within" if overall[0] <= LIMIT_MS else "ABOVE"
    print(
        f"slowest of {len(families)}: {overall[0]:.2f} ms ({overall[1]}, {overall[2]}), "
        f"{verdict} the limit of {LIMIT_MS:.0f} ms a text"
    )
    took = asyncio.run(group_milliseconds(options.groups))
    print(
        f"a group of eight honest texts, in the process: p50 {statistics.median(took):.2f} ms, "
        f"p95 {statistics.quantiles(took, n=20)[-1]:.2f} ms of {len(took)}"
    )


if __name__ == "__main__":
    main()
