"""What a relay, an asker or a target can do with a sealed request and its reply."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from swarm_keys import Swarm

from swarm_node.clock import Clock
from swarm_node.durable import Journal
from swarm_node.errors import OversizeError, Rejected, TransportError
from swarm_node.p2p.limits.admission import Severed
from swarm_node.p2p.reach.relayed import (
    _NONCES,
    JOURNAL_BYTES,
    MAX_PAYLOAD_BYTES,
    PASSED_AT_ONCE,
    PER_ASKER,
    REPLY_ROOM,
    Replays,
    Request,
    Target,
    open_reply,
    open_request,
    request_to,
    seal_reply,
    seal_request,
)
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.frames import Reply
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import PROBE_FOR
from swarm_node.p2p.wire.transport import MAX_REPLY_BYTES, MAX_REQUEST_BYTES

SWARM = bytes([7]) * 32
ASKER, TARGET, THIRD = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2, 3))
WHO = "/swarm-node/who/1"
NOW = 1_800_000_000.0


def request(number: int = 0, **changes: Any) -> Request:
    body = request_to(TARGET.peer_id, WHO, b"x", 100, nonce=number.to_bytes(16, "big"), wall=NOW)
    return structs.replace(body, **changes)


def test_the_largest_request_and_reply_fit_their_limits() -> None:
    nonce = bytes(16)
    body = request_to(
        *(TARGET.peer_id, "/swarm-node/" + "p" * 24 + "/999", bytes(MAX_PAYLOAD_BYTES)),
        *(MAX_REPLY_BYTES,),
        nonce=nonce,
        wall=NOW,
    )
    assert len(seal_request(ASKER, SWARM, body)) <= MAX_REQUEST_BYTES
    reply = Reply(bytes(body.most))
    assert body.most == MAX_REPLY_BYTES - REPLY_ROOM
    assert len(seal_reply(TARGET, SWARM, body, reply)) <= MAX_REPLY_BYTES
    with pytest.raises(TransportError, match="the limit"):
        request_to(TARGET.peer_id, WHO, bytes(MAX_PAYLOAD_BYTES + 1), 1, nonce=nonce, wall=NOW)


def test_what_no_relay_carries_is_an_error_of_the_network() -> None:
    """The asker counts it as a failed request. A ValueError would end what asks."""
    for protocol in (PROBE_FOR, "/swarm-node/" + "p" * 25 + "/1"):
        with pytest.raises(TransportError, match="needs a link"):
            request_to(TARGET.peer_id, protocol, b"", 100, nonce=bytes(16), wall=NOW)


def test_a_sealed_request_of_another_form_is_refused() -> None:
    """The published vectors have the other reasons."""
    refused = open_request(seal(ASKER, SWARM, Kind.RELAY, b"junk"), SWARM)
    assert refused.reason == "schema"


@given(st.binary(max_size=400), st.integers(0, 600), st.integers(0, 255))
def test_no_changed_byte_of_a_request_or_reply_passes(junk: bytes, at: int, byte: int) -> None:
    body = request()
    whole = seal_request(ASKER, SWARM, body)
    place = at % len(whole)
    changed = whole[:place] + bytes([byte]) + whole[place + 1 :]
    assert changed == whole or isinstance(open_request(changed, SWARM), Rejected)
    assert isinstance(open_request(junk, SWARM), Rejected)
    reply = seal_reply(TARGET, SWARM, body, Reply(b"the reply"))
    place = at % len(reply)
    changed = reply[:place] + bytes([byte]) + reply[place + 1 :]
    assert changed == reply or isinstance(
        open_reply(changed, SWARM, TARGET.peer_id, body), Rejected
    )
    assert isinstance(open_reply(junk, SWARM, TARGET.peer_id, body), Rejected)


def test_a_reply_over_the_askers_limit_is_stated_and_not_sent() -> None:
    body = request(most=10)
    reply = seal_reply(TARGET, SWARM, body, Reply(bytes(11)))
    assert len(reply) <= REPLY_ROOM
    with pytest.raises(OversizeError):
        open_reply(reply, SWARM, TARGET.peer_id, body)
    # A refusal may be longer than the reply that is asked for.
    long = seal_reply(TARGET, SWARM, body, Reply.refusal("r" * 200))
    assert open_reply(long, SWARM, TARGET.peer_id, body) == Reply.refusal("r" * 200)


def reasons(*outcomes: Rejected | None) -> list[str]:
    return [outcome.reason if outcome else "" for outcome in outcomes]


def test_a_request_is_answered_once_and_in_its_time() -> None:
    replays = Replays()

    def seen(body: Request, wall: float = NOW, asker: str = "asker", member: bool = True) -> Any:
        return replays.admit_request(asker, member, body, wall)

    assert reasons(seen(request(1)), seen(request(1)), seen(request(2))) == ["", "duplicate", ""]
    assert reasons(seen(request(1), asker="another")) == [""]
    assert reasons(seen(request(3), NOW + 301), seen(request(4), NOW - 301)) == [
        "outdated",
        "not_yet_valid",
    ]
    assert reasons(seen(request(3), NOW + 300), seen(request(4), NOW - 300)) == ["", ""]
    assert reasons(*(seen(request(5), asker=a, member=False) for a in "ab")) == ["", "duplicate"]


@given(st.randoms(use_true_random=False), st.integers(0, 50))
def test_nothing_is_answered_twice_however_late_it_is_replayed(
    rng: random.Random, spread: int
) -> None:
    replays, answered = Replays(), set()
    issued = [
        request(number, issued_ms=int(NOW * 1000) + number + rng.randrange(spread + 1))
        for number in range(2 * _NONCES)
    ]
    for body in [*issued, *issued]:
        if replays.admit_request("asker", True, body, NOW) is None:
            assert body.nonce not in answered
            answered.add(body.nonce)
    # In order, as one asker sends them, all are answered.
    assert spread or len(answered) == len(issued)


class World:
    """The target's end, with a handler that says who asks."""

    def __init__(self) -> None:
        swarm = Swarm()
        self.target, self.asker, self.relay = (swarm.member(n).identity for n in (1, 2, 3))
        self.now = float(swarm.begin)
        self.members = {self.asker.peer_id, self.relay.peer_id}
        self.severed = Severed(lambda: 0.0)
        self.refused: list[tuple[str, str]] = []
        self.came_by: list[tuple[str, str]] = []
        self.running = self.most = 0
        self.numbers = iter(range(1_000_000))
        self.end = self.started()

    def started(self, journal: Journal | None = None) -> Target:
        return Target(
            self.target,
            SWARM,
            {WHO: self._who},
            is_member=self.members.__contains__,
            severed_peers=self.severed,
            refuse=lambda peer, why: self.refused.append((peer, why.reason)),
            came_by=lambda asker, relay: self.came_by.append((asker, relay)),
            clock=Clock(now=lambda: self.now, wall=lambda: self.now),
            journal=journal,
        )

    async def _who(self, caller: str, payload: bytes) -> bytes:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if payload == b"no":
            raise TransportError("not for you")
        return caller.encode()

    def body(
        self, payload: bytes = b"", protocol: str = WHO, to: Identity | None = None
    ) -> Request:
        return request_to(
            *((to or self.target).peer_id, protocol, payload, 1000),
            nonce=next(self.numbers).to_bytes(16, "big"),
            wall=self.now,
        )

    async def ask(self, body: Request, asker: Identity | None = None) -> Reply | Rejected:
        sealed = seal_request(asker or self.asker, SWARM, body)
        raw = await self.end.answer(self.relay.peer_id, sealed)
        return open_reply(raw, SWARM, self.target.peer_id, body)


async def test_the_handler_gets_the_asker_and_not_the_relay() -> None:
    world = World()
    assert await world.ask(world.body()) == Reply(world.asker.peer_id.encode())
    assert world.came_by == [(world.asker.peer_id, world.relay.peer_id)]
    refused = await world.ask(world.body(b"no"))
    assert refused == Reply.refusal("not for you")
    unserved = await world.ask(world.body(protocol="/swarm-node/other/1"))
    assert isinstance(unserved, Reply)
    assert unserved.is_refusal
    # Whoever holds no certificate yet may greet; the handler decides. It is no way back.
    stranger = Identity.generate()
    assert await world.ask(world.body(), stranger) == Reply(stranger.peer_id.encode())
    assert stranger.peer_id not in dict(world.came_by)


async def test_a_relay_is_blamed_for_what_it_should_not_have_passed_on() -> None:
    world = World()
    good = seal_request(world.asker, SWARM, world.body())
    another = seal_request(world.asker, SWARM, world.body(to=THIRD))
    for sealed, reason in (
        (good[:-1] + b"x", "signature"),
        (b"junk", "schema"),
        (another, "route"),
    ):
        with pytest.raises(TransportError, match=reason):
            await world.end.answer(world.relay.peer_id, sealed)
    assert world.refused == [
        (world.relay.peer_id, reason) for reason in ("signature", "schema", "route")
    ]


async def test_a_relay_is_not_blamed_for_its_askers() -> None:
    world = World()
    asked = seal_request(world.asker, SWARM, world.body())
    await world.end.answer(world.relay.peer_id, asked)
    with pytest.raises(TransportError, match="duplicate"):
        await world.end.answer(world.relay.peer_id, asked)
    late = world.body()
    world.now += 400
    with pytest.raises(TransportError, match="outdated"):
        await world.ask(late)
    world.severed.sever(world.asker.peer_id, 60.0)
    with pytest.raises(TransportError, match="broke"):
        await world.ask(world.body())
    assert world.refused == []


async def test_no_request_is_answered_a_second_time_after_a_restart(tmp_path: Path) -> None:
    world = World()
    place = tmp_path / "answered"

    relay, stranger = world.relay.peer_id, Identity.generate()
    world.end = world.started(Journal(place, JOURNAL_BYTES))
    asked = [seal_request(end, SWARM, world.body()) for end in (world.asker, stranger)]
    for sealed in asked:
        await world.end.answer(relay, sealed)
    with place.open("ab") as file:
        file.write(b"a power cut ended this li")
    world.end = world.started(Journal(place, JOURNAL_BYTES))
    for sealed in asked:
        with pytest.raises(TransportError, match="duplicate"):
            await world.end.answer(relay, sealed)
    # What was on its way, from an asker whose clock is late, is answered.
    late = structs.replace(world.body(), issued_ms=int((world.now - 290) * 1000))
    assert await world.ask(late) == Reply(world.asker.peer_id.encode())


async def test_a_full_disk_keeps_nobody_from_being_answered(tmp_path: Path) -> None:
    world = World()
    world.end = world.started(Journal(tmp_path / "gone" / "answered", JOURNAL_BYTES))
    assert await world.ask(world.body()) == Reply(world.asker.peer_id.encode())
    assert await world.ask(world.body()) == Reply(world.asker.peer_id.encode())


async def test_only_members_relay() -> None:
    world = World()
    world.members.discard(world.relay.peer_id)
    with pytest.raises(TransportError, match="say hello"):
        await world.ask(world.body())
    assert world.came_by == []


async def test_one_asker_runs_no_more_at_once_than_over_a_link_of_its_own() -> None:
    world = World()
    replies = await asyncio.gather(*(world.ask(world.body()) for _ in range(3 * PER_ASKER)))
    assert all(reply == Reply(world.asker.peer_id.encode()) for reply in replies)
    assert world.most == PER_ASKER
    # What is over its queue is refused by the target itself, and not for want of a relay.
    outcomes = await asyncio.gather(*(world.ask(world.body()) for _ in range(80)))
    busy = [reply for reply in outcomes if isinstance(reply, Reply) and reply.is_refusal]
    assert len(busy) == 80 - 64 - PER_ASKER


@pytest.mark.slow(reason="hundreds of signed requests")
async def test_a_relay_that_invents_askers_is_cut_off() -> None:
    world = World()
    """Neither their signatures nor their budgets stop them, because keys cost nothing."""

    fair = int(2 * PASSED_AT_ONCE)
    for number in range(fair + 1):
        asker = Identity.from_seed((1000 + number).to_bytes(32, "big"))
        assert world.refused == []
        with contextlib.suppress(TransportError):
            await world.ask(world.body(), asker)
    assert world.refused == [(world.relay.peer_id, "flood")]
    world.now += 1.0
    assert await world.ask(world.body()) == Reply(world.asker.peer_id.encode())
