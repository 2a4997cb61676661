"""Real nodes at sites behind NAT. Each of them needs minutes, and 0.8 GB of memory for a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sites.bed import Bed, Nat
from sites.scene import Scene, groups_by_author, scene, until

pytestmark = [
    pytest.mark.sites,
    pytest.mark.scenario,
    pytest.mark.slow(reason="starts real nodes, each of four processes that import torch"),
    pytest.mark.timeout(900),
]
_ENOUGH = 20


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Scene]:
    """A public node and two that nobody can dial."""
    with (
        Bed({"a": Nat.RESTRICTED, "b": Nat.SYMMETRIC}, public=1, hosts=1) as bed,
        scene(bed, tmp_path) as made,
    ):
        for host in ("pub1", "a1", "b1"):
            made.start(host)
        yield made


def test_a_node_that_can_be_dialled_and_two_that_cannot_trade(three: Scene) -> None:
    pairs = [("pub1", "a1"), ("pub1", "b1"), ("a1", "pub1"), ("b1", "pub1")]
    until(lambda: _traded(three, pairs), 300, lambda: _table(three))


@pytest.mark.xfail(reason="nobody relays for nodes that cannot be dialled", strict=True)
def test_two_that_cannot_be_dialled_trade_with_each_other(three: Scene) -> None:
    until(lambda: _traded(three, [("a1", "pub1"), ("b1", "pub1")]), 300, lambda: _table(three))
    until(lambda: _traded(three, [("a1", "b1"), ("b1", "a1")]), 60, lambda: _table(three))


def _traded(one: Scene, pairs: list[tuple[str, str]]) -> bool:
    """Whether the first node of each pair holds enough groups of the second."""
    ids, table = one.peer_ids(), _table(one)
    return all(table[host].get(ids[author], 0) >= _ENOUGH for host, author in pairs)


def _table(one: Scene) -> dict[str, dict[str, int]]:
    return {host: groups_by_author(node) for host, node in one.nodes.items()}
