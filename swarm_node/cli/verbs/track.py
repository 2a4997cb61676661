"""`swarm-node track`: pass a node's history on to a program that draws curves.

It reads `metrics.jsonl` of the home, so the node knows nothing of it. A tracker that hangs or fails
delays no update. A history that was written before the tracker ran is passed on too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Protocol

import typer

from swarm_node.cli.home import chosen_home
from swarm_node.cli.options import HomeOption
from swarm_node.durable import replace_private
from swarm_node.errors import HomeError, extra_of

if TYPE_CHECKING:
    from swarm_node.node.figures.history import HistoryRow
    from swarm_node.node.home.home import Home

_POLL_SECONDS: Final = 5.0
_PROJECT: Final = "swarm-node"


class Tracker(Protocol):
    """Receiver of figures. `step` is the node's number of updates, `when` is in Unix seconds."""

    def log(self, figures: Mapping[str, float], step: int, when: float) -> None: ...

    def close(self) -> None: ...


class TrackerName(StrEnum):
    """The trackers by what people type."""

    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"


class TensorBoard:
    """Event files, which `tensorboard --logdir` shows."""

    def __init__(self, into: Path, run: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(into / run))

    def log(self, figures: Mapping[str, float], step: int, when: float) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step, walltime=when)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run of Weights & Biases; one that was closed goes on. `WANDB_MODE=offline` needs no
    account."""

    def __init__(self, into: Path, run: str) -> None:
        import wandb

        into.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(project=_PROJECT, id=run, name=run, dir=into, resume="allow")

    def log(self, figures: Mapping[str, float], step: int, when: float) -> None:
        self._run.log({**figures, "unix_seconds": when}, step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """A run of trackio, which keeps it on this machine: `trackio show`."""

    def __init__(self, into: Path, run: str) -> None:
        import trackio

        self._run = trackio.init(
            project=_PROJECT, name=run, resume="allow", auto_log_cpu=False, auto_log_gpu=False
        )

    def log(self, figures: Mapping[str, float], step: int, when: float) -> None:
        self._run.log({**figures, "unix_seconds": when}, step=step)

    def close(self) -> None:
        self._run.finish()


_TRACKERS: Final[Mapping[TrackerName, Callable[[Path, str], Tracker]]] = {
    TrackerName.TENSORBOARD: TensorBoard,
    TrackerName.WANDB: Wandb,
    TrackerName.TRACKIO: Trackio,
}


def track(
    tracker: Annotated[TrackerName, typer.Argument(help="Where the figures go.")],
    home: HomeOption = None,
    into: Annotated[Path, typer.Option(help="Directory of the files; trackio has its own.")] = Path(
        "runs"
    ),
    once: Annotated[
        bool, typer.Option("--once", help="End when all figures so far were passed on.")
    ] = False,
) -> None:
    """Pass the figures of this home's node on to TensorBoard, W&B or trackio, until Ctrl-C.

    The node need not run, and notices nothing. What was passed on once is not passed on again. The
    package comes with `pip install '.[tensorboard]'` in a checkout, or `[wandb]`, `[trackio]`.
    """
    place = chosen_home(home)
    run = place.identity().peer_id[-8:]
    try:
        made = _TRACKERS[tracker](into, run)
    except ImportError as error:
        raise HomeError(f"{tracker} is not installed ({error}): run {extra_of(tracker)}") from error
    with closing(made):
        try:
            for row in _rows(place, place.path / f"tracked.{tracker}", once):
                made.log(figures(row), row.updates, row.time)
        except KeyboardInterrupt:
            return


def figures(row: HistoryRow) -> dict[str, float]:
    """The known numbers of a row, by name. Rewards of families are also given as their mean."""
    from msgspec.structs import asdict

    found = {}
    for name, value in asdict(row).items():
        if isinstance(value, int | float) and name not in ("time", "k", "split"):
            found[name] = float(value)
        elif isinstance(value, dict) and value:
            found |= {f"{name}/{family}": reward for family, reward in value.items()}
            found[f"{name}/all"] = sum(value.values()) / len(value)
    return found


def _rows(place: Home, mark: Path, once: bool) -> Iterator[HistoryRow]:
    """Yield the rows that were not passed on yet, as they come; then store `mark`."""
    from swarm_node.node.figures.history import MetricsFile

    metrics, size = MetricsFile(place.metrics), -1
    try:
        until = float(mark.read_text()) if mark.exists() else 0.0
    except ValueError:  # a file of somebody else's: everything is passed on again
        until = 0.0
    while True:
        before, size = size, place.metrics.stat().st_size if place.metrics.exists() else 0
        # What was there before is read once; a file that became smaller was moved away.
        for row in metrics.read(before if 0 <= before <= size else None):
            if row.time > until:
                yield row
                until = row.time
        replace_private(mark, repr(until).encode())
        if once:
            return
        time.sleep(_POLL_SECONDS)
