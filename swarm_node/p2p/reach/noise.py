"""The first half of a Noise handshake, after which who was dialled has proved its key. Pure.

`Noise_XX_25519_ChaChaPoly_SHA256` as libp2p's noise specification uses it: the dialler sends a key,
and the other end answers with its keys and its identity's signature of its own.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

#: Of the answer: two keys, two tags, and a payload, which go-libp2p gives extensions.
MAX_ANSWER_BYTES: Final = 1024
_NAME = b"Noise_XX_25519_ChaChaPoly_SHA256"
_SIGNED = b"noise-libp2p-static-key:"
#: NoiseHandshakePayload { 1: PublicKey { Ed25519, 32 bytes }, 2: 64 bytes } begins so.
_KEY_HEAD, _SIGNATURE_HEAD = bytes.fromhex("0a2408011220"), bytes.fromhex("1240")
_FIRST_NONCE = bytes(12)


class Initiator:
    """The dialler's end. `hello` is its first message."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.hello = self._private.public_key().public_bytes_raw()
        self._chain = self._hash = _NAME
        for data in (b"", self.hello, b""):  # prologue, key, payload
            self._mix_hash(data)

    def is_proved(self, answer: bytes, public_key: bytes) -> bool:
        """Whether the answer is of the owner of this Ed25519 key."""
        if not 80 < len(answer) <= MAX_ANSWER_BYTES:
            return False
        try:
            self._mix_hash(answer[:32])
            static = self._open(answer[:32], answer[32:80])
            payload = self._open(static, answer[80:])
            head = _KEY_HEAD + public_key + _SIGNATURE_HEAD
            signature = payload[len(head) : len(head) + 64]
            Ed25519PublicKey.from_public_bytes(public_key).verify(signature, _SIGNED + static)
        except (ValueError, InvalidTag, InvalidSignature):
            return False
        return payload.startswith(head)

    def _open(self, public: bytes, sealed: bytes) -> bytes:
        """Mix in the secret shared with the owner of `public`, and decrypt what it sealed so."""
        shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        mixed = hmac.digest(self._chain, shared, "sha256")
        self._chain = hmac.digest(mixed, b"\x01", "sha256")
        key = hmac.digest(mixed, self._chain + b"\x02", "sha256")
        opened = ChaCha20Poly1305(key).decrypt(_FIRST_NONCE, sealed, self._hash)
        self._mix_hash(sealed)
        return opened

    def _mix_hash(self, data: bytes) -> None:
        self._hash = hashlib.sha256(self._hash + data).digest()
