"""Messages between the node and the process of py-libp2p.

The process starts with one `Start` on its standard input. Every further request has a connection of
its own to the Unix socket HOST in `Start.sockets`: one frame there, one frame back. After `Opened`,
the bytes of the libp2p stream follow. For each stream that a peer opens, the process connects to
the node's socket NODE and sends `Incoming`. The bytes of the stream follow.
"""

from __future__ import annotations

import msgspec

HOST, NODE = "host", "node"
#: Largest first frame of a connection.
MAX_REQUEST_BYTES = 4096
#: Largest frame of a reply: `Linked` names all peers.
MAX_REPLY_BYTES = 1 << 20


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages."""


class Start(Message, frozen=True):
    """Listen as the owner of this Ed25519 seed, and serve `protocols`."""

    seed: bytes
    listen: tuple[str, ...]
    protocols: tuple[str, ...]
    sockets: str


class Started(Message, frozen=True):
    """The multiaddrs that the process listens on, with the chosen ports."""

    listening: tuple[str, ...]


class Connect(Message, frozen=True):
    """Connect to a peer at a multiaddr, or check that its open link answers."""

    peer: str
    address: str


class Open(Message, frozen=True):
    """Open a stream to a peer."""

    peer: str
    protocol: str


class Links(Message, frozen=True):
    """List all links, and count what was refused."""


class Disconnect(Message, frozen=True):
    """Close all links to a peer."""

    peer: str


class Done(Message, frozen=True):
    """The request is done."""


class Opened(Message, frozen=True):
    """The stream is open. Its bytes follow."""


class Linked(Message, frozen=True):
    """Peer ids, with the multiaddrs from which each is linked; and what was refused since the last
    of these replies, by reason."""

    peers: dict[str, list[str]]
    refused: dict[str, int]


class Incoming(Message, frozen=True):
    """A peer opened a stream. Its bytes follow."""

    peer: str
    protocol: str


Request = Connect | Open | Links | Disconnect
Reply = Done | Opened | Linked
