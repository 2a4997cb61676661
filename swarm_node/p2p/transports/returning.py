"""Which links a node listens to, and whether its own addresses are others now. Pure, no I/O.

TCP says nothing of a link whose other end is gone: after a router forgot it, or after a laptop
moved, it stays open for half a minute, and requests go into it. So a node pings its links, and cuts
those that are silent. The next request then dials anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from swarm_node.recent import Recent

#: Links that are pinged at a time; of more, members' first, then those not pinged for longest.
PINGED: Final = 32
#: How long one ping may take. A link is cut after two in a row, or after one if this node moved.
PING_SECONDS: Final = 3.0
_REMEMBERED = 4096


class Rounds:
    """Takes turns among links."""

    def __init__(self) -> None:
        self._asked: Recent[str, int] = Recent(_REMEMBERED)
        self._round = 0

    def next(self, linked: Iterable[str], is_member: Callable[[str], bool]) -> list[str]:
        """The peers whose links are pinged now. Keys cost a stranger nothing, so its links have the
        turns that members leave."""
        self._round += 1
        order = sorted(linked, key=lambda p: (not is_member(p), self._asked.get(p, 0), p))
        chosen = order[:PINGED]
        for peer in chosen:
            self._asked[peer] = self._round
        return chosen
