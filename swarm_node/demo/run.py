"""`swarm-node demo`: a private swarm of real node processes on this machine, live in a table.

Node i samples every n-th task family, so a node learns all other families from its peers' rollouts
alone: of the drills three of nine each, of the games one of three, of the graded tasks of a
pretrained model one or two of five. One further node samples as node 1 does, in a swarm of its own.
Its reward on families that it never samples is transfer, not sharing. All start at once.
"""

from __future__ import annotations

import asyncio
import math
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.live import Live
from rich.table import Table

from swarm_node.config import load_settings
from swarm_node.demo.nodes import DemoNode, make_swarm
from swarm_node.demo.report import ISOLATED, change, result_of, summary, write_report
from swarm_node.demo.tasks import DRILLS, DemoTasks, ground_of
from swarm_node.errors import SwarmNodeError
from swarm_node.node.control.control import ControlClient
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.snapshot import EvalPoint
from swarm_node.node.preflight.doctor import this_machine
from swarm_node.policy.sampling.vllm.engine import choose_engine

#: An inference engine takes long to import and start, and each node of the demo has one.
_START_SECONDS = {"torch": 180.0, "auto": 900.0, "vllm": 900.0}
#: Seconds between two polls, and between two tables in a file, which shows no live one.
_POLL_SECONDS, _TOLD_SECONDS = 1.0, 60.0
_NO_EVAL = EvalPoint(0.0, 0, math.nan, math.nan, math.nan, {})


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
        machine = this_machine(settings)
        choose_engine(settings.sampling.engine, machine.placement.device, machine.vllm)
    console = Console()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with tempfile.TemporaryDirectory(prefix="swarm-node-demo-") as directory:
        swarm = _plan(Path(directory), nodes, sampler, ground)
        start = time.monotonic()
        with Live(console=console, refresh_per_second=2, transient=False) as display:
            try:
                await _start(swarm, display, stop)
                await _watch(swarm, display, stop, minutes * 60, start)
                is_interrupted = stop.is_set()
                stop.clear()
                if any(node.snapshot and node.snapshot.evals for node in swarm):
                    caption = "measuring all nodes once more, Ctrl-C skips it"
                    _show(display, _table(swarm, time.monotonic() - start, caption))
                    await _final_eval(swarm, stop)
                display.update(_table(swarm, time.monotonic() - start, "stopping the nodes"))
            finally:
                await asyncio.gather(*(node.stop() for node in swarm))
            display.update(_table(swarm, time.monotonic() - start, "done"))
    results = [result_of(node) for node in swarm if node.snapshot and node.snapshot.evals]
    if not results:
        console.print()
        if is_interrupted:
            console.print("stopped before the first measurement: nothing to report")
            return 130
        raise SwarmNodeError(f"no node was measured within {minutes:g} minutes: increase --minutes")
    curves = {node.name: node.snapshot.evals for node in swarm if node.snapshot is not None}
    files = write_report(report, time.monotonic() - start, results, curves)
    console.print("", *summary(ground, results), sep="\n")
    for file in files:
        console.print(f"wrote {file}")
    console.print("Next, two machines: swarm-node init NAME, then swarm-node invite --help")
    return 0


def _plan(directory: Path, nodes: int, sampler: str | None, ground: DemoTasks) -> list[DemoNode]:
    """The nodes of the swarm, and the isolated one, each with its membership."""
    swarm = []
    for index in range(nodes):
        name, home = f"node {index + 1}", Home(directory / f"node-{index + 1}")
        swarm.append(DemoNode(name, home, ground.share(index, nodes), sampler, ground=ground))
    home = Home(directory / ISOLATED)
    isolated_node = DemoNode(ISOLATED, home, ground.share(0, nodes), sampler, ground=ground)
    now = time.time()
    for node in (*swarm, isolated_node):
        node.home.create()
    isolated_node.home.found_swarm(ISOLATED, now)
    make_swarm("demo", swarm, now)
    return [*swarm, isolated_node]


async def _start(swarm: list[DemoNode], display: Live, stop: asyncio.Event) -> None:
    """Start all nodes at once, so that none learns before the others are there."""
    await asyncio.gather(*(node.start() for node in swarm))
    _show(display, _table(swarm, 0.0, "starting"))
    await _until_running(swarm, display, stop)


async def _until_running(nodes: list[DemoNode], display: Live, stop: asyncio.Event) -> None:
    engines = {node.sampler or "torch" for node in nodes}
    deadline = time.monotonic() + max(_START_SECONDS[name] for name in engines)
    while not stop.is_set():
        await asyncio.gather(*(node.poll() for node in nodes))
        if all(node.snapshot and node.snapshot.state == "running" for node in nodes):
            return
        if time.monotonic() > deadline:
            slow_node = next(n for n in nodes if not n.snapshot or n.snapshot.state != "running")
            raise SwarmNodeError(f"{slow_node.name} did not start in time:\n{slow_node.tail()}")
        await _pause(stop)


async def _watch(
    swarm: list[DemoNode], display: Live, stop: asyncio.Event, seconds: float, start: float
) -> None:
    print_time = time.monotonic()
    deadline = print_time + seconds  # without the start, which takes an engine long
    while not stop.is_set() and time.monotonic() < deadline:
        await asyncio.gather(*(node.poll() for node in swarm))
        left = max(0.0, deadline - time.monotonic())
        table = _table(swarm, time.monotonic() - start, f"{left:.0f} s left, Ctrl-C ends")
        if time.monotonic() < print_time:
            display.update(table)
        else:
            print_time += _TOLD_SECONDS
            _show(display, table)
        await _pause(stop)


def _show(display: Live, table: Table) -> None:
    """Update the live table, and print it where that is not seen."""
    display.update(table)
    if not display.console.is_interactive:
        display.console.print(table)


async def _final_eval(swarm: list[DemoNode], stop: asyncio.Event) -> None:
    """Measure all at once, so that none trains longer than another. Where `stop` is set meanwhile,
    or a node is too slow, its last measurement stands."""

    async def measure(node: DemoNode) -> None:
        if node.snapshot is not None and node.snapshot.evals:
            with suppress(SwarmNodeError):
                await ControlClient(node.home.control_file).evaluate()
            await node.poll()

    measuring = asyncio.gather(*map(measure, swarm))
    while not (measuring.done() or stop.is_set()):
        await _pause(stop)
    measuring.cancel()  # nothing, if it is done
    with suppress(asyncio.CancelledError):
        await measuring


async def _pause(stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), _POLL_SECONDS)


def _table(swarm: list[DemoNode], seconds: float, caption: str) -> Table:
    table = Table(
        title=f"swarm-node demo, {seconds:.0f} s",
        caption="local, external: eval reward, first→now, on families that the node samples and on "
        "external-only ones. train: reward on training prompts.\n"
        "trained on: local + external groups. accepted: external groups verified.\n"
        f"{caption}",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("node", no_wrap=True)
    for name in ("version", "local", "external", "train", "trained on", "accepted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("rejected", min_width=11)
    for node in swarm:
        table.add_row(*_cells(node))
    return table


def _cells(node: DemoNode) -> list[str]:
    shot = node.snapshot
    if shot is None:
        return [f"{node.name} {'starting' if node.process else 'waiting'}", *[""] * 7]
    first, *later_evals = shot.evals or [_NO_EVAL]
    last = later_evals[-1] if later_evals else _NO_EVAL
    train = (later_evals or [first])[-1].train
    rejections = ", ".join(
        f"{reason} {count}"
        for reason, count in sorted(shot.rejected.items())
        if reason != "unreachable"
    )
    return [
        node.name,
        str(shot.version),
        change(first.local, last.local),
        change(first.external_only, last.external_only),
        "-" if train is None else f"{train:.2f}",
        f"{shot.groups.trained_local} + {shot.groups.trained_external}",
        str(shot.groups.accepted),
        rejections or "none",
    ]
