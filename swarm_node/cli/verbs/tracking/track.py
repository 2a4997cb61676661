"""`swarm-node track`: pass a node's history on to a program that draws curves.

It reads `metrics.jsonl` and the checkpoints of the home, so the node knows nothing of it; only for
answers it asks the running node. A tracker that hangs or fails delays no update. A history that was
written before the tracker ran is passed on too.
"""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Annotated, Final

import typer

from swarm_node.cli.home import chosen_home
from swarm_node.cli.options import HomeOption
from swarm_node.cli.verbs.tracking.trackers import TRACKERS, TrackerName
from swarm_node.errors import HomeError, extra_of

_POLL_SECONDS: Final = 5.0
#: Seconds between two lines about rows that were passed on.
_TELL_SECONDS: Final = 60.0


def track(
    tracker: Annotated[TrackerName, typer.Argument(help="Where the metrics go.")],
    home: HomeOption = None,
    into: Annotated[Path, typer.Option(help="Directory of the files; trackio has its own.")] = Path(
        "runs"
    ),
    once: Annotated[
        bool, typer.Option("--once", help="Exit once all metrics so far are logged.")
    ] = False,
) -> None:
    """Log this node's metrics to TensorBoard, W&B or trackio, until Ctrl-C.

    Also logs sample completions, while the node runs, and the lineage of its checkpoints, without
    the weights. All nodes of a swarm are one group of the tracker. Every row is logged once. To
    install the package, run `pip install '.[tensorboard]'` in a checkout, or `[wandb]`,
    `[trackio]`.
    """
    from swarm_node.node.start.tracking import require_tracker

    require_tracker(tracker)
    from swarm_node.cli.verbs.tracking.forwarding import Forwarder, run_name

    place = chosen_home(home)
    try:
        writer = TRACKERS[tracker](into, run_name(place))
    except ImportError as error:
        raise HomeError(
            f"{tracker} cannot be imported ({error})", f"run {extra_of(tracker)}"
        ) from error
    stopping = Event()
    with closing(writer), _stopped_by_signals(stopping):
        passing = Forwarder(place, writer, place.path / f"tracked.{tracker}")
        new, last_report = 0, float("-inf")
        if once:
            stopping.set()
        while True:
            is_last = stopping.is_set()
            new += passing.once()
            if once or (new and time.monotonic() - last_report >= _TELL_SECONDS):
                rows = f"{new:,} row{'s' * (new != 1)}"
                typer.echo(f"{rows} → {_shown_by(tracker, into)}")
                new, last_report = 0, time.monotonic()
            if is_last:
                return
            stopping.wait(_POLL_SECONDS)


@contextmanager
def _stopped_by_signals(stopping: Event) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM stop the command once the rows of this moment are logged. A second
    one ends it at once, because a tracker may wait for its network."""

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        stopping.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _shown_by(tracker: TrackerName, path: Path) -> str:
    """Where the metrics went, and the command that shows them."""
    directory = shlex.quote(str(path))
    return {
        TrackerName.TENSORBOARD: f"{path}; see them with: tensorboard --logdir {directory}",
        TrackerName.WANDB: f"W&B, and {path}; offline runs are sent with: wandb sync",
        TrackerName.TRACKIO: "trackio; see them with: trackio show",
    }[tracker]
