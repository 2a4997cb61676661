"""Real nodes behind routers with NAT learn from each other's rollouts: through relays that they
found, and over direct links that they opened."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sites.bed import Bed, Nat
from sites.scene import Scene, row, scene, until

pytestmark = [
    pytest.mark.sites,
    pytest.mark.nightly(reason="a network between sites, for minutes"),
    pytest.mark.slow(reason="starts four real nodes, each of four processes that import torch"),
    pytest.mark.timeout(1200),
]
PUBLIC = "pub1", "pub2"
HIDDEN = "a1", "b1"
PAIRS = HIDDEN, HIDDEN[::-1]
_ENOUGH = 20
_DIRECT_SECONDS = 5.0


@pytest.mark.parametrize("carrier", [None, Nat.SYMMETRIC], ids=["home", "carrier"])
def test_two_nodes_behind_nat_trade_rollouts_through_a_relay_that_they_found(
    tmp_path: Path, carrier: Nat | None
) -> None:
    with _started(tmp_path, Nat.SYMMETRIC, carrier) as made:
        ids = made.peer_ids()
        relays = {ids[host] for host in PUBLIC}

        def trade(host: str, other: str) -> bool:
            found = row(made, host, other)
            return found.get("accepted", 0) >= _ENOUGH and found["via"] in relays

        until(lambda: all(trade(*pair) for pair in PAIRS), 600, lambda: _rows(made))
        for host in HIDDEN:
            status = made.nodes[host].wait(lambda status: bool(status["relaying"]["kept"]))
            assert status["relaying"]["relayed"] >= _ENOUGH
            shown = made.nodes[host].run("peers").stdout
            assert "relay " in shown
            assert "direct" in shown
        forwarded = (made.nodes[host].wait(_relays)["relaying"] for host in PUBLIC)
        assert sum(each["requests"] for each in forwarded)


@pytest.mark.parametrize("carrier", [None, Nat.RESTRICTED], ids=["home", "carrier"])
def test_two_nodes_behind_home_routers_have_a_direct_link_within_seconds(
    tmp_path: Path, carrier: Nat | None
) -> None:
    """From the moment at which each was reached through a relay."""
    with _started(tmp_path, Nat.RESTRICTED, carrier) as made:

        def ways() -> list[str | None]:
            return [row(made, *pair).get("via") for pair in PAIRS]

        until(lambda: None not in ways(), 300, lambda: _rows(made))
        begun = time.monotonic()
        until(lambda: ways() == ["", ""], 60, lambda: _rows(made))
        took = time.monotonic() - begun
        assert took < _DIRECT_SECONDS, f"direct after {took:.1f} s"
        before = {pair: row(made, *pair)["accepted"] for pair in PAIRS}
        relayed = [_relayed(made, host) for host in HIDDEN]

        def trade(pair: tuple[str, str]) -> bool:
            found = row(made, *pair)
            return found.get("accepted", 0) >= before[pair] + _ENOUGH and found["via"] == ""

        until(lambda: all(map(trade, PAIRS)), 300, lambda: _rows(made))
        for host, earlier in zip(HIDDEN, relayed, strict=True):
            assert _relayed(made, host) <= earlier + 5


@contextmanager
def _started(place: Path, other: Nat, carrier: Nat | None) -> Iterator[Scene]:
    """Running nodes: two public, one behind a restricted router, also behind a `carrier`'s if there
    is one, and one behind the `other` router."""
    with (
        Bed({"a": Nat.RESTRICTED, "b": other}, public=2, hosts=1) as bed,
        scene(bed, place) as made,
    ):
        if carrier is not None:
            bed.double("a", carrier)
        for host in (*PUBLIC, *HIDDEN):
            made.start(host)
        made.peer_ids()
        yield made


def _relays(status: dict[str, Any]) -> bool:
    return status["relaying"] is not None


def _relayed(made: Scene, host: str) -> int:
    return int(made.nodes[host].wait(_relays)["relaying"]["relayed"])


def _rows(made: Scene) -> dict[str, dict[str, Any]]:
    return {host: row(made, host, other) for host, other in PAIRS}
