"""What may enter the DHT and how it is kept; hivemind itself is not needed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import msgpack
import pytest
from builders import examples
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.p2p.addresses.addresses import parse_address, pin_ports
from swarm_node.p2p.transports.hivemind import records as hivemind_records
from swarm_node.p2p.transports.hivemind.records import (
    MAX_RECORDS,
    MAX_TTL_SECONDS,
    SAMPLE_RECORDS,
    HeartbeatRecords,
    HeartbeatStore,
)
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.wire import MAX_PRESENCE_BYTES

NOW = 1_000_000.0
KEY = b"k" * 20
ALICE = Identity.from_seed(b"a" * 32)
MALLORY = Identity.from_seed(b"m" * 32)


@dataclass(frozen=True)
class DhtRecord:
    key: bytes
    subkey: bytes
    value: bytes
    expiration_time: float


def wall() -> float:
    return NOW


def anybody(presence: bytes, peer_id: str) -> bool:
    return True


def unsigned(owner: Identity = ALICE, heartbeat: object = b"hello") -> DhtRecord:
    return DhtRecord(KEY, msgpack.packb(owner.peer_id), msgpack.packb(heartbeat), NOW + 60)


def signed(record: DhtRecord, signer: Identity = ALICE) -> DhtRecord:
    return replace(record, value=HeartbeatRecords(signer, KEY, wall, anybody).sign_value(record))


def accepted(record: DhtRecord) -> bool:
    return HeartbeatRecords(Identity.from_seed(b"b" * 32), KEY, wall, anybody).validate(record)


def test_a_signed_heartbeat_is_accepted_and_comes_back_unsigned() -> None:
    validator = HeartbeatRecords(ALICE, KEY, wall, anybody)
    record = signed(unsigned())
    assert accepted(record)
    assert validator.validate(record)
    assert validator.validate(record)
    assert msgpack.unpackb(validator.strip_value(record)) == b"hello"
    assert accepted(signed(unsigned(heartbeat=bytes(MAX_PRESENCE_BYTES))))


@pytest.mark.parametrize(
    "change",
    [
        {"key": b"x" * 20},
        {"subkey": msgpack.packb(MALLORY.peer_id)},
        {"expiration_time": NOW + 61},
        {"expiration_time": NOW + 59},
        {"value": signed(unsigned(heartbeat=b"other")).value[:64] + unsigned().value},
        {"value": b""},
        {"value": bytes(64)},
    ],
)
def test_a_changed_record_is_refused(change: dict[str, Any]) -> None:
    assert not accepted(replace(signed(unsigned()), **change))


def test_a_change_after_a_valid_record_is_refused_too() -> None:
    validator = HeartbeatRecords(ALICE, KEY, wall, anybody)
    record = signed(unsigned())
    assert validator.validate(record)
    assert not validator.validate(replace(record, expiration_time=NOW + 3600))


@pytest.mark.parametrize("heartbeat", ["text", None, 7, {}, [b"x"], bytes(MAX_PRESENCE_BYTES + 1)])
def test_values_that_are_no_heartbeat_are_refused_even_from_their_owner(heartbeat: object) -> None:
    assert not accepted(signed(unsigned(heartbeat=heartbeat)))


@pytest.mark.parametrize(
    "change",
    [
        {"key": b"x" * 20},  # of another dictionary
        *({"expiration_time": t} for t in (math.nan, math.inf, -math.inf, 10)),
        {"expiration_time": NOW + MAX_TTL_SECONDS + 1},
        {"subkey": msgpack.packb(ALICE.peer_id + " ")},  # a peer has one alone
        {"subkey": msgpack.packb(ALICE.peer_id.encode())},
        {"subkey": b"\xda\x00" + msgpack.packb(ALICE.peer_id)[1:]},
        {"subkey": msgpack.packb(None)},
        {"subkey": b""},
    ],
)
def test_other_keys_and_unbounded_lifetimes_are_refused_even_from_their_owner(
    change: dict[str, Any],
) -> None:
    assert not accepted(signed(replace(unsigned(), **change)))


@examples(300)
@given(subkey=st.binary(max_size=90), value=st.binary(max_size=700), expires=st.floats())
def test_validation_never_raises(subkey: bytes, value: bytes, expires: float) -> None:
    assert not accepted(DhtRecord(KEY, subkey, value, expires))
    owner = msgpack.packb(ALICE.peer_id)
    assert not accepted(DhtRecord(KEY, owner, value, NOW))
    HeartbeatRecords(ALICE, KEY, wall, anybody).validate(signed(DhtRecord(KEY, subkey, value, NOW)))


def test_a_record_without_a_chain_for_its_owner_is_refused() -> None:
    asked: list[tuple[bytes, str]] = []

    def nobody(presence: bytes, peer_id: str) -> bool:
        asked.append((presence, peer_id))
        return False

    record = signed(unsigned())
    assert not HeartbeatRecords(MALLORY, KEY, wall, nobody).validate(record)
    assert asked == [(b"hello", ALICE.peer_id)]


def test_memory_of_verified_records_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hivemind_records, "_MAX_VERIFIED", 3)
    validator = HeartbeatRecords(ALICE, KEY, wall, anybody)
    for number in range(6):
        assert validator.validate(signed(unsigned(heartbeat=bytes([number]))))
    assert len(validator._verified_digests) == 3


class World:
    """A store with a clock to turn; its dictionary value is a plain list."""

    def __init__(self) -> None:
        self.now = NOW
        self.members = {"alice", "bob", "carol", "mallory"}
        self.asked = 0
        self.issuers: dict[str, str] = {}
        self.store = HeartbeatStore(
            7,
            lambda: self.now,
            lambda records: records,
            self._is_member,
            lambda peer: self.issuers.get(peer, "one"),
            random.Random(0),
        )

    def _is_member(self, peer_id: str) -> bool:
        self.asked += 1
        return peer_id in self.members

    def held(self) -> dict[str, bytes]:
        self.store._forget_expired()
        return {peer: value for peer, (value, *_) in self.store._records.items()}

    def found(self) -> list[str]:
        return [peer for peer, *_ in self.store.get(7) or []]


def test_an_older_record_never_shortens_the_life_of_a_newer_one() -> None:
    world = World()
    assert world.store.store_subkey(7, "alice", b"new", NOW + 60)
    assert world.store.store_subkey(7, "alice", b"old", NOW + 2)
    world.now = NOW + 59
    assert world.held() == {"alice": b"new"}
    world.now = NOW + 60
    assert world.held() == {}
    assert world.store.get(7) is None
    assert 7 not in world.store


def test_store_holds_one_key_and_dictionaries_only() -> None:
    world = World()
    assert not world.store.store(7, b"plain", NOW + 60)
    assert not world.store.store(8, b"x", NOW + 60, subkey="alice")
    assert world.store.get(8) is None
    assert world.store.store(7, b"x", NOW + 60, subkey="alice")
    assert world.found() == ["alice"]
    assert list(world.store.items()) == []  # nothing for who enters hivemind's table
    assert world.store.get(8) is None


@pytest.mark.slow(reason="stores 12,000 records")
def test_a_full_store_keeps_a_sample_that_neither_order_nor_repetition_changes() -> None:
    names = [f"peer {number}" for number in range(5000)]
    one, other = World(), World()
    one.members.update(names)
    other.members.update(names)
    other.store._salt = one.store._salt
    for name in names:
        assert one.store.store_subkey(7, name, b"1", NOW + 60)
    for name in [*reversed(names), *names[:2000]]:
        assert other.store.store_subkey(7, name, b"1", NOW + 60)
    assert one.held() == other.held()
    assert len(one.held()) == MAX_RECORDS


def test_keys_of_one_issuer_displace_no_records_of_others_and_a_sample_has_all_issuers() -> None:
    world = World()
    flood = [f"flood {number}" for number in range(1000)]
    honest = [f"honest {number}" for number in range(8)]
    world.members.update(flood, honest)
    world.issuers = {peer: "thief" for peer in flood} | {peer: peer for peer in honest[:3]}
    for name in [*honest, *flood]:
        assert world.store.store_subkey(7, name, b"1", NOW + 60)
    assert set(honest) <= world.held().keys()
    for _ in range(20):
        found = world.found()
        assert len(found) == SAMPLE_RECORDS
        assert sum(name in flood for name in found) <= 1


@pytest.mark.slow(reason="fills a table some hundred times")
def test_members_that_come_after_a_flood_are_found_as_often_as_others() -> None:
    found = 0
    for _ in range(8):  # holders
        world = World()
        world.members.update(f"flood {number}" for number in range(5000))
        world.members.update(f"late {number}" for number in range(500))
        for number in range(5000):
            world.store.store_subkey(7, f"flood {number}", b"1", NOW + 3000)
        for number in range(500):
            world.store.store_subkey(7, f"late {number}", b"1", NOW + 60)
        found += sum(name.startswith("late") for name in world.held())
    expected = 8 * MAX_RECORDS * 500 / 5500
    assert 0.6 * expected < found < 1.4 * expected


def test_expired_records_make_room_first_and_only_readers_pay_for_asking_who_is_a_member() -> None:
    world = World()
    names = [f"peer {number}" for number in range(MAX_RECORDS)]
    world.members.update(names)
    world.members.update(["late", "later"])
    for name in names:
        assert world.store.store_subkey(7, name, b"1", NOW + (60 if name == names[0] else 90))
    world.now = NOW + 60
    world.asked = 0
    assert world.store.store_subkey(7, "late", b"1", NOW + 90)
    assert world.asked == 1
    assert set(world.held()) == {*names[1:], "late"}
    assert world.store.store_subkey(7, "later", b"1", NOW + 90)
    assert len(world.held()) == MAX_RECORDS


def test_store_lets_go_of_who_is_no_member_any_more() -> None:
    world = World()
    assert world.store.store_subkey(7, "alice", b"1", NOW + 60)
    assert world.store.store_subkey(7, "bob", b"1", NOW + 60)
    world.members.remove("bob")
    assert world.held() == {"alice": b"1"}
    assert world.store.store_subkey(7, "bob", b"2", NOW + 90)  # hivemind goes on copying
    assert world.held() == {"alice": b"1"}


def test_a_full_dictionary_fits_one_message_of_hivemind() -> None:
    value = bytes(64) + msgpack.packb(bytes(MAX_PRESENCE_BYTES))
    entry = [msgpack.packb(ALICE.peer_id), value, NOW]
    assert hivemind_records.MAX_RECORDS * len(msgpack.packb(entry)) < 4 << 20


PEER = ALICE.peer_id


@examples(200)
@given(text=st.text(alphabet="/ip46tcdns.:0189-\n", max_size=60))
def test_parsing_addresses_never_raises(text: str) -> None:
    assert parse_address(text) is None
    parse_address(f"{text}/p2p/{PEER}")


def test_a_restart_keeps_the_ports_that_others_know() -> None:
    known = [f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}", f"/ip4/10.0.0.1/tcp/4001/p2p/{PEER}"]
    listen = ["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0", "/ip4/127.0.0.1/tcp/99"]
    assert pin_ports(listen, known) == ["/ip4/0.0.0.0/tcp/4001", *listen[1:]]
    two_ports = [*known, f"/ip4/127.0.0.1/tcp/5000/p2p/{PEER}"]
    assert pin_ports(listen, two_ports) == listen
    assert pin_ports(listen, []) == listen
