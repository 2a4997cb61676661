"""A member that was modified, against a node that was not: real processes, real p2pd."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HOSTILE_MEMBER = Path(__file__).resolve().parents[1] / "hostile_member.py"


@pytest.mark.slow(reason="starts real nodes, each of four processes that import torch")
@pytest.mark.timeout(900)
def test_code_of_a_member_is_never_run_and_its_author_is_counted(
    start_node: Callable[..., Any], tmp_path: Path
) -> None:
    founder = start_node("founder")
    founder.wait(lambda status: status["updates"] >= 5)
    ticket = tmp_path / "ticket"
    done = founder.run("invite", "--name", "hostile", "--out", str(ticket))
    assert done.returncode == 0, done.stderr
    canary = tmp_path / "canary"
    member = start_node(
        "member",
        *("--ticket-file", str(ticket)),
        command=[sys.executable, str(HOSTILE_MEMBER), "code"],
        variables={"HOSTILE_CANARY": str(canary)},
    )
    before = founder.wait(lambda status: len(status["peers"]) == 1)
    after = founder.wait(
        lambda status: (
            status["rejected"].get("zero_advantage", 0) >= 100
            and status["updates"] > before["updates"] + 20
        )
    )
    assert not canary.exists()
    (author,) = after["peers"]
    assert author["rejected"] >= 100
    assert author["received"] == after["groups"]["trained_external"] == 0
    assert not {"environment", "scorer_crashed", "scorer_timeout"} & set(after["faults"])
    assert after["sandbox"] == "confined"
    assert member.process.poll() is None
    assert founder.stop() == 0
    assert not canary.exists()
