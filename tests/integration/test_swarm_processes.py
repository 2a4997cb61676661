"""The main job, with real parts: three processes over real p2pd share rollouts and get better."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

Families = "doubling,largest,position", "initials,sorting", "reversal"
NodeStarter = Callable[..., Any]
#: p2pd; trainer and environment with a guard each; the environment's two judges.
_CHILDREN = 7


@pytest.mark.slow(reason="starts real nodes, each of four processes that import torch")
@pytest.mark.timeout(900)
def test_three_nodes_train_on_each_others_rollouts_and_get_better(
    start_node: NodeStarter, tmp_path: Path
) -> None:
    first = start_node("first", "--families", Families[0])
    ticket = first.invite(uses=2)
    others = [
        start_node(f"node{index}", "--ticket-file", ticket, "--families", families)
        for index, families in enumerate(Families[1:])
    ]
    swarm = [first, *others]
    for node in swarm:
        # A fast machine has learnt before the third node is known.
        status = node.wait(lambda status: _learnt(status) and len(status["peers"]) == 2, 300)
        assert status["schema"] == 1
        own, borrowed = status["evals"][0], status["evals"][-1]
        assert borrowed["borrowed"] > own["borrowed"], "learnt from peers' rollouts alone"
    peers = json.loads(first.run("peers", "--json").stdout)
    assert peers["schema"] == 1
    assert {peer["peer_id"] for peer in peers["peers"]} == {
        node.status()["peer_id"] for node in others
    }
    point = json.loads(others[0].run("eval", "--json").stdout)
    assert set(point["families"]) >= set(Families[0].split(","))
    processes = [_children(node) for node in swarm]
    for node, children in zip(swarm, processes, strict=True):
        assert len(children) == _CHILDREN
        assert node.stop() == 0, node.log()
        # A guard outlives the node that it guards, and waits for init to take note of its end.
        _, alive = psutil.wait_procs(children, timeout=10)
        assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []
        assert node.run("status").returncode == 1


def _children(node: Any) -> list[psutil.Process]:
    """The processes of a running node. A judge ends after 256 groups, and the next one is forked
    when it is needed: until then there is one process less."""
    parent, deadline = psutil.Process(node.process.pid), time.monotonic() + 60
    while True:
        children = parent.children(recursive=True)
        if len(children) == _CHILDREN or time.monotonic() > deadline:
            return children
        time.sleep(0.05)


def _learnt(status: dict[str, Any]) -> bool:
    evals = status["evals"]
    return (
        status["groups"]["trained_external"] >= 40
        and len(evals) >= 2
        and evals[-1]["all"] > evals[0]["all"] + 0.1
        and evals[-1]["borrowed"] > evals[0]["borrowed"]
    )


@pytest.mark.slow(reason="starts real nodes, each of four processes that import torch")
@pytest.mark.timeout(900)
def test_a_killed_node_resumes_and_trains_nothing_twice(
    start_node: NodeStarter, tmp_path: Path
) -> None:
    node = start_node("alone")
    database = tmp_path / "alone" / "node.db"
    before = node.wait(lambda status: status["updates"] >= 25)
    assert before["groups"]["trained_external"] == 0, "a node alone trains alone"
    first_eval = before["evals"][0]
    uses: dict[bytes, int] = {}
    for pause in (0.0, 0.37, 1.91):  # wherever it may be in its loops
        time.sleep(pause)
        node.kill()
        published, uses_now = _stored(database)
        assert published >= before["groups"]["published"]
        assert all(uses_now.get(group, count) >= count for group, count in uses.items())
        uses = uses_now

        node.start()
        before = node.wait(lambda now, so_far=published: now["groups"]["published"] > so_far + 100)
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
def test_a_dead_trainer_is_restarted_and_the_node_lives_on(start_node: NodeStarter) -> None:
    node = start_node("alone")
    status = node.wait(lambda status: status["updates"] >= 15)
    psutil.Process(status["processes"]["trainer"]).kill()
    after = node.wait(
        lambda now: (
            now["trainer_restarts"] == 1
            and now["updates"] > status["updates"] + 5
            and "trainer" in now["processes"]
        )
    )
    assert after["version"] > status["version"]
    assert after["processes"]["trainer"] != status["processes"]["trainer"]
    psutil.Process(status["processes"]["environment"]).kill()
    node.wait(lambda now: now["updates"] > after["updates"] + 5)
    assert node.stop() == 0


@pytest.mark.slow(reason="starts real nodes, each of four processes that import torch")
@pytest.mark.timeout(600)
def test_dead_bootstraps_never_stop_a_start(start_node: NodeStarter) -> None:
    dead = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWGRTeqVVEbQDrFeS5RjhCkJmvQtBczyZcDgHCYTbEo5VA"
    node = start_node("alone", "--bootstrap", dead, "--bootstrap", "/ip4/127.0.0.1/tcp/10")
    node.wait(lambda status: status["updates"] >= 1)
    assert node.stop() == 0


@pytest.mark.slow(reason="starts a node, which imports torch")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "experience.owns=1"], "experience.owns"),
        (["--set", "policy.own=1"], "unknown setting policy"),
        (["--own", "0"], "experience.own"),
        (["--families", "astrology"], "astrology"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--ticket", "swarmjoin1.AAAA"], "ticket"),
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
