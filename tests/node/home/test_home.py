"""A node's directory: founding, joining by ticket, locking, file modes."""

import asyncio
import os
import stat
from pathlib import Path

import msgspec
import pytest
from swarm_keys import verify_chain

from swarm_node.durable import Journal
from swarm_node.errors import HomeError, NotRunningError, TicketError
from swarm_node.node.control.control import ControlClient
from swarm_node.node.home.file_checks import RECORD, RECORD_VERSION, Found, Record, home_state
from swarm_node.node.home.home import Home
from swarm_node.node.home.read_files import take_stock
from swarm_node.p2p.membership.membership import MemberBody
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.p2p.wire.identity import Identity, read_private

NOW = 1_800_000_000.0
ADDRESS = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWGRTeqVVEbQDrFeS5RjhCkJmvQtBczyZcDgHCYTbEo5VA"


def _ticket(owner: Home, valid_seconds: int = 3600) -> str:
    return owner.invite([ADDRESS], now=NOW, valid_seconds=valid_seconds, member_seconds=86_400)


def test_a_founder_and_a_newcomer_are_members_of_one_swarm(tmp_path: Path) -> None:
    owner, newcomer = Home(tmp_path / "owner"), Home(tmp_path / "new")
    founded = owner.found_swarm("team a", NOW)
    joined = newcomer.join_swarm(parse_ticket(_ticket(owner), NOW), NOW)
    assert joined.swarm.swarm_id == founded.swarm.swarm_id
    for membership in (founded, joined, owner.membership(), newcomer.membership()):
        key = membership.identity.public_key
        assert isinstance(verify_chain(membership.chain, founded.swarm, key, NOW), MemberBody)
    assert newcomer.bootstraps() == [ADDRESS]
    assert owner.is_owner
    assert not newcomer.is_owner


def test_what_is_secret_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.found_swarm("team", NOW)
    for name in ("node.key", "root.key", "swarm.json"):
        assert stat.S_IMODE((home.path / name).stat().st_mode) == 0o600
    (home.path / "node.key").chmod(0o644)
    with pytest.raises(HomeError, match="chmod 600"):
        home.identity()


def test_a_small_file_counts_among_what_a_home_has_had_once_it_is_saved(tmp_path: Path) -> None:
    home, before = Home(tmp_path / "home"), Home(tmp_path / "no node's")
    home.found_swarm("team", NOW)
    home.record()

    def recorded() -> list[str]:
        return msgspec.json.decode(home.load(RECORD) or b"", type=Record).files

    assert "coordinator" not in recorded()
    home.save("coordinator", b"batch")
    assert "coordinator" in recorded()
    (home.path / "coordinator").unlink()
    home.save("bootstrap", ADDRESS.encode())
    assert {"coordinator", "bootstrap", "node.key"} <= {*recorded()}
    before.path.mkdir()
    before.save("coordinator", b"batch")
    assert before.load(RECORD) is None, "there was no start yet"


def test_what_another_swarm_signed_does_not_fit(tmp_path: Path) -> None:
    homes = [Home(tmp_path / name) for name in ("one", "other")]
    for home in homes:
        home.found_swarm("team", NOW)
    one, other = homes
    for name in ("root.key", "membership"):
        assert take_stock(one.path).files[name].state == "sound"
        (one.path / name).write_bytes((other.path / name).read_bytes())
        assert take_stock(one.path).files[name].state == "foreign"


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    owner, other, empty = (Home(tmp_path / name) for name in ("owner", "other", "empty"))
    owner.found_swarm("team", NOW)
    other.found_swarm("other", NOW)
    with pytest.raises(HomeError, match="already belongs"):
        owner.found_swarm("again", NOW)
    with pytest.raises(HomeError, match="no swarm"):
        empty.swarm()
    with pytest.raises(HomeError, match="swarm 'other'"):
        other.join_swarm(parse_ticket(_ticket(owner), NOW), NOW)
    with pytest.raises(TicketError, match="expired"):
        parse_ticket(_ticket(owner), NOW + 7200)
    empty.join_swarm(parse_ticket(_ticket(owner), NOW), NOW)
    with pytest.raises(HomeError, match="root key"):
        _ticket(empty)
    (empty.path / "membership").write_bytes(b"\x91")
    with pytest.raises(HomeError, match="damaged"):
        empty.membership()


def test_small_files_that_cannot_be_written_are_said_in_a_line(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    (home.path / "port").mkdir(parents=True)
    (home.path / "membership").mkdir()
    with pytest.raises(HomeError, match="cannot write"):
        home.save("port", b"1")
    with pytest.raises(HomeError, match=r"membership .*directory"):
        home.found_swarm("team", NOW)
    assert not home.has_swarm


def test_the_port_is_kept(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.port() == home.port()
    assert home.port() < 30_000, "another program's outgoing connection may get one above"


def test_the_key_of_a_site_is_kept_and_private(tmp_path: Path) -> None:
    key = Home(tmp_path).site_key()
    assert (len(key), Home(tmp_path).site_key()) == (32, key)
    assert (tmp_path / "site.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "site.key").chmod(0o644)
    with pytest.raises(HomeError, match="chmod 600"):
        Home(tmp_path).site_key()


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    identity = Identity.load_or_create(tmp_path / "key")
    assert Identity.load(tmp_path / "key").peer_id == identity.peer_id
    with pytest.raises(HomeError):
        Identity.generate().save(tmp_path / "key")


def test_only_a_record_tells_a_home_that_was_begun_from_one_that_lost_its_swarm() -> None:
    files = {name: Found("sound") for name in (RECORD, "node.key")}
    begun, finished = (Record(RECORD_VERSION, done, ["node.key"]) for done in (False, True))
    assert home_state(files, begun).state == "begun"
    for lost in ({"node.key": Found("sound")}, None), (files, finished):
        state = home_state(*lost)
        assert state.state == "broken"
        assert "swarm.json" in {fault.file for fault in state.errors}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "name", ["node.key", "swarm.json", "membership", "secret", "home.json", "port", "bootstrap"]
)
def test_a_pipe_in_place_of_a_file_is_named_and_not_waited_for(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path / "home")
    home.found_swarm("team", NOW)
    (home.path / name).unlink(missing_ok=True)
    os.mkfifo(home.path / name, 0o600)
    home_state = home.state()
    assert home_state.state == "broken"
    assert any(f"{name} is" in str(e) and "regular file" in str(e) for e in home_state.errors)
    with pytest.raises(HomeError, match="regular file"):
        home.load(name)
    assert home.kept_port() == 0
    assert home.bootstraps() == []
    with pytest.raises(HomeError, match="regular file"):
        read_private(home.path / name, "file")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["lock", "recording", "editing"])
def test_a_pipe_in_place_of_a_lock_is_named_and_not_waited_for(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path / "home")
    home.found_swarm("team", NOW)
    (home.path / name).unlink(missing_ok=True)
    os.mkfifo(home.path / name, 0o600)
    (fault,) = home.state().errors
    assert f"{name} is" in str(fault)
    assert "remove it" in str(fault)
    assert not home.in_use()
    blocked = {"lock": home.lock, "editing": home.editing, "recording": home.using_database}
    with pytest.raises(HomeError, match="regular file"), blocked[name]():
        pass
    (home.path / name).unlink()
    home.database.touch()
    with blocked[name]():
        assert home.state().state == "whole"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["node.db", "metrics.jsonl", "node.log", "control.json"])
def test_a_pipe_in_place_of_a_running_nodes_file_is_not_awaited(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path / "home")
    home.found_swarm("team", NOW)
    os.mkfifo(home.path / name, 0o600)
    assert home.state(deep=True).state == ("broken" if name == "node.db" else "whole")
    assert [*Journal(home.metrics, 100).lines(), *Journal(home.log, 100).lines()] == []
    with pytest.raises((HomeError, NotRunningError)):
        asyncio.run(ControlClient(home.control_file).stop())
