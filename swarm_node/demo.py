"""`swarm-node demo`: a private swarm of real node processes on this machine, live in a table.

Node i samples every n-th task family, so a node learns all other families from its peers' rollouts
alone: of the drills three of nine each, of the games one of three, of the graded tasks of a
pretrained model one or two of five. One further node samples as node 1 does, in a swarm of its own.
Its reward on families that it never samples is transfer, not sharing. All start at once.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.live import Live
from rich.table import Table

from swarm_node.config import load_settings
from swarm_node.environments import games
from swarm_node.environments.drills import PRESETS
from swarm_node.errors import ConfigError, HomeError, NotRunningError, SwarmNodeError, instead
from swarm_node.node.control.control import ControlClient
from swarm_node.node.figures.snapshot import SCHEMA, EvalPoint, Snapshot
from swarm_node.node.home.home import Home
from swarm_node.node.preflight.doctor import this_machine
from swarm_node.node.preflight.fit import engine_of
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.simulation.report import save_json, save_picture

FAMILIES = sorted(PRESETS["short"])
ALONE = "alone"
#: An inference engine takes long to import and start, and each node of the demo has one.
_START_SECONDS = {"torch": 180.0, "auto": 900.0, "vllm": 900.0}
_STOP_SECONDS = 40.0
#: Seconds between two polls, and between two tables in a file, which shows no live one.
_POLL_SECONDS, _TOLD_SECONDS = 1.0, 60.0
_HOUR = 3600
_NO_EVAL = EvalPoint(0.0, 0, math.nan, math.nan, math.nan, {})
#: The summary shows the rewards of so many families one by one.
_SHOWN_FAMILIES = 5


@dataclass(frozen=True, slots=True)
class DemoTasks:
    """Tasks of a demo: the `families` of an environment, learnt by a shipped model."""

    environment: str
    families: Sequence[str]
    model: str
    #: Settings of every node.
    assignments: Sequence[str]
    #: How long it takes until something is seen, on two cores.
    minutes: float = 3.0

    #: Families whose levels a node samples together are shared out by name.
    levels: bool = False

    @property
    def kinds(self) -> list[list[str]]:
        """The families that one node samples together: each alone, or all levels of one name."""
        if not self.levels:
            return [[family] for family in self.families]
        by_name = itertools.groupby(self.families, key=lambda family: family.rpartition("-")[0])
        return [[*members] for _, members in by_name]

    def share(self, index: int, nodes: int) -> list[str]:
        """The families of node `index` of `nodes`."""
        return [family for kind in self.kinds[index::nodes] for family in kind]

    @property
    def all(self) -> str:
        return f"all {_NUMBERS.get(len(self.kinds), len(self.kinds))} families"


_NUMBERS = {3: "three", 5: "five", 9: "nine"}
DRILLS = DemoTasks(
    "drills",
    FAMILIES,
    "tiny",
    # A fifth of the default: the rise then fills three minutes of two busy cores.
    ("training.learning_rate=6e-5",),
)
GAMES = DemoTasks("games", games.create().families, "tiny-talk", ("environment.name=games",))


def pretrained(model: str) -> DemoTasks:
    """Return the tasks of a demo of a pretrained `model`: small batches, because four nodes share
    the cores, and few measurements."""
    small = ("sampling.tasks_per_call=4", "experience.own=2")
    seldom = ("run.eval_seconds=150", "run.eval_tasks=8")
    return DemoTasks(
        "drills",
        sorted(PRESETS["graded"]),
        model,
        ("environment.options.preset=graded", *small, *seldom, "run.threads=1"),
        minutes=15.0,
        levels=True,
    )


GROUNDS = {ground.environment: ground for ground in (DRILLS, GAMES)}


@dataclass
class DemoNode:
    """One `swarm-node join` process and its last snapshot; `assignments` are further settings."""

    name: str
    home: Home
    families: Sequence[str]
    sampler: str | None = None
    assignments: Sequence[str] = ()
    ground: DemoTasks = DRILLS
    process: asyncio.subprocess.Process | None = None
    snapshot: Snapshot | None = None
    log: list[str] = field(default_factory=list)

    async def start(self) -> None:
        """Start the process; its log goes to `log` in its home."""
        arguments = ["join", "--model", self.ground.model, "--home", str(self.home.path)]
        arguments += ["--families", ",".join(self.families), "--listen", "/ip4/127.0.0.1/tcp/0"]
        arguments += ["--set", "network.poll_seconds=0.5", "--set", "run.eval_seconds=5"]
        if self.sampler is not None:
            arguments += ["--sampler", self.sampler]
        if self.sampler != "vllm":
            # With so small a model, nodes would only wait for kernel launches on the one GPU.
            arguments += ["--set", "run.device=cpu"]
        given = (*self.ground.assignments, *self.assignments)
        arguments += [part for text in given for part in ("--set", text)]
        with (self.home.path / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "swarm_node",
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which stops its nodes in order
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    async def poll(self) -> None:
        """Ask the node for its snapshot; raises when its process has died."""
        if self.process is not None and self.process.returncode is not None:
            raise SwarmNodeError(
                f"{self.name} ended with exit code {self.process.returncode}:\n{self.tail()}"
            )
        try:
            self.snapshot = await ControlClient(self.home.control_file).status()
        except (NotRunningError, HomeError):
            return

    def tail(self) -> str:
        """The end of its log."""
        path = self.home.path / "log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else "(no log)"

    async def stop(self) -> None:
        """Ask the node to leave; kill it if it does not."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def run_demo(
    nodes: int,
    minutes: float | None,
    report: Path,
    sampler: str | None = None,
    environment: str = DRILLS.environment,
    model: str | None = None,
) -> int:
    """Run the demo on the tasks of `environment` with `nodes` nodes that sample with `sampler` (the
    setting `sampling.engine`); returns the exit code. A pretrained `model` begins with graded
    tasks.

    Raises:
        ConfigError: there is no demo of the environment, or it has fewer families than nodes.
        SwarmNodeError: a node could not start; the message holds the end of its log.
    """
    ground = ground_of(environment, nodes, model)
    minutes = ground.minutes if minutes is None else minutes
    settings = load_settings({"sampling.engine": sampler})
    if sampler == "vllm":
        engine_of(settings, this_machine(settings))
    console = Console()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with tempfile.TemporaryDirectory(prefix="swarm-node-demo-") as directory:
        swarm = _plan(Path(directory), nodes, sampler, ground)
        started = time.monotonic()
        try:
            with Live(console=console, refresh_per_second=2, transient=False) as live:
                await _start(swarm, live, stop)
                await _watch(swarm, live, stop, minutes * 60, started)
                await _final_eval(swarm)
                live.update(_table(swarm, time.monotonic() - started, "done"))
        finally:
            await asyncio.gather(*(node.stop() for node in swarm))
    results = [result_of(node) for node in swarm if node.snapshot and node.snapshot.evals]
    if not results:
        console.print("\nstopped before the first measurement: nothing to report")
        return 130
    curves = {node.name: node.snapshot.evals for node in swarm if node.snapshot is not None}
    files = write_report(report, time.monotonic() - started, results, curves)
    console.print("", *summary(ground, results), sep="\n")
    for file in files:
        console.print(f"wrote {file}")
    console.print("Next, two machines: swarm-node init NAME, then swarm-node invite --help")
    return 0


def ground_of(environment: str, nodes: int, model: str | None = None) -> DemoTasks:
    """Return the ground called `environment`, or that of a `model` that does not ship.

    Raises:
        ConfigError: there is no demo of it, or one of so many `nodes` would sample nothing.
    """
    ground = GROUNDS.get(environment)
    if ground is None:
        raise ConfigError(
            f"--environment: no demo of {environment!r}{instead(environment, GROUNDS)}"
        )
    if model not in (None, ground.model):
        if ground is not DRILLS:
            raise ConfigError(f"--model: the demo of {environment} is for {ground.model}")
        ground = pretrained(model)
    if nodes > len(ground.kinds):
        raise ConfigError(
            f"--nodes: {environment} has {len(ground.kinds)} families, and each node samples "
            f"one or more of its own: at most {len(ground.kinds)} nodes"
        )
    return ground


def _plan(directory: Path, nodes: int, sampler: str | None, ground: DemoTasks) -> list[DemoNode]:
    """The nodes of the swarm, and the one alone, each with its membership."""
    swarm = []
    for index in range(nodes):
        name, home = f"node {index + 1}", Home(directory / f"node-{index + 1}")
        swarm.append(DemoNode(name, home, ground.share(index, nodes), sampler, ground=ground))
    alone = DemoNode(ALONE, Home(directory / ALONE), ground.share(0, nodes), sampler, ground=ground)
    now = time.time()
    for node in (*swarm, alone):
        node.home.create()
    alone.home.found_swarm("alone", now)
    first, *others = swarm
    first.home.found_swarm("demo", now)
    # The others can have their tickets before the first node runs: its home keeps its port.
    address = f"/ip4/127.0.0.1/tcp/{first.home.port()}/p2p/{first.home.identity().peer_id}"
    for node in others:
        ticket = first.home.invite(
            [address], now=now, valid_seconds=_HOUR, member_seconds=24 * _HOUR
        )
        node.home.join_swarm(parse_ticket(ticket, now), now)
    return [*swarm, alone]


async def _start(swarm: list[DemoNode], live: Live, stop: asyncio.Event) -> None:
    """Start all nodes at once, so that none learns before the others are there."""
    await asyncio.gather(*(node.start() for node in swarm))
    live.update(_table(swarm, 0.0, "starting"))
    await _until_running(swarm, live, stop)


async def _until_running(nodes: list[DemoNode], live: Live, stop: asyncio.Event) -> None:
    engines = {node.sampler or "torch" for node in nodes}
    deadline = time.monotonic() + max(_START_SECONDS[name] for name in engines)
    while not stop.is_set():
        await asyncio.gather(*(node.poll() for node in nodes))
        if all(node.snapshot and node.snapshot.state == "running" for node in nodes):
            return
        if time.monotonic() > deadline:
            slow = next(n for n in nodes if not n.snapshot or n.snapshot.state != "running")
            raise SwarmNodeError(f"{slow.name} did not start in time:\n{slow.tail()}")
        await _pause(stop)


async def _watch(
    swarm: list[DemoNode], live: Live, stop: asyncio.Event, seconds: float, started: float
) -> None:
    told = time.monotonic()
    deadline = told + seconds  # without the start, which takes an engine long
    while not stop.is_set() and time.monotonic() < deadline:
        await asyncio.gather(*(node.poll() for node in swarm))
        left = max(0.0, deadline - time.monotonic())
        table = _table(swarm, time.monotonic() - started, f"{left:.0f} s left, Ctrl-C ends")
        live.update(table)
        if not live.console.is_interactive and time.monotonic() >= told:
            told += _TOLD_SECONDS
            live.console.print(table)
        await _pause(stop)


async def _final_eval(swarm: list[DemoNode]) -> None:
    """Measure all at once, so that none trains longer than another."""

    async def measure(node: DemoNode) -> None:
        if node.snapshot is not None and node.snapshot.evals:
            with suppress(SwarmNodeError):  # too slow: its last measurement stands
                await ControlClient(node.home.control_file).evaluate()
            await node.poll()

    await asyncio.gather(*map(measure, swarm))


async def _pause(stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), _POLL_SECONDS)


def _table(swarm: list[DemoNode], seconds: float, caption: str) -> Table:
    table = Table(
        title=f"swarm-node demo, {seconds:.0f} s",
        caption="own, borrowed: reward on unseen texts, first→now, on families the node samples "
        "and on those it never samples. seen: on texts that training may draw.\n"
        "trained, peers', got: own groups trained on, peers' groups trained on, peers' groups "
        f"verified.\n{caption}",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("node", no_wrap=True)
    for name in ("version", "own", "borrowed", "seen", "trained", "peers'", "got"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("rejected", min_width=11)
    for node in swarm:
        table.add_row(*_cells(node))
    return table


def _cells(node: DemoNode) -> list[str]:
    shot = node.snapshot
    if shot is None:
        return [f"{node.name} {'starting' if node.process else 'waiting'}", *[""] * 8]
    first, last = (shot.evals[0], shot.evals[-1]) if shot.evals else (_NO_EVAL, _NO_EVAL)
    rejected = ", ".join(
        f"{why} {count}" for why, count in sorted(shot.rejected.items()) if why != "unreachable"
    )
    return [
        node.name,
        str(shot.version),
        _change(first.own, last.own),
        _change(first.borrowed, last.borrowed),
        "-" if last.seen is None else f"{last.seen:.2f}",
        str(shot.groups.trained_own),
        str(shot.groups.trained_external),
        str(shot.groups.received),
        rejected or "none",
    ]


def _change(start: float | None, end: float | None) -> str:
    if start is None or end is None or math.isnan(start):
        return "-"
    return f"{start:.2f}→[bold green]{end:.2f}[/bold green]"


def result_of(node: DemoNode) -> NodeReport:
    """Return the result of a node that was measured."""
    shot = node.snapshot
    assert shot is not None
    first, last = shot.evals[0], shot.evals[-1]
    return NodeReport(
        name=node.name,
        peer_id=shot.peer_id,
        updates=shot.updates,
        samples=list(node.families),
        families_start=first.families,
        families_end=last.families,
        reward_start=first.all,
        reward_end=last.all,
        borrowed_start=first.borrowed,
        borrowed_end=last.borrowed,
        seen_start=first.seen,
        seen_end=last.seen,
        groups_published=shot.groups.published,
        groups_trained_own=shot.groups.trained_own,
        groups_trained_external=shot.groups.trained_external,
        rejected=shot.rejected,
    )


def summary(ground: DemoTasks, results: Sequence[NodeReport]) -> Iterator[str]:
    """Yield the lines about the results: of few families one by one, the node's own marked."""
    for result in results:
        borrowed = _change(result.borrowed_start, result.borrowed_end)
        yield (
            f"{result.name}: {ground.all} {_change(result.reward_start, result.reward_end)}, "
            f"those that it never samples {borrowed}, seen texts "
            f"{_change(result.seen_start, result.seen_end)}, {result.updates} updates"
        )
        if len(ground.kinds) <= _SHOWN_FAMILIES:
            each = (
                f"{family}{' (samples it)' * (family in result.samples)} "
                + _change(result.families_start.get(family), result.families_end.get(family))
                for family in ground.families
                if family in result.families_start
            )
            yield f"  {', '.join(each)}"
    yield (
        "Rewards are on unseen texts, except where it says seen. "
        "alone: as node 1, without peers. What the others have more on families that they never "
        "sample, they learnt from each other."
    )


class NodeReport(msgspec.Struct, frozen=True):
    """One node's result. It `samples` these families. Rewards on unseen texts are `families_…` by
    family, `reward_…` over all families, and `borrowed_…` over those that it never sampled itself.
    `seen_…` are means on texts that training may draw. `rejected` counts by reason."""

    name: str
    peer_id: str
    updates: int
    samples: list[str]
    families_start: dict[str, float]
    families_end: dict[str, float]
    reward_start: float
    reward_end: float
    borrowed_start: float | None
    borrowed_end: float | None
    seen_start: float | None
    seen_end: float | None
    groups_published: int
    groups_trained_own: int
    groups_trained_external: int
    rejected: dict[str, int]


def write_report(
    directory: Path,
    seconds: float,
    nodes: Sequence[NodeReport],
    curves: Mapping[str, Sequence[EvalPoint]],
) -> list[Path]:
    """Write report.json and, where matplotlib is installed, learning.png; returns the files.

    An earlier report stays: the directory then gets a number.

    Raises:
        SwarmNodeError: the directory cannot be written.
    """
    directory = _unused(directory)
    report = {"schema": SCHEMA, "seconds": round(seconds, 1), "nodes": nodes}
    path, size = save_json(report, directory), (4 * len(curves), 3.9)
    picture = directory / "learning.png"
    return [path, *save_picture(picture, size, lambda figure: _draw(figure, curves))]


def _unused(directory: Path) -> Path:
    """`directory`, or its first relative with a number that holds no report."""
    numbered = (directory.with_name(f"{directory.name}-{n}") for n in itertools.count(2))
    places = itertools.chain([directory], numbered)
    return next(place for place in places if not (place / "report.json").exists())


def _draw(figure: Any, curves: Mapping[str, Sequence[EvalPoint]]) -> None:
    """One panel per node: reward over time on unseen texts and, thinner, on seen ones, and what the
    one alone reaches on families that it never samples."""
    swarm = {name: points for name, points in curves.items() if name != ALONE} or curves
    alone = [(p.seconds, p.borrowed) for p in curves.get(ALONE, ()) if p.borrowed is not None]
    panels = figure.subplots(1, len(swarm), sharey=True, squeeze=False)[0]
    for panel, (name, points) in zip(panels, swarm.items(), strict=True):
        seconds = [point.seconds for point in points]
        panel.plot(seconds, [point.own for point in points], label="families it samples")
        if borrowed := [(p.seconds, p.borrowed) for p in points if p.borrowed is not None]:
            panel.plot(*zip(*borrowed, strict=True), "--", label="families only in peers' rollouts")
        if seen := [(p.seconds, p.seen) for p in points if p.seen is not None]:
            label = "seen texts, all families"
            panel.plot(*zip(*seen, strict=True), color="silver", linewidth=0.8, label=label)
        if alone:
            panel.plot(*zip(*alone, strict=True), ":", color="grey", label="those, alone")
        panel.set(title=name, xlabel="seconds", ylim=(0, 1))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("reward on unseen texts")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
