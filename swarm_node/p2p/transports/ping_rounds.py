"""Turns of pings over a node's links, which find dead ones. Pure, no I/O.

TCP does not report a link whose other end is gone. After a router forgot it, or after a laptop
moved, it stays open for half a minute, and requests on it are lost. So a node pings its links, and
cuts those that are silent. The next request then dials anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from swarm_node.recent import Recent

#: Links that are pinged at a time. Above it, members' links come first, then those not pinged for
#: longest.
PINGED: Final = 32
#: Seconds for one ping. A link is cut after two failures in a row, or after one if this node moved.
PING_SECONDS: Final = 3.0
_REMEMBERED = 4096


class Rounds:
    """Takes turns among links."""

    def __init__(self) -> None:
        self._last_rounds: Recent[str, int] = Recent(_REMEMBERED)
        self._round = 0

    def next(self, linked_peers: Iterable[str], is_member: Callable[[str], bool]) -> list[str]:
        """Choose the peers whose links are pinged now. Keys cost a stranger nothing, so strangers'
        links get only the turns that members leave."""
        self._round += 1
        order = sorted(
            linked_peers, key=lambda p: (not is_member(p), self._last_rounds.get(p, 0), p)
        )
        peers = order[:PINGED]
        for peer in peers:
            self._last_rounds[peer] = self._round
        return peers
