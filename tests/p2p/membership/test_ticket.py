"""Join tickets: what pasting does to them, what is refused and why, and what redeeming yields."""

import base64
import hashlib
import struct

import msgpack
import pytest
from swarm_keys import verify_chain

from swarm_node.errors import TicketError
from swarm_node.p2p.membership.membership import (
    CLOCK_SKEW_SECONDS,
    MemberBody,
    create_swarm,
)
from swarm_node.p2p.membership.ticket import (
    MAX_TICKET_CHARS,
    PREFIX,
    make_ticket,
    parse_ticket,
    redeem,
)
from swarm_node.p2p.wire.identity import Identity

ROOT = Identity.from_seed(b"r" * 32)
ISSUER = Identity.from_seed(b"i" * 32)
NODE = Identity.from_seed(b"n" * 32)
OTHER = Identity.from_seed(b"o" * 32)
SECRET = bytes(range(100, 132))
SWARM = create_swarm("night shift", ROOT, SECRET)
ADDRESSES = ("/ip4/192.0.2.1/tcp/4001/p2p/" + ROOT.peer_id, "/ip4/192.0.2.2/tcp/4001")
HOUR, DAY = 3600, 86_400
T0 = 1_800_000_000


def ticket_text(addresses: tuple[str, ...] = ADDRESSES) -> str:
    return make_ticket(
        ROOT,
        SWARM,
        addresses,
        now=T0 + 0.7,
        valid_seconds=HOUR,
        member_seconds=30 * DAY,
        issuer=ISSUER,
    )


def fields() -> list[object]:
    raw = base64.urlsafe_b64decode(ticket_text().removeprefix(PREFIX) + "==")
    unpacked = msgpack.unpackb(raw[2:-8])
    assert isinstance(unpacked, list)
    return unpacked


def text_of(values: list[object]) -> str:
    body = msgpack.packb(values)
    checksum = hashlib.sha256(b"swarm-node/ticket/v1" + body).digest()[:8]
    raw = struct.pack(">H", len(body)) + body + checksum
    return PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def test_a_ticket_comes_back_and_admits_offline() -> None:
    ticket = parse_ticket(ticket_text(), T0 + 10)
    assert ticket.info == SWARM
    assert ticket.addresses == ADDRESSES
    assert ticket.expires == T0 + HOUR
    info, chain = redeem(ticket, NODE, T0 + 10.9)
    member = verify_chain(chain, info, NODE.public_key, T0 + 11)
    assert isinstance(member, MemberBody)
    assert (member.not_before, member.not_after) == (T0 + 10, T0 + 10 + 30 * DAY)


def test_an_independent_reader_finds_the_documented_fields() -> None:
    values = fields()
    assert text_of(values) == ticket_text()
    assert values[:3] == [1, "night shift", SWARM.swarm_id]
    assert values[3:7] == [ROOT.public_key, SECRET, list(ADDRESSES), T0 + HOUR]
    assert values[8] == b"i" * 32


def test_every_cut_is_recognised_as_a_cut() -> None:
    text = ticket_text()
    for length in range(len(PREFIX), len(text)):
        with pytest.raises(TicketError, match="cut short"):
            parse_ticket(text[:length], T0)


def test_every_changed_character_is_recognised() -> None:
    text = ticket_text()
    for position in range(len(PREFIX), len(text) - 1):
        replaced = "A" if text[position] != "A" else "B"
        with pytest.raises(TicketError, match=r"altered|cut"):
            parse_ticket(text[:position] + replaced + text[position + 1 :], T0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "join ticket"),
        ("hello", "join ticket"),
        ("swarmjoin2.abcd", "wire version"),
        (ticket_text().removeprefix("s"), "join ticket"),
        (ticket_text() + "!", "characters"),
        (ticket_text() + "é", "characters"),
        (ticket_text() + "AAAA", "altered"),
        (ticket_text() * 2, "characters"),
        ("x" * (MAX_TICKET_CHARS + 1), "too long"),
        (" " * (MAX_TICKET_CHARS + 1), "too long"),
    ],
)
def test_what_is_no_whole_ticket_is_refused_helpfully(text: str, message: str) -> None:
    with pytest.raises(TicketError, match=message):
        parse_ticket(text, T0)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, 2, "newer"),
        (2, bytes(32), "contradicts"),
        (3, b"\x01" + bytes(31), "unusable"),
        (5, ["javascript:alert(1)"], "malformed"),
        (6, T0 + DAY, "expiry"),
        (7, b"no certificate", "not sign"),
        (8, b"x" * 32, "no certificate"),
        (8, b"i" * 31, "malformed"),
        (8, b"i" * 33, "malformed"),
    ],
)
def test_a_ticket_that_does_not_fit_together_is_refused(
    position: int, value: object, message: str
) -> None:
    values = fields()
    values[position] = value
    with pytest.raises(TicketError, match=message):
        parse_ticket(text_of(values), T0)


def test_an_expired_ticket_says_when() -> None:
    ticket = parse_ticket(ticket_text(), T0 + HOUR)
    with pytest.raises(TicketError, match="2027-01-15 09:00 UTC"):
        parse_ticket(ticket_text(), T0 + HOUR + 0.1)
    with pytest.raises(TicketError, match=r"expired on"):
        redeem(ticket, NODE, T0 + HOUR + 0.1)


def test_a_clock_that_is_behind_is_named_as_the_cause() -> None:
    early = T0 - CLOCK_SKEW_SECONDS
    _, chain = redeem(parse_ticket(ticket_text(), early), NODE, early)
    assert isinstance(verify_chain(chain, SWARM, NODE.public_key, T0), MemberBody)
    with pytest.raises(TicketError, match="clock"):
        parse_ticket(ticket_text(), early - 1)


def test_no_text_form_or_message_shows_a_secret() -> None:
    ticket = parse_ticket(ticket_text(), T0)
    for text in (repr(ticket), str(ticket), f"{ticket}"):
        for secret in (SECRET, b"i" * 32):
            assert repr(secret)[2:-1] not in text
            assert secret.hex() not in text
    with pytest.raises(TicketError) as caught:
        parse_ticket(ticket_text()[:-9], T0)
    assert ticket_text()[20:40] not in str(caught.value)


def test_the_longest_ticket_is_short_enough() -> None:
    text = ticket_text(tuple("/" + "x" * 159 for _ in range(8)))
    assert len(text) <= MAX_TICKET_CHARS
    assert len(parse_ticket(text, T0).addresses) == 8


def test_each_ticket_has_its_own_issuer_key() -> None:
    texts = {
        make_ticket(ROOT, SWARM, (), now=T0, valid_seconds=HOUR, member_seconds=DAY)
        for _ in range(2)
    }
    keys = {parse_ticket(text, T0).issuer.issuer_key for text in texts}
    assert len(keys) == 2


def test_a_ticket_never_gives_the_root_key_away() -> None:
    with pytest.raises(ValueError, match="root key"):
        make_ticket(ROOT, SWARM, (), now=T0, valid_seconds=HOUR, member_seconds=DAY, issuer=ROOT)


@pytest.mark.parametrize("addresses", [("/a",) * 9, ("no slash",)])
def test_a_ticket_with_unusable_addresses_is_not_made(addresses: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="its bounds"):
        ticket_text(addresses)
