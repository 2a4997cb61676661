"""Real nodes say how they are reached: `status`, and `doctor --network` of a running node."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow(reason="starts real nodes, each of four processes that import torch")
@pytest.mark.timeout(900)
@pytest.mark.nightly(reason="tests/p2p/reach and test_hivemind_reach have the parts")
def test_a_running_node_says_how_members_reach_it(
    start_node: Callable[..., Any], tmp_path: Path
) -> None:
    first = start_node("first")
    alone = first.wait(lambda status: status["state"] == "running")
    assert alone["reach"]["kind"] == "unknown"
    ticket = tmp_path / "ticket"
    done = first.run("invite", "--name", "second", "--out", str(ticket))
    assert done.returncode == 0, done.stderr

    before = first.run("doctor", "--network", "--ticket-file", str(ticket))
    assert before.returncode == 0, before.stdout
    assert "not probed" in before.stdout
    joining = tmp_path / "second"
    tried = first.run("doctor", "--network", "--home", str(joining), "--ticket-file", str(ticket))
    assert "answers" in tried.stdout, "the last --home counts: there is no node yet"

    second = start_node("second", "--ticket-file", str(ticket))
    for node in (first, second):
        status = node.wait(lambda status: status["reach"]["probes"])
        (port,) = {int(text.split("/")[4]) for text in status["addresses"]}
        # Both are on one machine, so nothing is said of the Internet, and nothing is announced.
        assert status["reach"]["kind"] == "local"
        assert f"at 127.0.0.1:{port})" in status["reach"]["text"]
        for verb in ("status", "peers", "doctor"):
            assert "this network" in node.run(verb).stdout
        report = node.run("doctor", "--network", "--json")
        checks = {each["subject"]: each for each in json.loads(report.stdout)["checks"]}
        expected = "port clock membership reach nat seen told relay clocks dht"
        assert set(expected.split()) <= set(checks)
        assert all(each["level"] == "ok" for each in checks.values()), checks
        assert f"at 127.0.0.1:{port} by" in checks["seen"]["found"]
        assert "answering: 1" in checks["dht"]["found"]
    assert first.stop() == second.stop() == 0
