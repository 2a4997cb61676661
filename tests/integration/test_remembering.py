"""A real node goes on as before when it is started without flags."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from running import COMMAND, RunningNode, typed

from swarm_node.p2p.addresses.addresses import unused_port
from swarm_node.p2p.membership.ticket import parse_ticket


def runs(home: Path) -> bool:
    """Check that a node runs there. It answers so once it has said where it listens, and what
    follows from that."""
    status = RunningNode(home, []).status()
    return status is not None and status["state"] == "running"


@contextmanager
def joined(home: Path, *flags: str) -> Iterator[str]:
    """The first lines of a node that listens, which is stopped afterwards."""
    log = home.with_suffix(f".{time.monotonic_ns()}.log")
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, "join", "--home", str(home), *flags],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1", "SWARM_NODE_RUN__DEVICE": "cpu"},
        )
    try:
        deadline = time.monotonic() + 300
        while not runs(home):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        yield log.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0, log.read_text()
    finally:
        if process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.wait(60)
            psutil.wait_procs(children, timeout=60)


@pytest.mark.slow(reason="starts a real node three times and another once")
@pytest.mark.timeout(900)
@pytest.mark.nightly(reason="tests/config and tests/node/home have the parts")
def test_a_join_without_flags_keeps_port_settings_and_tickets(
    start_node: Callable[..., Any], tmp_path: Path
) -> None:
    home, ticket = tmp_path / "owner", tmp_path / "alice.ticket"
    port = unused_port()
    typed(home, "init", "team")
    flags = ("--listen", f"/ip4/127.0.0.1/tcp/{port}", "--local", "3")
    with joined(home, *flags, "--set", "network.poll_seconds=0.3"):
        typed(home, "invite", "--name", "alice", "--out", str(ticket))
        typed(home, "invite", "--name", "bob", "--out", str(tmp_path / "bob.ticket"))
        assert json.loads(typed(home, "status", "--json"))["reach"]["kind"] == "unknown"
        said = typed(home, "doctor", "--network", "--ticket-file", str(ticket))
        assert "not probed" in said, "the node is alone"
    (address,) = parse_ticket(ticket.read_text(), time.time()).addresses
    assert f"/tcp/{port}/" in address

    with joined(home) as said:
        assert "experience.local, network.listen, network.poll_seconds" in said
        assert address in said
        assert "lead" not in said
        shown = typed(home, "config")
        assert "3 (default 4;" in " ".join(shown.split())
        node = start_node("alice", "--ticket-file", str(ticket))
        node.wait(lambda status: bool(status["peers"]))
        (row,) = (line for line in typed(home, "members").splitlines() if "used up" in line)
        assert "alice" in row

    with joined(home, "--forget", "network.listen", "--listen", "/ip4/127.0.0.1/tcp/0") as said:
        assert f"(/ip4/127.0.0.1/tcp/{port})" in said
    assert "/ip4/127.0.0.1/tcp/0" in typed(home, "config")
