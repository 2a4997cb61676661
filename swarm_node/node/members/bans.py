"""Bans: members that this node alone refuses. Other nodes do not hear of them."""

from __future__ import annotations

from swarm_node.errors import HomeError
from swarm_node.node.home.home import Home
from swarm_node.node.members.ledger import Ban, Followed, Ledger
from swarm_node.node.members.people import SHORTEST, Meant


def ban_ledger(home: Home) -> Ledger[Ban]:
    """Return the ledger of a home's bans."""
    return Ledger(home, "bans.json", Ban)


def add(home: Home, name: str, meant: Meant, now: float) -> None:
    """Ban the peers and issuers that a person called `name`.

    Raises:
        HomeError: it is this node itself, or the file cannot be written.
    """
    if home.identity().peer_id in meant.peer_ids:
        raise HomeError("this is the node of this home: a node does not ban itself")
    bans = [Ban(name, int(now), peer_id=peer) for peer in meant.peer_ids]
    bans += [Ban(name, int(now), issuer_key=key) for key in meant.issuer_keys]
    keys = {(ban.peer_id, ban.issuer_key) for ban in bans}
    ledger = ban_ledger(home)
    with home.editing():
        kept = [ban for ban in ledger.entries() if (ban.peer_id, ban.issuer_key) not in keys]
        ledger.write(kept + bans)


def remove(home: Home, name: str) -> None:
    """End the bans of a name, or of the end of a peer id.

    Raises:
        HomeError: nobody of this name is banned.
    """
    ledger = ban_ledger(home)

    def is_meant(ban: Ban) -> bool:
        named = ban.peer_id is not None and len(name) >= SHORTEST and ban.peer_id.endswith(name)
        return named or ban.name == name

    with home.editing():
        entries = ledger.entries()
        kept = [ban for ban in entries if not is_meant(ban)]
        if len(kept) == len(entries):
            banned = ", ".join(sorted({ban.name for ban in entries})) or "nobody"
            raise HomeError(f"nobody called {name!r} is banned here; banned: {banned}")
        ledger.write(kept)


class Bans:
    """The current bans of a running node's home. A change of the file counts at once."""

    def __init__(self, home: Home) -> None:
        self._keys: Followed[Ban, frozenset[str]] = Followed(
            ban_ledger(home),
            lambda bans: frozenset(
                key for ban in bans for key in (ban.peer_id, ban.issuer_key) if key
            ),
        )

    def covered(self) -> frozenset[str]:
        """Return the banned peer ids and issuer keys (hex); a key stands for all members of its
        issuer."""
        return self._keys.now()
