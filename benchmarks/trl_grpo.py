"""A swarm node against TRL's GRPOTrainer: samples, held-out reward and memory per CPU second.

Both train the tiny model on the same nine families with binary rewards: 8 prompts of 8 completions
per update, AdamW 3e-4 (0.9, 0.99), clip 0.2/0.28, at most 24 new tokens, one thread. Each runs by
itself, one after the other, until it has used up its CPU seconds, counted over its whole tree of
processes from its first update on. The node is whole: `swarm-node init` and `join`, a swarm of one,
with signing, storage, network daemon, trainer and environment processes; its own evaluation is off.
At each mark the weights of both are judged by one evaluator here, on the same held-out tasks.

TRL needs an environment of its own: `make bench-trl` makes it.

    python benchmarks/trl_grpo.py [--trl-python PATH] [--marks 30 60] [--repetitions N]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from held_out import HeldOut
from node_process import Memory, NodeProcess, cpu_seconds
from safetensors.torch import save_file

from swarm_node.policy.models.model import resolve
from swarm_node.policy.training.checkpoint import newest_valid, read

GROUPS, GROUP_SIZE, MAX_NEW_TOKENS = 8, 8, 24
POLL_SECONDS = 0.5
REPOSITORY = Path(__file__).resolve().parent.parent
NODE_SETTINGS = (
    f"experience.own={GROUPS}",
    "experience.external=0",  # nobody else is there
    f"sampling.group_size={GROUP_SIZE}",
    f"sampling.tasks_per_call={2 * GROUPS}",  # larger batches cost less per answer
    f"sampling.max_new_tokens={MAX_NEW_TOKENS}",
    "run.threads=1",
    "run.eval_seconds=86400",
    "run.eval_tasks=1",
)


@dataclass
class Mark:
    """Where a run stood after `cpu` seconds; `updates` include those skipped for want of a
    gradient."""

    cpu: float
    updates: int
    samples: int
    weights: Path
    reward: float = 0.0


@dataclass
class Run:
    """What one run of one program came to."""

    name: str
    start_cpu: float = 0.0
    wall: float = 0.0
    memory: Memory = field(default_factory=Memory)
    marks: list[Mark] = field(default_factory=list)

    @property
    def samples_per_cpu_second(self) -> float:
        return self.marks[-1].samples / self.marks[-1].cpu


class Watch:
    """Reads the peak memory of a tree of processes from a thread of its own."""

    def __init__(self, pid: int, memory: Memory) -> None:
        self._pid, self._memory = pid, memory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self._memory.raise_to(Memory.of(self._pid))


def run_node(marks: list[float], seed: int, settings: list[str], directory: Path) -> Run:
    """A node until its last mark; its weights are those of its newest checkpoint then."""
    run = Run("swarm-node")
    node = NodeProcess(directory, [*NODE_SETTINGS, f"run.seed={seed}", *settings])
    try:
        first = node.start()
        pid = node.process.pid
        run.start_cpu, started = cpu_seconds(pid), time.monotonic()
        with Watch(pid, run.memory):
            for mark in marks:
                while (spent := cpu_seconds(pid) - run.start_cpu) < mark:
                    time.sleep(POLL_SECONDS)
                    if node.process.poll() is not None:
                        raise RuntimeError(node.log.read_text()[-2000:])
                now = node.status()
                trained = now.groups.trained_own - first.groups.trained_own
                done = now.updates + now.skipped_updates - first.updates - first.skipped_updates
                newest = newest_valid(node.home.checkpoints)
                assert newest is not None, "a checkpoint is written every 50 updates"
                path = directory / f"node-{mark:g}.safetensors"
                save_file(dict(read(newest).weights), path)
                run.marks.append(Mark(spent, done, trained * GROUP_SIZE, path))
        run.wall = time.monotonic() - started
    finally:
        node.stop()
    return run


def run_trl(marks: list[float], seed: int, python: Path, directory: Path) -> Run:
    """TRL until its last mark, in a child process of its own environment."""
    run = Run("TRL")
    command = [str(python), str(REPOSITORY / "benchmarks" / "trl_child.py")]
    command += ["--model", str(resolve("tiny")), "--directory", str(directory)]
    command += ["--groups", str(GROUPS), "--group-size", str(GROUP_SIZE)]
    command += ["--max-new-tokens", str(MAX_NEW_TOKENS), "--seed", str(seed)]
    command += ["--marks", *map(str, marks)]
    errors = directory / "trl.log"
    with errors.open("wb") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONHASHSEED": "0",  # as in the node's environment process
                "PYTHONPATH": str(REPOSITORY),
                "HF_HUB_OFFLINE": "1",
            },
        )
    try:
        assert child.stdout is not None
        with Watch(child.pid, run.memory):
            for line in child.stdout:
                said = json.loads(line)
                if "begin" in said:
                    run.start_cpu, started = said["begin"], time.monotonic()
                    continue
                run.wall = time.monotonic() - started
                run.marks.append(
                    Mark(said["cpu"], said["steps"], said["samples"], Path(said["weights"]))
                )
        if child.wait() or len(run.marks) < len(marks):
            raise RuntimeError(f"TRL failed:\n{errors.read_text()[-2000:]}")
    finally:
        child.kill()
        child.wait()
    return run


def show(runs: list[Run], marks: list[float], start: float) -> None:
    """One row per program, medians over its runs, then the ratios."""
    columns: dict[str, tuple[str, Callable[[Run], float]]] = {
        "samples/CPU-s": (",.0f", lambda run: run.samples_per_cpu_second),
        "updates": (",.0f", lambda run: run.marks[-1].updates),
        **{
            f"reward@{mark:g}s": (".3f", lambda run, place=place: run.marks[place].reward)
            for place, mark in enumerate(marks)
        },
        "RSS MiB": (",.0f", lambda run: run.memory.rss),
        "PSS MiB": (",.0f", lambda run: run.memory.pss),
        "processes": (".0f", lambda run: run.memory.processes),
        "start CPU-s": (".1f", lambda run: run.start_cpu),
        "wall s": (".0f", lambda run: run.wall),
    }
    print(f"{'':12}", *(f"{heading:>13}" for heading in columns))
    medians: dict[str, dict[str, float]] = {}
    for name in ("swarm-node", "TRL"):
        of = [run for run in runs if run.name == name]
        medians[name] = {key: statistics.median(map(get, of)) for key, (_, get) in columns.items()}
        cells = [f"{format(value, columns[key][0]):>13}" for key, value in medians[name].items()]
        print(f"{name:12}", *cells)
    ratios = {key: value / medians["TRL"][key] for key, value in medians["swarm-node"].items()}
    print(
        f"held-out reward at the start: {start:.3f}\n"
        f"ratios, node to TRL: samples per CPU second {ratios['samples/CPU-s']:.2f}, "
        f"RSS {ratios['RSS MiB']:.2f}, PSS {ratios['PSS MiB']:.2f}"
    )
    for run in runs:
        rewards = ", ".join(f"{mark.reward:.3f}" for mark in run.marks)
        print(f"  {run.name:11} {run.samples_per_cpu_second:7,.0f} samples/CPU-s  {rewards}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trl-python", type=Path, default=REPOSITORY / ".venv-trl/bin/python")
    parser.add_argument("--marks", type=float, nargs="+", default=[30.0, 60.0])
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--eval-tasks", type=int, default=64, help="held-out tasks per family")
    parser.add_argument("--set", action="append", default=[], help="one more setting of the node")
    arguments = parser.parse_args()
    if not arguments.trl_python.is_file():
        sys.exit(f"no {arguments.trl_python}: run `make bench-trl`, which makes it")
    marks = sorted(arguments.marks)
    held_out = HeldOut(arguments.eval_tasks, MAX_NEW_TOKENS)
    start = held_out.reward(None)
    runs: list[Run] = []
    print(
        f"python {platform.python_version()}, torch {torch.__version__}, one thread; "
        f"{GROUPS} prompts of {GROUP_SIZE} completions per update; load average "
        f"{os.getloadavg()[0]:.1f} at the start; median of {arguments.repetitions} run(s) each"
    )
    for seed in range(arguments.repetitions):
        for run_one in ("node", "trl"):
            with tempfile.TemporaryDirectory(prefix="swarm-node-bench-") as name:
                directory = Path(name)
                if run_one == "node":
                    run = run_node(marks, seed, arguments.set, directory)
                else:
                    run = run_trl(marks, seed, arguments.trl_python, directory)
                for mark in run.marks:
                    mark.reward = held_out.reward(mark.weights)
                runs.append(run)
    show(runs, marks, start)


if __name__ == "__main__":
    main()
