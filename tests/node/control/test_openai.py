"""OpenAI's API over a real socket, with the real sampler of the tiny model."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch
from aiohttp import ClientError, ClientSession, ClientTimeout
from control_servers import serving_openai
from trained_homes import TINY
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.node.control.openai import TOKEN_FILE
from swarm_node.node.loops.openai_requests import MOST_ROWS, OpenAIRequests
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.text.codec import Codec

torch.set_num_threads(1)
CODEC = Codec.from_directory(TINY)
ASKED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "sort 3 1"}]}
TEXT = {"model": "tiny"}
LONG = {**ASKED, "temperature": 2.0, "max_tokens": 96}


class Running(NamedTuple):
    session: ClientSession
    guests: OpenAIRequests
    home: Path

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        async with self.session.post(path, json=body) as response:
            return response.status, await response.json()

    def raw(self, path: str, body: dict[str, Any]) -> bytes:
        """A request as it is sent."""
        sent = json.dumps(body).encode()
        head = [f"POST /v1/{path} HTTP/1.1", f"Host: 127.0.0.1:{self.session._base_url.port}"]
        head.append(f"Authorization: Bearer {(self.home / TOKEN_FILE).read_text()}")
        head.append(f"Content-Length: {len(sent)}")
        return "\r\n".join([*head, "", ""]).encode() + sent

    async def chunks(self, path: str, body: dict[str, Any]) -> list[Any]:
        async with self.session.post(path, json={**body, "stream": True}) as response:
            assert response.content_type == "text/event-stream"
            lines = [line async for line in response.content if line.strip()]
        assert lines[-1] == b"data: [DONE]\n"
        return [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]


@asynccontextmanager
async def running(home: Path, sampled: bool = True) -> AsyncIterator[Running]:
    async with serving_openai(home, sampled) as guests:
        port = json.loads((home / "control.json").read_text())["port"]
        headers = {"Authorization": f"Bearer {(home / TOKEN_FILE).read_text()}"}
        url, patience = f"http://127.0.0.1:{port}/v1/", ClientTimeout(total=120)
        async with ClientSession(url, headers=headers, timeout=patience) as session:
            yield Running(session, guests, home)


async def until(ready: Callable[[], bool]) -> None:
    while not ready():  # noqa: ASYNC110 - nothing else tells it
        await asyncio.sleep(0.01)


async def test_chat_completions_and_models_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        async with node.session.get("models") as response:
            (model,) = (await response.json())["data"]
        assert (model["id"], model["object"], model["version"]) == ("tiny", "model", 0)
        async with node.session.get("models/tiny") as response:
            assert await response.json() == model
        status, said = await node.post("chat/completions", {**ASKED, "n": 2, "seed": 1})
        assert (status, said["object"], said["model"]) == (200, "chat.completion", "tiny")
        assert [choice["index"] for choice in said["choices"]] == [0, 1]
        assert said["choices"][0]["message"]["role"] == "assistant"
        assert {choice["finish_reason"] for choice in said["choices"]} <= {"stop", "length"}
        assert said["system_fingerprint"] == "v0"
        prompt = CODEC.encode_prompt("sort 3 1")
        assert said["usage"]["prompt_tokens"] == len(prompt)
        assert await node.post("chat/completions", {**ASKED, "n": 2, "seed": 1}) != said
        status, said = await node.post(
            "completions", {"model": "tiny", "prompt": ["a", list(prompt)], "seed": 3, "n": 2}
        )
        assert (status, said["object"], len(said["choices"])) == (200, "text_completion", 4)
        assert all(isinstance(choice["text"], str) for choice in said["choices"])


async def test_a_name_of_a_token_in_a_request_is_text(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        chat = [{"role": "system", "content": "<e"}, {"role": "user", "content": "os><sep>"}]
        for path, body, count in (
            ("chat/completions", {"messages": chat}, 2 + len("<eos><sep>")),
            ("completions", {"prompt": "<bos>1<sep>"}, len("<bos>1<sep>")),
            ("completions", {"prompt": [1, 21, 3]}, 3),
        ):
            status, said = await node.post(path, {**TEXT, "max_tokens": 1, **body})
            assert (status, said["usage"]["prompt_tokens"]) == (200, count)


async def test_a_stream_says_what_the_whole_answer_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_node.node.loops.openai_requests.SLICE", 2)
    async with running(tmp_path) as node:
        for path, body, text in (
            ("chat/completions", LONG, lambda choice: choice["delta"].get("content", "")),
            (
                "completions",
                {"model": "tiny", "prompt": "sort 3 1", "max_tokens": 96, "temperature": 2.0},
                lambda choice: choice["text"],
            ),
        ):
            asked = {**body, "seed": 4, "n": 2}
            _, whole = await node.post(path, asked)
            chunks = await node.chunks(path, {**asked, "stream_options": {"include_usage": True}})
            assert chunks[-1]["choices"] == []
            assert chunks[-1]["usage"] == whole["usage"]
            for index, choice in enumerate(whole["choices"]):
                mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
                expected = choice["text"] if "text" in choice else choice["message"]["content"]
                assert "".join(map(text, mine)) == expected
                assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [
                    choice["finish_reason"]
                ]
            tokens = whole["usage"]["completion_tokens"]
            assert len(chunks) > tokens / 4  # many pieces, not one


@pytest.mark.slow(reason="imports and asks with openai's client")
async def test_openais_own_client_is_served(tmp_path: Path) -> None:
    openai = pytest.importorskip("openai", reason="NOT RUN: needs tests/requirements-openai.txt")
    async with running(tmp_path) as node:
        key = (node.home / TOKEN_FILE).read_text()
        url = str(node.session._base_url)
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
            assert [model.id async for model in client.models.list()] == ["tiny"]
            assert (await client.models.retrieve("tiny")).owned_by == "swarm-node"
            said = await client.chat.completions.create(**LONG, seed=4, n=2)
            assert len(said.choices) == 2
            assert said.usage.total_tokens > said.usage.prompt_tokens
            async with client.chat.completions.stream(**LONG, seed=4) as stream:
                kinds = [event.type async for event in stream]
                whole = await stream.get_final_completion()
            assert "content.delta" in kinds
            assert whole.choices[0].message.content == said.choices[0].message.content
            text = await client.completions.create(model="tiny", prompt=["a", "b"], echo=False)
            assert len(text.choices) == 2
            streamed = await client.completions.create(model="tiny", prompt="a", stream=True)
            assert [chunk.choices[0].index async for chunk in streamed]
            with pytest.raises(openai.BadRequestError, match="tools"):
                await client.chat.completions.create(**ASKED, tools=[{"type": "function"}])
            ranked = await client.chat.completions.create(
                **ASKED, seed=4, top_p=0.9, logprobs=True, top_logprobs=3
            )
            (choice,) = ranked.choices
            said = [byte for each in choice.logprobs.content for byte in each.bytes or ()]
            assert bytes(said).decode(errors="replace") == choice.message.content
            assert all(len(each.top_logprobs) == 3 for each in choice.logprobs.content)
            text = await client.completions.create(model="tiny", prompt="a", logprobs=2)
            assert text.choices[0].logprobs.text_offset[0] == 0
            with pytest.raises(openai.NotFoundError, match="serves 'tiny'"):
                await client.chat.completions.create(**{**ASKED, "model": "gpt-4o"})
        async with openai.AsyncOpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()


@torch.no_grad()
def own_logprobs(prompt: str, answer: list[int]) -> torch.Tensor:
    """The policy's log-probs [T, V] of an answer's tokens to a chat's question."""
    ids = CODEC.encode_chat([{"role": "user", "content": prompt}])
    return CausalLM.from_directory(TINY)(torch.tensor([[*ids, *answer]]))[
        0, len(ids) - 1 : -1
    ].log_softmax(-1)


@pytest.mark.parametrize("heat", [0, 0.7, 2.0])
async def test_log_probs_are_the_policys_whatever_is_sampled(
    tmp_path: Path, heat: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_node.node.loops.openai_requests.SLICE", 5)
    asked = {**ASKED, "temperature": heat, "top_p": 0.8, "seed": 4, "n": 2}
    asked |= {"logprobs": True, "top_logprobs": 4}
    async with running(tmp_path) as node:
        _, said = await node.post("chat/completions", asked)
        chunks = await node.chunks("chat/completions", asked)
        for index, choice in enumerate(said["choices"]):
            entries = choice["logprobs"]["content"]
            spelt = bytes(byte for entry in entries for byte in entry["bytes"] or ())
            assert spelt.decode("utf-8", "replace") == choice["message"]["content"]
            answer = CODEC.encode_answer(choice["message"]["content"])
            own = own_logprobs("sort 3 1", list(answer))
            assert len(entries) == len(answer)
            for entry, token, row in zip(entries, answer, own, strict=True):
                assert entry["logprob"] == pytest.approx(float(row[token]), abs=1e-4)
                likeliest = [each["logprob"] for each in entry["top_logprobs"]]
                assert likeliest == pytest.approx(row.topk(4).values.tolist(), abs=1e-4)
                if heat == 0:
                    assert entry["token"] == entry["top_logprobs"][0]["token"]
            mine = [each["choices"][0] for each in chunks]
            streamed = [
                entry
                for each in mine
                if each["index"] == index and each["logprobs"]
                for entry in each["logprobs"]["content"]
            ]
            assert streamed == entries


async def test_log_probs_end_with_the_text_at_a_stop(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        asked = {
            "model": "tiny",
            "prompt": "sort 3 1",
            "temperature": 2.0,
            "seed": 4,
            "logprobs": 0,
        }
        _, whole = await node.post("completions", {**asked, "max_tokens": 40})
        text = whole["choices"][0]["text"]
        assert whole["choices"][0]["logprobs"]["text_offset"][-1] <= len(text) - 1
        stop = text[1:3]  # tokens follow it
        _, cut = await node.post("completions", {**asked, "max_tokens": 40, "stop": stop})
        (choice,) = cut["choices"]
        assert choice["text"] == text[: text.index(stop)] != ""
        told = choice["logprobs"]
        assert told["text_offset"][-1] < len(choice["text"])
        assert "".join(told["tokens"]).startswith(choice["text"])
        assert told["top_logprobs"] is None


async def test_a_stop_ends_the_answer_and_its_sampling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_node.node.loops.openai_requests.SLICE", 2)
    async with running(tmp_path) as node:
        _, whole = await node.post("chat/completions", {**LONG, "seed": 4})
        text = whole["choices"][0]["message"]["content"]
        stop = text[len(text) // 4 :][:2]
        assert len(stop) == 2
        _, cut = await node.post("chat/completions", {**LONG, "seed": 4, "stop": stop})
        (choice,) = cut["choices"]
        assert choice["message"]["content"] == text[: text.index(stop)]
        assert choice["finish_reason"] == "stop"
        assert cut["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]


async def test_refusals_have_openais_form(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        chat, text = "chat/completions", "completions"
        for path, body, status, code, param in (
            (chat, {**ASKED, "echo": True}, 400, "unsupported_parameter", "echo"),
            (chat, {**ASKED, "top_logprobs": 2}, 400, None, "top_logprobs"),
            (chat, {**ASKED, "model": "gpt"}, 404, "model_not_found", "model"),
            (chat, {**ASKED, "max_tokens": 4000}, 400, "context_length_exceeded", "messages"),
            (chat, {**ASKED, "messages": 1}, 400, None, "messages"),
            (chat, {**ASKED, "x\x1b": 1}, 400, None, "x\x1b"),
            (text, {"model": "tiny", "prompt": ""}, 400, None, "prompt"),
            (text, {"model": "tiny", "prompt": [10**6]}, 400, None, "prompt"),
            (text, {"model": "tiny", "prompt": [-1]}, 400, None, "prompt"),
            (text, {"model": "tiny", "prompt": ["a"] * 9, "n": 2}, 400, None, "n"),
            (text, {**TEXT, "prompt": "a " * 9000}, 400, "context_length_exceeded", "prompt"),
            (text, {"model": "tiny", "prompt": "x" * 70_000}, 413, None, None),
        ):
            found, said = await node.post(path, body)
            assert found == status, said
            error = said["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", code)
            assert error["param"] == param
        async with node.session.get("models/other") as response:
            assert response.status == 404
        assert (await node.post(chat, ASKED))[0] == 200  # it still answers


async def test_its_key_opens_nothing_else_and_no_other_key_opens_it(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        assert (tmp_path / TOKEN_FILE).stat().st_mode & 0o777 == 0o600
        for method, path in (("GET", "status"), ("POST", "stop"), ("POST", "key"), ("GET", "log")):
            async with node.session.request(method, path) as response:
                assert response.status == 401, path
        metrics = (tmp_path / "metrics.token").read_text()
        for headers, status in (
            ({"Authorization": ""}, 401),
            ({"Authorization": f"Bearer {metrics}"}, 401),
            ({"Authorization": "Bearer \N{SNOWMAN}"}, 401),
            ({"Host": "attacker.example"}, 403),
        ):
            async with node.session.post("chat/completions", json=ASKED, headers=headers) as found:
                assert found.status == status
    assert os.listdir(tmp_path) == []


async def test_two_hundred_requests_at_once_are_answered_or_told_to_wait(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        found: list[int] = []

        async def one() -> None:
            try:
                status, said = await node.post("chat/completions", {**ASKED, "max_tokens": 4})
            except ClientError:  # one address has so many connections
                found.append(0)
                return
            assert ("error" in said) is (status == 429)
            found.append(status)

        await asyncio.gather(*(one() for _ in range(200)))
        assert set(found) <= {0, 200, 429}
        assert found.count(200) > 16
        assert node.guests.rows == 0
        assert (await node.post("chat/completions", ASKED))[0] == 200


async def test_a_full_queue_says_when_to_come_again(tmp_path: Path) -> None:
    async with running(tmp_path, sampled=False) as node, asyncio.TaskGroup() as group:
        held = [
            group.create_task(node.post("chat/completions", {**ASKED, "n": 8}))
            for _ in range(MOST_ROWS // 8)
        ]
        await until(lambda: node.guests.rows == MOST_ROWS)
        async with node.session.post("chat/completions", json=ASKED) as response:
            assert response.status == 429
            assert response.headers["Retry-After"] == "1"
            assert response.headers["Connection"] == "close"
            assert (await response.json())["error"]["code"] == "rate_limit_exceeded"
        for task in held:
            task.cancel()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_is_sampled_no_further(
    tmp_path: Path, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_node.node.loops.openai_requests.SLICE", 2)
    async with running(tmp_path, sampled=False) as node:
        port = node.session._base_url.port  # type: ignore[union-attr]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(node.raw("chat/completions", {**LONG, "n": 8, "stream": stream}))
        async with asyncio.timeout(60):
            await until(lambda: node.guests.rows > 0)
            await node.guests.step()
            if stream:
                await reader.readline()
            (answers,) = node.guests._waiting
            writer.transport.abort()
            while node.guests.rows:
                await node.guests.step()
        assert all(len(row.ids) <= 3 * 2 for row in answers.rows)
        assert any(row.finish is None for row in answers.rows)


@pytest.mark.nightly(reason="fills buffers for a quarter of a minute")
@pytest.mark.slow(reason="a reader that stops must have full buffers")
async def test_a_client_that_stops_reading_gives_its_connection_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_node.node.control.openai._WRITE_SECONDS", 0.5)
    asked = {**TEXT, "prompt": [[5, 6]] * 16, "max_tokens": 1000, "temperature": 2.0}
    async with running(tmp_path) as node:
        port = node.session._base_url.port  # type: ignore[union-attr]
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", port))
            client.sendall(12 * node.raw("completions", {**asked, "stream": True}))
            mine = client.getsockname()[1]
            async with asyncio.timeout(120):
                await until(lambda: node.guests.rows > 0)
                await until(lambda: mine not in _clients())
        assert (await node.post("completions", {**TEXT, "prompt": "a"}))[0] == 200


def _clients() -> set[int]:
    """Ports of the clients of this process."""
    return {one.raddr.port for one in psutil.Process().net_connections("tcp4") if one.raddr}


async def test_a_server_that_closes_ends_what_waits(tmp_path: Path) -> None:
    async with running(tmp_path, sampled=False) as node:
        waiting = asyncio.ensure_future(node.post("chat/completions", ASKED))
        await until(lambda: node.guests.rows > 0)
        node.guests.end()
        status, said = await waiting
        assert (status, said["error"]["type"]) == (503, "server_error")


async def test_a_command_prints_where_the_node_answers(tmp_path: Path) -> None:
    home = tmp_path / "home of $(touch x)"
    home.mkdir()
    async with running(home) as node:
        done = await asyncio.to_thread(
            CliRunner().invoke, app, ["serve", "--home", str(home)], catch_exceptions=False
        )
        assert done.exit_code == 0, done.stderr
        script = f'{done.stdout}\necho "$OPENAI_API_KEY $OPENAI_BASE_URL"'
        shell = await asyncio.create_subprocess_exec(
            "sh", "-c", script, stdout=asyncio.subprocess.PIPE, cwd=tmp_path
        )
        shown, _ = await shell.communicate()
        key, url = shown.decode().split()
        assert key == (home / TOKEN_FILE).read_text()
        assert url == str(node.session._base_url).rstrip("/")
    assert os.listdir(tmp_path) == [home.name]
