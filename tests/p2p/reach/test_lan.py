"""Members of one network hear each other's presences, and strangers' bytes are nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncGenerator

import pytest

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.p2p.reach.lan import DATAGRAM_BYTES, Lan, own_networks
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.wire import MAX_PRESENCE_BYTES

SWARM, SECRET = bytes(32), b"s" * 32
HOSTS = ("127.0.0.1",)
LONG = 60.0


@contextlib.asynccontextmanager
async def network(
    *secrets: bytes, swarm: bytes = SWARM
) -> AsyncGenerator[list[tuple[Identity, Lan]]]:
    """A node for each secret, on a group of their own."""
    port = random.randrange(40_000, 60_000)
    nodes = []
    for secret in secrets:
        identity = Identity.generate()
        nodes.append((identity, Lan(identity, swarm, secret, SYSTEM_CLOCK, port)))
    try:
        for identity, lan in nodes:  # each listens from its first announcement on
            await lan.announce(b"first of " + identity.public_key, HOSTS)
        yield nodes
    finally:
        for _, lan in nodes:
            lan.close()


async def heard(lan: Lan, presence: bytes) -> str:
    """The peer that announced `presence`, as soon as `lan` has heard it."""
    async with asyncio.timeout(20):
        while True:
            for peer, found in lan.heard_presences(LONG).items():
                if found == presence:
                    return peer
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("size", [1, MAX_PRESENCE_BYTES])
async def test_members_hear_each_other_and_not_themselves(size: int) -> None:
    async with network(SECRET, SECRET) as [(one, first), (_, second)]:
        presence = os.urandom(size)
        await first.announce(presence, HOSTS)
        assert await heard(second, presence) == one.peer_id
        assert one.peer_id not in first.heard_presences(LONG)
        assert second.heard_presences(-1.0) == {}


async def test_another_secret_or_swarm_is_not_understood() -> None:
    async with network(SECRET, b"t" * 32, SECRET) as [(_, one), (_, other), (_, third)]:
        await one.announce(b"sent last", HOSTS)
        await heard(third, b"sent last")
        assert other.heard_presences(LONG) == {}
    cipher = Lan(Identity.generate(), b"x" * 32, SECRET, SYSTEM_CLOCK)
    assert cipher._ciphers[0].encrypt(bytes(12), b"", None) != one._ciphers[0].encrypt(
        bytes(12), b"", None
    )


@pytest.mark.parametrize("told", [1, 2])
async def test_a_member_that_missed_a_new_secret_is_still_heard(told: int) -> None:
    async with network(SECRET, SECRET) as [(_, late), (_, early)]:
        for _ in range(told):
            early.use(b"new" * 11)
        await late.announce(b"old secret", HOSTS)
        await heard(early, b"old secret")
        await early.announce(b"new secret", HOSTS)
        late.use(b"new" * 11)
        await early.announce(b"again", HOSTS)
        await heard(late, b"again")
        assert b"new secret" not in late.heard_presences(LONG).values()


async def test_what_is_not_vouched_for_or_no_members_is_not_kept() -> None:
    async with network(SECRET, SECRET, SECRET) as [(good, one), (_, two), (_, judge)]:
        issued = {b"forged": -1, b"expelled": -1}
        judge.screen(lambda presence, peer: issued.get(presence, 1))
        await two.announce(b"expelled", HOSTS)
        await one.announce(b"forged", HOSTS)
        await one.announce(b"true", HOSTS)
        assert await heard(judge, b"true") == good.peer_id
        assert not {b"expelled", b"forged"} & set(judge.heard_presences(LONG).values())


async def test_junk_is_dropped_and_a_flood_costs_a_bounded_number_of_decryptions() -> None:
    async with network(SECRET, SECRET) as [_, (_, two)]:
        tried: list[int] = []
        cipher = two._ciphers[0]
        two._ciphers = [_Counting(cipher, tried)]  # type: ignore[list-item]
        for size in (0, 1, DATAGRAM_BYTES - 1, DATAGRAM_BYTES + 1, 9000):
            two.datagram_received(os.urandom(size), None)
        assert tried == []
        for _ in range(5000):
            two.datagram_received(os.urandom(DATAGRAM_BYTES), None)
        assert 0 < len(tried) < 1000
        assert len(two.heard_presences(LONG)) <= 1


class _Counting:
    def __init__(self, cipher: object, tried: list[int]) -> None:
        self._cipher, self._tried = cipher, tried

    def decrypt(self, nonce: bytes, sealed: bytes, extra: None) -> bytes:
        self._tried.append(len(sealed))
        return self._cipher.decrypt(nonce, sealed, extra)  # type: ignore[attr-defined, no-any-return]


async def test_a_network_that_is_not_there_is_left_out() -> None:
    async with network(SECRET, SECRET) as [(_, one), (_, two)]:
        await one.announce(b"reaches", ("192.0.2.1", *HOSTS))
        await heard(two, b"reaches")


async def test_strangers_see_random_bytes_of_one_length() -> None:
    async with network(SECRET, SECRET) as [(identity, one), (_, two)]:
        seen: list[bytes] = []
        take = two.datagram_received
        two.datagram_received = lambda data, addr: (seen.append(data), take(data, addr))[1]  # type: ignore[method-assign]
        for presence in (b"short", b"short", b"a long one" * 60):
            await one.announce(presence, HOSTS)
        await heard(two, b"a long one" * 60)
        assert {len(data) for data in seen} == {DATAGRAM_BYTES}
        assert len(set(seen)) == len(seen)
        everything = b"".join(seen)
        for told in (identity.public_key, SWARM, b"short", identity.peer_id.encode()):
            assert told not in everything


async def test_it_is_opened_again_after_a_close_and_a_network_after_a_fault() -> None:
    async with network(SECRET, SECRET) as [(_, one), (_, two)]:
        one.close()
        one.close()
        await one.announce(b"back", HOSTS)
        await heard(two, b"back")
        one._hosts.clear()  # as after an error of `sendto`: the kernel remembers
        await one.announce(b"again", HOSTS)
        await heard(two, b"again")


async def test_a_port_that_another_program_keeps_ends_no_node() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as kept:
        kept.bind(("239.192.83.78", 0))
        port = kept.getsockname()[1]
        lan = Lan(Identity.generate(), SWARM, SECRET, SYSTEM_CLOCK, port)
        await lan.announce(b"unsent", HOSTS)
    await lan.announce(b"sent", HOSTS)  # it tries again with the next heartbeat
    lan.close()


def test_networks_are_those_of_private_addresses_that_are_not_loopback() -> None:
    at = "/ip4/{}/tcp/31330/p2p/12D3KooW"
    hosts = ("127.0.0.1", "192.168.1.11", "10.1.2.3", "11.0.0.1", "192.168.1.11")
    addresses = [*map(at.format, hosts), "/ip6/fd00::1/tcp/1/p2p/x", "/memory/p2p/x"]
    assert own_networks(addresses) == ["10.1.2.3", "192.168.1.11"]


async def test_without_a_network_nothing_is_opened() -> None:
    lan = Lan(Identity.generate(), SWARM, SECRET, SYSTEM_CLOCK)
    await lan.announce(b"unsent", ())
    assert lan.heard_presences(LONG) == {}
    assert lan._socket is None
    assert lan._receiver is None


def sent(by: Lan, key: bytes, presence: bytes) -> bytes:
    """A datagram that who knows the secret sends under any key."""
    nonce = os.urandom(12)
    body = key + len(presence).to_bytes(2, "big") + presence
    return nonce + by._ciphers[0].encrypt(nonce, body.ljust(34 + MAX_PRESENCE_BYTES, b"\0"), None)


async def test_what_is_sent_again_replaces_nothing_newer() -> None:
    issued = {b"old": 1, b"new": 2, b"newer": 3}
    lan, key = Lan(Identity.generate(), SWARM, SECRET, SYSTEM_CLOCK), Identity.generate()
    lan.screen(lambda presence, peer: issued[presence])
    for presence, kept in ((b"new", b"new"), (b"old", b"new"), (b"newer", b"newer")):
        lan.datagram_received(sent(lan, key.public_key, presence), None)
        assert lan.heard_presences(LONG) == {key.peer_id: kept}
