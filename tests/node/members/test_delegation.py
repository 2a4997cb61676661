"""What an owner decides of the swarm: the statements that its home then holds."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from swarm_keys import verify_chain

from swarm_node.durable import create_private
from swarm_node.errors import HomeError, Rejected
from swarm_node.node.home.home import Home
from swarm_node.node.members.admitting import admissions, invite
from swarm_node.node.members.delegation import read_revocations, revoke, rotate_secret
from swarm_node.node.members.issuers import make, take, use
from swarm_node.p2p.membership.delegates import issue_renewal, next_list, next_secret
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.membership.statements import (
    MAX_REVOKED,
    ROOT_ONLY,
    Statement,
    verify_revocations,
)
from swarm_node.p2p.membership.ticket import parse_ticket

NOW, DAY = 1_800_000_000.0, 86_400
TICKET: dict[str, Any] = {"now": NOW, "valid_seconds": DAY, "member_seconds": DAY, "uses": 1}
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
    if not root_is_here:  # it is offline, and the delegate works
        (owner.path / "root.key").rename(tmp_path / "root.key")
    assert read_revocations(owner) is None
    assert [revoke(owner, [bytes([n]) * 32], NOW + n) for n in (2, 1)] == [1, 2]
    held = read_revocations(owner)
    assert held.body.keys == (b"\x01" * 32, b"\x02" * 32)
    assert isinstance(verify_revocations(held.raw, owner.swarm(), NOW), Statement)


def test_only_the_root_outranks_a_stolen_delegate(tmp_path: Path) -> None:
    owner = founded(tmp_path)
    delegate = owner.delegate()
    assert revoke(owner, [delegate.key.public_key], NOW, as_root=True) == ROOT_ONLY
    (owner.path / "root.key").unlink()
    with pytest.raises(HomeError, match=r"root\.key"):
        revoke(owner, [b"k" * 32], NOW, as_root=True)
    with pytest.raises(HomeError, match="the root"):
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
    delegate, later = owner.delegate(), NOW + 7 * DAY
    chain = issue_renewal(delegate, guest.swarm, member, later)
    renewed = verify_chain(chain, guest.swarm, guest.identity.public_key, later)
    assert (renewed.name, renewed.admitted_by) == ("Anna", made.issuer.issuer_key)
    assert (renewed.not_before, renewed.not_after) == (later, later + 9 * DAY)
    too_late = issue_renewal(delegate, guest.swarm, member, NOW + 11 * 365 * DAY)
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
        read_revocations(owner)


def test_a_thief_that_fills_the_list_and_rotates_the_secret_is_outranked(tmp_path: Path) -> None:
    owner = founded(tmp_path)
    delegate = owner.delegate()
    key = delegate.key.public_key
    full = [n.to_bytes(32, "big") for n in range(MAX_REVOKED)]
    owner.save("revoked", next_list(delegate, owner.swarm(), None, full, NOW).raw)
    with pytest.raises(HomeError, match="revocation list"):
        revoke(owner, [key], NOW, as_root=True)
    assert revoke(owner, [key], NOW, as_root=True, from_scratch=True) == ROOT_ONLY
    assert rotate_secret(owner, NOW) == ROOT_ONLY, "the first list of the root's own is enough"
    assert revoke(owner, [b"k" * 32], NOW) == ROOT_ONLY + 1
    with pytest.raises(ValueError, match="the root"):
        next_secret(delegate, owner.swarm(), b"t" * 32, NOW)
    assert rotate_secret(owner, NOW) == ROOT_ONLY + 1


def test_commands_at_once_lose_nothing(tmp_path: Path) -> None:
    owner = founded(tmp_path)
    keys = [bytes([n]) * 32 for n in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda key: revoke(owner, [key], NOW), keys))
        names = [f"guest {n}" for n in range(8)]
        list(pool.map(lambda name: invite(owner, name, [], **TICKET), names))
    held = read_revocations(owner)
    assert (sorted(numbers), held.body.keys) == (list(range(1, 9)), tuple(keys))
    assert sorted(made.name for made in admissions(owner).entries()) == names


def test_no_ticket_of_an_issuer_file_is_given_twice(tmp_path: Path) -> None:
    owner = founded(tmp_path)
    made = make(owner, "hq", 8, now=NOW, valid_seconds=3600, member_seconds=DAY, uses=1)
    create_private(tmp_path / "hq.issuer", made.content)
    use(owner, tmp_path / "hq.issuer", NOW, [])
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: take(owner, NOW), range(8)))
    assert len({ticket.issuer.issuer_key for ticket in taken if ticket}) == 8
