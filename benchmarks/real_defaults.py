"""Defaults for a pretrained model: reward on unseen texts after equal processor time.

    python benchmarks/real_defaults.py --model FILE.gguf [--cpu-seconds 400] [--seeds 0 1 2]
                                       [--only NAME …] [--table] [--minutes 10]

A run is a whole node alone, `swarm-node join` with one setting changed, that is stopped when its
processes have used `--cpu-seconds`: start, loading, first groups and one small evaluation included.
Then its last checkpoint answers the same unseen tasks once, 32 of the easiest level of each of the
five kinds of `graded`, at temperature 0.7 with at most 24 tokens, whatever it was trained with. The
endpoint is the mean reward. `base` is the model before training.

With `--minutes` a node with today's defaults, nothing set but the model and the seed, runs for so
long by the clock, its own evaluations included; such runs have a results' file of their own.

All candidates of a seed are run before the next seed, on one machine. A candidate more than .15
behind the defaults on the first seed gets no further runs. Each run is a line of the results' file;
runs that it has are not repeated, so the command can be stopped and started again. The table gives
means over seeds and the paired difference from the defaults with Student's 95% interval.

The candidate with two changes was added after the results of the first seed were known. So the
first seed is exploratory; the others decide.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from node_process import Memory, NodeProcess, cpu_seconds

from research.estimates import estimate
from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.config import load_settings
from swarm_node.environments.bundled.drills import PRESETS
from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.environments.splits.seeds import held_out_seed
from swarm_node.library.stored_policy import holding, open_sampler, stored_policies
from swarm_node.node.home.home import Home
from swarm_node.node.loops.reporting.evaluation import Examiner
from swarm_node.node.loops.sampling.levels import ladders
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import hardware, place
from swarm_node.rollout import TaskRef

RESULTS = Path(__file__).resolve().parents[1] / "docs/research/real-defaults.jsonl"
JOINED = RESULTS.with_name("real-join.jsonl")
DEFAULTS = "defaults"
#: The groups of the defaults when the campaign began.
THEN: Mapping[str, Any] = {"experience.local": 4, "sampling.max_concurrent_groups": 8}
#: Settings that a candidate changes. A node alone trains on twice `experience.local` groups.
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    DEFAULTS: {},
    "temperature 1.0": {"sampling.temperature": 1.0},
    "4 groups of 8": {"experience.local": 2, "sampling.max_concurrent_groups": 4},
    "adapters' rate 3e-5": {"training.learning_rate": 3e-5},
    "adapters' rate 3e-4": {"training.learning_rate": 3e-4},
    "all weights, rate 1e-5": {"training.lora_rank": 0, "training.learning_rate": 1e-5},
    "4 groups of 8, adapters' rate 3e-4": {
        "experience.local": 2,
        "sampling.max_concurrent_groups": 4,
        "training.learning_rate": 3e-4,
    },
    "4 groups of 16": {
        "experience.local": 2,
        "sampling.max_concurrent_groups": 4,
        "sampling.group_size": 16,
    },
    "48 tokens": {"sampling.max_new_tokens": 48},
    "2 threads each": {"run.threads": 2},
    "all weights, rate 1e-6": {"training.lora_rank": 0, "training.learning_rate": 1e-6},
}
BEHIND = 0.15
#: The endpoint: unseen tasks of a family, one answer to each, and how they are sampled.
TASKS = 32
EASIEST = [each[0] for each in ladders(tuple(PRESETS["graded"])).values()]
ASKED = {
    "environment.options.preset": "graded",
    "sampling.temperature": 0.7,
    "sampling.max_new_tokens": 24,
}
_POLL_SECONDS = 0.5
#: A trainer ends its update before the node stores the last checkpoint.
_STOP_SECONDS = 600.0


async def _rewards(home: Path, model: Path, checkpoint: str | None) -> dict[str, float]:
    """Mean reward on unseen texts of each family, of the newest checkpoint or `checkpoint`."""
    settings = load_settings({"model": str(model), "home": home, **ASKED})
    directory = resolve(settings.model)
    where = place("cpu", "float32", hardware("cpu"))
    store = Home(home).checkpoints
    environment = ProcessEnvironmentHost("drills", settings.environment.options)
    try:
        info = await environment.start()
        codec = Codec.from_directory(directory).asking(environment.system)
        with holding(store) as hold:
            policy = next(iter(stored_policies(checkpoint, store, directory, hold)))
            sampler = await open_sampler(policy, codec, where, threads=2)
            examiner = Examiner(
                sampler, codec, environment, settings.sampling, info.turns, SYSTEM_CLOCK
            )
            tasks = {
                family: [
                    TaskRef(info.name, info.version, family, held_out_seed(family, index))
                    for index in range(TASKS)
                ]
                for family in EASIEST
            }
            answers_per_task = dict.fromkeys((ref for refs in tasks.values() for ref in refs), 1)
            rewards, _ = await examiner.rewards(await examiner.requests(answers_per_task))
            await sampler.close()
    finally:
        await environment.close()
    return {
        family: round(fmean(rewards[ref][0] for ref in refs), 4) for family, refs in tasks.items()
    }


def run(
    model: Path, name: str, seed: int, budget: float, minutes: float | None = None
) -> dict[str, Any]:
    """Train for `budget` seconds of processor time, or for `minutes`, and measure."""
    settings: dict[str, Any] = {"model": str(model), "run.seed": seed}
    if minutes is None:
        # The first evaluation, behind the first batch, asks as little as can be set.
        settings |= {"run.eval_seconds": 36_000, "run.eval_tasks": 1, **THEN, **CANDIDATES[name]}
    with tempfile.TemporaryDirectory(prefix="real-defaults-") as directory:
        node = NodeProcess(Path(directory), [f"{key}={value}" for key, value in settings.items()])
        began = time.monotonic()
        try:
            node.launch()
            processor_seconds, peak, status = 0.0, Memory(), None
            while (
                processor_seconds < budget
                if minutes is None
                else time.monotonic() - began < 60 * minutes
            ):
                if node.process.poll() is not None:
                    raise SystemExit(f"the node ended:\n{node.log.read_text()[-2000:]}")
                time.sleep(_POLL_SECONDS)
                processor_seconds = cpu_seconds(node.process.pid)
                peak.raise_to(Memory.of(node.process.pid))
            status = node.status()
            wall = time.monotonic() - began
        finally:
            node.stop(_STOP_SECONDS)
        stored = None if status.steps else "base"
        families = asyncio.run(_rewards(node.home.path, model, stored))
    return {
        "candidate": name,
        "seed": seed,
        "cpu": _cpu(),
        "cpu_seconds": round(processor_seconds, 1),
        "wall_seconds": round(wall, 1),
        "updates": status.steps,
        "own_groups": status.groups.sampled,
        "peak_pss_mib": round(peak.pss),
        "reward": round(fmean(families.values()), 4),
        "families": families,
    }


def _cpu() -> str:
    """The processor's name, and whether it has products in bfloat16."""
    facts = dict(
        line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line
    )
    cpu_facts = {key.strip(): value.strip() for key, value in facts.items()}
    matrices = "amx_bf16" in cpu_facts.get("flags", "")
    return cpu_facts.get("model name", "unknown") + (", amx_bf16" if matrices else "")


def known(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Runs in the file of results, by candidate and seed."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(row["candidate"], row["seed"]): row for row in rows}


def behind(runs: Mapping[tuple[str, int], Mapping[str, Any]], name: str, first: int) -> bool:
    """Check that a candidate lost on the first seed by more than `BEHIND`."""
    candidate_run, default_run = runs.get((name, first)), runs.get((DEFAULTS, first))
    return (
        candidate_run is not None
        and default_run is not None
        and default_run["reward"] - candidate_run["reward"] > BEHIND
    )


def table(runs: Mapping[tuple[str, int], Mapping[str, Any]]) -> str:
    """The table of the page, in Markdown."""
    lines = [
        "| | seeds | unseen | less the defaults | updates | own groups | wall s | peak MiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in CANDIDATES:
        rows = {seed: row for (each, seed), row in runs.items() if each == name}
        if not rows:
            continue
        pairs = [row["reward"] - runs[DEFAULTS, seed]["reward"] for seed, row in rows.items()]
        means = [
            fmean(row[key] for row in rows.values())
            for key in ("updates", "own_groups", "wall_seconds", "peak_pss_mib")
        ]
        reward = fmean(row["reward"] for row in rows.values())
        gain = "" if name == DEFAULTS else format(estimate(pairs), "+.3f")
        figures = " | ".join(f"{each:,.0f}" for each in means)
        lines.append(f"| {name} | {len(rows)} | {reward:.3f} | {gain} | {figures} |")
    base = [row["reward"] for (name, _), row in runs.items() if name == "base"]
    return "\n".join([*lines, *(f"| before training | | {each:.3f} | | | | | |" for each in base)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--cpu-seconds", type=float, default=400.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--results", type=Path)
    parser.add_argument("--minutes", type=float, help="run the defaults by the clock")
    parser.add_argument("--table", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    if arguments.minutes is not None:
        if arguments.minutes < 1:
            parser.error("--minutes: at least one")
        arguments.only = [DEFAULTS]
    arguments.results = arguments.results or (JOINED if arguments.minutes else RESULTS)
    runs = known(arguments.results)
    if arguments.table:
        print(table(runs))
        return
    if ("base", 0) not in runs:
        with tempfile.TemporaryDirectory() as directory:
            families = asyncio.run(_rewards(Path(directory), arguments.model, "base"))
        reward = round(fmean(families.values()), 4)
        row = {"candidate": "base", "seed": 0, "reward": reward, "families": families}
        _note(arguments.results, row)
    for seed in arguments.seeds:
        for name in arguments.only:
            lost = seed != arguments.seeds[0] and behind(runs, name, arguments.seeds[0])
            if lost or (name, seed) in runs:
                continue
            runs[name, seed] = run(
                arguments.model, name, seed, arguments.cpu_seconds, arguments.minutes
            )
            _note(arguments.results, runs[name, seed])
    print(table(known(arguments.results)))


def _note(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
