"""The node's identity: one Ed25519 key for the transport, for records and for rollouts.

The libp2p peer id embeds the public key, so the peer id that a link authenticated gives the key
that must have signed the peer's messages.
"""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from pathlib import Path

import base58
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarm_node.durable import create_private, open_regular
from swarm_node.errors import HomeError, reason_of

KEY_BYTES = 32
#: Largest private file: a key file or a swarm file.
MAX_PRIVATE_BYTES = 4096
#: Identity multihash (0x00, 36 bytes) of the protobuf PublicKey{Ed25519, 32 bytes}.
_PEER_ID_PREFIX = bytes.fromhex("002408011220")
#: Peer ids whose conversion is remembered. Base58 takes longer than all else that is done with one,
#: and a node meets the same ids in every address, request and heartbeat.
_REMEMBERED = 4096


class Identity:
    """An Ed25519 key pair. Only `seed` and `save` give out the private half."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public_key = private.public_key().public_bytes_raw()
        self.peer_id = peer_id_of(self.public_key)

    def __repr__(self) -> str:
        return f"Identity({self.peer_id})"

    @classmethod
    def generate(cls) -> Identity:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """The key pair of a 32-byte seed."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read a key file.

        Raises:
            HomeError: missing, readable by others, or not 32 bytes.
        """
        seed = read_private(path, "key file")
        if len(seed) != KEY_BYTES:
            raise HomeError(f"{path} is not a swarm-node key file (32 bytes)")
        return cls.from_seed(seed)

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """Read the key file at `path`, or make a new key there with mode 0600."""
        if path.exists():
            return cls.load(path)
        identity = cls.generate()
        identity.save(path)
        return identity

    def save(self, path: Path) -> None:
        """Write the key file with mode 0600; never overwrites one.

        Raises:
            HomeError: the file exists or cannot be written.
        """
        try:
            create_private(path, self.seed())
        except OSError as error:
            raise HomeError(f"cannot write the key file {path}: {error.strerror}") from error

    def seed(self) -> bytes:
        """The 32 secret bytes, for key files, tickets and the transport."""
        return self._private.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """The 64-byte Ed25519 signature of `message`."""
        return self._private.sign(message)


def read_private(path: Path, description: str, max_bytes: int = MAX_PRIVATE_BYTES) -> bytes:
    """Read the first `max_bytes` + 1 bytes of a file. So the caller sees that a file has more than
    `max_bytes`.

    Raises:
        HomeError: missing, or readable by others. The message calls the file `description`.
    """
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise HomeError(f"cannot read the {description} {path}: {reason_of(error)}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise HomeError(f"the {description} {path} is open to other users", f"run chmod 600 {path}")
    return data


@lru_cache(_REMEMBERED)
def peer_id_of(public_key: bytes) -> str:
    """The base58 libp2p peer id of an Ed25519 public key."""
    if len(public_key) != KEY_BYTES:
        raise ValueError("an Ed25519 public key has 32 bytes")
    return base58.b58encode(_PEER_ID_PREFIX + public_key).decode("ascii")


def short_id(peer_id: str) -> str:
    """The end of a peer id, which identifies it for a person; all ids begin alike."""
    return f"…{peer_id[-8:]}"


@lru_cache(_REMEMBERED)
def public_key_of(peer_id: str) -> bytes:
    """The public key in a base58 peer id.

    Raises:
        ValueError: not the peer id of an Ed25519 key.
    """
    if len(peer_id) > 64:
        raise ValueError("not an Ed25519 peer id")
    raw = base58.b58decode(peer_id)
    if len(raw) != len(_PEER_ID_PREFIX) + KEY_BYTES or not raw.startswith(_PEER_ID_PREFIX):
        raise ValueError("not an Ed25519 peer id")
    return raw[len(_PEER_ID_PREFIX) :]
