"""Who is a member now: the certificates that peers have shown, and the one question that all other
modules ask of them. Pure state, no I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from swarm_node.errors import Rejected
from swarm_node.p2p.identity import public_key_of
from swarm_node.p2p.membership import IssuerBody, MemberBody, SwarmInfo, check_times, open_chain

MAX_MEMBERS = 4096


@dataclass(frozen=True, slots=True)
class Member:
    """A peer, the certificate that admits it, and the one of the issuer that signed it."""

    peer_id: str
    issuer: IssuerBody
    body: MemberBody


class Members:
    """The members that this node has met. Of more than MAX_MEMBERS, the one admitted longest ago is
    forgotten."""

    def __init__(self, swarm: SwarmInfo, wall: Callable[[], float]) -> None:
        self._swarm = swarm
        self._wall = wall
        self._members: OrderedDict[str, Member] = OrderedDict()

    def admit(self, chain: tuple[bytes, ...], peer_id: str) -> Member | Rejected:
        """Check the chain that `peer_id` shows, and remember a member. The reasons are those of
        `membership.verify_chain`."""
        opened = open_chain(chain, self._swarm, public_key_of(peer_id))
        if isinstance(opened, Rejected):
            return opened
        refused = check_times(*opened, self._wall())
        if refused is not None:
            return refused
        member = self._members[peer_id] = Member(peer_id, *opened)
        self._members.move_to_end(peer_id)
        if len(self._members) > MAX_MEMBERS:
            self._members.popitem(last=False)
        return member

    def check(self, peer_id: str) -> Member | Rejected:
        """The member of this id, if it is one now; otherwise "unknown_member", or a reason of
        `membership.verify_chain`."""
        member = self._members.get(peer_id)
        if member is None:
            return Rejected("unknown_member", "it has shown no certificate")
        return check_times(member.issuer, member.body, self._wall()) or member

    def is_member(self, peer_id: str) -> bool:
        """Whether `check` finds a member."""
        return isinstance(self.check(peer_id), Member)

    def issuer(self, peer_id: str) -> str:
        """Who admitted a peer that this node has met, "" for any other."""
        member = self._members.get(peer_id)
        return member.issuer.issuer_key.hex() if member is not None else ""
