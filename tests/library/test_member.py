"""A member that is refused before it meets anybody. tests/integration has some that run."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

import swarm_node
from swarm_node.errors import (
    ConfigError,
    HomeError,
    ModelError,
    SlowNodeError,
    TicketError,
    TicketExpiredError,
)
from swarm_node.node.home.home import Home

ADDRESS = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWJ14duBaa4AvnvAsN3BEfwwE9h8X7suynZWM1EJBWq1sh"


def invited(home: Path, seconds: int = 3600, now: float | None = None) -> str:
    """A ticket of a new swarm, whose owner is nowhere."""
    owner = Home(home)
    owner.found_swarm("team", time.time())
    return owner.invite(
        [ADDRESS], now=now or time.time(), valid_seconds=seconds, member_seconds=86_400
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"experience.external": -1}, r"experience\.external"),
        ({"experience.externl": 4}, r"mean experience\.external"),
        ({"ticket": "secret"}, "ticket .*member"),
        ({"home": "/tmp"}, "home .*member"),
        ({"model": "tiny"}, "model .*member"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_before_anything_starts(
    settings: dict[str, object], words: str
) -> None:
    before = {*threading.enumerate()}
    with pytest.raises(ConfigError, match=words):
        swarm_node.member("ticket", settings)
    assert {*threading.enumerate()} <= before


@pytest.mark.usefixtures("leaves_no_process")
def test_a_wrong_ticket_gives_its_cause_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    good, stale = invited(tmp_path / "one"), invited(tmp_path / "two", 60, time.time() - 3600)
    with pytest.raises(TicketError, match="give a ticket"):
        swarm_node.member()
    for damaged in ("", "no ticket", good[:-9], good + "A" * (1 << 20)):
        with pytest.raises(TicketError):
            swarm_node.member(damaged)
    with pytest.raises(TicketExpiredError):
        swarm_node.member(stale)
    with pytest.raises(TicketError, match=r": no such"):
        swarm_node.member(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TicketError, match="regular file"):
        swarm_node.member(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(TicketError, match="not text"):
        swarm_node.member(tmp_path / "bytes")
    assert list(place.iterdir()) == []


@pytest.mark.slow(reason="imports torch and the network stack")
@pytest.mark.usefixtures("leaves_no_process")
def test_a_home_model_or_environment_that_cannot_be_used_gives_its_cause(tmp_path: Path) -> None:
    ticket = invited(tmp_path / "one")
    other = Home(tmp_path / "other")
    other.found_swarm("other", time.time())
    with pytest.raises(HomeError, match=r"'other'.*'team'"):
        swarm_node.member(ticket, home=other.path)
    with pytest.raises(ModelError, match="no model"):
        swarm_node.member(ticket, model=tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"environment\.name"):
        swarm_node.member(ticket, {"environment.name": "chess"})
    with pytest.raises(ConfigError, match=r"games .*multi-turn"):
        swarm_node.member(ticket, {"environment.name": "games"})
    with pytest.raises(ConfigError, match=r"\.families: .*poetry"):
        swarm_node.member(ticket, {"environment.families": ["poetry"]})
    with other.lock(), pytest.raises(HomeError, match="already running"):
        swarm_node.member(home=other.path)


@pytest.mark.slow(reason="a network daemon and an environment's process begin to start")
@pytest.mark.usefixtures("leaves_no_process")
def test_a_start_that_takes_too_long_ends_and_leaves_nothing(tmp_path: Path) -> None:
    ticket = invited(tmp_path / "one")
    with pytest.raises(SlowNodeError, match=r"0\.01 s"):
        swarm_node.member(ticket, {"network.listen": ["/ip4/127.0.0.1/tcp/0"]}, timeout=0.01)
    deadline = time.monotonic() + 60
    while any(thread.name == "swarm_node member" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
