"""Who is a member, asked at every edge: time, revocation, uses, presences and what is kept."""

from __future__ import annotations

import pytest
from swarm_keys import DAY, Swarm

from swarm_node.errors import HomeError, Rejected
from swarm_node.node.home.home import Membership
from swarm_node.p2p.membership import members as members_module
from swarm_node.p2p.membership.credentials import MemoryOffice
from swarm_node.p2p.membership.delegates import issue_renewal
from swarm_node.p2p.membership.members import Heard, Member, Members
from swarm_node.p2p.membership.membership import (
    CLOCK_SKEW_SECONDS,
    IssuerBody,
    SwarmInfo,
    verify_issuer,
)
from swarm_node.p2p.membership.statements import revocations
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.wire import Presence, pack

SWARM = Swarm()


class World:
    """A table of members, and a clock to turn."""

    def __init__(self, office: MemoryOffice | None = None) -> None:
        self.now = float(SWARM.begin)
        self.members = Members(SWARM.info, lambda: self.now, office)

    def why(self, answer: object) -> str:
        assert isinstance(answer, Rejected)
        return answer.reason


def test_a_member_is_known_by_name_issuer_and_end() -> None:
    world, anna = World(), SWARM.member(1, SWARM.issuer("Anna"), "Anna")
    member = world.members.admit(anna.chain, anna.identity.peer_id)
    assert isinstance(member, Member)
    assert (member.name, member.until) == ("Anna", SWARM.begin + 30 * DAY)
    assert member.admitted_by == SWARM.issuer("Anna").key.public_key
    assert world.members.issuer(anna.identity.peer_id) == member.admitted_by.hex()
    assert world.members.is_member(anna.identity.peer_id)
    assert world.members.issuer("another") == ""


def test_the_names_that_the_owner_gave_count_before_those_in_certificates() -> None:
    given: dict[str, str] = {}
    members = Members(SWARM.info, lambda: float(SWARM.begin), names=lambda: given)
    anna = SWARM.member(1, SWARM.issuer("Anna"), "Anna")
    member = members.admit(anna.chain, anna.identity.peer_id)
    assert isinstance(member, Member)
    assert members.names(member) == ("Anna", "Anna")
    given[SWARM.issuer("Anna").key.public_key.hex()] = "carol"
    assert members.name(anna.identity.peer_id) == "carol"
    assert members.names(member) == ("carol", "carol")


def test_a_presence_brings_the_member_and_its_claims() -> None:
    world, anna = World(), SWARM.member(1)
    heard = world.members.read_presence(SWARM.presence(anna, revoked=3, secret=2, delegate=True))
    assert isinstance(heard, Heard)
    assert heard.member.peer_id == anna.identity.peer_id
    assert world.members.is_member(anna.identity.peer_id)
    world.members.read_presence(SWARM.presence(SWARM.member(2)))
    world.members.note("nobody", list_number=9, secret=9)
    assert world.members.delegates() == [anna.identity.peer_id]
    assert world.members.holding(list_number=2) == [anna.identity.peer_id]
    assert world.members.holding(secret=2, list_number=3) == []


def test_relays_are_members_that_say_so() -> None:
    world, relay, other = World(), SWARM.member(1), SWARM.member(2)
    stated = {"addresses": ("/ip4/11.0.0.1/tcp/1/p2p/" + relay.identity.peer_id,)}
    world.members.read_presence(SWARM.presence(relay, relays=True, **stated))
    world.members.read_presence(SWARM.presence(other))
    assert world.members.relays() == {relay.identity.peer_id: stated["addresses"]}
    expelled = revocations(1, world.now, world.now + DAY, [relay.identity.public_key])
    world.members.obey(expelled)
    assert world.members.relays() == {}


def test_what_is_no_presence_of_a_member_is_refused() -> None:
    world, anna, other = World(), SWARM.member(1), SWARM.member(2)
    good = SWARM.presence(anna)
    assert world.why(world.members.read_presence(good, other.identity.peer_id)) == "author"
    assert world.why(world.members.read_presence(b"\x93")) == "schema"
    assert world.why(world.members.read_presence(good[:-1] + b"\x00")) == "signature"
    empty = seal(anna.identity, SWARM.info.swarm_id, Kind.HEAD, b"\xc1")
    assert world.why(world.members.read_presence(pack(Presence(empty, *anna.chain)))) == "schema"
    stolen = SWARM.member(1)
    object.__setattr__(stolen, "chain", other.chain)
    assert world.why(world.members.read_presence(SWARM.presence(stolen))) == "wrong_subject"
    assert not world.members.proves_membership(SWARM.presence(stolen), anna.identity.peer_id)
    assert not world.members.proves_membership(good, other.identity.peer_id)
    assert not world.members.proves_membership(b"", anna.identity.peer_id)
    stranger = world.members.admit(other.chain, anna.identity.peer_id)
    assert world.why(stranger) == "wrong_subject"
    assert not world.members.is_member(anna.identity.peer_id)


def test_every_flipped_bit_of_a_presence_is_refused() -> None:
    world, good = World(), SWARM.presence(SWARM.member(1))
    for position in range(len(good)):
        mutant = bytearray(good)
        mutant[position] ^= 1 << position % 8
        assert isinstance(world.members.read_presence(bytes(mutant)), Rejected)


def test_signatures_of_a_presence_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world, anna = World(), SWARM.member(1)
    opened = []
    for name in ("open_sealed", "open_chain"):
        real = getattr(members_module, name)

        def counted(*args: object, real: object = real, **more: object) -> object:
            opened.append(1)
            return real(*args, **more)  # type: ignore[operator]

        monkeypatch.setattr(members_module, name, counted)
    for _ in range(3):
        world.members.read_presence(SWARM.presence(anna))
    assert len(opened) == 2
    world.members.read_presence(SWARM.presence(anna, 1.0))  # a new heartbeat, the same chain
    assert len(opened) == 3


def test_an_ended_membership_is_refused_and_dismissed_but_its_record_is_no_lie() -> None:
    world, anna = World(), SWARM.member(1)
    peer_id = anna.identity.peer_id
    world.members.admit(anna.chain, peer_id)
    world.now += 30 * DAY + 300
    assert world.members.is_member(peer_id)
    assert world.members.dismiss() == []
    world.now += 1
    assert world.why(world.members.check(peer_id)) == "expired"
    presence = SWARM.presence(anna, world.now - SWARM.begin)
    assert world.why(world.members.read_presence(presence)) == "expired"
    assert world.members.proves_membership(presence, peer_id)
    assert world.members.dismiss() == [peer_id]
    assert world.why(world.members.check(peer_id)) == "unknown_member"


def test_members_are_looked_at_anew_only_if_one_may_have_ended() -> None:
    now, times = float(SWARM.begin), 0

    def wall() -> float:
        nonlocal times
        times += 1
        return now

    members, named = Members(SWARM.info, wall), [SWARM.member(index) for index in range(1, 9)]
    for member in named:
        members.admit(member.chain, member.identity.peer_id)

    def dismissed() -> tuple[int, bool]:
        """How many, and whether the clock was read for each member too."""
        before = times
        return len(members.dismiss()), times - before >= len(members._entries)

    assert dismissed() == (0, True)
    assert dismissed() == (0, False)
    members.obey(revocations(1, now, now + DAY, [named[0].identity.public_key]))
    assert dismissed() == (1, True)
    now += 30 * DAY + CLOCK_SKEW_SECONDS
    assert dismissed() == (0, False)
    now = SWARM.begin - CLOCK_SKEW_SECONDS - 1.0
    assert dismissed() == (7, True), "the clock was set back before they began"


def test_a_certificate_that_many_show_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def counted(certificate: bytes, info: SwarmInfo) -> IssuerBody | Rejected:
        opened.append(certificate)
        return verify_issuer(certificate, info)

    monkeypatch.setattr(members_module, "verify_issuer", counted)
    world, shared = World(), SWARM.issuer("shared")
    guests = [SWARM.member(index, shared, "shared") for index in range(1, 5)]
    for guest in [*guests, SWARM.member(9)]:
        assert isinstance(world.members.admit(guest.chain, guest.identity.peer_id), Member)
    assert opened == [guests[0].chain[0], SWARM.member(9).chain[0]]


@pytest.mark.parametrize("whose", ["member", "first issuer", "delegate"])
def test_each_of_three_keys_revokes(whose: str) -> None:
    world, ticket = World(), SWARM.issuer("Anna")
    anna, other = SWARM.member(1, ticket, "Anna"), SWARM.member(2, SWARM.issuer("B"), "B")
    peer_id = anna.identity.peer_id
    member = world.members.admit(anna.chain, peer_id)
    assert isinstance(member, Member)
    world.now += 20 * DAY
    renewed = issue_renewal(SWARM.delegate, SWARM.info, member, world.now)
    assert not isinstance(renewed, Rejected)
    assert isinstance(world.members.admit(renewed, peer_id), Member)
    world.members.admit(other.chain, other.identity.peer_id)
    key = {
        "member": anna.identity.public_key,
        "first issuer": ticket.key.public_key,
        "delegate": SWARM.delegate.key.public_key,
    }[whose]
    world.members.obey(revocations(1, world.now, world.now + 1, [key]))
    assert world.why(world.members.check(peer_id)) == "revoked"
    assert world.why(world.members.admit(renewed, peer_id)) == "revoked"
    assert world.members.is_member(other.identity.peer_id)
    assert peer_id in world.members.dismiss()
    world.members.obey(revocations(2, world.now, world.now + 1, []))
    assert isinstance(world.members.admit(renewed, peer_id), Member)


def test_who_was_never_met_is_dismissed_too() -> None:
    world, anna = World(), SWARM.member(1)
    named = revocations(1, world.now, world.now + 1, [anna.identity.public_key])
    world.members.obey(named)
    assert world.members.dismiss() == [anna.identity.peer_id]
    world.members.obey(named)
    assert world.members.dismiss() == []


def test_an_issuer_admits_as_many_as_it_may_also_after_a_restart() -> None:
    office, ticket = MemoryOffice(), SWARM.issuer("pair", uses=2)
    guests = [SWARM.member(index, ticket, "pair") for index in range(1, 4)]
    world = World(office)
    for guest, reason in zip(guests, (None, None, "used_up"), strict=True):
        answer = world.members.admit(guest.chain, guest.identity.peer_id)
        assert (answer.reason if isinstance(answer, Rejected) else None) == reason
    later = World(office).members
    heard = later.read_presence(SWARM.presence(guests[2]))
    assert world.why(heard) == "used_up"
    assert isinstance(later.admit(guests[1].chain, guests[1].identity.peer_id), Member)
    assert later.proves_membership(SWARM.presence(guests[2]), guests[2].identity.peer_id)
    assert not later.is_member(guests[2].identity.peer_id)


def test_a_damaged_count_is_said() -> None:
    office = MemoryOffice()
    office.save("admitted", b"\x91\x92")
    with pytest.raises(HomeError, match="admitted"):
        World(office)


def test_of_two_certificates_the_later_one_counts() -> None:
    world, anna = World(), SWARM.member(1)
    renewed = SWARM.chain(anna.identity, SWARM.delegate, "owner", 20 * DAY)
    peer_id = anna.identity.peer_id
    world.now += 20 * DAY
    for chain in (anna.chain, renewed, anna.chain):
        world.members.admit(chain, peer_id)
    world.now += 20 * DAY
    assert world.members.is_member(peer_id)


def test_a_teller_cannot_move_a_member_to_another_ticket() -> None:
    anna, mallory = SWARM.member(1, SWARM.issuer("Anna"), "Anna"), SWARM.issuer("Mallory")
    told = Membership(anna.identity, SWARM.info, SWARM.chain(anna.identity, mallory, "Mallory", 60))
    for order in ("shown first", "told first"):
        world, peer_id = World(), anna.identity.peer_id
        if order == "shown first":
            world.members.admit(anna.chain, peer_id)
        heard = world.members.read_presence(SWARM.presence(told))
        world.members.admit(anna.chain, peer_id)
        again = world.members.read_presence(SWARM.presence(told, 1.0))
        assert isinstance(heard, Heard)
        assert isinstance(again, Heard)
        assert again.member.name == "Anna"
        world.members.obey(revocations(1, 1, 2, [mallory.key.public_key]))
        assert world.members.is_member(peer_id), order
        assert world.members.issuer(peer_id) == SWARM.issuer("Anna").key.public_key.hex()


def test_one_ticket_does_not_crowd_out_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "MAX_MEMBERS", 4)
    world, shared = World(), SWARM.issuer("shared")
    owner = SWARM.member(1)
    world.members.admit(owner.chain, owner.identity.peer_id)
    guests = [SWARM.member(index, shared, "shared") for index in range(2, 12)]
    for guest in guests:
        world.members.admit(guest.chain, guest.identity.peer_id)
    assert world.members.is_member(owner.identity.peer_id)
    kept = [guest for guest in guests if world.members.is_member(guest.identity.peer_id)]
    assert kept == guests[-3:]
