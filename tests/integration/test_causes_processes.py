"""Every cause for which a node is alone, as real nodes tell it at both of their ends.

`docs/troubleshooting.md` has the rows. Where only one end can know the cause, the other tells
nothing, and that is checked too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import COMMAND

from swarm_node.errors import SwarmNodeError
from swarm_node.node.control.control import ControlClient
from swarm_node.node.figures.snapshot import Said, Snapshot
from swarm_node.node.home.home import Home
from swarm_node.p2p.wire.identity import Identity
from swarm_node.policy.models.model import TINY, resolve

NodeStarter = Callable[..., Any]
TESTS = Path(__file__).parents[1]
HOUR, DAY = 3600, 86_400
#: Seconds for a sentence on a busy machine. A quiet one needs fewer than 30, and a minute more for
#: that a node is alone.
PATIENCE = 180.0


def clocked(seconds: float) -> list[str]:
    """The command of a node whose clock is ahead, or behind."""
    return [sys.executable, str(TESTS / "other_clock.py"), str(seconds)]


def run(home: Path, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, verb, "--home", str(home), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def invited(home: Path, name: str, *arguments: str) -> str:
    path = home / f"{name}.ticket"
    done = run(home, "invite", "--name", name, "--out", str(path), *arguments)
    assert done.returncode == 0, done.stderr
    return str(path)


def shown(node: Any) -> Snapshot | None:
    """The answer of `/v1/status`, without a process for each question."""
    try:
        return asyncio.run(ControlClient(node.home / "control.json").status())
    except SwarmNodeError:
        return None


def told(node: Any, *texts: str, level: str | None = None) -> Said:
    """Wait until one finding of a node has all of these texts. The time since it ran is printed."""
    begun, last = time.monotonic(), None
    while time.monotonic() - begun < PATIENCE:
        assert node.process.poll() is None, node.log()
        shot = shown(node)
        if shot is not None and shot.state != "running":
            begun = time.monotonic()
        for said in () if shot is None else shot.findings:
            last = shot.findings
            if all(text in said.text for text in texts) and level in (None, said.level):
                print(f"{time.monotonic() - begun:5.1f} s  {node.home.name}: {said.text}")
                return said
        time.sleep(0.3)
    raise AssertionError(f"{texts} not within {PATIENCE} s: {last}\n{node.log()}")


def is_bad(node: Any, text: str) -> None:
    """It is said first of all by `swarm-node status`, whose exit code is 1."""
    told(node, text, level="bad")
    done = node.run("status")
    assert done.returncode == 1, done.stdout
    first = " ".join(done.stdout.split("→")[0].split())
    assert first.startswith("✗"), first
    assert text in first


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
@pytest.mark.nightly(reason="tests/p2p/peers and tests/node judge each cause without processes")
def test_addresses_at_which_nobody_is_are_told_each_with_its_cause(
    start_node: NodeStarter, tmp_path: Path
) -> None:
    home, other = tmp_path / "owner", Identity.generate().peer_id
    assert subprocess.run([*COMMAND, "init", "team", "--home", str(home)]).returncode == 0
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
        is_bad(node, f"127.0.0.1:{ports['closed']} refuses connections")
        told(node, f"127.0.0.1:{ports['silent']} accepts connections and says nothing")
        said = told(node, f"127.0.0.1:{ports['full']} does not answer")
        assert "firewall" in said.remedy
        done = node.run("doctor", "--network")
        assert done.returncode == 1, done.stdout
        assert "nobody is reached" in done.stdout
        assert done.stdout.count("refuses connections, after") == 1


@pytest.mark.slow(reason="starts a real node of four processes that import torch")
@pytest.mark.timeout(900)
@pytest.mark.nightly(reason="tests/p2p/peers and tests/node judge each cause without processes")
def test_another_version_and_another_node_are_told(start_node: NodeStarter, tmp_path: Path) -> None:
    home, other = tmp_path / "owner", Identity.generate().peer_id
    assert subprocess.run([*COMMAND, "init", "team", "--home", str(home)]).returncode == 0
    script = [sys.executable, str(TESTS / "other_version.py"), str(home), "/ip4/127.0.0.1/tcp/0"]
    process = subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        address = process.stdout.readline().strip()
        endpoint, _, own = address.rpartition("/p2p/")
        flags = ("--address", address, "--address", f"{endpoint}/p2p/{other}")
        node = start_node("alice", "--ticket-file", invited(home, "alice", *flags))
        said = told(node, f"…{own[-8:]} speaks another version of the protocol", level="bad")
        assert "upgrade" in said.remedy
        told(node, f"is another node than …{other[-8:]}")
    finally:
        process.stdin.close()
        assert process.wait(60) == 0
        process.stdout.close()


@pytest.mark.slow(reason="starts six real nodes one after another, each of four processes")
@pytest.mark.timeout(2400)
@pytest.mark.nightly(reason="tests/p2p/peers and tests/node judge each cause without processes")
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
    assert "this ticket is cut short: copy the whole line, to its end" in done.stderr
    for days, text in ((8, "this ticket expired on"), (-1, "this ticket is valid only from")):
        late = [*clocked(days * DAY), "join", "--home", str(tmp_path / "nobody")]
        done = subprocess.run(
            [*late, "--ticket-file", str(ticket)], capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 1
        assert text in done.stderr
    assert not (tmp_path / "nobody").exists()

    # Another environment, and another model with the same tokenizer.
    model = tmp_path / "model"
    shutil.copytree(resolve(TINY), model)
    other_weights(model / "model.safetensors")
    alice = start_node(
        "alice", "--ticket-file", str(ticket), "--preset", "long", "--model", str(model)
    )
    said = told(alice, "uses drills short, this node drills long: they exchange nothing")
    assert "--preset short" in said.remedy
    said = told(owner, "alice uses drills long, this node drills short: they exchange nothing")
    assert "--preset long" in said.remedy
    told(alice, "uses another model (", f"this node {model}")
    told(owner, "alice uses another model (", "this node tiny")

    # A ticket that is used up.
    web = start_node("web", "--ticket-file", str(ticket))
    is_bad(web, "this ticket has admitted 1 of 1 nodes, says ")
    own_id = Home(web.home).identity().peer_id
    told(owner, f"the ticket of alice is used up, and another machine (…{own_id[-8:]}) tried it")
    listed = json.loads(owner.run("members", "--json").stdout)["tickets"]
    assert [(row["name"], row["used"], row["tried"]) for row in listed] == [("alice", 1, [own_id])]
    assert f"alice is used up, and tried by …{own_id[-8:]}" in " ".join(
        owner.run("members").stdout.split()
    )
    web.end()

    # A node that is gone.
    alice.end()
    told(owner, "no peer answers now, alice left ", level="warning")

    # A clock that is an hour ahead when it joins, and one an hour behind that belongs already.
    fast = start_node("fast", "--ticket-file", owner.invite(1, name="fast"), command=clocked(HOUR))
    is_bad(fast, "this clock is 3,6")
    assert "ahead of that of" in told(fast, "this clock is 3,6").text
    told(owner, "the clock of fast is at least 3,", "ahead of this one")
    fast.end()
    slow = start_node("alice", command=clocked(-HOUR))
    said = told(slow, "this clock is ", " s behind that of")
    assert "timedatectl" in said.remedy
    told(owner, "this clock is 3,", "ahead of that of alice")
    slow.end()

    # An expulsion.
    assert owner.run("revoke", "alice").returncode == 0
    again = start_node("alice")
    is_bad(again, "the owner revoked this node's membership (list of 20")
    told(owner, "alice was expelled (list of 20", "and asks again")
    again.end()


def other_weights(path: Path) -> None:
    """Change one number of a model, which makes it another one."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    name = min(tensors)
    tensors[name].view(-1)[0] += 1e-3
    save_file(tensors, path, {"format": "pt"})


@pytest.mark.slow(reason="starts two real nodes twice, and another once")
@pytest.mark.timeout(1800)
@pytest.mark.nightly(reason="tests/p2p/peers and tests/node judge each cause without processes")
def test_a_membership_that_ended_is_told_at_both_ends(
    start_node: NodeStarter, tmp_path: Path
) -> None:
    owner = start_node("owner")
    ticket = owner.invite(1, "--member-days", "1", name="alice")
    alice = start_node("alice", "--ticket-file", ticket)
    alice.wait(lambda status: bool(status["peers"]))
    alice.end()
    later = clocked(3 * DAY)
    command = [*later, "join", "--home", str(alice.home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert "this node's membership ended on 20" in done.stderr
    assert "ask for a new ticket" in done.stderr
    owner.end()
    # By the owner's clock it ended, and by its own it did not.
    owner, alice = start_node("owner", command=later), start_node("alice")
    is_bad(alice, f"s behind that of …{Home(owner.home).identity().peer_id[-8:]}")
    told(alice, "this clock is 259,")
    told(owner, "the membership of alice ended on 20")


@pytest.mark.slow(reason="starts two real nodes")
@pytest.mark.timeout(900)
def test_another_swarm_is_told_at_both_ends(start_node: NodeStarter, tmp_path: Path) -> None:
    owner = start_node("owner")
    (address, *_) = owner.wait(lambda status: status["state"] == "running")["addresses"]
    home = tmp_path / "elsewhere"
    assert subprocess.run([*COMMAND, "init", "other", "--home", str(home)]).returncode == 0
    node = start_node("alice", "--ticket-file", invited(home, "alice", "--address", address))
    told(node, f"…{address[-8:]} belongs to another swarm", level="bad")
    own_id = Home(node.home).identity().peer_id
    told(owner, f"…{own_id[-8:]} is of another swarm")


@pytest.mark.slow(reason="starts a real node of four processes that import torch")
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not shutil.which("unshare") or bool(subprocess.run(["unshare", "-n", "true"]).returncode),
    reason="needs network namespaces, as root",
)
@pytest.mark.nightly(reason="tests/p2p/peers and tests/node judge each cause without processes")
def test_a_network_that_is_down_is_told(start_node: NodeStarter, tmp_path: Path) -> None:
    """A new namespace has no interface up but loopback, so the ticket's address has no way
    to it."""
    home = tmp_path / "owner"
    assert subprocess.run([*COMMAND, "init", "team", "--home", str(home)]).returncode == 0
    ticket = invited(home, "alice", "--address", "/ip4/10.77.0.1/tcp/31330")
    inside = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *COMMAND]
    node = start_node("alice", "--ticket-file", ticket, command=inside)
    path = node.home / "node.log"
    deadline = time.monotonic() + PATIENCE
    while not (path.exists() and "listening" in path.read_text(errors="replace")):
        assert node.process.poll() is None, node.log()
        assert time.monotonic() < deadline, node.log()
        time.sleep(0.5)
    within = ["nsenter", f"--net=/proc/{node.process.pid}/ns/net", "--", *COMMAND, "status"]
    while True:
        done = subprocess.run(
            [*within, "--home", str(node.home)], capture_output=True, text=True, timeout=240
        )
        text = " ".join(done.stdout.split())
        if text.startswith("✗ no network interface is up → plug in the cable"):
            break
        assert time.monotonic() < deadline, done.stdout
    assert done.returncode == 1
    assert "10.77.0.1:31330 does not answer" in text
