"""What members and coordinators sign, and the URL of a coordinator in a ticket."""

from __future__ import annotations

import hashlib
import re

import pytest
from swarm_keys import DAY, Swarm

from swarm_node.p2p.addresses.addresses import coordinator_address, coordinator_url, parse_address
from swarm_node.p2p.coordinator.coordination import (
    MAX_BATCH_BYTES,
    MAX_CALL_BYTES,
    MAX_REASONS,
    MAX_REPORT_BYTES,
    MAX_REPORTED_FAMILIES,
    MAX_REPORTED_PEERS,
    MAX_TARGET_CHARS,
    Call,
    PeerCounts,
    Report,
    Shown,
    SignedBatch,
    follow,
    next_batch,
    open_batch,
    open_call,
    open_report,
    show_call,
)
from swarm_node.p2p.membership.ticket import make_ticket, parse_ticket
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.reasons import REASONS
from swarm_node.p2p.wire.wire import pack
from swarm_node.simulation.seeded import EPOCH

SWARM = Swarm()
ID = SWARM.info.swarm_id
KEY = Identity.from_seed(b"k" * 32)
_COUNT, _LABEL = 2**62 - 1, "x" * 64


def _longest_report() -> Report:
    reasons = tuple((max(REASONS, key=len), _COUNT) for _ in range(MAX_REASONS))
    return Report(
        v=1,
        issued_ms=2**53 - 1,
        agent="x" * 24,
        model=_LABEL,
        reach=_LABEL,
        version=_COUNT,
        steps=_COUNT,
        sampled=_COUNT,
        sent=_COUNT,
        accepted=_COUNT,
        trained_local=_COUNT,
        trained_external=_COUNT,
        eval_reward=tuple((_LABEL, 0.123456789) for _ in range(MAX_REPORTED_FAMILIES)),
        peers=tuple(PeerCounts(bytes(32), _COUNT, reasons) for _ in range(MAX_REPORTED_PEERS)),
    )


def _batches(count: int, content: bytes = b"c", key: Identity = KEY) -> list[SignedBatch]:
    made: list[SignedBatch] = []
    for _ in range(count):
        items = [hashlib.sha256(content).digest()]
        raw = next_batch(key, ID, made[-1] if made else None, items, EPOCH * 1000)
        assert len(raw) <= MAX_BATCH_BYTES
        batch = open_batch(raw, ID)
        assert isinstance(batch, SignedBatch)
        made.append(batch)
    return made


def test_the_longest_call_fits_and_is_opened_as_it_was_shown() -> None:
    member = SWARM.member(1)
    call = Call(1, "DELETEX", "/" * MAX_TARGET_CHARS, 2**53 - 1, b"n" * 16, b"d" * 32)
    shown = show_call(member.identity, ID, member.chain, call)
    opened = open_call(shown, ID)
    assert (opened.body, opened.chain, opened.author) == (
        call,
        member.chain,
        member.identity.peer_id,
    )
    assert len(opened.raw) <= MAX_CALL_BYTES


def test_what_is_no_call_is_refused() -> None:
    member = SWARM.member(1)
    call = Call(1, "GET", "/", 0, bytes(16), bytes(32))
    for shown, reason in (
        (b"\xc1", "schema"),
        (show_call(member.identity, b"o" * 32, member.chain, call), "signature"),
        (pack(Shown(seal(KEY, ID, Kind.CALL, b"\x90"), *member.chain)), "schema"),
    ):
        refused = open_call(shown, ID)
        assert refused.reason == reason
    with pytest.raises(ValueError, match="bounds"):
        pack(Shown(bytes(MAX_CALL_BYTES + 1), *member.chain))


def test_a_report_with_everything_in_it_fits() -> None:
    report = _longest_report()
    sealed = seal(KEY, ID, Kind.REPORT, pack(report))
    assert len(sealed) <= MAX_REPORT_BYTES
    opened = open_report(sealed, ID)
    assert opened.body == report


def test_a_trail_of_batches_is_followed_from_any_of_them() -> None:
    trail = _batches(5)
    assert follow(None, trail) == (trail[4], "")
    assert follow(trail[2], trail[2:]) == (trail[4], "")
    assert follow(trail[4], trail[4:]) == (trail[4], "")
    assert follow(trail[4], []) == (trail[4], "")


def test_a_fork_a_step_back_and_another_key_are_found_and_the_old_batch_stays() -> None:
    trail = _batches(5)
    forked = _batches(5, content=b"other")
    for shown, word in (
        (forked[3:], "two batches have the number 4"),
        (trail[:1], "went back"),
        ([trail[3], forked[4]], "batch 5 does not continue batch 4"),
        (_batches(4, key=Identity.from_seed(b"o" * 32))[3:], "another key"),
    ):
        held, fault = follow(trail[3], shown)
        assert word in fault
        assert held == trail[3]


def test_missing_batches_are_told_and_a_new_trail_begins() -> None:
    trail = _batches(5)
    held, fault = follow(trail[0], trail[3:])
    assert re.fullmatch(r"batches 2 \w+ 3 .*", fault)
    assert held == trail[4]


@pytest.mark.parametrize(
    ("url", "address", "back"),
    [
        ("https://swarm.example", "/dns/swarm.example/tcp/443/https", "https://swarm.example:443"),
        ("https://a.b:8470/", "/dns/a.b/tcp/8470/https", "https://a.b:8470"),
        ("http://127.0.0.1:8470", "/ip4/127.0.0.1/tcp/8470/http", "http://127.0.0.1:8470"),
        ("http://[fd00::1]:80", "/ip6/fd00::1/tcp/80/http", "http://[fd00::1]:80"),
    ],
)
def test_a_url_becomes_an_address_of_a_ticket_and_back(url: str, address: str, back: str) -> None:
    assert coordinator_address(url) == address
    assert coordinator_url(address) == back
    assert parse_address(address) is None, "no peer is dialled there"
    text = make_ticket(
        SWARM.root.key,
        SWARM.info,
        ["/ip4/192.0.2.1/tcp/1/p2p/x", address],
        now=EPOCH,
        valid_seconds=DAY,
        member_seconds=DAY,
    )
    ticket = parse_ticket(text, EPOCH)
    assert ticket.peers == ["/ip4/192.0.2.1/tcp/1/p2p/x"]


@pytest.mark.parametrize(
    "url",
    [
        *("", "swarm.example", "ftp://a", "https://", "https://a/b", "https://u@a"),
        *("https://a:0x1", "https://a?b", "https://a..b", "https://[::1", "https://a:99999"),
        "https://" + "a" * 300,
    ],
)
def test_what_is_no_url_of_a_coordinator_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        coordinator_address(url)


@pytest.mark.parametrize(
    "address", ["/dns/a/tcp/0/http", "/dns/a/tcp/70000/http", "/dns/a/udp/1/http", "/dns/a/tcp/1"]
)
def test_other_addresses_are_no_coordinators(address: str) -> None:
    assert coordinator_url(address) is None
