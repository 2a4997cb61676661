"""Issuer files: tickets and a delegate without the root key."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from swarm_keys import verify_chain

from swarm_node.errors import HomeError, TicketError, TicketExpiredError
from swarm_node.node.home.home import Home
from swarm_node.node.members import issuers
from swarm_node.node.members.admitting import admissions, invite_from_stock, note_issuer_file
from swarm_node.node.members.delegation import revoke, rotate_secret
from swarm_node.p2p.membership.issuer_file import tickets_of
from swarm_node.p2p.membership.membership import MemberBody
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.p2p.wire.identity import Identity

NOW = 1_800_000_000.0
ADDRESS = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWGRTeqVVEbQDrFeS5RjhCkJmvQtBczyZcDgHCYTbEo5VA"
KEPT_OFFLINE = "root.key"


@pytest.fixture
def offline(tmp_path: Path) -> Home:
    home = Home(tmp_path / "offline")
    home.found_swarm("team", NOW)
    return home


def test_a_file_without_a_delegate_has_tickets_and_cannot_be_used_by_a_home(
    offline: Home, tmp_path: Path
) -> None:
    file = tmp_path / "web.issuer"
    web = made(offline, file, 2, "web", delegate=False)
    assert web.delegate is None
    assert b'"delegate_seed": ""' in web.content
    note_issuer_file(offline, web)
    assert [entry.name for entry in admissions(offline).entries()] == ["web 1", "web 2"]
    texts = tickets_of(file, NOW)
    assert [parse_ticket(text, NOW).issuer.name for text in texts] == ["web 1", "web 2"]
    assert tickets_of(file, NOW + 3601) == []
    with pytest.raises(TicketError, match="coordinator serve"):
        issuers.use(Home(tmp_path / "online"), file, NOW, ())


def made(
    offline: Home, path: Path, count: int = 3, name: str = "hq", delegate: bool = True
) -> issuers.Made:
    limits = {"now": NOW, "valid_seconds": 3600, "member_seconds": 86_400}
    made = issuers.make(offline, name, count, **limits, uses=1, delegate=delegate)
    path.write_bytes(made.content)
    path.chmod(0o600)
    return made


def test_a_home_without_the_root_key_admits_and_expels(offline: Home, tmp_path: Path) -> None:
    file, online = tmp_path / "hq.issuer", Home(tmp_path / "online")
    made(offline, file)
    taken = issuers.use(online, file, NOW, ())
    assert (taken.tickets, taken.delegate.name) == (2, "hq delegate")
    assert taken.join_ticket is not None
    assert not (online.path / KEPT_OFFLINE).exists()
    chain, swarm = online.membership().chain, offline.swarm()
    assert isinstance(verify_chain(chain, swarm, online.identity().public_key, NOW), MemberBody)
    rotate_secret(online, NOW)
    invited = invite_from_stock(online, "alice", [ADDRESS], NOW)
    ticket = parse_ticket(invited.ticket, NOW)
    assert (ticket.addresses, ticket.info) == ((ADDRESS,), online.swarm())
    assert ticket.info.secret != offline.swarm().secret, "the secret in force now"
    guest = Home(tmp_path / "guest")
    guest.join_swarm(ticket, NOW)
    assert [entry.name for entry in admissions(online).entries()] == ["alice"]
    assert revoke(online, [ticket.issuer.issuer_key], NOW) == 1


def test_no_ticket_is_given_out_twice(offline: Home, tmp_path: Path) -> None:
    file, online = tmp_path / "hq.issuer", Home(tmp_path / "online")
    made(offline, file)
    issuers.use(online, file, NOW, ())
    given = set()
    for name in ("alice", "bob"):
        invited = invite_from_stock(online, name, [], NOW)
        given.add(invited.admission.issuer_key)
        known = [entry.issuer_key for entry in admissions(online).entries() if entry.given]
        issuers.use(online, file, NOW, known)  # once more, by mistake
    assert len(given) == 2
    with pytest.raises(HomeError, match=r"delegate create"):
        invite_from_stock(online, "carol", [], NOW)


def test_the_owners_running_home_can_give_its_root_key_away(offline: Home, tmp_path: Path) -> None:
    file = tmp_path / "hq.issuer"
    note_issuer_file(offline, made(offline, file))
    known = [entry.issuer_key for entry in admissions(offline).entries() if entry.given]
    assert issuers.use(offline, file, NOW, known).tickets == 3
    (offline.path / KEPT_OFFLINE).unlink()
    key = invite_from_stock(offline, "alice", [ADDRESS], NOW).admission.issuer_key
    names = {entry.name for entry in admissions(offline).entries() if entry.issuer_key == key}
    assert names == {"alice"}, "and no longer in stock"
    assert revoke(offline, [Identity.generate().public_key], NOW) == 1


def test_expired_files_are_of_no_use(offline: Home, tmp_path: Path) -> None:
    file, online = tmp_path / "hq.issuer", Home(tmp_path / "online")
    made(offline, file)
    with pytest.raises(TicketError, match="have expired"):
        issuers.use(online, file, NOW + 7200, ())
    assert not online.has_swarm
    issuers.use(online, file, NOW, ())
    assert issuers.take(online, NOW + 7200) is None
    with pytest.raises(TicketExpiredError):
        parse_ticket(msgspec.json.decode(file.read_bytes())["tickets"][0], NOW + 7200)


def test_a_file_of_another_swarm_or_of_a_forger_is_refused(offline: Home, tmp_path: Path) -> None:
    file, other = tmp_path / "hq.issuer", Home(tmp_path / "other")
    other.found_swarm("other", NOW)
    content = msgspec.json.decode(made(offline, file).content)
    with pytest.raises(HomeError, match="swarm 'other'"):
        issuers.use(other, file, NOW, ())
    stolen = Identity.generate().seed().hex()
    forger = msgspec.json.decode(made(other, tmp_path / "other.issuer").content)
    for change in (
        {"delegate_seed": stolen},
        {"delegate_certificate": forger["delegate_certificate"]},
        {"delegate_certificate": "00"},
    ):
        file.write_bytes(msgspec.json.encode(content | change))
        with pytest.raises(TicketError, match="not sign"):
            issuers.use(offline, file, NOW, ())


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[" * 100_000, b"\xff", b'{"version": 2}', b" " * (5 << 20)]
)
def test_what_is_no_issuer_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file, home = tmp_path / "file", Home(tmp_path / "home")
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(HomeError, match="issuer file"):
        issuers.use(home, file, NOW, ())
    home.create()
    (home.path / issuers.STOCK).write_bytes(content)
    with pytest.raises(HomeError, match=r"damaged|long"):
        issuers.take(home, NOW)
    file.chmod(0o644)
    with pytest.raises(HomeError, match="chmod 600"):
        issuers.use(home, file, NOW, ())


def test_only_the_root_key_makes_them(offline: Home, tmp_path: Path) -> None:
    file, online = tmp_path / "hq.issuer", Home(tmp_path / "online")
    made(offline, file)
    issuers.use(online, file, NOW, ())
    with pytest.raises(HomeError, match="root key"):
        made(online, tmp_path / "more")
    with pytest.raises(TicketError, match="name"):
        made(offline, tmp_path / "more", name="x" * 30)
