"""Real nodes in networks of other kinds: IPv6, and private ranges laid over others."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from sites.bed import Bed, Nat
from sites.capture import tcp_streams
from sites.scene import PORT, Scene, row, scene, until
from sites.test_three_sites import CANARIES

pytestmark = [
    pytest.mark.sites,
    pytest.mark.nightly(reason="a network between sites, for minutes"),
    pytest.mark.slow(reason="starts real nodes, each of four processes that import torch"),
    pytest.mark.timeout(1200),
]
SIX = f"/ip6/::/tcp/{PORT}"


def test_nodes_with_ipv6_alone_trade_with_each_other_and_with_those_that_have_ipv4_alone(
    tmp_path: Path,
) -> None:
    """Nobody can dial those of the sites `a` and `c`, anybody with IPv6 that of site `b`, and those
    with IPv4 the one at `pub2`. Only `pub1` has both."""
    six = ("a1", "b1", "c1")
    with (
        Bed({"a": Nat.RESTRICTED, "b": Nat.OPEN, "c": Nat.RESTRICTED}, public=2, hosts=1) as bed,
        scene(bed, tmp_path) as made,
    ):
        given = bed.six(["pub1", *six], only=six)
        made.start("pub1", "--listen", SIX)
        made.start("pub2")
        for host in six:
            made.start(host, listen=SIX)
        until(lambda: not _missing(made), 600, lambda: _missing(made))
        for host in six:
            reach = made.nodes[host].wait(lambda status: status["reach"]["nat"] == "none")["reach"]
            assert {probe["seen_ip"] for probe in reach["probes"]} == {given[host]}
        relay = made.peer_ids()["pub1"]
        wanted = {pair: "" for pair in permutations(six, 2)}
        for host in six:
            wanted |= {(host, "pub2"): relay, ("pub2", host): relay}
        until(lambda: _ways(made, wanted) == wanted, 180, lambda: _ways(made, wanted))
        for host in ("pub1", "pub2", "b1"):
            made.nodes[host].wait(lambda status: status["reach"]["kind"] == "direct")


def test_nodes_that_announce_addresses_of_an_overlay_meet_there_and_nowhere_else(
    tmp_path: Path,
) -> None:
    hosts = "pub1", "pub2", "pub3"
    below = tmp_path / "below.pcap"
    with Bed({}, public=3) as bed, scene(bed, tmp_path) as made, bed.capture("pub1", below):
        for host, address in bed.overlay(hosts).items():
            made.start(host, "--advertise", f"/ip4/{address}/tcp/{PORT}")
        until(lambda: not _missing(made), 600, lambda: _missing(made))
        for host in hosts:
            made.nodes[host].wait(lambda status: status["reach"]["kind"] == "local")
            assert {row(made, host, other)["via"] for other in hosts if other != host} == {""}
    data = below.read_bytes()
    assert len(data) > 1_000_000
    assert tcp_streams(below) == {}
    assert not [canary for canary in CANARIES if canary in data]


def _ways(made: Scene, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Any]:
    """How the one of each pair asks the other."""
    return {pair: row(made, *pair).get("via") for pair in pairs}


def _missing(made: Scene) -> list[tuple[str, str, Any]]:
    """The pairs (receiver, author) without a group so far, and how the one asks the other."""
    found = {pair: row(made, *pair) for pair in permutations(made.nodes, 2)}
    return [(*pair, each.get("via")) for pair, each in found.items() if not each.get("accepted")]
