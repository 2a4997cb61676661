"""`serve` at an address and with a key that stay: a stored policy, and a node that runs."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout
from control_servers import serving_openai
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.errors import ConfigError, MachineError, NotRunningError
from swarm_node.library.endpoint import Endpoint, read_key
from swarm_node.library.forwarding import serve_running
from swarm_node.library.serving import serve_stored
from swarm_node.node.control.control import ControlClient
from swarm_node.node.control.openai import ServedAt
from swarm_node.page.entrance import is_local

KEY = "sk-of-mine"
ASKED = {
    "model": "tiny",
    "seed": 4,
    "max_tokens": 24,
    "temperature": 2.0,
    "messages": [{"role": "user", "content": "sort 3 1"}],
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@asynccontextmanager
async def served(
    serve: Callable[[Callable[[ServedAt], object]], Coroutine[Any, Any, None]],
) -> AsyncIterator[ServedAt]:
    """`serve` while the context lasts."""
    told = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(serve(told.set_result))
        await asyncio.wait([task, told], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return
        yield told.result()
        task.cancel()


def client(at: ServedAt, key: str = KEY) -> ClientSession:
    headers = {"Authorization": f"Bearer {key}"}
    return ClientSession(at.url + "/", headers=headers, timeout=ClientTimeout(total=60))


async def test_a_stored_policy_is_served_where_and_for_whom_one_says(tmp_path: Path) -> None:
    at = Endpoint("127.0.0.1", free_port(), KEY)
    for _ in range(2):  # the same after a restart
        async with (
            served(lambda told: serve_stored("base", told, at=at, home=tmp_path)) as found,
            client(found) as session,
        ):
            assert found.url == f"http://127.0.0.1:{at.port}/v1"
            assert (found.key.read_text(), found.key.stat().st_mode & 0o777) == (KEY, 0o600)
            async with session.post("chat/completions", json=ASKED) as said:
                assert said.status == 200
            for headers, status, code in (
                ({"Authorization": f"Bearer {KEY}x"}, 401, "invalid_api_key"),
                ({"Authorization": ""}, 401, "invalid_api_key"),
                ({"Authorization": f"bearer {KEY}"}, 200, None),
                ({"Host": "attacker.example"}, 403, None),
            ):
                async with session.get("models", headers=headers) as refused:
                    assert refused.status == status
                    if code is not None:
                        assert (await refused.json())["error"]["code"] == code
            with pytest.raises(MachineError, match=str(at.port)):
                await serve_stored("base", print, at=at, home=tmp_path)
            async with served(lambda told: serve_stored("base", told, home=tmp_path)) as other:
                assert other.key.read_text() not in ("", KEY)
            assert not other.key.exists()
            assert found.key.read_text() == KEY
        assert not found.key.exists()


async def test_who_is_reached_from_elsewhere_may_be_called_by_any_name(tmp_path: Path) -> None:
    at = Endpoint("0.0.0.0", 0, KEY)
    async with (
        served(lambda told: serve_stored("base", told, at=at, home=tmp_path)) as found,
        client(found) as session,
    ):
        assert found.url.startswith("http://127.0.0.1:")
        async with session.get("models", headers={"Host": "lab.example"}) as said:
            assert said.status == 200
        async with session.get("models", headers={"Authorization": ""}) as said:
            assert said.status == 401


async def test_a_running_node_is_passed_requests_on_and_may_start_again(tmp_path: Path) -> None:
    at = Endpoint("127.0.0.1", free_port(), KEY)
    with pytest.raises(NotRunningError):
        await serve_running(print, at, home=tmp_path)
    async with serving_openai(tmp_path):
        url, own = ControlClient(tmp_path / "control.json").openai()
        async with (
            served(lambda told: serve_running(told, at, home=tmp_path)) as found,
            client(found) as session,
            client(ServedAt(f"{url}/v1", found.key, found.model), own) as direct,
        ):
            for path, body in (
                ("chat/completions", ASKED),
                ("chat/completions", {**ASKED, "stream": True, "n": 2}),
                ("chat/completions", {**ASKED, "top_k": 5}),
                ("completions", {"model": "tiny", "prompt": "a", "seed": 1}),
                ("completions", {"model": "tiny", "prompt": "x" * 70_000}),
            ):
                said = []
                for one in (session, direct):
                    async with one.post(path, json=body) as reply:
                        text = (await reply.text()).replace(": ", ":")
                        said.append((reply.status, reply.content_type, stable(text)))
                assert said[0] == said[1]
            for name, status in (("", 200), ("/tiny", 200), ("/..%2F..%2Fv1%2Fstatus", 404)):
                async with session.get(f"models{name}") as reply:
                    assert reply.status == status
            async with session.get("status") as reply:
                assert reply.status == 404
            yielded = found
    assert not yielded.key.exists()


def stable(text: str) -> list[Any]:
    """A reply without what is new each time."""
    lines = [line.removeprefix("data:") for line in text.splitlines() if line]
    values = [json.loads(line) for line in lines if line != "[DONE]"]
    return [{**value, "id": "", "created": 0} for value in values]


async def test_while_no_node_runs_clients_are_told_so(tmp_path: Path) -> None:
    at = Endpoint("127.0.0.1", 0, KEY)
    async with serving_openai(tmp_path):
        front = served(lambda told: serve_running(told, at, home=tmp_path))
        found = await front.__aenter__()
    async with client(found) as session:
        async with session.post("chat/completions", json=ASKED) as reply:
            assert (reply.status, (await reply.json())["error"]["type"]) == (503, "server_error")
        async with serving_openai(tmp_path), session.post("chat/completions", json=ASKED) as reply:
            assert reply.status == 200
    with suppress(asyncio.CancelledError):
        await front.__aexit__(None, None, None)


async def test_a_client_that_leaves_the_front_leaves_the_node(tmp_path: Path) -> None:
    at = Endpoint("127.0.0.1", 0, KEY)
    async with (
        serving_openai(tmp_path, sampled=False) as guests,
        served(lambda told: serve_running(told, at, home=tmp_path)) as found,
    ):
        session = client(found)
        asked = asyncio.ensure_future(session.post("chat/completions", json=ASKED))
        async with asyncio.timeout(30):
            while not guests.rows:  # noqa: ASYNC110 - nothing else tells it
                await asyncio.sleep(0.01)
            asked.cancel()
            await session.close()
            while guests.rows:
                await asyncio.sleep(0.01)
                await guests.step()


@pytest.mark.parametrize("key", ["", "two words", "\N{SNOWMAN}", "x" * 513, "a\n"])
def test_a_key_that_no_header_has_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="visible ASCII"):
        Endpoint(api_key=key)


def test_a_key_comes_from_one_place_and_a_file_may_end_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    assert read_key(tmp_path / "key") == KEY
    with pytest.raises(ConfigError, match="nowhere"):
        read_key(tmp_path / "nowhere")
    options = ["serve", "--home", str(tmp_path), "--api-key-file", str(tmp_path / "key")]
    done = CliRunner().invoke(app, options, env={"SWARM_NODE_API_KEY": KEY})
    assert (done.exit_code, "--api-key-file" in done.stderr) == (1, True)


def test_loopback_is_told_from_other_addresses() -> None:
    hosts = ("127.0.0.1", "127.0.0.9", "::1", "localhost", "0.0.0.0", "::", "10.0.0.1", "box")
    names = ["127.0.0.1", "localhost:80", "[::1]:80", "[::1]"]
    others = ["", ":80", "localhost:x", "localhost.:80", "evil:80", "::1", "127.0.0.1:80:80"]
    assert [name for name in (*names, *others) if is_local(name)] == names
    found = [host for host in hosts if Endpoint(host).is_loopback]
    assert found == ["127.0.0.1", "127.0.0.9", "::1", "localhost"]
    assert [Endpoint(host).url(8000) for host in ("::", "::1", "10.0.0.1")] == [
        "http://[::1]:8000/v1",
        "http://[::1]:8000/v1",
        "http://10.0.0.1:8000/v1",
    ]
