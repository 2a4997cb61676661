"""`swarm-node join` as users type it, on a GPU with as much free memory as a consumer's has.

    python benchmarks/gpu_join.py tiny [--updates 400]
    python benchmarks/gpu_join.py real --model FILE.gguf [--seconds 90] [--set K=V]
    python benchmarks/gpu_join.py shape [--model qwen2.5-1.5b] [--free 12] [--updates 5] [--set K=V]
    python benchmarks/gpu_join.py pair [--model qwen2.5-0.5b] [--free 24] [--updates 5]

- `tiny`: the demo's drills with the model that ships, for so many updates or 40 seconds; fails
  unless the eval reward rises. Memory is reported only: the plan is hardly more than two contexts.
- `real`: the same with a pretrained model and its own defaults, for so many seconds after its first
  update. Its memory is reported and not checked.
- `shape`: a model of random weights with the default settings. This process first takes memory
  until `--free` GiB are left. Answers are short and long, 128 tokens in the mean
  (`real_shapes.make_model`); rewards are those of `hashed_questions.py`.
- `pair`: a node in half of `--free`, and a second one on the same GPU that joins it after its first
  update and plans on the other half; fails unless each trains on groups of the other.

For every update, and one a second at most, it tells the memory planned and its peak so far, tokens
sampled a second, seconds of the update, KL and mean difference of log-probs between sampler and
trainer, halvings, all counted faults and the CUDA graphs captured. It fails, and says why, where
something was counted as a fault, where the GPU captured no graph, where sampler and trainer
disagree in the first update, which is made of answers of its own version, where an update was not
finite, and where more memory is taken than planned. gpu_proof.sh ends it at STEP_ENDS; it ends by
itself before that, with what there is, if that is two updates or more. Without CUDA all runs on the
CPU, where `--model least` is quick and memory is not checked."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from figures import step_file, tell
from gpu_plan import context_bytes, leave
from node_process import NodeProcess
from real_shapes import import_environments, make_model, shape_named

from swarm_node.errors import SwarmNodeError
from swarm_node.node.metrics.snapshot import EvalPoint, Snapshot
from swarm_node.node.preflight.defaults import LONGEST_ANSWER
from swarm_node.node.preflight.probe import gpu_memory
from swarm_node.policy.memory.footprint import CONTEXT
from swarm_node.policy.memory.plan import SPARE

ON_GPU = torch.cuda.is_available()
MEAN_ANSWER = 128
#: The most that k3 of the first update may be, in nats: half the square of the mean difference that
#: the canary allows in bfloat16 (docs/sampler-design.md).
MOST_KL = 0.1**2 / 2
#: The least rise of reward on unseen tasks that is no noise: about three standard errors.
LEAST_RISE = 0.1
#: Seconds until a node's first figure, and between two polls of memory and log.
_START_SECONDS, _POLL_SECONDS = 150.0, 0.2
#: Seconds in which `tiny` learns, and that a step needs for its end: a node stops.
_LEARNING_SECONDS, _END_SECONDS = 40.0, 20.0
#: Fewest updates that count: the first is slower than others.
_LEAST_UPDATES = 2
#: Why an update may be skipped without a fault: at first `tiny` answers all tasks of it wrongly.
_NO_ADVANTAGE = "no mixed rewards"
_MIB, _GIB = 1 << 20, 1 << 30
_HOUR = 3600
#: The folder of the module that writes what a process's allocator holds.
_ALLOCATOR = Path(__file__).with_name("allocator")
#: Faults by the names under which a node counts them, in words.
WORDS = {
    "cuda_graph": "a CUDA graph could not be captured, and decoding went on eagerly",
    "memory": "memory ran out in an update, and micro-batches were halved",
    "sampler_memory": "memory ran out in the sampler, and fewer rows were sampled at once",
    "trainer": "the trainer ended and was restarted",
    "engine": "the engine ended and was restarted",
    "engine_replaced": "the built-in sampler took the place of vLLM",
    "base_copied": "the sampler has a copy of the base, where sharing was planned",
    "canary": "the engine computed other log-probs than the trainer",
    "checkpoint": "a checkpoint was not stored",
}


class MemoryPeak(threading.Thread):
    """Polls the GPU's memory: the most bytes that were taken since it began. 0 without a GPU.
    `used` has the most bytes of each process, where NVML tells them."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.free = torch.cuda.mem_get_info()[0] if ON_GPU else 0
        self.taken = 0
        self.used: Counter[int] = Counter()
        self._ended = threading.Event()

    def run(self) -> None:
        while ON_GPU and not self._ended.wait(_POLL_SECONDS):
            self.taken = max(self.taken, self.free - torch.cuda.mem_get_info()[0])
            self.used |= used_by_process()

    def close(self) -> None:
        self._ended.set()


def used_by_process() -> Counter[int]:
    """Bytes of GPU 0 by process id, contexts included; nothing where nvidia-ml-py is missing or
    the driver does not tell."""
    try:
        pynvml = import_module("pynvml")
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    except Exception as error:  # noqa: BLE001 - of many types; the figure is missing then
        print(f"NVML: {error}", file=sys.stderr)
        return Counter()
    return Counter({process.pid: process.usedGpuMemory or 0 for process in processes})


def tell_processes(name: str, memory: MemoryPeak, allocators: Path) -> None:
    """Tell what each process of a node took of the GPU at most, and what torch's allocator held of
    that (allocator/sitecustomize.py)."""
    for file in allocators.glob("*.json"):
        record = json.loads(file.read_text())
        tell(
            node=name,
            process=" ".join(record["command"])[-120:],
            used_mib=memory.used[int(file.stem)] / _MIB,
            reserved_mib=record["reserved_peak"] / _MIB,
            allocated_mib=record["allocated_peak"] / _MIB,
            retries=record["retries"],
        )


class Filler:
    """Holds memory of the GPU, so that `gib` GiB are free; nothing on a CPU."""

    def __init__(self, gib: float) -> None:
        self._held, self.free = leave(gib)

    def leave(self, gib: float, *peaks: MemoryPeak) -> None:
        """Hold so much that `gib` GiB are free, 0 for nothing. `peaks` do not count the change."""
        previous_bytes, self._held = self._bytes, None
        self._held, self.free = leave(gib)
        for peak in peaks:
            peak.free += previous_bytes - self._bytes

    @property
    def _bytes(self) -> int:
        return 0 if self._held is None else int(self._held.numel())


@dataclass
class WatchedNode:
    """What a node has logged and counted so far."""

    node: NodeProcess
    name: str
    memory: MemoryPeak
    planned: int = 0
    graphs: int = 0
    updates: list[dict[str, Any]] = field(default_factory=list)
    snapshot: Snapshot | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def made(self) -> int:
        """Number of updates, of which a node logs one a second at most."""
        return self.snapshot.steps if self.snapshot else 0

    def poll(self) -> None:
        """Read what is new, and tell each update.

        Raises:
            RuntimeError: the node ended.
        """
        exit_code = self.node.process.poll()
        with suppress(SwarmNodeError):  # not yet, or too busy to answer
            self.snapshot = self.node.status()
        for event in self.node.events():
            self._take(event)
        if exit_code is not None:
            raise RuntimeError(f"the node ended:\n{self.node.log.read_text()[-3000:]}")

    def _take(self, event: dict[str, Any]) -> None:
        if event["level"] in ("warning", "error", "critical"):
            self.warnings.append(f"{event['event']}: {event.get('error', '')}"[:300])
        if event["event"] == "memory":
            self.planned = event["bytes"]
            tell(node=self.name, planned_mib=self.planned / _MIB, free_mib=self.memory.free / _MIB)
        elif event["event"] == "CUDA graph captured":
            self.graphs += 1
        elif event["event"] == "step":
            self.updates.append(event)
            self._tell(event)

    def _tell(self, event: dict[str, Any]) -> None:
        now = self.snapshot
        busy, tokens = (now.busy, now.tokens) if now else (None, None)
        token_rate = tokens.sampled / busy.sampler if tokens and busy and busy.sampler else None
        names = ("seconds", "tokens", "mean_abs_delta", "mean_reward", "grad_norm")
        figures = {
            **{
                "node": self.name,
                "update": event["steps"],
                "kl": event["mismatch_kl"],
                "version": event["version"],
            },
            **{name: event[name] for name in (*names, "halvings", "external", "skipped")},
            **{"planned_mib": self.planned / _MIB, "peak_mib": self.memory.taken / _MIB},
            **{"sampled_tokens_per_s": token_rate, "graphs": self.graphs},
            "faults": now.faults if now else {},
        }
        tell(**figures)
        speed = f", {token_rate:,.0f} tokens/s sampled" if token_rate else ""
        print(
            f"{self.name}: update {event['steps']} in {event['seconds']:.2f} s{speed}, "
            f"KL {event['mismatch_kl']:.1g}, peak {self.memory.taken / _MIB:,.0f} MiB",
            flush=True,
        )


def node_faults(watched: WatchedNode) -> list[str]:
    """Why the node did not run as it should, in words; empty if it did."""
    snapshot, reasons = watched.snapshot, []
    faults = Counter(snapshot.faults if snapshot else {})
    reasons += [f"{WORDS.get(name, name)} ({n} times)" for name, n in faults.items() if n]
    if snapshot and "failed" in snapshot.engine:
        reasons.append(f"a fallback was taken: {snapshot.engine}")
    kl = watched.updates[0]["mismatch_kl"] if watched.updates else 0.0
    if not kl <= MOST_KL:  # NaN is no agreement
        reasons.append(f"sampler and trainer disagree: KL {kl:.2g} in the first update")
    skip_counts = Counter(update.get("skipped") for update in watched.updates)
    del skip_counts[None], skip_counts[_NO_ADVANTAGE]
    reasons += [f"{count} updates were skipped: {reason}" for reason, count in skip_counts.items()]
    if ON_GPU and not watched.graphs:
        reasons.append("no CUDA graph was captured")
    return reasons


def memory_faults(memory: MemoryPeak, planned: int, context: int, nodes: int = 1) -> list[str]:
    """Why the memory of so many nodes is more than planned; empty if it is not. A data-centre GPU's
    `context` is larger than the planned one, by the bytes that count as planned here."""
    planned += 2 * nodes * max(0, context - CONTEXT)
    if memory.taken * (1 - SPARE) <= planned:
        return []
    taken_mib, planned = memory.taken // _MIB, planned // _MIB
    return [f"{taken_mib:,} MiB were taken where {planned:,} are planned"]


@contextmanager
def running_node(
    name: str, settings: dict[str, Any], ticket: Path | None = None
) -> Iterator[WatchedNode]:
    """A node that runs with these settings, watched from its start, before its memory is taken."""
    memory = MemoryPeak()
    memory.start()
    settings = {"log_format": "json", "verbose": "true", **settings}
    with tempfile.TemporaryDirectory(prefix="swarm-node-bench-") as directory:
        assignments = [f"{key}={value}" for key, value in settings.items()]
        log = step_file(f"{name}.node.log")
        node = NodeProcess(Path(directory), assignments, ticket=ticket, log_file=log)
        try:
            with environment(allocators := Path(directory) / "allocators"):
                node.launch()
            yield WatchedNode(node, name, memory)
        finally:
            node.stop()
            memory.close()
            tell_processes(name, memory, allocators)


@contextmanager
def environment(allocators: Path) -> Iterator[None]:
    """Variables by which processes that start meanwhile write there what their allocators hold."""
    allocators.mkdir()
    previous_path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ALLOCATOR), previous_path]))
    os.environ["ALLOCATORS"] = str(allocators)
    try:
        yield
    finally:
        del os.environ["ALLOCATORS"], os.environ["PYTHONPATH"]
        if previous_path is not None:
            os.environ["PYTHONPATH"] = previous_path


def seconds_left() -> float:
    """Seconds until a step of gpu_proof.sh must come to its end."""
    ends = os.environ.get("STEP_ENDS")
    return float(ends) - _END_SECONDS - time.time() if ends else float("inf")


def run_until(watched: WatchedNode, updates: int, seconds: float = 600.0) -> None:
    """Poll until so many updates were made, or the step is about to end and `_LEAST_UPDATES` were.

    Raises:
        RuntimeError: the first takes longer than a start may, or all longer than `seconds`.
    """
    start = time.monotonic()
    while watched.made < updates or not watched.updates:
        watched.poll()
        elapsed = time.monotonic() - start
        if seconds_left() < 0 and watched.made >= _LEAST_UPDATES and watched.updates:
            break
        if elapsed > (seconds if watched.updates else min(seconds, _START_SECONDS)):
            log = watched.node.log.read_text()[-3000:]
            raise RuntimeError(f"{watched.made} updates after {elapsed:.0f} s:\n{log}")
        time.sleep(_POLL_SECONDS)
    watched.poll()


def run_for(watched: WatchedNode, updates: int, seconds: float) -> None:
    """Poll for so many seconds from the first update on, or until so many updates were made."""
    run_until(watched, 1)
    ends = time.monotonic() + min(seconds, seconds_left())
    while watched.made < updates and time.monotonic() < ends:
        watched.poll()
        time.sleep(_POLL_SECONDS)


def tiny(arguments: argparse.Namespace) -> list[str]:
    """The demo's drills; reward on unseen tasks must rise."""
    settings = {"model": "tiny", "run.eval_seconds": 3}
    with running_node("tiny", settings) as watched:
        run_for(watched, arguments.updates or 400, _LEARNING_SECONDS)
        evals = run_until_evaluated(watched, watched.updates[-1]["version"])
    return learning_faults(watched, evals)


def real(arguments: argparse.Namespace) -> list[str]:
    """A pretrained model with the tasks and settings that it gets by default."""
    model = Path(arguments.model)
    settings = {"model": model.absolute() if model.exists() else model, "run.eval_seconds": 15}
    settings |= dict(assignment.split("=", 1) for assignment in arguments.set)
    with running_node("real", settings) as watched:
        run_for(watched, arguments.updates or sys.maxsize, arguments.seconds)
        evals = run_until_evaluated(watched, watched.updates[-1]["version"])
    for point in evals:
        tell(set=arguments.set, at=point.seconds, version=point.version, families=point.families)
    return learning_faults(watched, evals)


def learning_faults(watched: WatchedNode, evals: list[EvalPoint]) -> list[str]:
    """Why the node did not learn or run as it should; tells its rewards on unseen tasks."""
    rewards = [point.reward for point in evals]
    tell(rewards=rewards, versions=[point.version for point in evals])
    reasons = node_faults(watched)
    if not rewards or rewards[-1] < rewards[0] + LEAST_RISE:
        reasons.append(f"reward on unseen tasks did not rise: {rewards}")
    else:
        print(f"reward on unseen tasks: {rewards[0]:.2f} to {rewards[-1]:.2f}")
    return reasons


def run_until_evaluated(
    watched: WatchedNode, version: int, seconds: float = 30.0
) -> list[EvalPoint]:
    """Poll until reward on unseen tasks was measured at `version` or later."""
    deadline = time.monotonic() + min(seconds, seconds_left() + _END_SECONDS / 2)
    while True:
        watched.poll()
        evals = watched.snapshot.evals if watched.snapshot else []
        if (evals and evals[-1].version >= version) or time.monotonic() > deadline:
            return evals
        time.sleep(_POLL_SECONDS)


def model_of(arguments: argparse.Namespace) -> Path:
    directory = arguments.models / f"{arguments.model}-answers"
    return make_model(directory, shape_named(arguments.model), MEAN_ANSWER)


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The default settings with the model of random weights, and those of `--set`."""
    settings = {"model": model_of(arguments), "environment.name": "hashed_questions:create"}
    return settings | dict(assignment.split("=", 1) for assignment in arguments.set)


def shape(arguments: argparse.Namespace) -> list[str]:
    """The default settings with a model of real shape in so much memory."""
    settings = settings_of(arguments)
    filler = Filler(arguments.free)
    with running_node(arguments.model, settings) as watched:
        run_until(watched, arguments.updates or 5)
    faults = node_faults(watched) + memory_faults(
        watched.memory, watched.planned, arguments.context
    )
    seconds = sorted(update["seconds"] for update in watched.updates[1:] or watched.updates)
    tell(
        model=arguments.model,
        free_gib=round(filler.free / _GIB, 2),
        gib=arguments.free,
        set=arguments.set,
        planned_mib=watched.planned / _MIB,
        taken_mib=watched.memory.taken / _MIB,
        context_mib=arguments.context / _MIB,
        new=LONGEST_ANSWER,
        median_update_seconds=seconds[len(seconds) // 2],
        graphs=watched.graphs,
        warnings=watched.warnings,
    )
    return faults


def pair(arguments: argparse.Namespace) -> list[str]:
    """Two nodes on one GPU, which exchange groups. The first may grow to its plan after the second
    has planned, so each has its half of the memory."""
    settings = settings_of(arguments)
    half_gib = arguments.free / 2
    filler = Filler(half_gib)
    with running_node("first", settings) as first, tempfile.TemporaryDirectory() as work:
        run_until(first, 1)
        ticket = Path(work) / "ticket"
        assert first.snapshot is not None
        text = first.node.home.invite(
            first.snapshot.addresses,
            now=time.time(),
            valid_seconds=_HOUR,
            member_seconds=24 * _HOUR,
        )
        ticket.write_text(text)
        filler.leave(half_gib, first.memory)
        with running_node("second", settings, ticket) as second:
            while not second.planned:
                second.poll()
                time.sleep(_POLL_SECONDS)
            filler.leave(0, first.memory, second.memory)
            failures = run_exchange(first, second, arguments.updates or 5)
    faults = [f"{node.name}: {fault}" for node in (first, second) for fault in node_faults(node)]
    faults += memory_faults(
        first.memory, first.planned + second.planned, arguments.context, nodes=2
    )
    for node in (first, second):
        groups = node.snapshot.groups if node.snapshot else None
        tell(
            node=node.name,
            taken_mib=node.memory.taken / _MIB,
            planned_mib=node.planned / _MIB,
            received=groups and groups.accepted,
            trained_external=groups and groups.trained_external,
            warnings=node.warnings,
        )
    return faults + failures


def run_exchange(
    first: WatchedNode, second: WatchedNode, updates: int, seconds: float = 240.0
) -> list[str]:
    """Poll until each made so many updates and trained on groups of the other; what is missing."""
    run_until(second, 1)
    failures = ["no time was left for an exchange"]
    deadline = time.monotonic() + min(seconds, seconds_left())
    while time.monotonic() < deadline:
        failures = []
        for node in (first, second):
            node.poll()
            group_count = node.snapshot.groups.trained_external if node.snapshot else 0
            if not group_count:
                failures.append(f"{node.name}: trained on no group of the other")
            elif node.made < updates:
                failures.append(f"{node.name}: {node.made} of {updates} updates")
        if not failures:
            break
        time.sleep(_POLL_SECONDS)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("tiny", "real", "shape", "pair"))
    parser.add_argument("--model", default="qwen2.5-1.5b")
    parser.add_argument("--free", type=float, default=0.0, help="GiB to leave; 0: as it is")
    parser.add_argument("--updates", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=90.0, help="of `real`")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--models", type=Path, default=Path("build/real-shapes"))
    arguments = parser.parse_args()
    import_environments()
    memory = gpu_memory() if ON_GPU else None
    arguments.context = context_bytes(memory.free) if memory else 0
    tell(
        device=torch.cuda.get_device_name() if ON_GPU else "CPU",
        torch=str(torch.__version__),
        context_mib=arguments.context / _MIB,
    )
    case = {"tiny": tiny, "real": real, "shape": shape, "pair": pair}[arguments.what]
    faults = case(arguments)
    tell(wrong=faults)
    if faults:
        print("FAIL because " + "; ".join(faults), flush=True)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
