"""One swarm of three real nodes, for tests that only ask it. Another node may join and leave.

Starting a node takes 15 seconds of processor time, and the nodes keep both cores busy until the
last test of this file. What stops, breaks or changes a node starts its own."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from running import RunningNode, started_nodes

from swarm_node.node.control.openai import TOKEN_FILE
from swarm_node.policy.training.checkpoints.stored import newest_valid

pytestmark = [
    pytest.mark.slow(reason="starts real nodes, each of four processes that import torch"),
    pytest.mark.timeout(900),
]
HOSTILE_MEMBER = Path(__file__).resolve().parents[1] / "hostile_member.py"
#: With a full stop `tiny` answers nothing.
QUESTION = [{"role": "user", "content": "Sort 3 1 2"}]
FAMILIES = ("doubling,largest,position", "initials,sorting", "reversal")
LIBP2P = importlib.util.find_spec("trio") is not None
STACKS = ("hivemind", "libp2p" if LIBP2P else "hivemind", "hivemind")
#: Trainer and environment with a guard each; the environment's two judges; p2pd, or the process of
#: py-libp2p with its guard.
_CHILDREN = {"hivemind": 7, "libp2p": 8}


@pytest.fixture(scope="module")
def swarm(
    tmp_path_factory: pytest.TempPathFactory, hears_ctrl_c: None
) -> Iterator[list[RunningNode]]:
    """The owner and two members, who know the owner's address alone."""
    # Of longer groups than its own a node refuses most before it judges them.
    long = ("--set", "sampling.max_new_tokens=128")
    with started_nodes(tmp_path_factory.mktemp("swarm")) as start:
        joining: tuple[str, ...] = ()
        nodes: list[RunningNode] = []
        for families, stack in zip(FAMILIES, STACKS, strict=True):
            settings = ("--families", families, "--set", f"network.backend={stack}", *long)
            nodes.append(start(f"node{len(nodes)}", *settings, *joining))
            joining = joining or ("--ticket-file", nodes[0].invite(uses=2))
        yield nodes
        _leave(nodes)
        assert not _canary(nodes[0]).exists()


def _leave(nodes: list[RunningNode]) -> None:
    """Stop the nodes. Their processes end with them, and they answer nobody."""
    processes = [_children(node, stack) for node, stack in zip(nodes, STACKS, strict=True)]
    for node in nodes:
        node.process.send_signal(signal.SIGINT)
    for node, children in zip(nodes, processes, strict=True):
        assert node.process.wait(120) == 0, node.log()
        # A guard outlives the node that it guards, and waits for init to take note of its end.
        _, alive = psutil.wait_procs(children, timeout=10)
        assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []
        assert node.run("status").returncode == 1
        assert not (node.home / TOKEN_FILE).exists()


def _children(node: RunningNode, stack: str) -> list[psutil.Process]:
    """The processes of a running node. A judge ends after 256 groups, and the next one is forked
    when it is needed: until then there is one process less."""
    parent, deadline = psutil.Process(node.process.pid), time.monotonic() + 60
    while len(children := parent.children(recursive=True)) != _CHILDREN[stack]:
        assert time.monotonic() < deadline, children
        time.sleep(0.05)
    return children


def _id(node: RunningNode) -> str:
    return str(node.wait(lambda status: True)["peer_id"])


def _peers(status: dict[str, Any], received: int = 0) -> set[str]:
    """The peers of which a node has at least as many groups."""
    return {peer["peer_id"] for peer in status["peers"] if peer["accepted"] >= received}


def _trades(others: set[str], status: dict[str, Any]) -> bool:
    return _peers(status, received=3) >= others


def _others(swarm: list[RunningNode], node: RunningNode) -> set[str]:
    return {_id(other) for other in swarm if other is not node}


def test_three_nodes_train_on_each_others_rollouts_and_get_better(
    swarm: list[RunningNode],
) -> None:
    for node in swarm:
        status = node.wait(partial(_learnt, _others(swarm, node)))
        assert status["schema"] == 1
        own, borrowed = status["evals"][0], status["evals"][-1]
        assert borrowed["external_only"] > own["external_only"], "learnt from peers' rollouts alone"
    peers = json.loads(swarm[0].run("peers", "--json").stdout)
    assert peers["schema"] == 1
    known = {peer["peer_id"] for peer in peers["peers"] if peer["name"] != "hostile"}
    assert known == _others(swarm, swarm[0])
    point = json.loads(swarm[1].run("eval", "--json").stdout)
    assert set(point["families"]) >= set(FAMILIES[0].split(","))


def _learnt(others: set[str], status: dict[str, Any]) -> bool:
    """Whether a node has learnt. A fast machine has before the third node is known."""
    evals = status["evals"]
    return (
        _peers(status) >= others
        and status["groups"]["trained_external"] >= 40
        and len(evals) >= 2
        and evals[-1]["reward"] > evals[0]["reward"] + 0.1
        and evals[-1]["external_only"] > evals[0]["external_only"]
    )


@pytest.mark.skipif(not LIBP2P, reason="py-libp2p is not installed")
def test_who_knows_one_address_meets_everybody_and_takes_their_groups(
    swarm: list[RunningNode],
) -> None:
    for node, stack in zip(swarm, STACKS, strict=True):
        status = node.wait(partial(_trades, _others(swarm, node)))
        carrier = psutil.Process(status["processes"]["network"]).cmdline()
        assert ("swarm_node.p2p.transports.libp2p.process" in carrier) == (stack == "libp2p")


def test_each_peer_has_a_link_with_its_figures_and_answers_a_ping(
    swarm: list[RunningNode],
) -> None:
    for node in swarm:
        others = _others(swarm, node)
        status = node.wait(lambda status, others=others: _measured(status) >= others)
        listed = json.loads(node.run("peers", "--json").stdout)
        assert {each["peer_id"] for each in listed["peers"]} >= others
        assert listed["unmet"] == status["unmet"] == []
        for other in others:
            done = node.run("ping", other[-8:], "--count", "2", "--timeout", "30", "--json")
            (*_, last) = json.loads(done.stdout)["pings"]
            assert done.returncode == 0
            assert (last["peer_id"], last["via"], last["reason"]) == (other, "", None)
            assert 0 < last["seconds"] < 30
            assert last["address"].startswith("/ip4/127.0.0.1/tcp/")
    assert node.run("ping", "owner", "--until-direct").returncode == 0
    assert swarm[0].run("ping", "nobody here").returncode == 1


def _measured(status: dict[str, Any]) -> set[str]:
    """The peers with a direct link, bytes in both directions and a round trip."""
    figures = ("address", "bytes_in", "bytes_out", "round_trip")
    return {each["peer_id"] for each in status["peers"] if all(map(each.get, figures))}


def test_openais_client_hears_each_new_version_and_the_node_goes_on_learning(
    swarm: list[RunningNode], tmp_path: Path
) -> None:
    openai = pytest.importorskip("openai", reason="NOT RUN: needs tests/requirements-openai.txt")
    node = swarm[0]
    shown = node.run("serve")
    assert shown.returncode == 0
    versions = list[int]()
    with openai.OpenAI(base_url=_url(shown.stdout), api_key=_key(node.home, TOKEN_FILE)) as client:
        for _ in range(3):
            updates = max(versions[-1] + 3, 16) if versions else 2
            status = node.wait(lambda status, least=updates: status["steps"] >= least)
            said = client.chat.completions.create(
                model="tiny", messages=QUESTION, temperature=1.5, max_tokens=24, n=4
            )
            assert len(said.choices) == 4
            versions.append(int(said.system_fingerprint.removeprefix("v")))
    assert versions == sorted(set(versions))
    assert "serve" not in status["faults"]

    # Another home with the checkpoint that the node has stored by then, and no node.
    node.wait(lambda _status: newest_valid(node.home / "checkpoints") is not None)
    checkpoint = newest_valid(node.home / "checkpoints")
    assert checkpoint is not None
    shutil.copytree(checkpoint, tmp_path / "checkpoints" / checkpoint.name)
    command = [sys.executable, "-u", "-m", "swarm_node", "serve", "--home", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stored:
        try:
            assert stored.stdout is not None
            url = _url(stored.stdout.readline())
            stored.stdout.readline()
            (kept,) = tmp_path.glob("serve-*.token")
            with openai.OpenAI(base_url=url, api_key=_key(tmp_path, kept.name)) as client:
                (model,) = client.models.list()
                assert model.version == int(checkpoint.name.removeprefix("v"))
                assert client.completions.create(model="tiny", prompt="Sort 3 1 2.").choices
        finally:
            stored.send_signal(signal.SIGINT)
            stored.communicate(timeout=60)
    assert stored.returncode == 0
    assert not kept.exists()


def _url(shown: str) -> str:
    (url,) = re.findall(r"OPENAI_BASE_URL=(\S+)", shown)
    return str(url)


def _key(home: Path, name: str) -> str:
    return (home / name).read_text()


@pytest.mark.nightly(reason="tests/p2p/reach and test_hivemind_reach have the parts")
def test_a_running_node_says_how_members_reach_it(swarm: list[RunningNode], tmp_path: Path) -> None:
    owner, _, member = swarm
    ticket = owner.invite(1, name="nobody")
    joining = str(tmp_path / "joining")
    tried = owner.run("doctor", "--network", "--home", joining, "--ticket-file", ticket)
    assert "answers" in tried.stdout, "the last --home counts: there is no node yet"
    for node in (owner, member):
        status = node.wait(lambda status: status["reach"]["probes"])
        (port,) = {int(text.split("/")[4]) for text in status["addresses"]}
        # All are on one machine, so nothing is said of the Internet, and nothing is announced.
        assert status["reach"]["kind"] == "local"
        assert f"at 127.0.0.1:{port})" in status["reach"]["text"]
        for verb in ("status", "peers", "doctor"):
            assert "this network" in node.run(verb).stdout
        report = node.run("doctor", "--network", "--json")
        checks = {each["subject"]: each for each in json.loads(report.stdout)["checks"]}
        expected = "port clock membership reach nat observed advertised relay clocks dht"
        assert set(expected.split()) <= set(checks)
        strangers = _strangers(swarm, status)
        for name, each in checks.items():
            of_others = any(words in each["found"] for words in strangers)
            assert each["level"] == "ok" or of_others, (name, each, strangers)
        assert f"at 127.0.0.1:{port} by" in checks["observed"]["found"]
        assert re.search("answering: [1-9]", checks["dht"]["found"])


def _strangers(swarm: list[RunningNode], status: dict[str, Any]) -> set[str]:
    """Names, ids and ports of the nodes that another test let join for a while."""
    ours = {_id(node) for node in swarm}
    rows = [row for row in (*status["peers"], *status["former"]) if row["peer_id"] not in ours]
    ports = {f":{text.split('/')[4]}" for row in rows for text in row["addresses"]}
    return ports | {row["name"] for row in rows} | {row["peer_id"][-8:] for row in rows}


def test_code_of_a_member_is_never_run_and_its_author_is_counted(
    swarm: list[RunningNode], start_node: Callable[..., RunningNode]
) -> None:
    owner = swarm[0]
    canary = _canary(owner)
    owner.wait(lambda status: status["steps"] >= 5)
    member = start_node(
        "member",
        *("--ticket-file", owner.invite(1, name="hostile")),
        command=[sys.executable, str(HOSTILE_MEMBER), "code"],
        variables={"HOSTILE_CANARY": str(canary)},
    )
    before = owner.wait(lambda status: _author(status) is not None)
    after = owner.wait(
        lambda status: (
            _author(status)["suspended_seconds"] > 10  # dropped
            and status["steps"] > before["steps"] + 20
        )
    )
    assert not canary.exists()
    author = _author(after)
    assert author["rejected_by_reason"] == {"zero_advantage": author["rejected"]}
    assert 10 <= author["rejected"] <= 18  # what was under way when it was dropped
    assert author["accepted"] == 0
    assert author["peer_id"] not in {row["peer_id"] for row in after["taught"]}
    assert not {"environment", "scorer_crashed", "scorer_timeout"} & set(after["faults"])
    assert after["sandbox"] == "confined"
    assert member.process.poll() is None
    member.wait(partial(_trades, _others(swarm, member)))  # it knew the owner's address alone
    assert member.stop() == 0, member.log()
    assert not canary.exists()


def _canary(node: RunningNode) -> Path:
    """The file that the hostile member's programs would leave."""
    return node.home.with_name("canary")


def _author(status: dict[str, Any]) -> Any:
    return next((peer for peer in status["peers"] if peer["name"] == "hostile"), None)
