"""What an owner decides of the swarm: the statements that its home then holds."""

from pathlib import Path

import pytest

from swarm_node.errors import HomeError, Rejected
from swarm_node.node.home import Home
from swarm_node.node.stewardship import revoke, revoked, rotate_secret
from swarm_node.p2p.members import Member, Members
from swarm_node.p2p.membership import verify_chain
from swarm_node.p2p.statements import ROOT_ONLY, Statement, verify_revocations
from swarm_node.p2p.stewards import issue_renewal
from swarm_node.p2p.ticket import parse_ticket

NOW, DAY = 1_800_000_000.0, 86_400
ADDRESS = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWGRTeqVVEbQDrFeS5RjhCkJmvQtBczyZcDgHCYTbEo5VA"


def founded(place: Path) -> Home:
    home = Home(place / "owner")
    home.found_swarm("team a", NOW)
    return home


def ticket(owner: Home) -> str:
    return owner.invite(
        [ADDRESS], now=NOW, valid_seconds=3600, member_seconds=9 * DAY, name="Anna", uses=1
    )


@pytest.mark.parametrize("root_is_here", [True, False])
def test_a_home_expels_members_with_either_key(tmp_path: Path, root_is_here: bool) -> None:
    owner = founded(tmp_path)
    if not root_is_here:  # it is offline, and the steward works
        (owner.path / "root.key").rename(tmp_path / "root.key")
    assert revoked(owner) is None
    assert [revoke(owner, [bytes([n]) * 32], NOW + n) for n in (2, 1)] == [1, 2]
    held = revoked(owner)
    assert held is not None
    assert held.body.keys == (b"\x01" * 32, b"\x02" * 32)
    assert isinstance(verify_revocations(held.raw, owner.swarm(), NOW), Statement)


def test_only_the_root_outranks_a_stolen_steward(tmp_path: Path) -> None:
    owner = founded(tmp_path)
    steward = owner.steward()
    assert steward is not None
    assert revoke(owner, [steward.key.public_key], NOW, outrank=True) == ROOT_ONLY
    (owner.path / "root.key").unlink()
    with pytest.raises(HomeError, match=r"only root\.key"):
        revoke(owner, [b"k" * 32], NOW, outrank=True)
    with pytest.raises(HomeError, match="only the root"):
        revoke(owner, [b"k" * 32], NOW)


def test_a_new_secret_counts_from_then_on_in_tickets_too(tmp_path: Path) -> None:
    owner = founded(tmp_path)
    first = owner.swarm()
    assert [rotate_secret(owner, NOW), rotate_secret(owner, NOW)] == [1, 2]
    assert owner.swarm().secret != first.secret
    made = parse_ticket(ticket(owner), NOW)
    assert (made.info.secret, made.info.secret_number) == (owner.swarm().secret, 2)
    guest = Home(tmp_path / "guest")
    assert guest.join_swarm(made, NOW).swarm == owner.swarm() == guest.swarm()


def test_who_joins_again_with_an_old_ticket_keeps_the_newest_secret(tmp_path: Path) -> None:
    owner, guest = founded(tmp_path), Home(tmp_path / "guest")
    old = parse_ticket(ticket(owner), NOW)
    guest.join_swarm(old, NOW)
    rotate_secret(owner, NOW)
    guest.save("secret", owner.load("secret") or b"")
    assert guest.join_swarm(old, NOW).swarm == owner.swarm()


def test_a_renewal_keeps_name_issuer_and_length(tmp_path: Path) -> None:
    owner = founded(tmp_path)
    made = parse_ticket(ticket(owner), NOW)
    guest = Home(tmp_path / "guest").join_swarm(made, NOW)
    members = Members(guest.swarm, lambda: NOW)
    member = members.admit(guest.chain, guest.identity.peer_id)
    assert isinstance(member, Member)
    steward = owner.steward()
    assert steward is not None
    later = NOW + 7 * DAY
    chain = issue_renewal(steward, guest.swarm, member, later)
    assert not isinstance(chain, Rejected)
    renewed = verify_chain(chain, guest.swarm, guest.identity.public_key, later)
    assert not isinstance(renewed, Rejected)
    assert (renewed.name, renewed.admitted_by) == ("Anna", made.issuer.issuer_key)
    assert (renewed.not_before, renewed.not_after) == (later, later + 9 * DAY)
    too_late = issue_renewal(steward, guest.swarm, member, NOW + 11 * 365 * DAY)
    assert isinstance(too_late, Rejected)
    assert too_late.reason == "outside_issuer"


def test_a_home_without_a_key_decides_nothing(tmp_path: Path) -> None:
    guest = Home(tmp_path / "guest")
    guest.join_swarm(parse_ticket(ticket(founded(tmp_path)), NOW), NOW)
    for decide in (lambda: revoke(guest, [b"k" * 32], NOW), lambda: rotate_secret(guest, NOW)):
        with pytest.raises(HomeError, match="neither root"):
            decide()


def test_a_damaged_list_is_said(tmp_path: Path) -> None:
    owner = founded(tmp_path)
    revoke(owner, [b"k" * 32], NOW)
    owner.save("revoked", b"\x92")
    with pytest.raises(HomeError, match="damaged"):
        revoked(owner)
