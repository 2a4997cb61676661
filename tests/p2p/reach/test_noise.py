"""The half of a Noise handshake that proves a key, against the library that py-libp2p uses."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from swarm_node.p2p.identity import Identity
from swarm_node.p2p.reach.noise import MAX_ANSWER_BYTES, Initiator

noise = pytest.importorskip("noise.connection", reason="py-libp2p is not installed")
HEAD = bytes.fromhex("0a2408011220")


def answered(
    hello: bytes, identity: Identity, signer: Identity, static_signed: bytes = b""
) -> bytes:
    """What a node of `identity` answers, with the signature of `signer`."""
    private = X25519PrivateKey.generate()
    static = private.public_key().public_bytes_raw()
    responder = noise.NoiseConnection.from_name(b"Noise_XX_25519_ChaChaPoly_SHA256")
    responder.set_keypair_from_private_bytes(noise.Keypair.STATIC, private.private_bytes_raw())
    responder.set_as_responder()
    responder.start_handshake()
    assert responder.read_message(hello) == b""
    signature = signer.sign(b"noise-libp2p-static-key:" + (static_signed or static))
    return bytes(
        responder.write_message(HEAD + identity.public_key + bytes.fromhex("1240") + signature)
    )


def test_only_the_owner_of_the_key_proves_it() -> None:
    one, other = Identity.generate(), Identity.generate()
    for identity, signer, asked, proved in (
        (one, one, one, True),
        (one, one, other, False),
        (other, one, one, False),
        (one, other, one, False),
    ):
        initiator = Initiator()
        answer = answered(initiator.hello, identity, signer)
        assert initiator.is_proved(answer, asked.public_key) == proved


def test_an_answer_of_another_handshake_or_with_one_bit_changed_proves_nothing() -> None:
    one = Identity.generate()
    assert not Initiator().is_proved(answered(Initiator().hello, one, one), one.public_key)
    initiator = Initiator()
    stolen = answered(initiator.hello, one, one, static_signed=bytes(32))
    assert not initiator.is_proved(stolen, one.public_key)
    for place in range(0, 200, 7):
        initiator = Initiator()
        answer = bytearray(answered(initiator.hello, one, one))
        answer[place] ^= 1
        assert not initiator.is_proved(bytes(answer), one.public_key)


def test_malformed_answers_prove_nothing() -> None:
    one = Identity.generate()
    for answer in (b"", bytes(32), bytes(80), bytes(81), bytes(200), bytes(MAX_ANSWER_BYTES + 1)):
        assert not Initiator().is_proved(answer, one.public_key)
