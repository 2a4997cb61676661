"""Look-up of names and ids of members, in the tickets made here and the peers met. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from swarm_node.errors import HomeError, Rejected
from swarm_node.node.home.home import Membership
from swarm_node.node.members.ledger import IssuedTicket
from swarm_node.node.metrics.snapshot import PeerRow
from swarm_node.p2p.addresses.addresses import is_peer_id
from swarm_node.p2p.wire.identity import public_key_of

#: Characters of a peer id's end that suffice if only one peer has it; all ids begin alike.
SHORTEST = 6


class Meant(NamedTuple):
    """Peer ids, and issuer keys (hex), which stand for all members of their tickets. Either may be
    empty."""

    peer_ids: tuple[str, ...] = ()
    issuer_keys: tuple[str, ...] = ()


def whom(text: str, admissions: Sequence[IssuedTicket], peers: Sequence[PeerRow]) -> Meant:
    """Find the peers that `text` names: a peer id or the end of one, or all members by tickets of a
    name. The names in the ledger take precedence over those in certificates, which another home may
    have given.

    Raises:
        HomeError: nobody, or more than one.
    """
    if is_peer_id(text):
        return Meant((text,))
    issuers = {entry.issuer_key: None for entry in admissions if entry.name == text}
    issuers = issuers or {
        row.issuer_key: None for row in peers if row.issuer_key and row.name == text
    }
    if issuers:
        return Meant(issuer_keys=tuple(issuers))
    peer_ids = []
    if len(text) >= SHORTEST:
        peer_ids = [row.peer_id for row in peers if row.peer_id.endswith(text)]
    if len(peer_ids) == 1:
        return Meant((peer_ids[0],))
    if peer_ids:
        ids = ", ".join(peer_ids[:8])
        raise HomeError(
            f"{len(peer_ids)} peers have ids that end with {text!r}", f"give a whole one ({ids})"
        )
    raise HomeError(
        f"nobody here is called {text!r}: `swarm-node members` lists names and peer ids"
    )


def keys_of(targets: Meant, membership: Membership) -> list[bytes]:
    """Return the public keys to revoke.

    Raises:
        HomeError: this node itself would be expelled.
    """
    keys = [public_key_of(peer) for peer in targets.peer_ids]
    keys += [bytes.fromhex(key) for key in targets.issuer_keys]
    chain = membership.open_chain()
    if isinstance(chain, Rejected):
        raise HomeError(
            f"the membership of this data directory is damaged ({chain.reason})", "restore it"
        )
    issuer, member = chain
    if {member.subject, member.admitted_by, issuer.issuer_key} & set(keys):
        raise HomeError("this would revoke the node of this data directory itself")
    return keys
