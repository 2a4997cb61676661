"""Blocks: members that this node alone refuses. Other nodes do not hear of them."""

from __future__ import annotations

from swarm_node.errors import HomeError
from swarm_node.node.home.home import Home
from swarm_node.node.members.ledger import Block, Followed, Ledger
from swarm_node.node.members.lookup import SHORTEST, Meant


def block_ledger(home: Home) -> Ledger[Block]:
    """Return the ledger of a home's blocks."""
    return Ledger(home, "blocks.json", Block)


def add(home: Home, name: str, targets: Meant, now: float) -> None:
    """Block the peers and issuers that a person called `name`.

    Raises:
        HomeError: it is this node itself, or the file cannot be written.
    """
    if home.identity().peer_id in targets.peer_ids:
        raise HomeError("this is the node of this home: a node does not block itself")
    blocks = [Block(name, int(now), peer_id=peer) for peer in targets.peer_ids]
    blocks += [Block(name, int(now), issuer_key=key) for key in targets.issuer_keys]
    keys = {(block.peer_id, block.issuer_key) for block in blocks}
    ledger = block_ledger(home)
    with home.editing():
        other_blocks = [
            block for block in ledger.entries() if (block.peer_id, block.issuer_key) not in keys
        ]
        ledger.write(other_blocks + blocks)


def remove(home: Home, name: str) -> None:
    """End the blocks of a name, or of the end of a peer id.

    Raises:
        HomeError: nobody of this name is blocked.
    """
    ledger = block_ledger(home)

    def is_meant(block: Block) -> bool:
        is_id_match = (
            block.peer_id is not None and len(name) >= SHORTEST and block.peer_id.endswith(name)
        )
        return is_id_match or block.name == name

    with home.editing():
        entries = ledger.entries()
        other_blocks = [block for block in entries if not is_meant(block)]
        if len(other_blocks) == len(entries):
            names = ", ".join(sorted({block.name for block in entries})) or "nobody"
            raise HomeError(f"nobody called {name!r} is blocked here; blocked: {names}")
        ledger.write(other_blocks)


class Blocks:
    """The current blocks of a running node's home. A change of the file counts at once."""

    def __init__(self, home: Home) -> None:
        self._keys: Followed[Block, frozenset[str]] = Followed(
            block_ledger(home),
            lambda blocks: frozenset(
                key for block in blocks for key in (block.peer_id, block.issuer_key) if key
            ),
        )

    def blocked_keys(self) -> frozenset[str]:
        """Return the blocked peer ids and issuer keys (hex); a key stands for all members of its
        issuer."""
        return self._keys.now()
