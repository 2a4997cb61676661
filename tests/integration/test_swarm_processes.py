"""A real node alone: what kills it or a part of it, and what it cannot start with."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

NodeStarter = Callable[..., Any]


@pytest.mark.slow(reason="starts real nodes, each of four processes that import torch")
@pytest.mark.timeout(900)
def test_a_killed_node_resumes_and_trains_nothing_twice(
    start_node: NodeStarter, tmp_path: Path
) -> None:
    node = start_node("alone")
    database = tmp_path / "alone" / "node.db"
    before = node.wait(lambda status: status["steps"] >= 25)
    assert before["groups"]["trained_external"] == 0, "a node alone trains alone"
    first_eval = before["evals"][0]
    uses: dict[bytes, int] = {}
    for pause in (0.0, 0.37, 1.91):  # wherever it may be in its loops
        time.sleep(pause)
        node.kill()
        published, uses_now = _stored(database)
        assert published >= before["groups"]["sampled"]
        assert all(uses_now.get(group, count) >= count for group, count in uses.items())
        uses = uses_now

        node.start()
        before = node.wait(lambda now, so_far=published: now["groups"]["sampled"] > so_far + 100)
        assert before["evals"][0] == first_eval, "the curve goes on"
        versions = [point["version"] for point in before["evals"]]
        assert versions == sorted(versions), "versions never go backwards"
    assert node.stop() == 0
    _, uses = _stored(database)
    assert max(uses.values()) == 1, "nothing is trained on twice"


def _stored(database: Path) -> tuple[int, dict[bytes, int]]:
    with sqlite3.connect(database) as connection:
        counted = "SELECT sum(value) FROM meta WHERE key IN ('earlier', 'head')"
        (published,) = connection.execute(counted).fetchone()
        uses = dict(connection.execute("SELECT id, uses FROM groups"))
    connection.close()
    return published, uses


@pytest.mark.slow(reason="starts real nodes, each of four processes that import torch")
@pytest.mark.timeout(900)
def test_a_node_outlives_dead_bootstraps_and_a_dead_trainer(start_node: NodeStarter) -> None:
    dead = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWGRTeqVVEbQDrFeS5RjhCkJmvQtBczyZcDgHCYTbEo5VA"
    node = start_node("alone", "--bootstrap", dead, "--bootstrap", "/ip4/127.0.0.1/tcp/10")
    status = node.wait(lambda status: status["steps"] >= 15)
    psutil.Process(status["processes"]["trainer"]).kill()
    after = node.wait(
        lambda now: (
            now["trainer_restarts"] == 1
            and now["steps"] > status["steps"] + 5
            and "trainer" in now["processes"]
        )
    )
    assert after["version"] > status["version"]
    assert after["processes"]["trainer"] != status["processes"]["trainer"]
    psutil.Process(status["processes"]["environment"]).kill()
    node.wait(lambda now: now["steps"] > after["steps"] + 5)
    assert node.stop() == 0


@pytest.mark.slow(reason="starts a node, which imports torch")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--families", "astrology"], "astrology"),
        (["--listen", "nonsense"], "nonsense"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    start_node: NodeStarter, arguments: list[str], message: str
) -> None:
    node = start_node("bad", *arguments)
    assert node.process.wait(240) == 1
    errors = [line for line in node.log().splitlines() if line.startswith("swarm-node: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in node.log()
