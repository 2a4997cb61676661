"""TRL's GRPOTrainer as a member of a swarm, beside TRL alone.

Two real nodes sample three families each, and TRL three others. `examples/trl_member.py` joins
them. TRL alone trains at the same time, on the same families with the same settings and as many
updates. Both end after `--seconds` at the latest. Their models are scored here on the same unseen
texts.

Prints by seed, for both: mean reward on unseen texts of the families that only nodes sample, and of
TRL's own; and the CPU seconds of an update, of the whole tree of processes between the first line
of progress and the last. Of the nodes it prints what they learnt of TRL's families, which they
never sample. With a `--model`, all train adapters of it on a family each: the easiest sums,
products and quotients. TRL needs an environment of its own: `make bench-trl-member` makes it.

    python benchmarks/trl_swarm.py [--seeds 0 1 2] [--updates 1000] [--seconds 600]
    python benchmarks/trl_swarm.py --model FILE.gguf --updates 40 --seconds 3600
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from held_out import HeldOutTasks
from node_process import cpu_seconds

import swarm_node
from research.few_families import EASIEST
from swarm_node.library.starting import StartedNode
from swarm_node.node.home.home import Home
from swarm_node.policy.models.model import resolve

REPOSITORY = Path(__file__).resolve().parent.parent
LISTEN = "/ip4/127.0.0.1/tcp/0"
#: Imports and the start of a child, and its end, on a machine with other work.
START_AND_END_SECONDS = 400.0


@dataclass(frozen=True)
class Ground:
    """The model and what all train on. TRL samples the families `own`, each node one of `nodes`."""

    model: Path
    own: Sequence[str]
    nodes: Sequence[Sequence[str]]
    environment: str = "drills"
    options: Mapping[str, Any] = field(default_factory=dict)
    groups: int = 8
    size: int = 4
    tokens: int = 24
    temperature: float = 1.0
    rate: float = 3e-4
    lora: int = 0

    @property
    def others(self) -> list[str]:
        """The families that TRL never samples."""
        return [family for families in self.nodes for family in families]

    def settings(self) -> dict[str, Any]:
        """Those of a node and a member."""
        return {
            "environment.name": self.environment,
            **{f"environment.options.{key}": value for key, value in self.options.items()},
        }

    def held_out(self, tasks: int) -> HeldOutTasks:
        """The scorer of all models."""
        return HeldOutTasks(
            tasks,
            self.tokens,
            model=self.model,
            environment=self.environment,
            options=self.options or {"preset": "short"},
            temperature=self.temperature,
        )


def ground_of(model: str | None) -> Ground:
    """That of a language model, or of the tiny one."""
    if model is None:
        return Ground(
            resolve("tiny"),
            own=("largest", "reversal", "sorting"),
            nodes=(("alphabet", "doubling", "initials"), ("position", "removal", "successors")),
        )
    # Nodes are processes, which import the environment too.
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    families = EASIEST[:3]
    return Ground(
        resolve(model),
        own=families[:1],
        nodes=[(family,) for family in families[1:]],
        environment="research.few_families:create",
        options={"families": list(families)},
        groups=4,
        size=8,
        tokens=12,
        temperature=0.7,
        rate=1e-4,
        lora=16,
    )


class Mark(NamedTuple):
    """A line of progress, and CPU seconds of the tree of processes when it came."""

    updates: int
    seconds: float
    drawn: int
    published: int
    cpu: float


@dataclass
class Training:
    """A TRL in a child process. Its lines of progress are read in a thread."""

    name: str
    process: subprocess.Popen[str]
    directory: Path
    marks: list[Mark] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def weights(self) -> Path:
        """The file of the weights, or the directory of the adapter."""
        file = self.directory / "model.safetensors"
        return file if file.exists() else self.directory

    @property
    def cpu_per_update(self) -> float:
        first, last = self.marks[0], self.marks[-1]
        return (last.cpu - first.cpu) / (last.updates - first.updates)

    def check(self) -> None:
        """Raise unless it has ended well."""
        code = self.process.poll()
        self._reader.join()
        if code or len(self.marks) < 2:
            log = self.directory.with_suffix(".log").read_text()
            raise RuntimeError(f"TRL {self.name} ended with {code}:\n{log[-3000:]}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.startswith('{"updates"'):  # TRL prints figures of its own
                continue
            figures = json.loads(line)
            numbers = figures["updates"], figures["seconds"], figures["drawn"], figures["published"]
            self.marks.append(Mark(*numbers, cpu_seconds(self.process.pid)))


@dataclass(frozen=True)
class Plan:
    """The options of one run."""

    python: Path
    updates: int
    seconds: float
    seed: int
    ground: Ground

    def shared(self) -> list[str]:
        """Arguments of both children."""
        ground = self.ground
        return [
            *("--model", str(ground.model), "--lora", str(ground.lora)),
            *("--environment", ground.environment, "--options", json.dumps(dict(ground.options))),
            *("--families", *ground.own, "--group-size", str(ground.size)),
            *("--groups", str(ground.groups), "--temperature", str(ground.temperature)),
            *("--tokens", str(ground.tokens), "--learning-rate", str(ground.rate)),
            *("--updates", str(self.updates), "--seconds", str(self.seconds)),
            *("--seed", str(self.seed)),
        ]

    @contextmanager
    def trained(self, name: str, script: Path, place: Path, more: list[str]) -> Iterator[Training]:
        """Start a TRL, and kill it at the end if it has not ended."""
        directory = place / name
        command = [str(self.python), str(script), *self.shared(), *more, "--save", str(directory)]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(REPOSITORY),
            "HF_HUB_OFFLINE": "1",
        }
        with directory.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        try:
            yield Training(name, process, directory)
        finally:
            process.kill()
            process.wait()


def node(ground: Ground, seed: int, families: Sequence[str], ticket: Path | None) -> StartedNode:
    """A node that samples these families, and measures only when it is asked."""
    settings = {
        **ground.settings(),
        "sampling.max_new_tokens": ground.tokens,
        "network.listen": [LISTEN],
        "environment.families": list(families),
        "run.threads": 1,
        "run.seed": seed,
        "run.eval_seconds": 86_400,
    }
    return swarm_node.start(str(ground.model), settings, ticket=ticket)


def invited(owner: StartedNode, name: str, place: Path) -> Path:
    """A ticket of the owner's swarm, in a file."""
    path = place / f"{name}.ticket"
    command = [sys.executable, "-m", "swarm_node", "invite", "--home", str(owner.home)]
    subprocess.run(
        [*command, "--name", name, "--out", str(path)], check=True, stdout=subprocess.DEVNULL
    )
    return path


def wait_for(trainings: Sequence[Training], seconds: float) -> None:
    """Wait until all have ended. One that fails ends the wait at once."""
    deadline = time.monotonic() + seconds
    while None in (codes := [each.process.poll() for each in trainings]):
        failed = any(code for code in codes)
        if failed or time.monotonic() > deadline:
            for each in trainings:
                if each.process.poll() is None:
                    each.process.kill()
                    each.process.wait()
            break
        time.sleep(0.5)
    for each in sorted(trainings, key=lambda each: each.process.returncode or 0, reverse=True):
        each.check()


def mean(rewards: dict[str, float], families: Sequence[str]) -> float:
    return fmean(rewards[family] for family in families)


def run(plan: Plan, held_out: HeldOutTasks, place: Path) -> tuple[float, float]:
    """One seed. Returns reward on the nodes' families above TRL alone, and the ratio of costs."""
    ground = plan.ground
    with node(ground, 10 * plan.seed + 1, ground.nodes[0], None) as first:
        second_ticket = invited(first, "second", place)
        with node(ground, 10 * plan.seed + 2, ground.nodes[1], second_ticket) as second:
            nodes = (first, second)
            before = [dict(each.evaluate().families) for each in nodes]
            ticket, home = invited(first, "trainer", place), place / "home"
            as_member = ["--ticket-file", str(ticket), "--home", str(home), "--listen", LISTEN]
            example = REPOSITORY / "examples" / "trl_member.py"
            child = REPOSITORY / "benchmarks" / "trl_alone.py"
            with (
                plan.trained("member", example, place, as_member) as member,
                plan.trained("alone", child, place, []) as alone,
            ):
                wait_for((member, alone), plan.seconds + START_AND_END_SECONDS)
            trainer = Home(home).identity().peer_id
            after = [dict(each.evaluate().families) for each in nodes]
            taught = [
                sum(row.groups for row in each.status().taught if row.peer_id == trainer)
                for each in nodes
            ]
    rewards = {each.name: held_out.families(each.weights) for each in (member, alone)}
    for each in (member, alone):
        last, family_rewards = each.marks[-1], rewards[each.name]
        others_reward = mean(family_rewards, ground.others)
        own_reward = mean(family_rewards, ground.own)
        print(
            f"seed {plan.seed}, TRL {each.name:6}: unseen reward {others_reward:.3f} on the "
            f"nodes' families, {own_reward:.3f} on its own; {last.updates} updates in "
            f"{last.seconds:.0f} s, {1000 * each.cpu_per_update:.1f} CPU ms an update; "
            f"{last.drawn} groups of peers, {last.published} published",
            flush=True,
        )
    for number, (then, now) in enumerate(zip(before, after, strict=True), 1):
        print(
            f"seed {plan.seed}, node {number}: unseen reward {mean(then, ground.own):.3f} to "
            f"{mean(now, ground.own):.3f} on TRL's families, by {taught[number - 1]} of its groups"
        )
    ratio = member.cpu_per_update / alone.cpu_per_update
    above = mean(rewards["member"], ground.others) - mean(rewards["alone"], ground.others)
    print(
        f"seed {plan.seed}: {above:+.3f} above TRL alone (goal .4), an update costs {ratio:.2f} of "
        "its CPU (goal 1.15)",
        flush=True,
    )
    return above, ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--trl-python", type=Path, default=REPOSITORY / ".venv-trl" / "bin" / "python"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--model", help="a language model, a file or directory")
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--eval-tasks", type=int, default=128, help="unseen tasks per family")
    arguments = parser.parse_args()
    if not arguments.trl_python.is_file():
        sys.exit(f"no {arguments.trl_python}: run `make bench-trl-member`, which makes it")
    ground = ground_of(arguments.model)
    held_out = ground.held_out(arguments.eval_tasks)
    start = held_out.families(None)
    print(
        f"start: unseen reward {mean(start, ground.others):.3f} on the nodes' families, "
        f"{mean(start, ground.own):.3f} on TRL's; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    results = []
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory(prefix="swarm-node-bench-") as place:
            plan = Plan(arguments.trl_python, arguments.updates, arguments.seconds, seed, ground)
            results.append(run(plan, held_out, Path(place)))
    above, ratio = (fmean(values) for values in zip(*results, strict=True))
    print(f"mean of {len(results)} seed(s): {above:+.3f} above TRL alone, {ratio:.2f} of its CPU")


if __name__ == "__main__":
    main()
