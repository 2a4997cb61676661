"""Messages between the node and the process of py-libp2p.

The process starts with one `Start` on its standard input. Every further request has a connection of
its own to the Unix socket HOST in `Start.sockets`: one frame there, one frame back. After
`StreamOpened`, the bytes of the libp2p stream follow. For each stream that a peer opens, the
process connects to the node's socket NODE and sends `Incoming`. The bytes of the stream follow.
"""

from __future__ import annotations

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from swarm_node.p2p.wire.identity import Identity

#: Prefix of what a node signs for Noise (libp2p's specification).
_SIGNED = b"noise-libp2p-static-key:"
HOST, NODE = "host", "node"
#: Largest first frame of a connection.
MAX_REQUEST_BYTES = 4096
#: Largest frame of a reply: `Linked` names all peers.
MAX_REPLY_BYTES = 1 << 20


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages."""


class LinkKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of a node's identity that its links need: the Ed25519 key `public`, an X25519 key
    `private` for Noise, and the node's `signature` of the X25519 key's public half. It proves the
    node on links and signs nothing. So an attacker in the process that talks to strangers can write
    no heartbeats, groups or certificates of this node."""

    public: bytes
    private: bytes
    signature: bytes

    @classmethod
    def of(cls, identity: Identity) -> LinkKey:
        """Make a new X25519 key, and let `identity` sign it."""
        key = X25519PrivateKey.generate()
        signature = identity.sign(_SIGNED + key.public_key().public_bytes_raw())
        return cls(identity.public_key, key.private_bytes_raw(), signature)


class Start(Message, frozen=True):
    """Listen as the node of this key, and serve `protocols`."""

    key: LinkKey
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


class StreamOpened(Message, frozen=True):
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
Reply = Done | StreamOpened | Linked
