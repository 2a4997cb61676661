"""What an operator types, beside a coordinator that runs."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest
from coordinator_runs import Hand, coordinator, issuer_file, sealed_report
from swarm_keys import Swarm
from typer.testing import CliRunner, Result

from coordinator.main import app
from swarm_node.errors import HomeError, MachineError
from swarm_node.simulation.seeded import EPOCH


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


async def _typed(data: Path, *arguments: str) -> Result:
    return await asyncio.to_thread(_run, *arguments, "--data", str(data))


async def test_codes_are_made_listed_and_withdrawn(tmp_path: Path) -> None:
    swarm, data = Swarm(), tmp_path / "c"
    file = issuer_file(tmp_path, swarm, 2)
    async with coordinator(data, swarm, Hand(10.0), issuer_file=file):
        made = await _typed(data, "code", "make", "--name", "alice", "--expires", "2d")
        assert made.exit_code == 0, made.stderr
        assert len(made.stdout.strip()) == 23, "stdout has the code and nothing else"
        assert f"--code {made.stdout.strip()}" in made.stderr
        assert "alice, 1" in made.stderr
        listed = (await _typed(data, "code", "list")).stdout
        assert "alice" in listed
        assert "1 of 1 left" in listed
        assert "tickets left: 2" in listed
        assert made.stdout.strip() not in listed
        assert (await _typed(data, "code", "withdraw", "1")).exit_code == 0
        assert "withdrawn" in (await _typed(data, "code", "list")).stdout
        wrong = await _typed(data, "code", "withdraw", "7")
        assert wrong.exit_code == 1
        assert "no code" in wrong.stderr
        assert (await _typed(data, "code", "make", "--name", "a/b")).exit_code == 1


async def test_trust_is_set_and_shown_and_a_members_reports_are_forgotten(tmp_path: Path) -> None:
    swarm, data, hand = Swarm(), tmp_path / "c", Hand(10.0)
    one = swarm.member(1)
    async with coordinator(data, swarm, hand, trust=("owner",)) as running:
        report = sealed_report(one, EPOCH + 10)
        assert (await running.ask("POST", "/v1/reports", report, by=one))[0] == 200
        assert (await _typed(data, "trust")).stdout == "owner\n"
        assert (await _typed(data, "trust", "alice", "bob")).stdout == "alice\nbob\n"
        assert (await _typed(data, "trust", "--clear")).stdout == ""
        gone = await _typed(data, "forget", one.identity.peer_id)
        assert gone.stdout == "2 rows deleted\n"


def test_without_a_coordinator_a_command_says_so(tmp_path: Path) -> None:
    done = _run("code", "list", "--data", str(tmp_path))
    assert done.exit_code == 1
    assert f"runs in {tmp_path}" in done.stderr


@pytest.mark.parametrize(
    ("option", "value"), [("--listen", "8470"), ("--admin", "x:y"), ("--listen", "x:70000")]
)
def test_what_is_no_address_is_refused(tmp_path: Path, option: str, value: str) -> None:
    done = _run("serve", "--swarm", str(tmp_path / "swarm.toml"), option, value)
    assert done.exit_code == 1
    assert f"{option} {value} " in done.stderr


async def test_a_second_coordinator_on_one_directory_or_port_is_refused(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(10.0)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        with pytest.RaisesGroup(pytest.RaisesExc(HomeError, match="in use")):
            async with coordinator(tmp_path / "c", swarm, hand):
                pass
        taken = {"listen": ("127.0.0.1", running.port)}
        with pytest.RaisesGroup(pytest.RaisesExc(MachineError, match="another address")):
            async with coordinator(tmp_path / "d", swarm, hand, **taken):
                pass


async def test_promtool_accepts_the_figures(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("NOT RUN: promtool (Debian's package prometheus) is not installed")
    swarm = Swarm()
    one = swarm.member(1)
    async with coordinator(tmp_path / "c", swarm, Hand(10.0)) as running:
        await running.ask("GET", "/v1/members", by=one)
        await running.ask("GET", "/v1/members")
        _, text = await running.admin("GET", "/metrics")
    assert one.identity.peer_id not in text
    assert 'operation="members",status="401"} 1' in text
    assert '{reason="authorization"} 1.0' in text
    done = subprocess.run(  # noqa: ASYNC221 - nothing else waits here
        [promtool, "check", "metrics"], input=text.encode(), capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b""), done.stderr


async def test_the_dashboard_of_one_that_listens_everywhere_is_opened_on_loopback(
    tmp_path: Path,
) -> None:
    swarm, data = Swarm(), tmp_path / "c"
    async with coordinator(data, swarm, Hand(10.0), admin=("0.0.0.0", 0)) as running:
        opened = await _typed(data, "open", "--print")
    assert opened.exit_code == 0, opened.output
    assert f"http://127.0.0.1:{running.admin_port}/#" in opened.output
