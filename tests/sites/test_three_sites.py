"""A swarm over three sites: a cloud, an office with symmetric NAT, one that lets only 443 out."""

from __future__ import annotations

from pathlib import Path

import pytest
from sites.bed import Bed, Nat
from sites.capture import tcp_streams
from sites.scene import Scene, groups_by_author, scene, until

pytestmark = [
    pytest.mark.sites,
    pytest.mark.nightly(reason="a network between sites, for minutes"),
    pytest.mark.slow(reason="starts seven real nodes, each of four processes that import torch"),
    pytest.mark.timeout(2400),
]
HOSTS = "pub1", "pub2", "pub3", "a1", "a2", "b1", "b2"
#: What a listener would look for: protocols, tasks, peers.
CANARIES = b"swarm-node", b"drills", b"12D3KooW", b"qwen"


def test_every_pair_of_seven_nodes_exchanges_groups_and_no_link_shows_any(tmp_path: Path) -> None:
    with (
        Bed({"a": Nat.SYMMETRIC, "b": Nat.HTTPS_ONLY}, public=3) as bed,
        scene(bed, tmp_path, "--listen", "/ip4/0.0.0.0/tcp/443") as made,
        bed.capture("pub1", tmp_path / "pub1.pcap"),
    ):
        for host in HOSTS:
            made.start(host)
        until(lambda: not _missing(made), 1800, lambda: _missing(made))
    streams = tcp_streams(tmp_path / "pub1.pcap")
    assert sum(len(data) for data in streams.values()) > 1_000_000
    for data in streams.values():
        assert not [canary for canary in CANARIES if canary in data]


def _missing(made: Scene) -> list[tuple[str, str]]:
    """The pairs (receiver, author) without a group so far."""
    ids, missing = made.peer_ids(), []
    for host, node in made.nodes.items():
        groups = groups_by_author(node)
        missing += [
            (host, other) for other in HOSTS if other != host and not groups.get(ids[other])
        ]
    return missing
