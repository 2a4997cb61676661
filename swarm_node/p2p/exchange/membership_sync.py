"""Keeps membership in sync with peers: passes on revocation lists and new secrets, asks a delegate
for a renewal in time, and drops former members."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import structlog

from swarm_node.errors import Rejected
from swarm_node.p2p.exchange.requests import Asker
from swarm_node.p2p.limits.round_robin import drawn_in_turn
from swarm_node.p2p.membership.credentials import Credentials, Shelf
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.membership.statements import MAX_STATEMENT_BYTES
from swarm_node.p2p.membership.ticket_uses import digest
from swarm_node.p2p.peers.causes import Cause, advice, of_reason
from swarm_node.p2p.peers.peers import Peer
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.protocols import CLAIMS, RENEW, REVOKED, SECRET

#: Peers that a node tells of a new statement. Each of them tells as many. Three beats reach 4,096
#: nodes.
_TOLD = 16
#: Peers asked at one heartbeat, of those that claim a newer statement or claim to renew.
_ASKED = 3
_log = structlog.get_logger(__name__)


class MembershipSync:
    """Call `sync` at every heartbeat. `let_go` is called with the peer ids of former members."""

    def __init__(
        self,
        local: LocalNode,
        asker: Asker,
        credentials: Credentials,
        let_go: Callable[[str], None],
        rng: random.Random,
    ) -> None:
        self._asker = asker
        self._credentials = credentials
        self._members = local.members
        self._directory = local.directory
        self._let_go = let_go
        self._clock = local.clock
        self._rng = rng
        #: The last line about this node's own membership: it is logged when it changes.
        self._last_state: tuple[str, float] | None = None

    async def sync(self) -> None:
        """Update this node, then its peers. The list comes before the secret, so that nobody passes
        the secret to a peer that the list expels."""
        credentials = self._credentials
        credentials.refresh()
        self.dismiss()
        await self._spread(
            credentials.lists, REVOKED, self._members.holding(list_number=credentials.lists.number)
        )
        self.dismiss()
        await self._spread(
            credentials.secrets, SECRET, self._members.holding(secret=credentials.secrets.number)
        )
        await self._compare()
        self.dismiss()
        await self._renew()

    def dismiss(self) -> None:
        """Drop all peers that are former members."""
        for peer_id in self._members.dismiss():
            _log.info("a peer is no longer a member", peer=peer_id)
            self._let_go(peer_id)

    async def _spread(self, shelf: Shelf[Any], protocol: str, knowing: list[str]) -> None:
        """Tell peers of a new statement, or ask those that claim a newer one."""
        peers = self._some(knowing, _ASKED)
        if shelf.is_unsent:
            shelf.is_unsent = False
            peers += self._directory.draw(self._rng, _TOLD, self._clock.now())
        offers = (self._offer(shelf, protocol, peer) for peer in peers)
        await asyncio.gather(*offers)

    async def _offer(self, shelf: Shelf[Any], protocol: str, peer: Peer) -> None:
        raw = shelf.raw
        reply = await self._asker.ask(peer, protocol, raw, max_reply=MAX_STATEMENT_BYTES)
        rejection = shelf.offer(reply) if reply else None
        if rejection is not None:
            self._asker.reject(rejection, peer.peer_id)

    async def _compare(self) -> None:
        """Ask some peers for claims of limited tickets, while this node holds any."""
        claims = self._members.claims()
        if not claims:
            return
        request = wire.pack(wire.ClaimsRequest(digest(claims)))
        peers = self._directory.draw(self._rng, _ASKED, self._clock.now())
        await asyncio.gather(*(self._ask_claims(peer, request) for peer in peers))

    async def _ask_claims(self, peer: Peer, request: bytes) -> None:
        reply = await self._asker.ask_for(wire.ClaimsReply, peer, CLAIMS, request)
        for claim in reply.claims if reply else ():
            rejection = self._members.learn(claim, peer.peer_id)
            if rejection is not None:
                return self._asker.reject(rejection, peer.peer_id)

    async def _renew(self) -> None:
        """Ask a delegate for a renewal in the last third of this node's membership."""
        me = self._credentials.me()
        if isinstance(me, Rejected):
            if self._note_state(me.reason):
                remedy = advice(Cause(of_reason(me.reason)))
                _log.error("this node is not a member", reason=me.reason, remedy=remedy)
            return
        if not self._credentials.ends_soon(me):
            self._last_state = None
            return
        for peer in self._some(self._members.delegates(), _ASKED):
            reply = await self._asker.ask_for(wire.RenewReply, peer, RENEW, b"")
            if reply is None:
                continue
            rejection = self._credentials.adopt((reply.issuer, reply.member))
            if rejection is None:
                return
            self._asker.reject(rejection, peer.peer_id)
        days = round(max(0.0, me.until - self._clock.wall()) / 86_400, 1)
        if self._note_state("ends soon", days):
            _log.warning("this node's membership expires soon", days=days)

    def _note_state(self, state: str, days: float = 0.0) -> bool:
        old_state, self._last_state = self._last_state, (state, days)
        return old_state != self._last_state

    def _some(self, peer_ids: list[str], count: int) -> list[Peer]:
        """Choose some of these peers that this node can reach: one of each issuer before a second
        of any, because one ticket can make many peers."""
        candidates = [self._directory.get(peer_id) for peer_id in sorted(peer_ids)]
        peers = [peer for peer in candidates if peer is not None]
        return drawn_in_turn(
            self._rng, peers, lambda peer: self._members.issuer(peer.peer_id), count
        )
