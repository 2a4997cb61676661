"""`peers` and `ping`: whom a name means, what is printed, and the exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from builders import quiet_snapshot
from control_servers import serving
from shown_cases import HOSTILE, peer
from typer.testing import CliRunner, Result

from swarm_node.cli.main import app
from swarm_node.cli.verbs import peers as verb
from swarm_node.cli.verbs.peers import meant_peer
from swarm_node.errors import SwarmNodeError
from swarm_node.node.metrics.snapshot import PingReport, Said, Snapshot, UnmetRow

ALICE, BOB, WEB, WEBS = (f"12D3KooWxxxxxxxx{end}" for end in ("aaaa1111", "bbbb2222", "cc1", "cc2"))
WHY = Said("no_answer", "warning", f"192.0.2.1:7 {HOSTILE}", f"ask {HOSTILE}")
SHOT = quiet_snapshot(
    peers=[
        peer("alice", ALICE, address="/ip4/192.0.2.1/tcp/7", bytes_in=5, round_trip=0.004),
        peer("web", WEB, issuer_key="b" * 64),
        peer("web", WEBS, issuer_key="b" * 64),
    ],
    unmet=[UnmetRow(BOB, "bob", "c" * 64, [HOSTILE], WHY)],
    unmet_total=1,
)
Answers = Callable[[str, float], Awaitable[PingReport]]


def test_a_peer_is_meant_by_its_name_its_id_or_the_end_of_its_id() -> None:
    for text in ("alice", ALICE, ALICE[-8:], f"…{ALICE[-8:]}"):
        assert meant_peer(text, SHOT, {}) == (ALICE, "alice")
    assert meant_peer("bob", SHOT, {})[0] == BOB, "one that was not met, too"
    assert meant_peer(WEBS, SHOT, {}) == (WEBS, f"web …{WEBS[-8:]}")
    assert meant_peer("lab", SHOT, {"c" * 64: "lab"})[0] == BOB, "the owner's name counts"


@pytest.mark.parametrize(
    ("text", "named"),
    [("web", WEB[-8:]), ("alise", "alice"), ("nobody here", "swarm-node peers"), ("cc2", "peers")],
)
def test_nobody_and_several_are_errors_that_name_what_is_near(text: str, named: str) -> None:
    with pytest.raises(SwarmNodeError, match=named):
        meant_peer(text, SHOT, {})


def _run(place: Path, ping: Answers, *command: str, shot: Snapshot = SHOT) -> Result:
    async def main() -> Result:
        async with serving(place, snapshot=lambda: shot, ping=ping):
            whole = [*command, "--home", str(place)]
            return await asyncio.to_thread(CliRunner().invoke, app, whole)

    return asyncio.run(main())


def _answering(*reports: PingReport) -> Answers:
    left = list(reports)

    async def ping(peer_id: str, seconds: float) -> PingReport:
        return msgspec.structs.replace(left.pop(0), peer_id=peer_id)

    return ping


DIRECT = PingReport("", "alice", 0.012, "/ip4/192.0.2.1/tcp/7")
RELAYED = PingReport("", "alice", 0.08, "", "12D3KooWrelay", HOSTILE)
LOST = PingReport("", "alice", None, reason=WHY)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "_INTERVAL_SECONDS", 0.0)


def test_a_ping_has_a_line_and_the_exit_code_says_whether_any_was_answered(tmp_path: Path) -> None:
    some = _run(tmp_path, _answering(DIRECT, LOST, RELAYED), "ping", "alice", "--count", "3")
    lines = some.stdout.splitlines()
    assert some.exit_code == 0, some.stderr
    assert "(192.0.2.1:7, direct) in 12 ms" in lines[0]
    assert WHY.text[:11] in lines[1]
    assert "via relay" in lines[2]
    assert "2 of 3" in lines[3]
    assert len(lines) == 4, "what peers wrote makes no line"
    assert all(character.isprintable() for line in lines for character in line)
    none = _run(tmp_path, _answering(LOST, LOST), "ping", "alice", "--count", "2")
    assert none.exit_code == 1
    assert "0 of 2" in none.stdout
    assert "→ ask" in none.stdout


def test_until_direct_ends_with_the_first_direct_answer(tmp_path: Path) -> None:
    command = ("ping", "alice", "--until-direct", "--json")
    found = _run(tmp_path, _answering(RELAYED, LOST, DIRECT, DIRECT), *command)
    listed = json.loads(found.stdout)
    assert (found.exit_code, listed["schema"], len(listed["pings"])) == (0, 1, 3)
    assert listed["peer_id"] == ALICE
    relayed = _run(tmp_path, _answering(RELAYED, RELAYED), *command, "--count", "2")
    assert relayed.exit_code == 1


def test_an_unknown_peer_and_a_node_that_does_not_run_are_errors(tmp_path: Path) -> None:
    unknown = _run(tmp_path, _answering(), "ping", "alise")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "alice" in unknown.stderr
    away = CliRunner().invoke(app, ["ping", "alice", "--home", str(tmp_path)])
    assert away.exit_code == 1
    assert "swarm-node join" in away.stderr


def test_peers_prints_all_of_it_as_json(tmp_path: Path) -> None:
    listed = json.loads(_run(tmp_path, _answering(), "peers", "--json").stdout)
    assert set(listed) == {"schema", "peers", "former", "unmet", "unmet_total", "reach"}
    assert listed["peers"][0]["round_trip"] == 0.004
    assert listed["unmet"][0]["reason"]["kind"] == "no_answer"
    groups = _run(tmp_path, _answering(), "peers", "--groups").stdout
    assert "accepted 5 of 11" in groups
    assert "gave you" not in _run(tmp_path, _answering(), "peers").stdout
