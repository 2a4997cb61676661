"""Codes that newcomers redeem for tickets of an issuer file, if the coordinator was given one."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from coordinator.store import Store
from swarm_node.errors import Rejected, TicketError
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.membership.ticket import parse_ticket

_CODE_LETTERS: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_CODE_GROUPS, _CODE_GROUP = 4, 5


class Redemptions:
    """See the module."""

    def __init__(
        self,
        store: Store,
        swarm_id: bytes,
        wall: Callable[[], float],
        holders: Callable[[], Mapping[str, Sequence[str]]],
    ) -> None:
        """`holders` returns the ids of members by the issuer keys (hex) of their tickets."""
        self._store = store
        self._holders = holders
        self._swarm_id = swarm_id
        self._wall = wall
        #: True if there is an issuer file.
        self.redeems = False

    async def stock(self, tickets: list[str]) -> None:
        """Take tickets of an issuer file, which codes are redeemed for.

        Raises:
            TicketError: a ticket is damaged, has expired, or is for another swarm.
        """
        rows, now = [], self._wall()
        for text in tickets:
            ticket = parse_ticket(text, now)
            if ticket.info.swarm_id != self._swarm_id:
                raise TicketError("this issuer file is of another swarm than --swarm")
            rows.append((ticket.issuer.issuer_key.hex(), text, ticket.expires))
        await self._store.run(self._store.stock, rows)
        self.redeems = True

    async def redeem(self, request: api.Redemption) -> api.Redeemed | Rejected:
        """A ticket for a code."""
        if not self.redeems:
            return Rejected("no_tickets", "this coordinator was given no issuer file")
        code = api.code_digest(request.code)
        text = await self._store.run(self._store.redeem, code, request.newcomer, self._wall())
        return text if isinstance(text, Rejected) else api.Redeemed(text)

    async def make_code(self, request: api.NewCode) -> api.MadeCode | Rejected:
        """A new code. Its text is not stored."""
        if not self.redeems:
            return Rejected("no_tickets", "start with --issuer-file: it has the tickets")
        letters = "".join(secrets.choice(_CODE_LETTERS) for _ in range(_CODE_GROUPS * _CODE_GROUP))
        groups = (letters[i : i + _CODE_GROUP] for i in range(0, len(letters), _CODE_GROUP))
        code, expires = "-".join(groups), int(self._wall()) + request.seconds
        row = await self._store.run(
            self._store.add_code, api.code_digest(code), request.name, request.uses, expires
        )
        return api.MadeCode(code, row)

    async def codes(self) -> api.Codes:
        codes = await self._store.run(self._store.codes, self._holders())
        return api.Codes(codes, await self._store.run(self._store.tickets_left, self._wall()))

    async def withdraw(self, number: int) -> api.Codes | Rejected:
        if not await self._store.run(self._store.withdraw, number):
            return Rejected("unknown_code", "no code has this number: see the list")
        return await self.codes()
