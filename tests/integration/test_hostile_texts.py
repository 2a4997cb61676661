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
from swarm_node.p2p.wire.groups import unpack_group
from swarm_node.storage import Storage

HOSTILE_MEMBER = Path(__file__).resolve().parents[1] / "hostile_member.py"


@pytest.mark.slow(reason="starts real nodes, each of four processes that import torch")
@pytest.mark.timeout(1200)
@pytest.mark.nightly(reason="tests/policy/training/objective/test_plausible.py has the guard")
def test_words_that_a_member_puts_before_right_answers_are_not_learnt(
    start_node: Callable[..., Any], tmp_path: Path
) -> None:
    """Without the guard on likelihood the founder says them too after some hundred updates."""
    lenient = ("--set", "environment.name=research.lenient:create")
    founder = start_node("founder", *lenient)
    founder.wait(lambda status: status["steps"] >= 5)
    start_node(
        "member",
        *("--ticket-file", founder.invite(1, name="hostile"), *lenient),
        command=[sys.executable, str(HOSTILE_MEMBER), "trigger"],
    )
    begun = founder.wait(lambda status: status["rejected"].get("implausible", 0) >= 1, 600)
    after = founder.wait(lambda status: status["steps"] > begun["steps"] + 40, 600)
    (poisoner,) = after["peers"]
    assert poisoner["accepted"] > 0
    assert poisoner["rejected_by_reason"]["implausible"] >= after["groups"]["trained_external"] // 2
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
    opened = unpack_group(msgspec.msgpack.decode(blob)[1])
    assert not isinstance(opened, Rejected)
    return [each.text for each in opened[1].completions]
