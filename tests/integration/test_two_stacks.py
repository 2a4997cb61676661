"""One swarm of both network stacks: real nodes that know one address, and trade with everybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest

pytest.importorskip("trio", reason="py-libp2p is not installed")
STACKS = ("libp2p", "hivemind", "libp2p")


@pytest.mark.slow(reason="starts real nodes, each of four processes that import torch")
@pytest.mark.timeout(900)
@pytest.mark.nightly(reason="test_one_swarm has the other founder")
def test_who_knows_one_address_meets_everybody_and_takes_their_groups(
    start_node: Callable[..., Any],
) -> None:
    first, *others = (["--set", f"network.backend={stack}"] for stack in STACKS)
    founder = start_node("founder", *first)
    ticket = founder.invite(uses=2)
    joined = [
        start_node(f"node{index}", "--ticket-file", ticket, *stack)
        for index, stack in enumerate(others)
    ]
    for node, stack in zip((founder, *joined), STACKS, strict=True):
        status = node.wait(_trades_with_two)
        carrier = psutil.Process(status["processes"]["network"]).cmdline()
        assert ("swarm_node.p2p.transports.libp2p.process" in carrier) == (stack == "libp2p")
    for node in (founder, *joined):
        assert node.stop() == 0, node.log()


def _trades_with_two(status: dict[str, Any]) -> bool:
    return len([peer for peer in status["peers"] if peer["accepted"] >= 3]) == 2
