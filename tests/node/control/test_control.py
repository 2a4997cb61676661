"""The control API over a real socket."""

import asyncio
import json
import os
import stat
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from aiohttp import ClientSession
from builders import history_row, quiet_snapshot
from control_servers import serving
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.config.reloading import Reloaded
from swarm_node.errors import ConfigError, NotRunningError, SwarmNodeError
from swarm_node.node.control.control import ControlClient
from swarm_node.node.metrics.history import GroupCounts, HistoryReport, Ring
from swarm_node.node.metrics.snapshot import SCHEMA, EvalPoint, NetworkReport, PingReport
from swarm_node.p2p.reach.reachability import Probed, Relay, assess
from swarm_node.page import listening

SNAPSHOT = quiet_snapshot(groups=GroupCounts(sampled=4), rejected={"stale": 1}, families=["gcd"])
POINT = EvalPoint(1.0, 3, 0.5, 0.5, None, {"gcd": 0.5})
PROBED = Probed("12D3KooWa", "alice", "192.0.2.1", "192.0.2.2", 7, False, {7: "timeout"}, 0.5)
REACH = assess([PROBED], (7,), [Relay("bob", 0.03), Relay("carol")])
REPORT = NetworkReport(REACH, ["/ip4/192.0.2.2/tcp/7"], 2, 3, 0.5)


ROWS = [history_row(1.0), history_row(2.0, eval_reward={"gcd": 0.5})]


def history(since: float) -> HistoryReport:
    return HistoryReport(SCHEMA, Ring(ROWS).since(since))


async def network() -> NetworkReport:
    return REPORT


async def evaluate() -> EvalPoint:
    return POINT


def opened(place: Path) -> tuple[str, dict[str, str]]:
    """Where the API in a directory is, and the header that opens it."""
    address = json.loads((place / "control.json").read_text())
    url = f"http://127.0.0.1:{address['port']}"
    return url, {"Authorization": f"Bearer {address['token']}"}


async def test_status_eval_and_stop_reach_the_node(tmp_path: Path) -> None:
    stopped: list[bool] = []
    async with serving(tmp_path, network=network, stop=lambda: stopped.append(True)):
        file = tmp_path / "control.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        client = ControlClient(file)
        assert await client.network() == REPORT
        await client.stop()
        url, good = opened(tmp_path)
        async with ClientSession() as session:
            for headers, expected in (
                ({}, 401),
                ({"Authorization": "Bearer wrong"}, 401),
                ({**good, "Host": "attacker.example"}, 403),
            ):
                async with session.post(f"{url}/v1/stop", headers=headers) as response:
                    assert response.status == expected
    assert os.listdir(tmp_path) == []
    assert stopped == [True]


async def test_a_ping_reaches_the_node_and_what_is_none_does_not(tmp_path: Path) -> None:
    asked: list[tuple[str, float]] = []

    async def ping(peer_id: str, seconds: float) -> PingReport:
        asked.append((peer_id, seconds))
        if peer_id == "nobody":
            raise SwarmNodeError("unknown peer")
        return PingReport(peer_id, "bob", 0.01)

    async with serving(tmp_path, ping=ping):
        client = ControlClient(tmp_path / "control.json")
        assert await client.ping("12D3KooWa", 5.0) == PingReport("12D3KooWa", "bob", 0.01)
        with pytest.raises(SwarmNodeError, match=r"503.*unknown peer"):
            await client.ping("nobody", 5.0)
        place, good = opened(tmp_path)
        url = f"{place}/v1/ping"
        async with ClientSession() as session:
            for body in (
                b"",
                b"[" * 9000,
                b'{"peer_id": "x"}',
                b'{"peer_id": "x", "seconds": 0.0}',
                b'{"peer_id": "x", "seconds": 1e9}',
                b'{"peer_id": "%s", "seconds": 5.0}' % (b"x" * 65),
            ):
                async with session.post(url, headers=good, data=body) as response:
                    assert response.status == 400, body
            async with session.post(url, data=b'{"peer_id": "x", "seconds": 5.0}') as response:
                assert response.status == 401
            async with session.get(url, headers=good) as response:
                assert response.status == 405
    assert asked == [("12D3KooWa", 5.0), ("nobody", 5.0)]


async def test_what_prometheus_reads_is_in_the_home_and_opens_nothing_else(tmp_path: Path) -> None:
    async with serving(tmp_path, snapshot=lambda: SNAPSHOT):
        (found,) = json.loads((tmp_path / "prometheus.json").read_text())
        (target,) = found["targets"]
        assert found["labels"] == {"home": tmp_path.name}
        secret = tmp_path / "metrics.token"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        headers = {"Authorization": f"Bearer {secret.read_text()}"}
        async with ClientSession(f"http://{target}", headers=headers) as session:
            async with session.get("/metrics") as response:
                assert response.status == 200
                assert response.headers["Content-Type"].startswith("text/plain; ")
                assert '{reason="stale"} 1.0' in await response.text()
            for path in ("/v1/status", "/v1/history", "/v1/network"):
                async with session.get(path) as response:
                    assert response.status == 401
            async with session.post("/v1/stop") as response:
                assert response.status == 401
        async with ClientSession(f"http://{target}") as session, session.get("/metrics") as none:
            assert none.status == 401


@pytest.mark.parametrize("since", ["", "yesterday", "nan", "inf", "1e999", "-1"])
async def test_a_strange_time_asks_for_no_rows_or_is_refused(tmp_path: Path, since: str) -> None:
    async with serving(tmp_path):
        url, headers = opened(tmp_path)
        async with (
            ClientSession(url, headers=headers) as session,
            session.get("/v1/history", params={"since": since}) as response,
        ):
            assert response.status == (400 if since in ("", "yesterday") else 200)


async def test_settings_are_read_again_or_the_reply_says_why_not(tmp_path: Path) -> None:
    told = [Reloaded("/node.toml", ["run.max_steps"], ["experience.local"], {"verbose": "SHELL"})]

    def reload() -> Reloaded:
        if not told:
            raise ConfigError("experience.local: input should be greater")
        return told[0]

    async with serving(tmp_path, reload=reload):
        client = ControlClient(tmp_path / "control.json")
        assert await client.reload() == told.pop()
        with pytest.raises(SwarmNodeError, match=r"409: experience\.local"):
            await client.reload()


async def test_not_running_is_a_clear_message(tmp_path: Path) -> None:
    file = tmp_path / "control.json"
    with pytest.raises(NotRunningError, match="-node join"):
        await ControlClient(file).status()
    # What a killed node leaves behind: an address where nobody listens.
    file.write_text('{"port": 1, "token": "t", "pid": 1}')
    with pytest.raises(NotRunningError, match="-node join"):
        await ControlClient(file).status()


@pytest.mark.parametrize(("state", "code"), [("running", 0), ("starting", 1)])
async def test_healthy_is_an_exit_code(tmp_path: Path, state: str, code: int) -> None:
    command = ["status", "--healthy", "--home", str(tmp_path)]
    shot = msgspec.structs.replace(SNAPSHOT, state=state)
    async with serving(tmp_path, snapshot=lambda: shot):
        done = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert (done.exit_code, done.stdout) == (code, f"{state}\n")


async def test_another_user_of_the_machine_cannot_take_all_files_that_a_node_may_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "HEAD_SECONDS", 600.0)  # only the limit closes them
    async with serving(tmp_path), asyncio.timeout(120):
        client = ControlClient(tmp_path / "control.json")
        port = json.loads((tmp_path / "control.json").read_text())["port"]
        before = len(os.listdir("/proc/self/fd"))
        # Each user may connect from all addresses of 127.0.0.0/8.
        held = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.0.{host}", 0))
            for host in (1, 2, 3, 250)
            for _ in range(50)
        ]
        over = {asyncio.create_task(_ended(reader)) for reader, _ in held}
        while len(over) > listening.MAX_OF_ADDRESS:
            _, over = await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        assert len(over) == listening.MAX_OF_ADDRESS
        assert len(os.listdir("/proc/self/fd")) - before - len(held) <= len(over)
        for _, writer in held:
            writer.close()
        await asyncio.wait(over)
        await client.status()


async def test_what_is_no_http_is_answered_and_fills_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    junk = (
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\nHost: \x1b[2J\r\n\r\n",
        b"POST /v1/stop HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: -5\r\n\r\n",
        b"GET /\x1b[2J HTTP/1.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"A" * 20_000,
    )

    def broken() -> NoReturn:
        raise RuntimeError("a fault of our own")

    async with serving(tmp_path, snapshot=broken):
        port = json.loads((tmp_path / "control.json").read_text())["port"]
        for each in junk:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(each)
            async with asyncio.timeout(20):
                assert b"400 Bad Request" in await reader.readline()
            writer.close()
        assert caplog.records == []
        with pytest.raises(SwarmNodeError, match="answered 500"):
            await ControlClient(tmp_path / "control.json").status()
    (record,) = caplog.records
    assert "a fault" in str(record.exc_info[1])


async def _ended(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        assert await reader.read() == b""


async def test_a_key_that_does_not_arrive_holds_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_node.node.control.control._BODY_SECONDS", 0.2)
    monkeypatch.setattr("swarm_node.page.listening._LINGERING_SECONDS", 0.1)
    async with serving(tmp_path), asyncio.timeout(60):
        port = json.loads((tmp_path / "control.json").read_text())["port"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/enter HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        writer.write(f"{head}Content-Length: 99\r\n\r\n{{".encode())
        assert b" 408 " in await reader.read()
        writer.close()


async def test_a_pass_looks_at_the_node_and_has_no_member_work(tmp_path: Path) -> None:
    async with serving(tmp_path):
        place, _, key = (await ControlClient(tmp_path / "control.json").page()).rpartition("/#")
        async with ClientSession(place) as session:
            async with session.post("/v1/enter", json={"key": key}) as response:
                given = (await response.json())["token"]
            headers = {"Authorization": f"Bearer {given}"}
            async with session.post("/v1/enter", json={"key": "x" * 43}) as response:
                assert response.status == 401
            for method, path, expected in (
                ("GET", "/v1/status", 200),
                ("GET", "/v1/samples", 200),
                ("GET", "/v1/history", 200),
                ("GET", "/v1/log", 200),
                ("GET", "/v1/settings", 200),
                ("GET", "/v1/charts", 200),
                ("GET", "/v1/network", 401),
                ("POST", "/v1/eval", 401),
                ("POST", "/v1/stop", 401),
                ("POST", "/v1/key", 401),
            ):
                async with session.request(method, path, headers=headers) as response:
                    assert response.status == expected, path


async def test_a_page_is_told_of_each_measurement_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_node.page.events.PERIOD", 0.01)
    measured = msgspec.structs.replace(SNAPSHOT, evals=[POINT])
    async with serving(tmp_path, snapshot=lambda: measured):
        url, headers = opened(tmp_path)
        async with (
            ClientSession(url, headers=headers) as session,
            session.get("/v1/events") as response,
        ):
            told = []
            while len(told) < 3:
                line = await response.content.readline()
                if line.startswith(b"data: "):
                    told.append(len(json.loads(line[6:])["evals"]))
        assert told == [1, 0, 0]


async def test_what_answers_much_or_knows_no_token_is_not_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may have the port of a node that died."""
    async with serving(tmp_path):
        file = tmp_path / "control.json"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("swarm_node.node.control.control._MAX_ANSWER", 100)
            with pytest.raises(NotRunningError, match="-node join"):
                await ControlClient(file).status()
        address = json.loads(file.read_text())
        file.write_text(json.dumps({**address, "token": "another"}))
        with pytest.raises(NotRunningError, match="-node join"):
            await ControlClient(file).status()


@pytest.mark.slow(reason="a reader that stops must have full buffers")
async def test_a_page_that_stopped_reading_does_not_hold_up_the_end_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tunnel to a laptop that sleeps keeps the connection and takes nothing."""
    monkeypatch.setattr("swarm_node.page.events.PERIOD", 0.001)
    monkeypatch.setattr("swarm_node.page.listening._LAST_SECONDS", 0.2)
    told: list[int] = []
    loop = asyncio.get_running_loop()
    large = msgspec.structs.replace(SNAPSHOT, alarms=["x" * 1000] * 1000)
    async with AsyncExitStack() as stack:
        ending = await stack.enter_async_context(asyncio.timeout(None))
        server = await stack.enter_async_context(serving(tmp_path, snapshot=lambda: large))
        tell = server._events._tell
        server._events._tell = lambda until: told.append(1) or tell(until)  # type: ignore[func-returns-value]
        address = json.loads((tmp_path / "control.json").read_text())
        _, writer = await asyncio.open_connection("127.0.0.1", address["port"], limit=1)
        head = f"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1:{address['port']}\r\n"
        writer.write(f"{head}Authorization: Bearer {address['token']}\r\n\r\n".encode())
        async with asyncio.timeout(60):
            before = -1
            while not told or len(told) != before:  # until a write waits for the reader
                before = len(told)
                await asyncio.sleep(0.1)
        ending.reschedule(loop.time() + 60)  # of the server, too
    writer.transport.abort()
