"""TRL's GRPOTrainer as a member of a swarm, beside TRL alone.

Two real nodes sample three families each, and TRL three others. `examples/trl_member.py` joins
them. TRL alone trains at the same time, on the same families with the same settings and as many
updates. Both end after `--seconds` at the latest. Their models are judged here on the same unseen
texts.

Prints by seed, for both: mean reward on unseen texts of the families that only nodes sample, and of
TRL's own; and the CPU seconds of an update, of the whole tree of processes between the first line
of progress and the last. Of the nodes it prints what they learnt of TRL's families, which they
never sample. TRL needs an environment of its own: `make bench-trl-member` makes it.

    python benchmarks/trl_swarm.py [--seeds 0 1 2] [--updates 1000] [--seconds 600]
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from held_out import HeldOutTasks
from node_process import cpu_seconds

import swarm_node
from swarm_node.library.starting import StartedNode
from swarm_node.node.home.home import Home
from swarm_node.policy.models.model import resolve

REPOSITORY = Path(__file__).resolve().parent.parent
LISTEN = "/ip4/127.0.0.1/tcp/0"
OWN = ("largest", "reversal", "sorting")
NODES = (("alphabet", "doubling", "initials"), ("position", "removal", "successors"))
OTHERS = tuple(family for families in NODES for family in families)
GROUPS, GROUP_SIZE, TOKENS, LEARNING_RATE = 8, 4, 24, 3e-4
#: Imports and the start of a child, and its end, on a machine with other work.
START_AND_END_SECONDS = 400.0


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
        return self.directory / "model.safetensors"

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
            said = json.loads(line)
            numbers = said["updates"], said["seconds"], said["drawn"], said["published"]
            self.marks.append(Mark(*numbers, cpu_seconds(self.process.pid)))


@dataclass(frozen=True)
class Plan:
    """The options of one run."""

    python: Path
    updates: int
    seconds: float
    seed: int

    def shared(self) -> list[str]:
        """Arguments of both children."""
        return [
            *("--families", *OWN, "--groups", str(GROUPS), "--group-size", str(GROUP_SIZE)),
            *("--tokens", str(TOKENS), "--learning-rate", str(LEARNING_RATE)),
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


def node(seed: int, families: Sequence[str], ticket: Path | None) -> StartedNode:
    """A node that samples these families, and measures only when it is asked."""
    settings = {
        "network.listen": [LISTEN],
        "environment.families": list(families),
        "run.threads": 1,
        "run.seed": seed,
        "run.eval_seconds": 86_400,
    }
    return swarm_node.start("tiny", settings, ticket=ticket)


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
    with node(10 * plan.seed + 1, NODES[0], None) as first:
        second_ticket = invited(first, "second", place)
        with node(10 * plan.seed + 2, NODES[1], second_ticket) as second:
            nodes = (first, second)
            before = [dict(each.evaluate().families) for each in nodes]
            ticket, home = invited(first, "trainer", place), place / "home"
            as_member = ["--ticket-file", str(ticket), "--home", str(home), "--listen", LISTEN]
            example = REPOSITORY / "examples" / "trl_member.py"
            by_itself = ["--model", str(resolve("tiny"))]
            child = REPOSITORY / "benchmarks" / "trl_alone.py"
            with (
                plan.trained("member", example, place, as_member) as member,
                plan.trained("alone", child, place, by_itself) as alone,
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
        last, found = each.marks[-1], rewards[each.name]
        print(
            f"seed {plan.seed}, TRL {each.name:6}: unseen reward {mean(found, OTHERS):.3f} on the "
            f"nodes' families, {mean(found, OWN):.3f} on its own; {last.updates} updates in "
            f"{last.seconds:.0f} s, {1000 * each.cpu_per_update:.1f} CPU ms an update; "
            f"{last.drawn} groups of peers, {last.published} published",
            flush=True,
        )
    for number, (then, now) in enumerate(zip(before, after, strict=True), 1):
        print(
            f"seed {plan.seed}, node {number}: unseen reward {mean(then, OWN):.3f} to "
            f"{mean(now, OWN):.3f} on TRL's families, by {taught[number - 1]} groups of TRL's"
        )
    ratio = member.cpu_per_update / alone.cpu_per_update
    above = mean(rewards["member"], OTHERS) - mean(rewards["alone"], OTHERS)
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
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--eval-tasks", type=int, default=128, help="unseen tasks per family")
    given = parser.parse_args()
    if not given.trl_python.is_file():
        sys.exit(f"no {given.trl_python}: run `make bench-trl-member`, which makes it")
    held_out = HeldOutTasks(given.eval_tasks, TOKENS)
    start = held_out.families(None)
    print(
        f"start: unseen reward {mean(start, OTHERS):.3f} on the nodes' families, "
        f"{mean(start, OWN):.3f} on TRL's; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    results = []
    for seed in given.seeds:
        with tempfile.TemporaryDirectory(prefix="swarm-node-bench-") as place:
            plan = Plan(given.trl_python, given.updates, given.seconds, seed)
            results.append(run(plan, held_out, Path(place)))
    above, ratio = (fmean(values) for values in zip(*results, strict=True))
    print(f"mean of {len(results)} seed(s): {above:+.3f} above TRL alone, {ratio:.2f} of its CPU")


if __name__ == "__main__":
    main()
