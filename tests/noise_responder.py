"""The other side of a knock, honest or not."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from swarm_node.p2p.wire.identity import Identity


class Responder:
    """The other side of Noise XX, which shows whatever key and signature it is given."""

    def __init__(self, host: Identity, signed: bytes | None = None) -> None:
        self._host = host
        self._signed = signed
        self._static = X25519PrivateKey.generate()

    def payload(self) -> bytes:
        """Its key, and its signature over its X25519 key."""
        static = self._static.public_key().public_bytes_raw()
        signed = self._signed or b"noise-libp2p-static-key:" + static
        identity = b"\x0a\x24" + bytes.fromhex("08011220") + self._host.public_key
        return identity + b"\x12\x40" + self._host.sign(signed)

    def second(self, first: bytes) -> bytes:
        """The message that answers `first`."""
        ephemeral, static = X25519PrivateKey.generate(), self._static
        name = b"Noise_XX_25519_ChaChaPoly_SHA256"
        chaining = digest = name
        shown = ephemeral.public_key().public_bytes_raw()
        for part in (b"", first, b"", shown):
            digest = hashlib.sha256(digest + part).digest()
        own = static.public_key().public_bytes_raw()
        message = shown
        for private, plain in (
            (ephemeral, own),
            (static, self.payload()),
        ):
            shared = private.exchange(X25519PublicKey.from_public_bytes(first))
            derived = HKDF(SHA256(), 64, chaining, b"").derive(shared)
            chaining, key = derived[:32], derived[32:]
            sealed = ChaCha20Poly1305(key).encrypt(bytes(12), plain, digest)
            digest = hashlib.sha256(digest + sealed).digest()
            message += sealed
        return message
