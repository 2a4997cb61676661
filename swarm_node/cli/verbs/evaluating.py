"""`swarm-node eval`: measure the running node, or stored checkpoints on any tasks."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from swarm_node.cli.home import ask, show
from swarm_node.cli.options import AssignOption, ConfigOption, HomeOption, JsonOption
from swarm_node.errors import ConfigError

if TYPE_CHECKING:
    from swarm_node.library.measuring import Progress

#: Seconds between two lines of progress where there is no terminal.
_LINE_SECONDS: Final = 10.0


def evaluate(
    tasks: Annotated[
        str | None, typer.Option(help="File of questions, hub:OWNER/NAME or environment.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="A directory, a name such as v0000000060, base, or all.")
    ] = None,
    completions: Annotated[int, typer.Option(min=1, max=64, help="Of each task.")] = 4,
    k: Annotated[int | None, typer.Option(min=1, help="Of pass@k; default --completions.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tasks from each split.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The base of the checkpoints.")] = None,
    home: HomeOption = None,
    config: ConfigOption = None,
    assign: AssignOption = None,
    json: JsonOption = False,
) -> None:
    """Measure the eval reward of the running node now, and its reward on training prompts.

    With --tasks or --checkpoint, evaluate saved checkpoints of this data directory; no running node
    is needed. Prints pass@1 and pass@k (unbiased, Chen et al. 2021) with 95% intervals, for
    held-out and for training prompts. Defaults are the newest checkpoint and the data directory's
    own tasks. A hash decides which prompts of a file are held out, as when a node trains on that
    file."""
    if tasks is None and checkpoint is None:
        if (k, limit, model, config, assign, completions) != (None, None, None, None, None, 4):
            raise ConfigError(
                "these options are for stored checkpoints", "add --checkpoint all, or --tasks FILE"
            )
        _ask_node(home, json)
        return
    from swarm_node.config import load_settings, parse_assignments
    from swarm_node.library.resolve_names import require_measured

    assignments = parse_assignments(assign or [])
    flags = {"home": home, "model": model, **assignments}
    settings = load_settings(flags, config=config, with_home=True)
    require_measured(settings, tasks, checkpoint, assignments, k, completions)
    from swarm_node.cli.views.pass_rates_view import pass_rates_view
    from swarm_node.library.measuring import measure

    with progress() as tell, _interruptible():
        report = asyncio.run(
            measure(
                tasks,
                checkpoint,
                completions=completions,
                k=k,
                limit=limit,
                home=home,
                model=model,
                config=config,
                overrides=assignments,
                tell=tell,
                on_replaced=_tell_gone,
            )
        )
    show(json, report, lambda: pass_rates_view(report))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the command with the exit code of shells."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _ask_node(home: Path | None, json: bool) -> None:
    import msgspec

    point = ask(home, lambda client: client.evaluate())
    from swarm_node.cli.views.views import eval_view
    from swarm_node.node.metrics.snapshot import SCHEMA

    document = {"schema": SCHEMA, **msgspec.to_builtins(point)}
    show(json, document, lambda: eval_view(point))


@contextmanager
def progress() -> Iterator[Callable[[Progress], None]]:
    """Show progress on standard error: a bar on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Bars(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        task_ids = {}

        def tell(progress: Progress) -> None:
            name = progress.checkpoint
            if name not in task_ids:
                task_ids[name] = bars.add_task(name, total=progress.tasks)
            bars.update(task_ids[name], completed=progress.finished_tasks)

        yield tell


def _tell_gone(name: str) -> None:
    typer.echo(f"{name}: left out, the running node has replaced it", err=True)


def _lines() -> Callable[[Progress], None]:
    last, name = time.monotonic(), ""

    def tell(progress: Progress) -> None:
        nonlocal last, name
        if progress.checkpoint != name or time.monotonic() - last >= _LINE_SECONDS:
            last, name = time.monotonic(), progress.checkpoint
            line = f"{progress.checkpoint}: {progress.finished_tasks:,} of {progress.tasks:,} tasks"
            typer.echo(line, err=True)

    return tell
