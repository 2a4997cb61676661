"""Programs that draw curves, behind one protocol: TensorBoard, Weights & Biases, trackio.

Each gets figures, answers as a table, and the lineage of checkpoints. Weights stay at home. What
peers wrote comes in one line a text, without control characters.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

_PROJECT: Final = "swarm-node"
_FILE: Final = "checkpoint.json"
#: Of a name in a directory or in an artifact, what every tracker takes.
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARS: Final = 40


class RunName(NamedTuple):
    """A node among those of its swarm, in the words of trackers: `group` is the swarm, `name` the
    node's name in it, and `key` is this node's alone."""

    group: str
    name: str
    key: str

    @property
    def path(self) -> str:
        """The same as a path of two parts."""
        return f"{plain(self.group)}/{self.label}"

    @property
    def label(self) -> str:
        """The name of this node's run and files: two nodes may have the same name."""
        return f"{plain(self.name)}-{self.key}"


class AnswerRow(NamedTuple):
    """A row of the table of answers; `by` is "local", or the end of a peer's id."""

    family: str
    by: str
    version: int
    reward: float
    question: str
    answer: str


class Lineage(NamedTuple):
    """A stored checkpoint and its ancestry: the `parent` before it, "" for none, and the SHA-256
    digests of its weights and of the `base` model. `rank` is that of its adapter, 0 for all
    weights."""

    name: str
    version: int
    parent: str
    base: str
    weights: str
    bytes: int
    rank: int


class TrackerName(StrEnum):
    """The trackers by what people type."""

    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"


class TensorBoard:
    """Event files, which `tensorboard --logdir` shows. It has no tables and no artifacts: both are
    texts, as code, because it would load an image that a text names. `step` is the node's number
    of updates, `when` is in Unix seconds."""

    def __init__(self, directory: Path, run: RunName) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory / run.path))

    def log(self, figures: Mapping[str, float], step: int, timestamp: float) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step, walltime=timestamp)
        self._writer.flush()

    def answers(self, rows: Sequence[AnswerRow], step: int, timestamp: float) -> None:
        lines = (
            f"{row.family}  reward {row.reward:g}  {row.by} v{row.version}\n"
            f"  Q {row.question}\n  A {row.answer}"
            for row in rows
        )
        self._writer.add_text("completions", as_code("\n".join(lines)), step, walltime=timestamp)
        self._writer.flush()

    def checkpoint(self, lineage: Lineage, step: int, timestamp: float) -> None:
        lines = "\n".join(f"{name}: {value}" for name, value in lineage._asdict().items())
        self._writer.add_text("checkpoints", as_code(lines), step, walltime=timestamp)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class LoggedRun:
    """A run of Weights & Biases, or of trackio, which has its calls; a closed one goes on."""

    def __init__(self, module: Any, run: RunName, alias: str, **options: object) -> None:
        """`alias` of a checkpoint's artifact has its name for "{}"."""
        self._module, self._key, self._alias = module, run.key, alias
        self._run = module.init(project=_PROJECT, group=run.group, resume="allow", **options)

    def log(self, figures: Mapping[str, float], step: int, timestamp: float) -> None:
        self._run.log({**figures, "unix_seconds": timestamp}, step=step)

    def answers(self, rows: Sequence[AnswerRow], step: int, timestamp: float) -> None:
        data = [list(row) for row in rows]
        table = self._module.Table(columns=list(AnswerRow._fields), data=data)
        self._run.log({"completions": table}, step=step)

    def checkpoint(self, lineage: Lineage, step: int, timestamp: float) -> None:
        metadata = lineage._asdict()
        artifact = self._module.Artifact(f"checkpoint-{self._key}", "model", metadata=metadata)
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, _FILE)
            file.write_text(json.dumps(metadata))
            artifact.add_file(str(file))
            self._run.log_artifact(artifact, aliases=[self._alias.format(lineage.name)])

    def close(self) -> None:
        self._run.finish()


def _wandb(directory: Path, run: RunName) -> LoggedRun:
    """`WANDB_MODE=offline` needs no account."""
    import wandb

    directory.mkdir(parents=True, exist_ok=True)
    return LoggedRun(wandb, run, "{}", id=run.key, name=run.name, dir=directory)


def _trackio(directory: Path, run: RunName) -> LoggedRun:
    """It keeps its runs on this machine, in a directory of its own: `trackio show`."""
    import trackio

    options = {"name": run.label, "auto_log_cpu": False, "auto_log_gpu": False}
    # An alias that looks like the tracker's own version, such as v0000000042, is refused.
    return LoggedRun(trackio, run, "policy-{}", **options)


#: Receivers of a node's figures.
Tracker = TensorBoard | LoggedRun
TRACKERS: Final[Mapping[TrackerName, Callable[[Path, RunName], Tracker]]] = {
    TrackerName.TENSORBOARD: TensorBoard,
    TrackerName.WANDB: _wandb,
    TrackerName.TRACKIO: _trackio,
}


def plain(name: str) -> str:
    """A name with the characters that a directory and an artifact may have."""
    return _FOREIGN.sub("-", name).strip(".-")[:_NAME_CHARS] or "unnamed"


def as_code(text: str) -> str:
    """Text as Markdown that shows it as it is. No line of it can end an indented block."""
    return "\n".join("    " + line for line in text.split("\n"))
