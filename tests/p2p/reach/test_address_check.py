"""What proves that a node itself answers. Over real links: tests/integration/test_probe.py."""

from __future__ import annotations

import asyncio
import os
import socket

from noise_responder import Responder

from swarm_node.p2p.reach.address_check import Handshake, knock
from swarm_node.p2p.wire.identity import Identity


def test_only_a_handshake_that_the_nodes_key_signed_proves_it() -> None:
    host, handshake = Identity.generate(), Handshake()
    genuine = Responder(host).second(handshake.first)
    assert handshake.verify_key(genuine) == host.public_key
    for index in range(len(genuine)):
        fresh = Handshake()
        altered = bytearray(Responder(host).second(fresh.first))
        altered[index] ^= 1
        assert fresh.verify_key(bytes(altered)) is None, index
    # What was recorded elsewhere, or signs another key, proves nothing.
    assert Handshake().verify_key(genuine) is None
    for signed in (b"noise-libp2p-static-key:" + bytes(32), bytes(32)):
        fresh = Handshake()
        assert fresh.verify_key(Responder(host, signed).second(fresh.first)) is None
    for junk in (b"", bytes(32), bytes(96), os.urandom(200)):
        assert Handshake().verify_key(junk) is None


def test_only_a_key_and_a_signature_of_the_known_kind_prove_anything() -> None:
    class Other(Responder):
        at = -1

        def payload(self) -> bytes:
            payload = bytearray(super().payload())
            payload[self.at] ^= 1
            return bytes(payload)

    host = Identity.generate()
    for Other.at in range(6 + 32 + 2 + 64):  # of the key's kind, the key, the length, the signature
        fresh = Handshake()
        assert fresh.verify_key(Other(host).second(fresh.first)) is None, Other.at


def test_an_address_without_a_way_there_refuses_nothing() -> None:
    """No route leads to the broadcast address. A closed port refuses."""
    node = Identity.generate().peer_id
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        assert asyncio.run(knock("127.0.0.1", port, node)) == "refused"
    assert asyncio.run(knock("255.255.255.255", port, node)) == "timeout"
