"""A swarm node against TRL's GRPOTrainer: samples, held-out reward and memory per CPU second.

Both train the tiny model on the same nine families with binary rewards: 8 prompts of 8 completions
per update, AdamW 3e-4 (0.9, 0.99), clip 0.2/0.28, at most 24 new tokens, one thread. They run one
after the other, each until it has used up its CPU seconds. These are counted over its whole tree of
processes, from the end of its first update to that of the update that passes the mark. The node is
whole: `swarm-node init` and `join`, a swarm of one, with signing, storage, network daemon, trainer
and environment processes; its own evaluation is off. At each mark the weights of both are scored by
one evaluator here, on the same held-out tasks.

With a `--shape`, both train adapters of all projections of a model of random weights, on
questions in the style of GSM8K with hashed rewards: one group per update, and no held-out reward.

With a `--model`, such as SmolLM2's file, both train adapters of it on the easiest sums, products,
differences and quotients, at temperature 0.7, by the rules of docs/research/real-model.md. The CPU
seconds to each of the `--levels` of reward on unseen texts are printed, between two marks by
interpolation. With `--hashed` its rewards are hashed: all groups are mixed, and nothing is learnt.

TRL needs an environment of its own: `make bench-trl` makes it.

    python benchmarks/trl_grpo.py [--trl-python PATH] [--marks 30 60] [--repetitions N]
    python benchmarks/trl_grpo.py --shape qwen2.5-0.5b --marks 200 [--dtype bfloat16] [--new 200]
    python benchmarks/trl_grpo.py --model FILE.gguf [--hashed] [--new 12] [--only trl] [--groups 2]

On a CPU, TRL is as fast with a few rows at once (`--trl-rows 8`), in a third of the memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from held_out import HeldOutTasks
from node_process import Memory, NodeProcess, cpu_seconds
from real_shapes import make_model
from safetensors.torch import save_file

from research.few_families import EASIEST
from swarm_node.node.metrics.snapshot import Snapshot
from swarm_node.policy.models.decoder.lora import ADAPTER_FILE
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.shapes import known_shape
from swarm_node.policy.training.checkpoints.checkpoint import read
from swarm_node.policy.training.checkpoints.stored import newest_valid

GROUP_SIZE, MAX_NEW_TOKENS = 8, 24
#: The environment of docs/research/real-model.md.
FEW = "research.few_families:create"
POLL_SECONDS = 0.5
REPOSITORY = Path(__file__).resolve().parent.parent
NODE_SETTINGS = (
    "experience.external=0",  # nobody else is there
    "run.threads=1",
    "run.eval_seconds=86400",
    "run.eval_tasks=1",
)


@dataclass(frozen=True)
class Setup:
    """Model, tasks and settings of both programs."""

    model: Path
    groups: int
    tokens: int
    learning_rate: float
    prompts: int  # more than TRL takes
    environment: str = "drills"
    options: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 1.0
    dtype: str = "float32"
    rank: int = 0
    #: The rewards are not drawn by a hash.
    learns: bool = True
    #: A checkpoint has the weights of a mark as often as this many updates.
    checkpoints: int = 50
    #: Rows that TRL trains on at once; 0: all of an update.
    trl_rows: int = 0

    def node(self) -> list[str]:
        """The node's settings."""
        return [
            *NODE_SETTINGS,
            f"model={self.model}",
            f"environment.name={self.environment}",
            *(f"environment.options.{key}={json.dumps(at)}" for key, at in self.options.items()),
            f"sampling.temperature={self.temperature}",
            f"experience.local={self.groups}",
            f"sampling.group_size={GROUP_SIZE}",
            f"sampling.max_concurrent_groups={2 * self.groups}",  # larger calls cost less
            f"sampling.max_new_tokens={self.tokens}",
            f"training.learning_rate={self.learning_rate}",
            f"training.dtype={self.dtype}",
            f"training.lora_rank={self.rank}",
            f"run.save_steps={self.checkpoints}",
        ]

    def trl(self) -> list[str]:
        """The arguments of `trl_child.py`."""
        return [
            *("--model", str(self.model), "--groups", str(self.groups)),
            *("--group-size", str(GROUP_SIZE), "--max-new-tokens", str(self.tokens)),
            *("--learning-rate", str(self.learning_rate), "--prompts", str(self.prompts)),
            *("--environment", self.environment, "--options", json.dumps(dict(self.options))),
            *("--temperature", str(self.temperature)),
            *("--rows", str(self.trl_rows or self.groups * GROUP_SIZE)),
            *("--dtype", self.dtype, "--lora", str(self.rank)),
        ]


@dataclass
class Mark:
    """State of a run after `cpu` seconds; `updates` include those skipped for want of a
    gradient."""

    cpu: float
    updates: int
    samples: int
    weights: Path | None
    tokens: float  # mean length of an answer
    reward: float = 0.0


@dataclass
class ProgramRun:
    """Results of one run of one program."""

    name: str
    start_cpu: float = 0.0
    wall: float = 0.0
    memory: Memory = field(default_factory=Memory)
    marks: list[Mark] = field(default_factory=list)

    @property
    def samples_per_cpu_second(self) -> float:
        return self.marks[-1].samples / self.marks[-1].cpu


class MemoryWatch:
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


def at_update(node: NodeProcess, mark: float) -> tuple[float, int, Snapshot]:
    """CPU seconds, updates and state at the end of the first update after `mark` CPU seconds."""
    start_count = None
    while True:
        time.sleep(POLL_SECONDS)
        if node.process.poll() is not None:
            raise RuntimeError(node.log.read_text()[-2000:])
        cpu_time = cpu_seconds(node.process.pid)
        if cpu_time < mark:
            continue
        now = node.status()
        update_count = now.steps + now.skipped_batches
        start_count = update_count if start_count is None else start_count
        if update_count > start_count:
            return cpu_time, update_count, now


def keep_weights(checkpoints: Path, path: Path, *, adapter: bool) -> None:
    """Write the weights of the newest checkpoint to `path`, or its adapter to that directory."""
    checkpoint = newest_valid(checkpoints)
    assert checkpoint is not None, "the first mark is too early: there is no checkpoint yet"
    if adapter:
        path.mkdir()
        path /= ADAPTER_FILE
    save_file(dict(read(checkpoint).weights), path)


def run_node(
    setup: Setup, marks: list[float], seed: int, extra_settings: list[str], directory: Path
) -> ProgramRun:
    """A node until its last mark; its weights are those of its newest checkpoint then."""
    run = ProgramRun("swarm-node")
    paths = REPOSITORY, REPOSITORY / "benchmarks"  # the environment is in the second
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    node = NodeProcess(directory, [*setup.node(), f"run.seed={seed}", *extra_settings])
    try:
        node.start()
        with MemoryWatch(node.process.pid, run.memory):
            run.start_cpu, start_count, first = at_update(node, 0)
            start = time.monotonic()
            for mark in marks:
                cpu_time, update_count, now = at_update(node, run.start_cpu + mark)
                group_count = now.groups.trained_local - first.groups.trained_local
                assert now.last_step is not None
                tokens = now.last_step.tokens / (setup.groups * GROUP_SIZE)
                path = None
                if setup.learns:
                    path = directory / f"node-{mark:g}.safetensors"
                    keep_weights(node.home.checkpoints, path, adapter=setup.rank > 0)
                run.marks.append(
                    Mark(
                        cpu_time - run.start_cpu,
                        update_count - start_count,
                        group_count * GROUP_SIZE,
                        path,
                        tokens,
                    )
                )
            run.wall = time.monotonic() - start
    finally:
        node.stop()
    return run


def run_trl(
    setup: Setup, marks: list[float], seed: int, python: Path, directory: Path
) -> ProgramRun:
    """TRL until its last mark, in a child process of its own environment."""
    run = ProgramRun("TRL")
    command = [str(python), str(REPOSITORY / "benchmarks" / "trl_child.py")]
    command += [*setup.trl(), "--directory", str(directory), "--seed", str(seed)]
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
        with MemoryWatch(child.pid, run.memory):
            for line in child.stdout:
                message = json.loads(line)
                if "begin" in message:
                    run.start_cpu, start = message["begin"], time.monotonic()
                    continue
                run.wall = time.monotonic() - start
                message["weights"] = message["weights"] and Path(message["weights"])
                run.marks.append(Mark(**message))
        if child.wait() or len(run.marks) < len(marks):
            raise RuntimeError(f"TRL failed:\n{errors.read_text()[-2000:]}")
    finally:
        child.kill()
        child.wait()
    return run


def show(runs: list[ProgramRun], start: float | None) -> None:
    """One row per program, medians over its runs, then the ratios."""
    columns: dict[str, tuple[str, Callable[[ProgramRun], float]]] = {
        "samples/CPU-s": (",.3g", lambda run: run.samples_per_cpu_second),
        "tokens": (".1f", lambda run: run.marks[-1].tokens),
        "updates": (",.0f", lambda run: run.marks[-1].updates),
        **({} if start is None else {"reward": (".3f", lambda run: run.marks[-1].reward)}),
        "RSS MiB": (",.0f", lambda run: run.memory.rss),
        "PSS MiB": (",.0f", lambda run: run.memory.pss),
        "processes": (".0f", lambda run: run.memory.processes),
        "start CPU-s": (".1f", lambda run: run.start_cpu),
        "wall s": (".0f", lambda run: run.wall),
    }
    print(f"{'':12}", *(f"{heading:>13}" for heading in columns))
    medians: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(run.name for run in runs):
        program_runs = [run for run in runs if run.name == name]
        medians[name] = {
            key: statistics.median(map(get, program_runs)) for key, (_, get) in columns.items()
        }
        cells = [f"{format(value, columns[key][0]):>13}" for key, value in medians[name].items()]
        print(f"{name:12}", *cells)
    if len(medians) == 2:
        node_medians, trl_medians = medians["swarm-node"], medians["TRL"]
        ratios = {
            key: value / trl_medians[key] for key, value in node_medians.items() if trl_medians[key]
        }
        print(
            f"ratios, node to TRL: samples per CPU second {ratios['samples/CPU-s']:.2f}, "
            f"RSS {ratios['RSS MiB']:.2f}, PSS {ratios['PSS MiB']:.2f}"
        )
    if start is not None:
        print(f"held-out reward at the start: {start:.3f}")
    for run in runs:
        rewards = ", ".join(f"{mark.cpu:.0f}s {mark.reward:.3f}" for mark in run.marks)
        print(f"  {run.name:11} {run.samples_per_cpu_second:8,.3f} samples/CPU-s  {rewards}")


def seconds_to(run: ProgramRun, start: float, level: float) -> float:
    """CPU seconds to a level of held-out reward: 0 if it starts there, infinite if it was not
    reached."""
    previous_point = (0.0, start)
    for mark in run.marks if start < level else ():
        point = mark.cpu, mark.reward
        if point[1] >= level:
            share = (level - previous_point[1]) / (point[1] - previous_point[1])
            return previous_point[0] + share * (point[0] - previous_point[0])
        previous_point = point
    return math.inf if start < level else 0.0


def show_levels(runs: list[ProgramRun], start: float, levels: list[float]) -> None:
    """CPU seconds to each level: median over runs, and the ratio."""
    for level in levels:
        run_seconds = {
            name: [seconds_to(run, start, level) for run in runs if run.name == name]
            for name in dict.fromkeys(run.name for run in runs)
        }
        median = {name: statistics.median(values) for name, values in run_seconds.items()}
        cells = [
            f"{name} {median[name]:.0f} ({', '.join(f'{seconds:.0f}' for seconds in values)})"
            for name, values in run_seconds.items()
        ]
        if len(median) == 2 and 0 < median["swarm-node"] < math.inf:
            cells.append(f"ratio {median['TRL'] / median['swarm-node']:.2f}")
        print(f"CPU seconds to {level:g}: {'; '.join(cells)}")


def setup_of(arguments: argparse.Namespace, marks: list[float]) -> Setup:
    """The tiny model with all its weights, or adapters of a model of random weights or a file."""
    if arguments.model is not None:
        return _real(arguments)
    if arguments.shape is None:
        return Setup(resolve("tiny"), 8, MAX_NEW_TOKENS, 3e-4, int(max(marks) * 400))
    shape = known_shape(arguments.shape)
    assert shape is not None, "swarm-node plan lists the names"
    return Setup(
        make_model((arguments.models / arguments.shape).absolute(), shape),
        groups=1,
        tokens=arguments.new or 200,
        learning_rate=1e-5,
        prompts=1000,
        environment="hashed_questions:create",
        dtype=arguments.dtype,
        rank=arguments.lora,
        learns=False,
    )


def _real(arguments: argparse.Namespace) -> Setup:
    hashed = {"kind": "sum"} if arguments.hashed else {"families": EASIEST}
    return Setup(
        resolve(arguments.model),
        groups=arguments.groups,
        tokens=arguments.new or 12,
        learning_rate=arguments.rate,
        prompts=20_000,
        environment="hashed_questions:create" if arguments.hashed else FEW,
        options=hashed,
        temperature=0.7,
        dtype=arguments.dtype,
        rank=arguments.lora,
        learns=not arguments.hashed,
        checkpoints=1,
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trl-python", type=Path, default=REPOSITORY / ".venv-trl/bin/python")
    parser.add_argument("--shape", help="a model of random weights and this shape")
    parser.add_argument("--model", help="a language model: a file or directory")
    parser.add_argument("--hashed", action="store_true", help="rewards of a --model by a hash")
    parser.add_argument("--groups", type=int, default=4, help="of an update of a --model")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate of a --model")
    parser.add_argument("--trl-rows", type=int, default=0, help="at once; default all of an update")
    parser.add_argument("--levels", type=float, nargs="*", default=[], help="of reward")
    parser.add_argument("--only", choices=("node", "trl"), help="run one of the programs")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--lora", type=int, default=16, help="rank of the adapters")
    parser.add_argument("--new", type=int, help="tokens of an answer; default 200, of a --model 12")
    parser.add_argument("--models", type=Path, default=Path("build/real-shapes"))
    parser.add_argument("--marks", type=float, nargs="+", default=[30.0, 60.0])
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--eval-tasks", type=int, default=64, help="held-out tasks per family")
    parser.add_argument("--set", action="append", default=[], help="one more setting of the node")
    return parser.parse_args()


def evaluator(setup: Setup, tasks: int) -> HeldOutTasks | None:
    """The scorer of both models."""
    if not setup.learns:
        return None
    if not setup.rank:
        return HeldOutTasks(tasks, MAX_NEW_TOKENS)
    return HeldOutTasks(
        tasks,
        setup.tokens,
        model=setup.model,
        environment=setup.environment,
        options=setup.options,
        temperature=setup.temperature,
    )


def main() -> None:
    arguments = options()
    if not arguments.trl_python.is_file() and arguments.only != "node":
        sys.exit(f"no {arguments.trl_python}: run `make bench-trl`, which makes it")
    marks = sorted(arguments.marks)
    setup = replace(setup_of(arguments, marks), trl_rows=arguments.trl_rows)
    if arguments.trl_rows and setup.groups * GROUP_SIZE % arguments.trl_rows:
        sys.exit(f"--trl-rows must divide the {setup.groups * GROUP_SIZE} rows of an update")
    held_out = evaluator(setup, arguments.eval_tasks)
    start = None if held_out is None else held_out.reward(None)
    runs: list[ProgramRun] = []
    print(
        f"python {platform.python_version()}, torch {torch.__version__}, one thread; "
        f"{setup.dtype}, {setup.groups} prompts of {GROUP_SIZE} completions per update, rate "
        f"{setup.learning_rate:g}; load {os.getloadavg()[0]:.1f} at the start; median of "
        f"{arguments.repetitions} run(s) each",
        flush=True,
    )
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.repetitions):
        for run_one in ("node", "trl"):
            if arguments.only not in (None, run_one):
                continue
            with tempfile.TemporaryDirectory(prefix="swarm-node-bench-") as name:
                directory = Path(name)
                if run_one == "node":
                    run = run_node(setup, marks, seed, arguments.set, directory)
                else:
                    run = run_trl(setup, marks, seed, arguments.trl_python, directory)
                if held_out is not None:
                    for mark in run.marks:
                        mark.reward = held_out.reward(mark.weights)
                runs.append(run)
    show(runs, start)
    if start is not None:
        show_levels(runs, start, arguments.levels)


if __name__ == "__main__":
    main()
