"""Raw results of the frontier: a JSON line for each run. Runs have files of their own, until `pack`
moves them into the archive that lies beside them.

Only the holder of the lock of a run's file makes the run, so no two processes make the same one.
The lock of a process that ends is free at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from research.scenario import StudyScenario
from research.swarm import attack_figures, simulate
from swarm_node.config import Settings
from swarm_node.errors import SwarmNodeError, reason_of, words_of
from swarm_node.process import die_with_parent
from swarm_node.simulation.report import SimulationReport
from swarm_node.simulation.swarm import describe

ARCHIVE = "runs.jsonl.xz"
#: How the names of runs' own files end.
_RUN = "-n*-s*.json"
_DIGITS = 4
_FIRST_NAMES = {"families_per_node": "specialised", "message_loss": "loss"}


class Raw(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run. Lists have an entry for each measurement: the `updates` of a learner, the `answers`
    that it had made, the `informative` groups that it had trained on, and its reward, `unseen` on
    unseen texts and `seen` on those that training may draw. `share` is that of informative groups
    among those made since the measurement before. All are means over the `learners`, and `kinds`
    are `unseen` by model where there are several. `hostile` is the share of hostile members' groups
    among those that the learners trained on lately.

    `bytes` were sent in the whole run by all nodes, and `weights` are bytes of weights among them.
    `cpu` is processor time of all nodes, with sampling, judging of own and peers' groups, the check
    of likelihood, traffic and training. `plan` is sha256 of everything that decides the result,
    `report` the hash of the simulator's report, and `commit` that of the code.
    """

    stage: str
    regime: str
    arm: str
    nodes: int
    index: int
    seed: int
    learners: int
    plan: str
    report: str
    commit: str
    updates: list[int]
    unseen: list[float]
    seen: list[float]
    answers: list[float]
    informative: list[float]
    share: list[float]
    bytes: int
    weights: int
    cpu: float
    own_lag: float
    peers_lag: float
    kinds: list[list[float]] = []
    hostile: float = 0.0

    @property
    def everybodys(self) -> list[float]:
        """Answers of all learners."""
        return [self.learners * value for value in self.answers]

    @property
    def seconds(self) -> list[float]:
        """Processor time of all nodes; every update is taken to cost the same."""
        return [self.cpu * at / self.updates[-1] for at in self.updates]

    @property
    def traffic(self) -> list[float]:
        """Bytes that all nodes sent; every update is taken to send the same."""
        return [self.bytes * at / self.updates[-1] for at in self.updates]


class RunKey(msgspec.Struct, frozen=True):
    """Identity of a run: its stage, regime, arm, nodes of the swarm, and its seed with its
    index."""

    stage: str
    regime: str
    arm: str
    nodes: int
    index: int
    seed: int

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.stage}-{self.regime}-{self.arm}-n{self.nodes}-s{self.index}.json"


def key_of(raw: Raw) -> RunKey:
    """The identity of a run that was made."""
    return RunKey(raw.stage, raw.regime, raw.arm, raw.nodes, raw.index, raw.seed)


def raw_of(place: RunKey, report: SimulationReport, plan: str, commit: str) -> Raw:
    """The raw result of a report."""
    nodes, rounds = report.nodes, report.rounds
    at = [entry for entry, _ in report.eval_reward.curve]
    size = report.settings["sampling"]["group_size"]
    made_groups = list(accumulate(rounds.sampled, initial=0.0))
    mixed_groups = list(accumulate(rounds.mixed_sampled, initial=0.0))
    informative_groups = list(accumulate(rounds.mixed_in_batch, initial=0.0))
    shares = [
        (mixed_groups[b] - mixed_groups[a]) / (made_groups[b] - made_groups[a])
        if made_groups[b] > made_groups[a]
        else 0.0
        for a, b in zip([0, *at], at, strict=False)
    ]
    models = report.models if len(report.models) > 1 else []
    weights = sum(node.study.get("weights_sent", 0) for node in nodes)
    return Raw(
        **msgspec.structs.asdict(place),
        learners=len(nodes),
        plan=plan,
        report=report.hash,
        commit=commit,
        updates=at,
        unseen=_short(reward for _, reward in report.eval_reward.curve),
        seen=_short(reward for _, reward in report.train_reward.curve)
        if report.train_reward
        else [],
        answers=_short(size * made_groups[entry] for entry in at),
        informative=_short(informative_groups[entry] for entry in at),
        share=_short(shares),
        bytes=sum(node.bytes_sent for node in nodes) + weights,
        weights=weights,
        cpu=round(report.cpu_seconds, 2),
        own_lag=round(sum(node.local_staleness for node in nodes) / len(nodes), 3),
        peers_lag=round(sum(node.external_staleness for node in nodes) / len(nodes), 3),
        kinds=[_short(reward for _, reward in model.curve) for model in models],
        hostile=round(
            sum(attack_figures(node.study).trained_hostile for node in nodes) / len(nodes), _DIGITS
        ),
    )


def plan_digest(description: dict[str, Any]) -> str:
    """sha256 of a description, in hex. Fields of the plan keep the names that they had when the
    first runs were stored, so that a renamed field makes no run anew."""
    plan = {_FIRST_NAMES.get(key, key): value for key, value in description["plan"].items()}
    description = {**description, "plan": plan}
    return hashlib.sha256(msgspec.json.encode(description, order="sorted")).hexdigest()


def find_raw(directory: Path, place: RunKey) -> Raw | None:
    """The run that a file of its own has; None when there is none or the file is not whole."""
    return _read(directory / place.file)


def make_run(
    directory: Path, place: RunKey, scenario: StudyScenario, settings: Settings, commit: str
) -> None:
    """Make a run and write its file, unless it has one that was made by the same plan.

    Raises:
        SwarmNodeError: it cannot run, or its file cannot be written.
    """
    plan = plan_digest(describe(scenario, settings))
    stored_run = find_raw(directory, place)
    if stored_run is not None and stored_run.plan == plan:
        return
    began = time.monotonic()
    write_raw(raw_of(place, simulate(scenario, settings), plan, commit), directory)
    print(f"made {place.file} in {time.monotonic() - began:.0f} s", flush=True)


def packed(directory: Path) -> dict[str, Raw]:
    """The runs of the directory's archive, by the names that their files had; none without one.
    They belong to the commits that they name, and are not made again.

    Raises:
        SwarmNodeError: the archive is not whole.
    """
    path = directory / ARCHIVE
    return _packed(path, path.stat().st_mtime_ns) if path.exists() else {}


@lru_cache(maxsize=8)
def _packed(path: Path, changed: int) -> dict[str, Raw]:
    try:
        runs = msgspec.json.Decoder(Raw).decode_lines(lzma.decompress(path.read_bytes()))
    except (OSError, lzma.LZMAError, msgspec.DecodeError) as error:
        raise SwarmNodeError(f"{path} is no archive of runs: {words_of(error)}") from error
    return {key_of(run).file: run for run in runs}


def pack(directory: Path) -> Path:
    """Move the runs that have files of their own into the archive; returns it.

    Raises:
        SwarmNodeError: a file is not whole, or the directory cannot be written.
    """
    files = _files(directory, "*")
    runs = packed(directory) | files
    lines = b"".join(msgspec.json.encode(runs[name]) + b"\n" for name in sorted(runs))
    _write(directory / ARCHIVE, lzma.compress(lines, preset=9 | lzma.PRESET_EXTREME))
    for name in files:
        (directory / name).unlink()
    return directory / ARCHIVE


def write_raw(raw: Raw, directory: Path) -> None:
    """Write a run's file whole or not at all.

    Raises:
        SwarmNodeError: it cannot be written.
    """
    _write(directory / key_of(raw).file, msgspec.json.encode(raw) + b"\n")


def all_raw(directory: Path, stage: str, regime: str) -> list[Raw]:
    """All runs of a stage and regime, in the order of their files' names. Where a run is in the
    archive, too, its file counts.

    Raises:
        SwarmNodeError: a file is not whole.
    """
    packed_runs = {
        name: run
        for name, run in packed(directory).items()
        if (run.stage, run.regime) == (stage, regime)
    }
    runs = packed_runs | _files(directory, f"{stage}-{regime}-*")
    return [runs[name] for name in sorted(runs)]


def _files(directory: Path, names: str) -> dict[str, Raw]:
    runs_of_file = {}
    for path in sorted(directory.glob(f"{names}{_RUN}")):
        raw = _read(path)
        if raw is None:
            raise SwarmNodeError(f"{path} is not a whole run: delete it and make it again")
        runs_of_file[path.name] = raw
    return runs_of_file


def _read(path: Path) -> Raw | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Raw)
    except (OSError, msgspec.DecodeError):
        return None


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise SwarmNodeError(f"cannot write {path}: {reason_of(error)}") from error


def run_in_processes(work: Callable[[], None], jobs: int) -> None:
    """Run `work` in this process and in `jobs` - 1 others, and wait for all of them. It claims each
    run that it makes.

    Raises:
        SwarmNodeError: another process ended early.
    """
    context = multiprocessing.get_context("spawn")
    arguments = (work, os.getpid())
    helpers = [context.Process(target=_help, args=arguments) for _ in range(jobs - 1)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    if any(helper.exitcode for helper in helpers):
        raise SwarmNodeError("a process that made runs ended early: its error stands above")


def _help(work: Callable[[], None], parent: int) -> None:
    die_with_parent(parent)  # or it goes on after a kill, beside the next start
    work()


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Hold the lock of a run meanwhile; yields False if another process holds it.

    Raises:
        SwarmNodeError: the directory cannot be written.
    """
    lock = path.with_suffix(".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("ab")
    except OSError as error:
        raise SwarmNodeError(f"cannot write {lock}: {reason_of(error)}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            # A process that waited with the old file finds the run made.
            lock.unlink(missing_ok=True)


def commit_of(directory: Path) -> str:
    """The commit of the code in `directory`, with a "+" if files were changed since; "" where that
    is not known."""
    head = _git(directory, "rev-parse", "HEAD")
    if head is None or head.returncode:
        return ""
    changed = _git(directory, "diff", "HEAD", "--quiet", "--", ".")
    return head.stdout.strip()[:12] + "+" * (changed is not None and changed.returncode == 1)


def _git(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
        )
    except OSError:
        return None


def _short(values: Iterator[float] | Sequence[float] | Any) -> list[float]:
    return [round(value, _DIGITS) for value in values]
