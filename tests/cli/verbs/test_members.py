"""What a person types to admit, name and block members."""

from __future__ import annotations

import asyncio
import json
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from builders import quiet_snapshot
from control_servers import serving
from typer.testing import CliRunner, Result

from coordinator.server import read_swarm
from swarm_node.cli.main import app
from swarm_node.cli.verbs.membership.members import dialled_first
from swarm_node.errors import ConfigError
from swarm_node.node.home.home import Home
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.p2p.wire.identity import Identity
from swarm_node.program.terminal import seconds_of

ADDRESS = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWGRTeqVVEbQDrFeS5RjhCkJmvQtBczyZcDgHCYTbEo5VA"
PEER = Identity.generate().peer_id


def test_a_ticket_names_the_relays_of_a_node_that_cannot_be_dialled() -> None:
    relay = "/ip4/203.0.113.5/tcp/4001/p2p/" + Identity.from_seed(bytes(32)).peer_id
    through = f"{relay}/p2p-circuit/p2p/{ADDRESS.rpartition('/')[2]}"
    near = ADDRESS.replace("127.0.0.1", "10.77.0.1")
    assert dialled_first([near, through]) == [relay, near]
    assert dialled_first([near] * 9 + [through]) == [relay] + [near] * 7
    assert dialled_first([ADDRESS, near]) == [near], "loopback is of no use to another machine"
    assert dialled_first([ADDRESS]) == [ADDRESS]


def test_an_address_without_an_id_gets_that_of_this_node(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "t"
    done = run(
        home, "invite", "--name", "a", "--out", str(out), "--address", "/ip4/10.77.0.1/tcp/9"
    )
    assert done.exit_code == 0, done.stderr
    (address,) = parse_ticket(out.read_text(), time.time()).addresses
    assert address == f"/ip4/10.77.0.1/tcp/9/p2p/{Home(home).identity().peer_id}"


@pytest.mark.parametrize(
    "address",
    [
        "10.77.0.1:9",
        "/ip4/10.77.0.1/tcp/0",
        "/ip4/x/tcp/1/p2p/y",
        "/ip4/0.0.0.0/tcp/9",
        "/ip6/0:0::0/tcp/9",
    ],
)
def test_a_ticket_that_cannot_work_is_refused(home: Path, address: str) -> None:
    done = run(home, "invite", "--name", "a", "--out", "-", "--address", address)
    assert "can connect to" in refused(done)


def test_a_ticket_may_name_a_coordinator_and_then_no_node_need_run(
    home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "alice.ticket"
    named = ("--name", "alice", "--out", str(out), "--coordinator")
    assert "--coordinator ftp://x" in refused(run(home, "invite", *named, "ftp://x"))
    assert run(home, "invite", *named, "https://swarm.example").exit_code == 0
    ticket = parse_ticket(out.read_text(), time.time())
    assert ticket.addresses == ("/dns/swarm.example/tcp/443/https",)
    member = Home(tmp_path / "member")
    member.join_swarm(ticket, time.time())
    assert member.coordinator() == "https://swarm.example:443"
    assert member.bootstraps() == []
    out.unlink()
    assert invite(home, *named, "http://10.0.0.7:8470").exit_code == 0
    member.join_swarm(parse_ticket(out.read_text(), time.time()), time.time())
    assert (member.coordinator(), member.bootstraps()) == ("http://10.0.0.7:8470", [ADDRESS])


def test_what_describes_a_swarm_to_its_coordinator_holds_no_secret(
    home: Path, tmp_path: Path
) -> None:
    swarm, file = Home(home).swarm(), tmp_path / "swarm.toml"
    file.write_text(run(home, "id", "--swarm-file").stdout)
    assert swarm.secret.hex() not in file.read_text()
    assert read_swarm(file).swarm_id == swarm.swarm_id
    assert read_swarm(home / "swarm.json").swarm_id == swarm.swarm_id


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of an owner; do not write."""
    place = tmp_path_factory.mktemp("founded") / "home"
    assert run(place, "init", "team a").exit_code == 0
    return place


@pytest.fixture
def home(founded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(founded, tmp_path / "home"))


def run(home: Path, verb: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [verb, *arguments, "--home", str(home)])


def invite(home: Path, *arguments: str) -> Result:
    return run(home, "invite", "--address", ADDRESS, *arguments)


def listed(home: Path) -> Any:
    """What `members` says of tickets and blocks."""
    return json.loads(run(home, "members", "--json").stdout)


def refused(done: Result) -> str:
    assert done.exit_code == 1
    assert done.stderr.startswith("swarm-node: ")
    assert all(line.startswith("→ ") for line in done.stderr.splitlines()[1:])
    return done.stderr


def test_a_ticket_is_a_private_file_and_never_shown(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "alice.ticket"
    done = invite(home, "--name", "alice", "--expires", "2d", "--uses", "3", "--out", str(out))
    assert done.exit_code == 0, done.stderr
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    text = out.read_text()
    assert text.strip() not in done.output
    for said in ("alice", "3 nodes", "90 days", "join --ticket-file alice.ticket", "revoke alice"):
        assert said in done.stdout
    ticket = parse_ticket(text, time.time())
    assert (ticket.issuer.name, ticket.issuer.uses, ticket.addresses) == ("alice", 3, (ADDRESS,))
    assert -60 < ticket.expires - time.time() - 2 * 86_400 <= 0
    newcomer = Home(tmp_path / "newcomer")
    assert newcomer.join_swarm(ticket, time.time()).swarm.name == "team a"


def test_a_ticket_is_printed_only_if_asked(home: Path, tmp_path: Path) -> None:
    done = invite(home, "--name", "alice", "--out", "-")
    assert done.stdout.count("\n") == 1
    assert parse_ticket(done.stdout, time.time()).issuer.name == "alice"
    assert "1 node" in done.stderr
    for missing in (["--name", "alice"], ["--out", "-"], []):
        assert "--out alice.ticket" in refused(invite(home, *missing))


def test_loopback_in_a_ticket_is_said(home: Path) -> None:
    far, only = "/ip4/10.77.0.1/tcp/9", "this ticket"

    def said(*arguments: str) -> str:
        done = run(home, "invite", "--name", "a", "--out", "-", *arguments)
        assert done.exit_code == 0, done.stderr
        return done.stderr

    assert only in said("--address", ADDRESS)
    assert "this machine" not in said("--address", far)
    for beside in (("--address", far), ("--coordinator", "https://swarm.example")):
        told = said("--address", ADDRESS, *beside)
        assert only not in told
        assert f"connect to {ADDRESS}" in told


def test_a_ticket_with_a_coordinator_leaves_the_loopback_of_a_running_node_out(home: Path) -> None:
    snapshot = quiet_snapshot(addresses=[ADDRESS])

    async def invited(*arguments: str) -> Result:
        named = ("invite", "--name", "a", "--out", "-", *arguments)
        async with serving(home, snapshot=lambda: snapshot):
            return await asyncio.to_thread(run, home, *named)

    def addresses(done: Result) -> tuple[str, ...]:
        return parse_ticket(done.stdout, time.time()).addresses

    done = asyncio.run(invited("--coordinator", "https://swarm.example"))
    assert addresses(done) == ("/dns/swarm.example/tcp/443/https",)
    assert "this machine" not in done.stderr
    done = asyncio.run(invited("--coordinator", "http://127.0.0.1:8470"))
    assert addresses(done) == (ADDRESS, "/ip4/127.0.0.1/tcp/8470/http")
    assert "this ticket" in done.stderr
    done = asyncio.run(invited())
    assert addresses(done) == (ADDRESS,)
    assert "this ticket" in done.stderr


def test_a_ticket_overwrites_nothing(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "alice.ticket"
    out.write_text("kept")
    assert "exists already" in refused(invite(home, "--name", "alice", "--out", str(out)))
    assert out.read_text() == "kept"
    nowhere = ("--name", "alice", "--out", str(tmp_path / "no" / "where"))
    assert "cannot write" in refused(invite(home, *nowhere))
    assert listed(home)["tickets"] == [], "and none is made"


def test_a_ticket_that_cannot_be_written_stays_in_stock(home: Path, tmp_path: Path) -> None:
    file, out = str(tmp_path / "hq"), tmp_path / "alice.ticket"
    made = run(home, "delegate", "create", "--name", "hq", "--tickets", "1", "--out", file)
    assert made.exit_code == 0, made.stderr
    assert run(home, "delegate", "import", file).exit_code == 0
    (home / "root.key").unlink()
    assert "cannot write" in refused(
        invite(home, "--name", "alice", "--out", str(tmp_path / "no" / "where"))
    )
    assert "name" in refused(invite(home, "--name", "a/b", "--out", str(out)))
    assert not out.exists(), "a refused ticket leaves no file"
    assert invite(home, "--name", "alice", "--out", str(out)).exit_code == 0
    assert parse_ticket(out.read_text(), time.time()).issuer.name == "hq 1"


@pytest.mark.parametrize("text", ["", "7", "d", "0d", "91d", "-1d", "1y", "1.5d", "9999999w", "٣d"])
def test_a_time_that_is_none_is_refused(text: str, home: Path) -> None:
    with pytest.raises(ConfigError, match=r"12h .* 7d"):
        seconds_of(text, 90 * 86_400)
    assert "--expires" in refused(invite(home, "--name", "a", "--out", "-", "--expires", text))


def test_times_are_minutes_hours_days_and_weeks() -> None:
    times = {"30m": 1800, "12h": 43_200, " 7d ": 604_800, "2w": 1_209_600, "90d": 7_776_000}
    assert {text: seconds_of(text, 7_776_000) for text in times} == times


def test_a_home_that_cannot_invite_says_why(tmp_path: Path, home: Path) -> None:
    assert "-node init" in refused(invite(tmp_path / "none", "--name", "a", "--out", "-"))
    done = run(home, "invite", "--name", "a", "--out", "-")
    assert "this node" in refused(done)
    done = invite(home, "--name", "a/b", "--out", "-")
    assert "name" in refused(done)


def test_a_home_whose_node_has_run_knows_its_addresses(home: Path, tmp_path: Path) -> None:
    place, out = Home(home), tmp_path / "t"
    me, port = place.identity().peer_id, place.port()
    last = [f"/ip4/{host}/tcp/{port}/p2p/{me}" for host in ("127.0.0.1", "10.77.0.1")]
    place.keep_addresses(last)
    done = run(home, "invite", "--name", "a", "--out", str(out))
    assert done.exit_code == 0, done.stderr
    assert parse_ticket(out.read_text(), time.time()).addresses == (last[1],)
    assert "last start" in done.stderr
    assert run(home, "config", "set", "network.listen=['/ip4/0.0.0.0/tcp/9']").exit_code == 0
    assert "this node" in refused(run(home, "invite", "--name", "b", "--out", "-"))


def test_members_lists_the_tickets_that_were_made(home: Path) -> None:
    assert "no tickets" in run(home, "members").stdout
    for name in ("alice", "bob"):
        invite(home, "--name", name, "--out", "-")
    found = listed(home)
    assert (found["schema"], found["swarm"], found["met"]) == (1, "team a", None)
    rows = [(row["name"], row["state"], row["uses"], row["used"]) for row in found["tickets"]]
    assert rows == [("alice", "open", 1, 0), ("bob", "open", 1, 0)]
    shown = run(home, "members").stdout
    assert all(said in shown for said in ("alice", "bob", "open", "no node"))
    assert stat.S_IMODE((home / "invitations.json").stat().st_mode) == 0o600
    assert "-node init" in refused(run(home.parent / "none", "members"))


def test_members_shows_the_tickets_that_lead_nowhere(home: Path, tmp_path: Path) -> None:
    """Also those that were made before the first start, and those with a coordinator's address."""

    def states() -> list[str]:
        return [row["state"] for row in listed(home)["tickets"]]

    before = ("--address", "/ip4/203.0.113.5/tcp/31330")
    run(home, "invite", "--name", "alice", "--out", "-", *before)
    beside = (*before, "--coordinator", "https://swarm.example")
    run(home, "invite", "--name", "bob", "--out", "-", *beside)
    other = f"/ip4/203.0.113.5/tcp/31330/p2p/{PEER}"
    run(home, "invite", "--name", "carol", "--out", "-", "--address", other)
    assert states() == ["open"] * 3
    port = "network.listen=['/ip4/0.0.0.0/tcp/31330']"
    assert run(home, "config", "set", port).exit_code == 0
    assert states() == ["open"] * 3
    assert run(home, "config", "set", port.replace("31330", "31331")).exit_code == 0
    assert states() == ["leads nowhere", "by others", "open"]


def test_a_ticket_gets_another_name_that_members_and_revoke_know(home: Path) -> None:
    for name in ("web 16", "bob"):
        invite(home, "--name", name, "--out", "-")
    assert run(home, "rename", "web 16", "carol").stdout.count("carol") == 1
    assert [row["name"] for row in listed(home)["tickets"]] == ["carol", "bob"]
    assert "mean carol?" in refused(run(home, "rename", "carl", "x"))
    assert "revoke both" in refused(run(home, "rename", "bob", "carol"))
    assert "the name" in refused(run(home, "rename", "bob", "b/b"))
    assert run(home, "revoke", "carol").exit_code == 0
    assert [row["state"] for row in listed(home)["tickets"]] == ["revoked", "open"]


def test_a_ban_is_kept_shown_and_ended(home: Path) -> None:
    assert run(home, "block", PEER).exit_code == 0
    assert PEER in listed(home)["blocks"][0]["peer_id"]
    assert PEER in run(home, "members").stdout.replace("\n", "")
    assert run(home, "unblock", PEER[-8:]).exit_code == 0
    assert listed(home)["blocks"] == []
    assert "nobody called" in refused(run(home, "unblock", PEER))
    assert "swarm-node members --home" in refused(run(home, "block", "nobody"))
    invite(home, "--name", "alice", "--out", "-")
    run(home, "block", "alice")
    assert listed(home)["tickets"][0]["state"] == "blocked"
