"""Every cause for which a node is alone, as real nodes have it at both of their ends. What they say
of it is in `causes.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from running import COMMAND, run, typed

from swarm_node.errors import NOT_ADMITTED, SwarmNodeError
from swarm_node.node.control.control import ControlClient
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.snapshot import Said, Snapshot
from swarm_node.p2p.peers.causes import AT_LEAST, Cause
from swarm_node.p2p.wire.identity import Identity
from swarm_node.policy.models.model import TINY, resolve

NodeStarter = Callable[..., Any]
T = TypeVar("T")
TESTS = Path(__file__).parents[1]
HOUR, DAY = 3600, 86_400
#: Seconds for a cause on a busy machine. A quiet one needs fewer than 30, and a minute more for
#: that a node is alone.
PATIENCE = 180.0


def clocked(seconds: float) -> list[str]:
    """The command of a node whose clock is ahead, or behind."""
    return [sys.executable, str(TESTS / "other_clock.py"), str(seconds)]


def invited(home: Path, name: str, *arguments: str) -> str:
    path = home / f"{name}.ticket"
    typed(home, "invite", "--name", name, "--out", str(path), *arguments)
    return str(path)


def shown(node: Any) -> Snapshot | None:
    """The answer of `/v1/status`, without a process for each question."""
    try:
        return asyncio.run(ControlClient(node.home / "control.json").status())
    except SwarmNodeError:
        return None


def until(node: Any, found: Callable[[Snapshot], Iterable[T]], wanted: object) -> T:
    """Wait for something in a running node's status. The time since it ran is printed."""
    begun, last = time.monotonic(), None
    while time.monotonic() - begun < PATIENCE:
        assert node.process.poll() is None, node.log()
        shot = shown(node)
        if shot is not None and shot.state != "running":
            begun = time.monotonic()
        for one in () if shot is None else found(shot):
            print(f"{time.monotonic() - begun:5.1f} s  {node.home.name}: {one}")
            return one
        last = shot and (shot.findings, shot.causes, shot.refused_callers)
        time.sleep(0.3)
    raise AssertionError(f"{wanted} not within {PATIENCE} s: {last}\n{node.log()}")


def has(node: Any, code: str, **fields: str) -> Cause:
    """Wait until a node has a cause of its own with this code and these fields."""
    return until(node, lambda shot: matching(shot.causes, code, fields), (code, fields))


def refuses(node: Any, code: str, **fields: str) -> Cause:
    """Wait until a node has refused somebody for this cause."""
    return until(node, lambda shot: matching(shot.refused_callers, code, fields), (code, fields))


def matching(causes: Iterable[Cause], code: str, fields: dict[str, str]) -> list[Cause]:
    wanted = {"code": code, **fields}.items()
    return [one for one in causes if all(getattr(one, key) == value for key, value in wanted)]


def is_first(node: Any, kind: str, level: str) -> None:
    """Wait until `swarm-node status` begins with this finding. Its exit code is 1 if it is bad."""
    until(
        node,
        lambda shot: [1] * ((kind, level) == (shot.findings[0].kind, shot.findings[0].level)),
        (kind, level),
    )
    done = node.run("status")
    assert (done.returncode, done.stdout[0]) == ((1, "✗") if level == "bad" else (0, "▲"))


@contextlib.contextmanager
def deaf() -> Iterator[int]:
    """The port of a listener whose queue is full, so that the kernel answers no further caller."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            caller = held.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.slow(reason="starts a real node of four processes that import torch")
@pytest.mark.timeout(900)
@pytest.mark.nightly(reason="p2p/exchange/test_causes.py judges causes without processes")
def test_addresses_at_which_nobody_is_are_told_each_with_its_cause(
    start_node: NodeStarter, tmp_path: Path
) -> None:
    home, other = tmp_path / "owner", Identity.generate().peer_id
    typed(home, "init", "team")
    with deaf() as full, socket.socket() as silent, socket.socket() as closed:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        closed.bind(("127.0.0.1", 0))  # bound and not listening
        ports = {
            "silent": silent.getsockname()[1],
            "closed": closed.getsockname()[1],
            "full": full,
        }
        ids = {"silent": other, "full": other}
        flags = []
        for name, port in ports.items():
            at = f"/ip4/127.0.0.1/tcp/{port}"
            flags += ["--address", f"{at}/p2p/{ids[name]}" if name in ids else at]
        # Without /p2p/ID the address gets that of the home, and the ticket works.
        ticket = invited(home, "alice", *flags)
        node = start_node("alice", "--ticket-file", ticket)
        for name, code in (
            ("closed", "nobody_listens"),
            ("silent", "silent"),
            ("full", "no_answer"),
        ):
            has(node, code, where=f"127.0.0.1:{ports[name]}")
        is_first(node, "alone", "bad")
        done = node.run("doctor", "--network", "--json")
        assert done.returncode == 1, done.stdout
        rows = json.loads(done.stdout)["checks"]
        assert "error" in {row["level"] for row in rows if row["subject"] == "peers"}
        told = [row["subject"] for row in rows if f":{ports['closed']} " in row["found"]]
        assert told == ["alone", "address"]


@pytest.mark.slow(reason="starts a real node of four processes that import torch")
@pytest.mark.timeout(900)
@pytest.mark.nightly(reason="p2p/exchange/test_causes.py judges causes without processes")
def test_another_version_and_another_node_are_told(start_node: NodeStarter, tmp_path: Path) -> None:
    home, other = tmp_path / "owner", Identity.generate().peer_id
    typed(home, "init", "team")
    script = [sys.executable, str(TESTS / "other_version.py"), str(home), "/ip4/127.0.0.1/tcp/0"]
    process = subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        address = process.stdout.readline().strip()
        endpoint, _, own = address.rpartition("/p2p/")
        flags = ("--address", address, "--address", f"{endpoint}/p2p/{other}")
        node = start_node("alice", "--ticket-file", invited(home, "alice", *flags))
        has(node, "wire_version", peer=own)
        has(node, "other_node", peer=other)
        is_first(node, "alone", "bad")
    finally:
        process.stdin.close()
        assert process.wait(60) == 0
        process.stdout.close()


@pytest.mark.slow(reason="starts six real nodes one after another, each of four processes")
@pytest.mark.timeout(2400)
@pytest.mark.nightly(reason="p2p/exchange/test_causes.py judges causes without processes")
def test_memberships_clocks_environments_and_models_are_told_at_both_ends(
    start_node: NodeStarter, tmp_path: Path
) -> None:
    owner = start_node("owner")
    owner.wait(lambda status: status["state"] == "running")

    # A ticket that is cut, or whose time is over, starts nothing.
    ticket = Path(owner.invite(1, name="alice"))
    cut = tmp_path / "cut"
    cut.write_text(ticket.read_text()[:200])
    done = run(tmp_path / "nobody", "join", "--ticket-file", str(cut))
    assert done.returncode == 1
    assert "cut short" in done.stderr
    for days, code, text in ((8, NOT_ADMITTED, "expired on"), (-1, 1, "only from")):
        late = clocked(days * DAY)
        done = run(tmp_path / "nobody", "join", "--ticket-file", str(ticket), command=late)
        assert done.returncode == code
        assert text in done.stderr
    assert not (tmp_path / "nobody").exists()

    # Another environment, and another model with the same tokenizer.
    model = tmp_path / "model"
    shutil.copytree(resolve(TINY), model)
    other_weights(model / "model.safetensors")
    alice = start_node(
        "alice", "--ticket-file", str(ticket), "--preset", "long", "--model", str(model)
    )
    for node, peers, own in ((alice, "short", "long"), (owner, "long", "short")):
        said = until(node, lambda shot: matching_kind(shot.findings, "environment"), "environment")
        assert f"drills {peers}, this node drills {own}" in said.text
        assert f"--preset {peers}" in said.remedy
        until(node, lambda shot: matching_kind(shot.findings, "model"), "model")

    # A ticket that is used up.
    web = start_node("web", "--ticket-file", str(ticket))
    is_first(web, "used_up", "bad")
    own_id = Home(web.home).identity().peer_id
    refuses(owner, "used_up", name="alice", peer=own_id)
    listed = json.loads(owner.run("members", "--json").stdout)["tickets"]
    assert [(row["name"], row["used"], row["tried"]) for row in listed] == [("alice", 1, [own_id])]
    web.end()

    # A node that is gone.
    alice.end()
    is_first(owner, "alone", "warning")

    # A clock that is an hour ahead when it joins, and one an hour behind that belongs already.
    fast = start_node("fast", "--ticket-file", owner.invite(1, name="fast"), command=clocked(HOUR))
    is_first(fast, "clock", "bad")
    assert HOUR - 60 < has(fast, "clock").seconds < HOUR + 60
    assert abs(refuses(owner, "clock", name="fast", detail=AT_LEAST).seconds) > 3000
    fast.end()
    slow = start_node("alice", command=clocked(-HOUR))
    assert -HOUR - 60 < has(slow, "clock").seconds < -3000
    assert HOUR - 60 < has(owner, "clock", name="alice").seconds < HOUR + 60
    slow.end()

    # An expulsion.
    assert owner.run("revoke", "alice").returncode == 0
    again = start_node("alice")
    is_first(again, "revoked", "bad")
    refuses(owner, "revoked", name="alice")
    again.end()


def matching_kind(findings: Iterable[Said], kind: str) -> list[Said]:
    return [said for said in findings if said.kind == kind]


def other_weights(path: Path) -> None:
    """Change one number of a model, which makes it another one."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    name = min(tensors)
    tensors[name].view(-1)[0] += 1e-3
    save_file(tensors, path, {"format": "pt"})


@pytest.mark.slow(reason="starts two real nodes twice, and another once")
@pytest.mark.timeout(1800)
@pytest.mark.nightly(reason="p2p/exchange/test_causes.py judges causes without processes")
def test_a_membership_that_ended_is_told_at_both_ends(
    start_node: NodeStarter, tmp_path: Path
) -> None:
    owner = start_node("owner")
    ticket = owner.invite(1, "--member-days", "1", name="alice")
    alice = start_node("alice", "--ticket-file", ticket)
    alice.wait(lambda status: bool(status["peers"]))
    alice.end()
    later = clocked(3 * DAY)
    done = run(alice.home, "join", command=later)
    assert done.returncode == 1
    assert "membership ended" in done.stderr
    owner.end()
    # By the owner's clock it ended, and by its own it did not.
    owner, alice = start_node("owner", command=later), start_node("alice")
    is_first(alice, "clock", "bad")
    behind = has(alice, "clock", peer=Home(owner.home).identity().peer_id).seconds
    assert -3 * DAY - 300 < behind < -3 * DAY + 300
    refuses(owner, "expired", name="alice")


@pytest.mark.slow(reason="starts two real nodes")
@pytest.mark.timeout(900)
def test_another_swarm_is_told_at_both_ends(start_node: NodeStarter, tmp_path: Path) -> None:
    owner = start_node("owner")
    (address, *_) = owner.wait(lambda status: status["state"] == "running")["addresses"]
    home = tmp_path / "elsewhere"
    typed(home, "init", "other")
    node = start_node("alice", "--ticket-file", invited(home, "alice", "--address", address))
    has(node, "other_swarm", peer=address.rpartition("/")[2])
    is_first(node, "alone", "bad")
    refuses(owner, "other_swarm", peer=Home(node.home).identity().peer_id)


@pytest.mark.slow(reason="starts a real node of four processes that import torch")
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not shutil.which("unshare") or bool(subprocess.run(["unshare", "-n", "true"]).returncode),
    reason="needs network namespaces, as root",
)
@pytest.mark.nightly(reason="p2p/exchange/test_causes.py judges causes without processes")
def test_a_network_that_is_down_is_told(start_node: NodeStarter, tmp_path: Path) -> None:
    """A new namespace has no interface up but loopback, so the ticket's address has no way
    to it."""
    home = tmp_path / "owner"
    typed(home, "init", "team")
    ticket = invited(home, "alice", "--address", "/ip4/10.77.0.1/tcp/31330")
    inside = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *COMMAND]
    node = start_node("alice", "--ticket-file", ticket, command=inside)
    path = node.home / "node.log"
    deadline = time.monotonic() + PATIENCE
    while not (path.exists() and "listening" in path.read_text(errors="replace")):
        assert node.process.poll() is None, node.log()
        assert time.monotonic() < deadline, node.log()
        time.sleep(0.5)
    within = ["nsenter", f"--net=/proc/{node.process.pid}/ns/net", "--", *COMMAND]
    while True:
        done = run(node.home, "status", "--json", command=within)
        status = json.loads(done.stdout or "{}")
        if status.get("findings") and status["findings"][0]["kind"] == "link_down":
            break
        assert time.monotonic() < deadline, done.stdout
    assert ("no_answer", "10.77.0.1:31330") in {
        (cause["code"], cause["where"]) for cause in status["causes"]
    }
