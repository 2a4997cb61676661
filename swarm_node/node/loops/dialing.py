"""Tries the addresses of settings and ticket from which nobody answers, and notes the causes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import psutil

from swarm_node.clock import Clock
from swarm_node.node.figures.snapshot import SEEN_SECONDS
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.peers.causes import Cause
from swarm_node.p2p.peers.peers import Directory
from swarm_node.p2p.reach.attempts import Attempt, attempt_all
from swarm_node.p2p.reach.probe import Knock

#: Addresses that are tried at once. A ticket has eight.
_MOST = 8
#: Seconds between two rounds: the first, and the longest. Each is twice as long as the last one.
_FIRST_SECONDS, _LONGEST_SECONDS = 2.0, 60.0
#: Tries that find a node which does not greet, before that is a cause: it may be busy, or starting.
_PATIENT_TRIES = 3


def link_up() -> bool:
    """Check that a network interface of this machine is up, besides loopback."""
    stats = psutil.net_if_stats()
    loopback = {
        name
        for name, found in psutil.net_if_addrs().items()
        if any(item.address in ("127.0.0.1", "::1") for item in found)
    }
    return any(each.isup for name, each in stats.items() if name not in loopback)


class DialCheck:
    """The loop that tries `addresses` while the peers there do not answer. Peers named by others
    are not tried: a third party's host gets one connection only."""

    def __init__(
        self,
        addresses: Sequence[str],
        knock: Knock,
        *,
        directory: Directory,
        members: Members,
        clock: Clock,
        link_up: Callable[[], bool] = link_up,
    ) -> None:
        self._addresses = circuit.dialled(addresses)
        self._knock = knock
        self._directory = directory
        self._members = members
        self._clock = clock
        self._link_up = link_up
        self._open: dict[str, int] = {}
        directory.failures.configured = len(self._addresses)

    async def run(self) -> None:
        """Check again and again."""
        pause = _FIRST_SECONDS
        while True:
            silent = await self.check()
            pause = min(_LONGEST_SECONDS, 2 * pause) if silent else _FIRST_SECONDS
            await asyncio.sleep(pause)

    async def check(self) -> list[Attempt]:
        """Try the addresses from which nobody answers now, and return what came of it."""
        self._directory.failures.link_down = not self._link_up()
        silent = [text for text in self._addresses if not self._answers(text)]
        tried = await attempt_all(silent, self._knock, _MOST)
        for each in tried:
            self._note(each)
        return tried

    def _answers(self, address: str) -> bool:
        peer = self._directory.get(address.rpartition("/p2p/")[2])
        recent = peer is not None and self._clock.now() - peer.last_seen <= SEEN_SECONDS
        return recent and peer is not None and peer.greeted

    def _note(self, tried: Attempt) -> None:
        failures, now = self._directory.failures, self._clock.now()
        shown = self._members.shown(tried.peer_id)
        name = shown[0].name if shown else ""
        cause = tried.cause(name)
        if cause is not None:
            self._open.pop(tried.address, None)
            return failures.failed(cause, now)
        self._open[tried.address] = self._open.get(tried.address, 0) + 1
        failures.connected(tried.peer_id, tried.where)
        refused = any(each.peer == tried.peer_id for each in failures.causes(now))
        if refused or self._answers(tried.address):
            return
        if self._open[tried.address] > _PATIENT_TRIES:
            failures.failed(Cause("no_greeting", tried.peer_id, name, tried.where), now)
