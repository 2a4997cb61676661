"""Check that a node answers at an address: a new TCP connection, and the proof of its key.

Any libp2p node greets a caller. So the greeting alone could also come from another node, for
example one behind the same router, or from the node that knocks. Therefore two messages of the
Noise handshake follow, as in libp2p's specification (Noise_XX_25519_ChaChaPoly_SHA256;
noiseprotocol.org, revision 34). The second carries the node's key and its signature. No request is
made.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from swarm_node.p2p.reach.reachability import Outcome
from swarm_node.p2p.wire.identity import public_key_of

KNOCK_SECONDS = 3.0
_GREETING = b"\x13/multistream/1.0.0\n"
_NOISE = b"\x07/noise\n"
_NAME = b"Noise_XX_25519_ChaChaPoly_SHA256"
_SIGNED = b"noise-libp2p-static-key:"
_KEY, _TAG = 32, 16
#: Size limit of the second message: ephemeral key, sealed static key, and a sealed payload of some
#: 110 bytes.
_MAX_MESSAGE = 4096
#: NoiseHandshakePayload { 1: PublicKey { 1: Ed25519, 2: 32 bytes }, 2: signature of 64 bytes, … }.
_KEY_HEAD, _SIGNATURE_HEAD = bytes.fromhex("0a2408011220"), bytes.fromhex("1240")


async def knock(ip: str, port: int, peer_id: str, seconds: float = KNOCK_SECONDS) -> Outcome:
    """Connect from an ephemeral port to `ip` and `port`. Return the outcome within `seconds`.
    "open" means that the node `peer_id` itself answered."""
    writer = None
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(ip, port, limit=_MAX_MESSAGE)
            for proposed in (_GREETING, _NOISE):
                writer.write(proposed)
                if await reader.readexactly(len(proposed)) != proposed:
                    return "other"
            handshake = Handshake()
            writer.write(len(handshake.first).to_bytes(2, "big") + handshake.first)
            length = int.from_bytes(await reader.readexactly(2), "big")
            if length > _MAX_MESSAGE:
                return "other"
            public_key = handshake.verify_key(await reader.readexactly(length))
            return "open" if public_key == public_key_of(peer_id) else "other"
    except TimeoutError:
        return "timeout" if writer is None else "silent"
    except ConnectionError:
        return "refused" if writer is None else "other"
    except (OSError, EOFError):  # no route: nobody refused
        return "timeout" if writer is None else "other"
    finally:
        if writer is not None:
            writer.transport.abort()


class Handshake:
    """The initiator's side of Noise XX up to the second message."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.first = self._private.public_key().public_bytes_raw()
        self._chaining = _NAME
        self._hash = _NAME
        for part in (b"", self.first, b""):  # the prologue, the key, the payload
            self._mix_hash(part)

    def verify_key(self, message: bytes) -> bytes | None:
        """Return the Ed25519 key that the second message proves, None if it proves none."""
        ephemeral_key, rest = message[:_KEY], message[_KEY:]
        try:
            self._mix_hash(ephemeral_key)
            static = self._decrypt(ephemeral_key, rest[: _KEY + _TAG])
            payload = self._decrypt(static, rest[_KEY + _TAG :])
            if not payload.startswith(_KEY_HEAD):
                return None
            key, rest = payload[len(_KEY_HEAD) :][:_KEY], payload[len(_KEY_HEAD) + _KEY :]
            if not rest.startswith(_SIGNATURE_HEAD):
                return None
            signature = rest[len(_SIGNATURE_HEAD) :][:64]
            Ed25519PublicKey.from_public_bytes(key).verify(signature, _SIGNED + static)
        except (InvalidTag, InvalidSignature, ValueError):
            return None
        return key

    def _decrypt(self, remote_key: bytes, ciphertext: bytes) -> bytes:
        """Decrypt with the key from the exchange with the X25519 key `remote_key` (MixKey and
        DecryptAndHash)."""
        shared_secret = self._private.exchange(X25519PublicKey.from_public_bytes(remote_key))
        secret = hmac.digest(self._chaining, shared_secret, "sha256")
        self._chaining = hmac.digest(secret, b"\x01", "sha256")
        key = hmac.digest(secret, self._chaining + b"\x02", "sha256")
        plaintext = ChaCha20Poly1305(key).decrypt(bytes(12), ciphertext, self._hash)
        self._mix_hash(ciphertext)
        return plaintext

    def _mix_hash(self, part: bytes) -> None:
        self._hash = hashlib.sha256(self._hash + part).digest()
