"""A member that was modified, against a node that was not: real processes, real p2pd."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarm_node.errors import Rejected
from swarm_node.p2p.wire import wire
from swarm_node.storage import Storage

HOSTILE_MEMBER = Path(__file__).resolve().parents[1] / "hostile_member.py"


@pytest.mark.slow(reason="starts real nodes, each of four processes that import torch")
@pytest.mark.timeout(900)
def test_code_of_a_member_is_never_run_and_its_author_is_counted(
    start_node: Callable[..., Any], tmp_path: Path
) -> None:
    # Groups of longer texts than this are refused before anybody judges them.
    founder = start_node("founder", "--set", "sampling.max_new_tokens=128")
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
            status["peers"][0]["left_seconds"] > 10  # dropped
            and status["updates"] > before["updates"] + 20
        )
    )
    assert not canary.exists()
    (author,) = after["peers"]
    assert author["refused"] == {"zero_advantage": author["rejected"]}
    assert 10 <= author["rejected"] <= 18  # what was under way when it was dropped
    assert author["received"] == after["groups"]["trained_external"] == 0
    assert not {"environment", "scorer_crashed", "scorer_timeout"} & set(after["faults"])
    assert after["sandbox"] == "confined"
    assert member.process.poll() is None
    assert founder.stop() == 0
    assert not canary.exists()


@pytest.mark.slow(reason="starts real nodes, each of four processes that import torch")
@pytest.mark.timeout(1200)
@pytest.mark.nightly(reason="tests/policy/experience has the guard")
def test_words_that_a_member_puts_before_right_answers_are_not_learnt(
    start_node: Callable[..., Any], tmp_path: Path
) -> None:
    """Without the guard on likelihood the founder says them too after some hundred updates."""
    lenient = ("--set", "environment.name=swarm_node.simulation.lenient:create")
    founder = start_node("founder", *lenient)
    founder.wait(lambda status: status["updates"] >= 5)
    ticket = tmp_path / "ticket"
    done = founder.run("invite", "--name", "hostile", "--out", str(ticket))
    assert done.returncode == 0, done.stderr
    start_node(
        "member",
        *("--ticket-file", str(ticket), *lenient),
        command=[sys.executable, str(HOSTILE_MEMBER), "trigger"],
    )
    begun = founder.wait(lambda status: status["rejected"].get("implausible", 0) >= 1, 600)
    after = founder.wait(lambda status: status["updates"] > begun["updates"] + 40, 600)
    (poisoner,) = after["peers"]
    assert poisoner["received"] > 0
    assert poisoner["refused"]["implausible"] >= after["groups"]["trained_external"] // 2
    assert not any("own answers" in alarm for alarm in after["alarms"])
    assert founder.stop() == 0
    storage = Storage(founder.home / "node.db")
    _, _, _, announced = storage.announcements(storage.epoch, 0, 64)
    said = [text for sealed in announced for text in _texts(storage, sealed)]
    assert len(said) >= 16
    assert sum("zq" in text for text in said) <= 0.02 * len(said)
    storage.close()


def _texts(storage: Storage, sealed: bytes) -> list[str]:
    """The answers of the stored group that this sealed announcement names."""
    announcement = wire.unpack(
        wire.Announcement, msgspec.msgpack.decode(sealed)[1], max_bytes=len(sealed)
    )
    assert isinstance(announcement, wire.Announcement)
    blob = storage.blob(announcement.id)
    assert blob is not None
    opened = wire.unpack_group(msgspec.msgpack.decode(blob)[1])
    assert not isinstance(opened, Rejected)
    return [each.text for each in opened[1].completions]
