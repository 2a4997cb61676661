"""Who may speak to the DHT: the swarm's secret, once, and now. hivemind itself is not needed."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from swarm_node.p2p.transports.hivemind import records
from swarm_node.p2p.transports.hivemind.records import (
    MAX_CLOCK_SKEW_SECONDS,
    OVERLAP_SECONDS,
    SwarmAuthorizer,
)

NOW = 1_000_000.0
SWARM_ID, SECRET, NEXT = b"i" * 32, b"s" * 32, b"n" * 32


def _message() -> type[Any]:
    """A message with what hivemind's requests and responses carry for an authorizer."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="test_records_authorizer.proto", package="test")
    auth = file.message_type.add(name="Auth")
    for number, (name, kind) in enumerate(
        [("time", field.TYPE_DOUBLE), ("nonce", field.TYPE_BYTES), ("signature", field.TYPE_BYTES)]
    ):
        auth.field.add(name=name, number=number + 1, type=kind, label=field.LABEL_OPTIONAL)
    message = file.message_type.add(name="Message")
    message.field.add(
        name="auth", number=1, type=field.TYPE_MESSAGE, type_name=".test.Auth", label=1
    )
    message.field.add(name="text", number=2, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Message"))


Message = _message()


class World:
    """Two authorizers of one swarm, and a clock to turn."""

    def __init__(self) -> None:
        self.now = NOW
        self.asks, self.answers = (
            SwarmAuthorizer(SECRET, SWARM_ID, lambda: self.now) for _ in range(2)
        )

    def request(self, text: bytes = b"ping", by: SwarmAuthorizer | None = None) -> Any:
        request = Message(text=text)
        asyncio.run((by or self.asks).sign_request(request, None))
        return request

    def accepted(self, request: Any) -> bool:
        return asyncio.run(self.answers.validate_request(request))

    def response(self, request: Any) -> Any:
        response = Message(text=b"pong")
        asyncio.run(self.answers.sign_response(response, request))
        return response

    def believed(self, response: Any, request: Any) -> bool:
        return asyncio.run(self.asks.validate_response(response, request))


def test_a_request_is_accepted_once() -> None:
    world = World()
    request = world.request()
    assert world.accepted(request)
    assert not world.accepted(request)
    assert world.accepted(world.request())


@pytest.mark.parametrize(("secret", "swarm_id"), [(NEXT, SWARM_ID), (SECRET, b"j" * 32)])
def test_who_does_not_know_this_swarms_secret_is_refused(secret: bytes, swarm_id: bytes) -> None:
    world = World()
    stranger = SwarmAuthorizer(secret, swarm_id, lambda: NOW)
    assert not world.accepted(world.request(by=stranger))


def test_a_changed_request_is_refused() -> None:
    for change in ({"text": b"pong"}, {"time": NOW + 1}, {"nonce": b"n" * 16}, {"signature": b""}):
        world = World()
        request = world.request()
        for name, value in change.items():
            setattr(request if name == "text" else request.auth, name, value)
        assert not world.accepted(request)
    assert world.accepted(world.request())


@pytest.mark.parametrize(
    ("ahead", "accepted"),
    [
        *((seconds, True) for seconds in (59.0, -59.0)),
        *((seconds, False) for seconds in (60.0, -60.0, math.nan, math.inf)),
    ],
)
def test_a_request_is_of_now(ahead: float, accepted: bool) -> None:
    world = World()
    early = SwarmAuthorizer(SECRET, SWARM_ID, lambda: NOW + ahead)
    assert world.accepted(world.request(by=early)) == accepted


def test_a_request_is_refused_again_for_as_long_as_it_could_count() -> None:
    world = World()
    world.now -= MAX_CLOCK_SKEW_SECONDS - 1
    ahead = SwarmAuthorizer(SECRET, SWARM_ID, lambda: NOW)
    request = world.request(by=ahead)
    assert world.accepted(request)
    world.now = NOW + MAX_CLOCK_SKEW_SECONDS - 1
    assert not world.accepted(request)
    world.now += 3
    assert world.accepted(world.request())
    assert len(world.answers._nonces) == 1


def test_nonces_have_one_length_and_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_MAX_NONCES", 3)
    world = World()
    for length in (0, 15, 17):
        short = world.request()
        short.auth.nonce = bytes(length)
        short.auth.signature = records._mac(short, world.asks._key)
        assert not world.accepted(short)
    requests = [world.request() for _ in range(5)]
    assert all(world.accepted(request) for request in requests)
    assert len(world.answers._nonces) == 3
    assert not world.accepted(requests[-1])


def test_an_answer_is_of_its_request_and_of_who_knows_the_secret() -> None:
    world = World()
    request, other = world.request(), world.request()
    response = world.response(request)
    assert world.believed(response, request)
    assert not world.believed(response, other)
    response.text = b"changed"
    assert not world.believed(response, request)
    forged = world.response(request)
    forged.auth.signature = records._mac(forged, b"k" * 32)
    assert not world.believed(forged, request)
    request.auth.signature = b""
    assert not world.believed(world.response(request), request)


def test_a_replaced_secret_counts_for_a_while() -> None:
    world = World()
    world.answers.use(NEXT)
    old = world.request()
    assert world.accepted(old)
    assert world.believed(world.response(old), old)
    world.answers.use(NEXT)  # told twice: the one before it still counts
    assert world.accepted(world.request())
    world.now += OVERLAP_SECONDS
    assert not world.accepted(world.request())
    world.asks.use(NEXT)
    request = world.request()
    assert world.accepted(request)
    assert world.believed(world.response(request), request)
