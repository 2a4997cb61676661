"""The result of a simulation: its figures and its hash, report.json and learning.png."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from swarm_node.errors import SwarmNodeError, extra_of, reason_of
from swarm_node.node.metrics.snapshot import SCHEMA

REPORT_FILE = "report.json"
_DPI, _INCHES = 120, (12.0, 3.6)


class RewardCurve(msgspec.Struct, frozen=True):
    """Reward on prompts of one kind, mean over nodes: pass@1 of each node's own samples. `curve` is
    pairs of round and reward."""

    start: float
    end: float
    curve: list[tuple[int, float]]


class ModelCurve(msgspec.Struct, frozen=True):
    """The nodes of one model. `model` and `tokenizer` are sha256 in hex, `nodes` is their number,
    and `curve` is pairs of round and their mean eval reward."""

    model: str
    tokenizer: str
    nodes: int
    curve: list[tuple[int, float]]


class RoundMetrics(msgspec.Struct, frozen=True):
    """One entry per round.

    local_reward, batch_reward: mean reward of the groups sampled, and of those trained on; summed
        over nodes.
    mixed_in_batch, external_in_batch: groups with mixed rewards and external groups among those
        trained on; mean over nodes.
    sampled, mixed_sampled: groups sampled, and those with mixed rewards among them; mean over
        nodes.
    """

    local_reward: list[float]
    batch_reward: list[float]
    mixed_in_batch: list[float]
    external_in_batch: list[float]
    sampled: list[float]
    mixed_sampled: list[float]


class SimulatedNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node. Groups, bytes and CPU seconds are counted up to the end of its last round.

    model: index of its model in the report's `models`.
    trained_cross_model: those of `trained_external` that another model sampled.
    eval_reward: at its end; None if it was not measured.
    weights: sha256 of its last weights, in hex.
    rejected: how often something from a peer was rejected, by reason.
    bytes_sent, bytes_received: payloads only.
    cpu_seconds: without the measurements of reward.
    local_staleness, external_staleness: mean over the local and the external groups trained on, 0
        if there were none: by how many steps the policy that sampled a group was older than the one
        trained on it. All simulated nodes count steps from the same start.
    max_local_staleness: the largest staleness of a local group.
    trained_replay: local groups trained on once more, which `trained_local` leaves out.
    study: what a study adds (`Swarm.node_figures`).
    """

    peer_id: str
    model: int
    speed: float
    families: list[str]
    steps: int
    skipped_batches: int
    sampled: int
    accepted: int
    trained_local: int
    trained_external: int
    trained_cross_model: int
    eval_reward: float | None
    weights: str
    rejected: dict[str, int]
    bytes_sent: int
    bytes_received: int
    cpu_seconds: float
    local_staleness: float
    max_local_staleness: int
    external_staleness: float
    trained_replay: int = 0
    study: dict[str, Any] = {}


class SimulationReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything a simulation found. `hash` covers all of it except CPU seconds. `eval_reward` is
    reward on held-out prompts, `train_reward` on training prompts. `study` is what a study adds
    (`Swarm.figures`)."""

    schema: int
    hash: str
    settings: dict[str, Any]
    eval_reward: RewardCurve
    models: list[ModelCurve]
    cumulative_local_reward: float
    cumulative_batch_reward: float
    mixed_per_step: float
    sampled: int
    virtual_seconds: float
    cpu_seconds: float
    rounds: RoundMetrics
    nodes: list[SimulatedNode]
    train_reward: RewardCurve | None = None
    study: dict[str, Any] = {}

    def plot(self) -> Drawing:
        """Draw the curves; a notebook shows them.

        Raises:
            SwarmNodeError: matplotlib is not installed.
        """
        return drawing(_INCHES, lambda figure: plot_learning(self, figure))


def make_report(
    settings: dict[str, Any],
    curve: Sequence[tuple[int, float]],
    models: list[ModelCurve],
    rounds: RoundMetrics,
    nodes: list[SimulatedNode],
    virtual_seconds: float,
    train_curve: Sequence[tuple[int, float]],
    study: dict[str, Any],
) -> SimulationReport:
    """Sum up and hash.

    `cumulative_local_reward` adds up, over nodes and rounds, the mean reward of the groups that a
    node sampled. `cumulative_batch_reward` adds up that of the groups it trained on. SAPO plots the
    latter; it rises with every external group, whether or not the node learns from it.
    """
    report = SimulationReport(
        schema=SCHEMA,
        hash="",
        settings=settings,
        eval_reward=_course(curve),
        models=models,
        cumulative_local_reward=sum(rounds.local_reward),
        cumulative_batch_reward=sum(rounds.batch_reward),
        mixed_per_step=sum(rounds.mixed_in_batch) / len(rounds.mixed_in_batch),
        sampled=sum(node.sampled for node in nodes),
        virtual_seconds=virtual_seconds,
        cpu_seconds=sum(node.cpu_seconds for node in nodes),
        rounds=rounds,
        nodes=nodes,
        train_reward=_course(train_curve) if train_curve else None,
        study=study,
    )
    return msgspec.structs.replace(report, hash=_digest(report))


def _course(curve: Sequence[tuple[int, float]]) -> RewardCurve:
    return RewardCurve(curve[0][1], curve[-1][1], list(curve))


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """The values as they are read back from a report: tuples become lists."""
    read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(values))
    return read


def save_report(report: SimulationReport, directory: Path) -> list[Path]:
    """Write report.json and, where matplotlib is installed, learning.png; returns the files.

    Raises:
        SwarmNodeError: the directory cannot be written.
    """
    path = save_json(report, directory)
    picture = directory / "learning.png"
    return [path, *save_picture(picture, _INCHES, lambda figure: plot_learning(report, figure))]


def save_json(report: Any, directory: Path) -> Path:
    """Write report.json; the demo writes its own with it, too.

    Raises:
        SwarmNodeError: the directory cannot be written.
    """
    path = directory / REPORT_FILE
    temp_path = path.with_suffix(".tmp")  # an interrupted write must not leave half a report
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temp_path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
        temp_path.replace(path)
    except OSError as error:
        raise SwarmNodeError(
            f"cannot write the report to {directory}: {reason_of(error)}"
        ) from error
    return path


class Drawing:
    """A picture of curves as PNG, which a notebook shows."""

    def __init__(self, png: bytes) -> None:
        self._png = png

    def _repr_png_(self) -> bytes:
        return self._png

    def save(self, path: str | Path) -> Path:
        """Write it to a file.

        Raises:
            SwarmNodeError: the file cannot be written.
        """
        path = Path(path)
        try:
            path.write_bytes(self._png)
        except OSError as error:
            raise SwarmNodeError(f"cannot write {path}: {reason_of(error)}") from error
        return path


def drawing(size: tuple[float, float], draw: Callable[[Any], None]) -> Drawing:
    """Let `draw` fill a figure of `size` inches.

    Raises:
        SwarmNodeError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SwarmNodeError("a picture needs matplotlib", f"run {extra_of('plot')}") from error
    figure, png = Figure(figsize=size, layout="constrained"), BytesIO()
    draw(figure)
    figure.savefig(png, dpi=_DPI)
    return Drawing(png.getvalue())


def save_picture(path: Path, size: tuple[float, float], draw: Callable[[Any], None]) -> list[Path]:
    """Let `draw` fill a figure of `size` inches, and write it to `path`.

    Returns the file that was written; none without matplotlib (extra `plot`).

    Raises:
        SwarmNodeError: the file cannot be written.
    """
    if find_spec("matplotlib") is None:
        return []
    drawing(size, draw).save(path)
    return [path]


def load_report(path: Path) -> SimulationReport | None:
    """The report in a file; None when there is none or it is not whole and unaltered."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=SimulationReport)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return report if report.hash == _digest(report) else None


def plot_learning(report: SimulationReport, figure: Any) -> None:
    """Eval reward, rewards per round and groups with mixed rewards, over rounds."""
    count = len(report.nodes)
    learning, reward, groups = figure.subplots(1, 3)
    for number, model in enumerate(report.models, 1):
        label = f"model {number} ({model.nodes} nodes)"
        learning.plot(*zip(*model.curve, strict=True), marker=".", label=label)
    if report.train_reward is not None:
        train_curve = zip(*report.train_reward.curve, strict=True)
        learning.plot(
            *train_curve, color="grey", linewidth=0.8, label="training prompts, all nodes"
        )
    split = "held out by seed" if report.train_reward is None else "held-out prompts"
    learning.set(title=f"eval reward, {split}", ylim=(0, 1))
    reward.plot([value / count for value in report.rounds.local_reward], label="local groups")
    reward.plot(
        [value / count for value in report.rounds.batch_reward], "--", label="training batch"
    )
    reward.set(title="mean reward per round", ylim=(0, 1))
    groups.plot(report.rounds.mixed_in_batch, label="mixed rewards in the batch")
    groups.plot(report.rounds.external_in_batch, "--", label="external in the batch")
    groups.set(title="groups per step", ylim=(0, None))
    for panel in (learning, reward, groups):
        panel.set_xlabel("round")
        panel.grid(alpha=0.3)
    if len(report.models) > 1 or report.train_reward is not None:
        learning.legend()
    reward.legend()
    groups.legend()


def _digest(report: SimulationReport) -> str:
    """sha256 over the report as JSON, without its hash and its CPU seconds. JSON keeps floats
    exactly."""
    replace = msgspec.structs.replace
    nodes = [replace(node, cpu_seconds=0.0) for node in report.nodes]
    content = replace(report, hash="", cpu_seconds=0.0, nodes=nodes)
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
