"""Real nodes at sites behind NAT. Each of them needs minutes, and 0.8 GB of memory for a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sites.bed import Bed, Nat
from sites.scene import Scene, groups_by_author, scene, until

pytestmark = [
    pytest.mark.sites,
    pytest.mark.nightly(reason="a network between sites, for minutes"),
    pytest.mark.slow(reason="starts real nodes, each of four processes that import torch"),
    pytest.mark.timeout(900),
]
_ENOUGH = 20
PAIR = "pub1", "a1"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Scene]:
    """A public node and one that nobody can dial, at site `a`. Site `b` is another such."""
    with (
        Bed({"a": Nat.RESTRICTED, "b": Nat.SYMMETRIC}, public=1, hosts=1) as bed,
        scene(bed, tmp_path) as made,
    ):
        for host in PAIR:
            made.start(host)
        yield made


def test_a_laptop_that_moves_trades_again_and_says_where_it_is(two: Scene) -> None:
    until(lambda: _traded(two, {}), 300, lambda: _table(two))
    at = two.bed.move("a1", "b")
    before = _table(two)
    until(lambda: _traded(two, before), 120, lambda: _table(two))
    ids = two.peer_ids()

    def told() -> list[str]:
        status = two.nodes["pub1"].status() or {"peers": []}
        rows = [row for row in status["peers"] if row["peer_id"] == ids["a1"]]
        return [text for row in rows for text in row["addresses"] if f"/{at}/" in text]

    until(told, 120, lambda: two.nodes["pub1"].status())


def _traded(one: Scene, before: dict[str, dict[str, int]]) -> bool:
    """Whether each node got enough groups of the other since `before`."""
    ids, table = one.peer_ids(), _table(one)
    return all(
        table[host].get(ids[author], 0) >= before.get(host, {}).get(ids[author], 0) + _ENOUGH
        for host, author in (PAIR, PAIR[::-1])
    )


def _table(one: Scene) -> dict[str, dict[str, int]]:
    return {host: groups_by_author(node) for host, node in one.nodes.items()}


def test_nodes_of_one_network_meet_though_their_ticket_leads_nowhere(tmp_path: Path) -> None:
    with (
        Bed({"a": Nat.RESTRICTED}, public=1, hosts=2) as bed,
        scene(bed, tmp_path) as made,
    ):
        founder = made.start("a1")
        nowhere = f"/ip4/{bed.address('pub1')}/tcp/9/p2p/{made.peer_ids()['a1']}"
        made.invite("a1", "--address", nowhere)
        made.start("a2")
        ids = made.peer_ids()
        until(lambda: groups_by_author(founder).get(ids["a2"]), 300, lambda: _table(made))
        until(lambda: groups_by_author(made.nodes["a2"]).get(ids["a1"]), 300, lambda: _table(made))
