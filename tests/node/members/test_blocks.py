"""Blocks of one home: written by a command, obeyed by the running node at once."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from swarm_node.errors import HomeError
from swarm_node.node.home.home import Home
from swarm_node.node.members.blocks import Blocks, add, block_ledger, remove
from swarm_node.node.members.lookup import Meant
from swarm_node.p2p.wire.identity import Identity

PEER = Identity.generate().peer_id
KEY = bytes(range(32))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.begin()
    return home


def test_a_ban_counts_at_once_and_ends_at_once(home: Home) -> None:
    running = Blocks(home)
    assert running.blocked_keys() == frozenset()
    add(home, "alice", Meant((PEER,)), 5.0)
    assert running.blocked_keys() == {PEER}
    add(home, "bob", Meant(issuer_keys=(KEY.hex(),)), 6.0)
    assert running.blocked_keys() == {PEER, KEY.hex()}
    assert Blocks(home).blocked_keys() == {PEER, KEY.hex()}, "a restart forgets none"
    remove(home, "alice")
    assert running.blocked_keys() == {KEY.hex()}
    remove(home, "bob")
    assert running.blocked_keys() == frozenset()


def test_one_is_blocked_once_and_is_found_by_the_end_of_its_id(home: Home) -> None:
    for now in (5.0, 9.0):
        add(home, PEER, Meant((PEER,)), now)
    assert [block.since for block in block_ledger(home).entries()] == [9]
    assert stat.S_IMODE((home.path / "blocks.json").stat().st_mode) == 0o600
    remove(home, PEER[-6:])
    assert block_ledger(home).entries() == []


def test_refusals_say_what_to_do(home: Home) -> None:
    add(home, "alice", Meant((PEER,)), 5.0)
    with pytest.raises(HomeError, match=r"'bob'.*alice"):
        remove(home, "bob")
    with pytest.raises(HomeError, match="itself"):
        add(home, "me", Meant((home.identity().peer_id,)), 5.0)


@pytest.mark.parametrize(
    "content",
    [b"", b"[", b'{"a": 1}', b'[{"name": "x"}]', b"[" * 100_000, b"\xff", b" " * (9 << 20)],
)
def test_a_damaged_file_is_refused_and_a_node_keeps_its_blocks(home: Home, content: bytes) -> None:
    add(home, "alice", Meant((PEER,)), 5.0)
    running = Blocks(home)
    assert running.blocked_keys() == {PEER}
    (home.path / "blocks.json").write_bytes(content)
    with capture_logs() as logs:
        assert running.blocked_keys() == {PEER}
        assert running.blocked_keys() == {PEER}
    assert len(logs) == 1, "said once, not for every request"
    with pytest.raises(HomeError, match=r"blocks\.json"):
        block_ledger(home).entries()
