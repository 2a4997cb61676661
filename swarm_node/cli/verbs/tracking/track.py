"""`swarm-node track`: pass a node's history on to a program that draws curves.

It reads `metrics.jsonl` and the checkpoints of the home, so the node knows nothing of it; only for
answers it asks the running node. A tracker that hangs or fails delays no update. A history that was
written before the tracker ran is passed on too.
"""

from __future__ import annotations

import shlex
import time
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
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
    if find_spec(tracker) is None:
        raise HomeError(f"{tracker} is not installed", f"run {extra_of(tracker)}")
    from swarm_node.cli.verbs.membership.passing import Passing, run_name

    place = chosen_home(home)
    try:
        made = TRACKERS[tracker](into, run_name(place))
    except ImportError as error:
        raise HomeError(
            f"{tracker} cannot be imported ({error})", f"run {extra_of(tracker)}"
        ) from error
    with closing(made), suppress(KeyboardInterrupt):
        passing = Passing(place, made, place.path / f"tracked.{tracker}")
        new, told = 0, float("-inf")
        while True:
            new += passing.once()
            if once or (new and time.monotonic() - told >= _TELL_SECONDS):
                rows = f"{new:,} row{'s' * (new != 1)}"
                typer.echo(f"{rows} → {_shown_by(tracker, into)}")
                new, told = 0, time.monotonic()
            if once:
                return
            time.sleep(_POLL_SECONDS)


def _shown_by(tracker: TrackerName, into: Path) -> str:
    """Where the metrics went, and the command that shows them."""
    directory = shlex.quote(str(into))
    return {
        TrackerName.TENSORBOARD: f"{into}; see them with: tensorboard --logdir {directory}",
        TrackerName.WANDB: f"W&B, and {into}; offline runs are sent with: wandb sync",
        TrackerName.TRACKIO: "trackio; see them with: trackio show",
    }[tracker]
