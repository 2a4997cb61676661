"""`swarm-node track`, with the real TensorBoard; with W&B and trackio where they are installed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import quiet_snapshot
from page_server import HOSTILE, row, served
from trained_homes import trained_home
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.cli.verbs.tracking.forwarding import Forwarder, figures, lineages, run_name
from swarm_node.cli.verbs.tracking.trackers import AnswerRow, Lineage, as_code, plain
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.history import MetricsFile
from swarm_node.node.metrics.samples import SampleRow
from swarm_node.policy.models.model import policy_digests, resolve
from swarm_node.policy.training.checkpoints.stored import MODEL, sha256


def _write(home: Path, numbers: range) -> None:
    metrics = MetricsFile(Home(home).metrics)
    for number in numbers:
        metrics.append(row(number))


def _track(home: Path, into: Path) -> list[tuple[int, float]]:
    board = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="NOT RUN: needs tensorboard",
    )
    arguments = ["track", "tensorboard", "--home", str(home), "--into", str(into), "--once"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert f"--logdir {into}" in done.output
    (run,) = (path for path in into.glob("*/*") if path.is_dir())
    assert run.parent.name == "no-swarm"
    found = board.EventAccumulator(str(run)).Reload()
    assert "entropy" in found.Tags()["scalars"]
    return [(event.step, event.value) for event in found.Scalars("accepted")]


def test_each_row_is_passed_on_once_also_those_from_before(tmp_path: Path) -> None:
    home, into = tmp_path / "home", tmp_path / "runs"
    Home(home).create()
    Home(home).begin()
    _write(home, range(3))
    assert _track(home, into) == [(0, 0.0), (1, 1.0), (2, 2.0)]
    _write(home, range(3, 5))
    assert _track(home, into) == [(n, float(n)) for n in range(5)]
    (home / "tracked.tensorboard").write_text("not a number")
    assert len(_track(home, into)) == 10  # told twice rather than never


def test_reward_is_by_family_and_in_the_mean() -> None:
    measured = {"eval_reward": {"gcd": 0.5, "chess": 1.0}, "eval_reward_train": 0.9}
    found = figures(msgspec.structs.replace(row(7), k=4, split_version=1, **measured))
    assert found["eval_reward/gcd"] == 0.5
    assert found["eval_reward/all"] == 0.75
    assert found["eval_reward_train"] == 0.9
    assert found["steps"] == 7.0
    assert {"time", "k", "split_version", "loss", "best_of_k/all"}.isdisjoint(found)


def test_a_tracker_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    Home(tmp_path).begin()
    done = CliRunner().invoke(app, ["track", "wandb", "--home", str(tmp_path), "--once"])
    assert done.exit_code == 1
    assert "'.[wandb]'" in done.output


class Recorder:
    """A tracker that keeps what it is given."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.tables: list[tuple[int, list[AnswerRow]]] = []
        self.lineages: list[Lineage] = []

    def log(self, figures: Any, step: int, when: float) -> None:
        self.steps.append(step)

    def answers(self, rows: Any, step: int, when: float) -> None:
        self.tables.append((step, list(rows)))

    def checkpoint(self, lineage: Lineage, step: int, when: float) -> None:
        self.lineages.append(lineage)

    def close(self) -> None: ...


def _sample(number: int, **changes: Any) -> SampleRow:
    given = {"family": "gcd", "prompt": HOSTILE, "completion": f"{number}\x1b[2J\n# {HOSTILE}"}
    return SampleRow(**{**given, "reward": 1.0, "version": number, "author": "", **changes})


def test_the_run_has_the_names_of_the_node_and_of_its_swarm(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.found_swarm("the team", time.time())
    key = home.identity().peer_id[-8:]
    name = run_name(home)
    assert name == ("the team", "owner", key)
    assert name.path == f"the-team/owner-{key}"
    assert plain("../..") == plain("\N{SNOWMAN}") == "unnamed"
    assert plain("-x" * 99) == ("x-" * 20)


def test_answers_of_a_running_node_are_a_table_and_hostile_ones_stay_in_their_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "home").mkdir()
    with served(tmp_path / "home", quiet_snapshot()) as one:
        one.samples = [_sample(1), _sample(2, author="12D3KooWanna")] * 50
        home = Home(tmp_path / "home")
        _write(home.path, range(3))
        to = Recorder()
        passing = Forwarder(home, to, tmp_path / "mark")
        passing.once()
        passing.once()
    assert to.steps == [0, 1, 2]
    ((step, table),) = to.tables
    assert (step, len(table)) == (2, 64)
    assert [each.by for each in table[:2]] == ["local", "KooWanna"]
    for each in table:
        assert each.question == HOSTILE
        assert each.answer.isprintable()
    code = as_code(HOSTILE + "\n```\n![](http://x)\n\t</pre>")
    assert all(line.startswith("    ") for line in code.split("\n"))


@pytest.mark.slow(reason="imports torch and makes two updates")
def test_the_lineage_of_checkpoints_goes_on_from_the_last_that_was_passed_on(
    tmp_path: Path,
) -> None:
    trained_home(tmp_path / "home", 0)
    store, base = tmp_path / "home" / "checkpoints", policy_digests(resolve("tiny"))[0]
    (first,) = lineages(store, "")
    assert (first.name, first.version, first.parent, first.rank) == ("v0000000002", 2, "", 0)
    assert first.base == base.hex()
    weights = store / first.name / MODEL
    assert (first.weights, first.bytes) == (sha256(weights).hex(), weights.stat().st_size)
    to = Recorder()
    Forwarder(Home(tmp_path / "home"), to, tmp_path / "mark").once()
    (store / first.name).rename(store / "v0000000004")
    again = Forwarder(Home(tmp_path / "home"), to, tmp_path / "mark")
    again.once()
    again.once()
    assert [(each.name, each.parent) for each in to.lineages] == [
        ("v0000000002", ""),
        ("v0000000004", "v0000000002"),
    ]
    (store / "v0000000004" / "state.msgpack").write_bytes(b"damaged")
    assert lineages(store, "") == []


def _tracked(home: Path, into: Path, tracker: str) -> None:
    """Track a node with two rows, hostile answers and a checkpoint."""
    Home(home).found_swarm("team", time.time())
    trained_home(home, 0)
    with served(home, quiet_snapshot()) as one:
        one.samples = [_sample(1)]
        _write(home, range(2))
        arguments = ["track", tracker, "--home", str(home), "--into", str(into), "--once"]
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output


@pytest.mark.slow(reason="imports torch and makes two updates")
@pytest.mark.filterwarnings("ignore:html5lib")
def test_tensorboard_shows_answers_and_lineage_as_code(tmp_path: Path) -> None:
    board = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="NOT RUN: needs tensorboard",
    )
    from tensorboard.plugin_util import markdown_to_safe_html

    _tracked(tmp_path / "home", tmp_path / "runs", "tensorboard")
    (run,) = (tmp_path / "runs" / "team").iterdir()
    assert run.name.startswith("owner-")
    found = board.EventAccumulator(str(run)).Reload()
    (shown,) = found.Tensors("completions/text_summary")
    (text,) = shown.tensor_proto.string_val
    html = markdown_to_safe_html(text)
    assert "<img" not in html
    assert "<h1" not in html
    assert "&lt;img" in html
    (lineage,) = found.Tensors("checkpoints/text_summary")
    assert b"name: v0000000002" in lineage.tensor_proto.string_val[0]


@pytest.mark.slow(reason="imports torch and makes two updates")
def test_wandb_keeps_a_run_in_the_group_of_its_swarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="NOT RUN: needs wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    _tracked(tmp_path / "home", tmp_path / "runs", "wandb")
    (run,) = (tmp_path / "runs" / "wandb").glob("offline-run-*")
    (table,) = (run / "files" / "media" / "table").rglob("completions*.json")
    kept = json.loads(table.read_text())
    assert kept["columns"] == list(AnswerRow._fields)
    assert kept["data"][0][4] == HOSTILE
    (record,) = run.glob("*.wandb")
    raw = record.read_bytes()
    for word in (b"team", b"owner", b"checkpoint-", b"v0000000002"):
        assert word in raw
    assert sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) < 200_000


@pytest.mark.slow(reason="imports torch and makes two updates")
def test_trackio_keeps_a_run_in_the_group_of_its_swarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="NOT RUN: needs trackio")
    from trackio.sqlite_storage import SQLiteStorage

    _tracked(tmp_path / "home", tmp_path / "runs", "trackio")
    run = f"owner-{Home(tmp_path / 'home').identity().peer_id[-8:]}"
    config = SQLiteStorage.get_run_config("swarm-node", run)
    assert config["_Group"] == "team"
    (artifact,) = SQLiteStorage.get_artifacts("swarm-node")
    assert artifact["type"] == "model"
    logs = json.dumps(SQLiteStorage.get_logs("swarm-node", run))
    assert "onerror" in logs, "the table of answers"
