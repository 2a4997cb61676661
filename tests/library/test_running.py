"""A running node as an object, over a real socket."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from builders import history_row, quiet_snapshot
from control_servers import serving
from typer.testing import CliRunner

import swarm_node
from swarm_node.cli.main import app
from swarm_node.errors import ConfigError, HomeError, NotRunningError, SlowNodeError, SwarmNodeError
from swarm_node.library.running import RunningNode, connect
from swarm_node.node.metrics.history import HistoryReport, Ring
from swarm_node.node.metrics.samples import SampleRow
from swarm_node.node.metrics.snapshot import EvalPoint, PeerRow, Snapshot

POINT = EvalPoint(1.0, 3, 0.5, 0.5, None, {"gcd": 0.5}, split_version=1)
PEER = PeerRow("12D3KooWpeer", 7, 1.0, 5, 4, 0, [], name="alice")
SAMPLE = SampleRow("gcd", "gcd of 4 and 6?", "2", 1.0, 3)
ROWS = [history_row(10.0), history_row(12.0, eval_reward={"gcd": 0.5}, split_version=1)]


async def evaluate() -> EvalPoint:
    return POINT


def asked(home: Path, question: Callable[[RunningNode], Any], **changes: Any) -> Any:
    """The answer to a question that is asked while an event loop runs in the asker's thread, as in
    a notebook. The node has a loop in another thread."""
    answers: list[Any] = []

    async def node() -> None:
        async with serving(home, **changes):
            await asyncio.to_thread(lambda: asyncio.run(asker()))

    async def asker() -> None:
        answers.append(question(connect(home)))

    asyncio.run(node())
    return answers[0]


def test_a_running_node_answers_with_records(tmp_path: Path) -> None:
    shot = quiet_snapshot(peers=[PEER], evals=[POINT])
    changes: dict[str, Any] = {
        "snapshot": lambda: shot,
        "history": lambda since: HistoryReport(1, Ring(ROWS).since(since)),
        "samples": lambda: [SAMPLE],
        "evaluate": evaluate,
    }

    def everything(node: RunningNode) -> None:
        assert node.status() == shot
        assert node.peers() == [PEER]
        assert node.samples() == [SAMPLE]
        assert node.evaluate() == POINT
        assert list(node.history()) == ROWS
        assert list(node.history(since=10.0)) == ROWS[1:]
        assert str(tmp_path) in repr(node)

    asked(tmp_path, everything, **changes)


def test_the_home_is_the_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_NODE_HOME", str(tmp_path / "named"))
    with pytest.raises(NotRunningError, match=f"{tmp_path}/named"):
        swarm_node.connect()
    monkeypatch.delenv("SWARM_NODE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    with pytest.raises(NotRunningError, match=f"{tmp_path}/.local/share/swarm-node:"):
        swarm_node.connect()
    with pytest.raises(NotRunningError, match=f"{tmp_path}/other:"):
        swarm_node.connect("~/other")


def test_an_error_has_the_sentence_of_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(NotRunningError) as caught:
        connect(tmp_path)
    done = CliRunner().invoke(app, ["status", "--home", str(tmp_path)])
    cause, *remedies = done.stderr.splitlines()
    assert cause == f"swarm-node: {caught.value.cause}"
    assert remedies == [f"→ {remedy}" for remedy in caught.value.remedies]
    (tmp_path / "control.json").write_text("{")
    with pytest.raises(HomeError, match=r"control\.json"):
        connect(tmp_path)


def rising() -> Callable[[], Snapshot]:
    """A node with one more step at each question, and a better reward from the third on."""
    asks = iter(range(1, 10_000))

    def snapshot() -> Snapshot:
        steps = next(asks)
        point = EvalPoint(1.0, steps, 0.1 * steps, 0.5, None, {}, split_version=1)
        return quiet_snapshot(steps=steps, evals=[point] if steps > 2 else [])

    return snapshot


def test_waiting_returns_the_status_that_reaches_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_node.library.running._POLL_SECONDS", 0.0)
    lines: list[str] = []
    shot = asked(
        tmp_path,
        lambda node: node.wait_for(steps=4, reward=0.6, progress=lines.append),
        snapshot=rising(),
    )
    assert shot.steps == 6
    assert [" ".join(re.findall(r"[\d.]+", line)) for line in lines] == [
        *("2 4 0.6", "3 4 0.300 0.6", "4 4 0.400 0.6", "5 4 0.500 0.6", "6 4 0.600 0.6"),
    ]


def test_waiting_ends_in_time_and_says_how_far_it_came(tmp_path: Path) -> None:
    shot = quiet_snapshot()
    with pytest.raises(SlowNodeError, match=r"0\.2 s: 3 .* 0\.5; "):
        asked(tmp_path, lambda node: node.wait_for(reward=0.5, timeout=0.2), snapshot=lambda: shot)
    with pytest.raises(ConfigError, match="steps=NUMBER"):
        asked(tmp_path, lambda node: node.wait_for())


@pytest.mark.slow(reason="a node leaves questions unanswered until their limit")
def test_waiting_outlasts_a_question_that_a_busy_machine_did_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_node.library.running._POLL_SECONDS", 0.05)
    shots = rising()
    busy = threading.Event()

    def snapshot() -> Snapshot:
        shot = shots()
        if shot.steps in (2, 3):
            busy.set()
            time.sleep(0.6)
        return shot

    def wait(node: RunningNode) -> Snapshot:
        # Not before: connecting does not outlast a machine that is busy with something else.
        monkeypatch.setattr("swarm_node.node.control.control._PATIENCE", 0.4)
        return node.wait_for(steps=4)

    assert asked(tmp_path, wait, snapshot=snapshot).steps >= 4
    assert busy.is_set()
    monkeypatch.setattr("swarm_node.node.control.control._PATIENCE", 0.1)
    with pytest.raises(SlowNodeError, match=r"answer in 0\.1"):
        asked(tmp_path, lambda node: node.status(), snapshot=lambda: time.sleep(0.3))


async def test_stopping_waits_until_the_node_has_left(tmp_path: Path) -> None:
    leaving = asyncio.Event()
    async with serving(tmp_path, stop=leaving.set):
        node = await asyncio.to_thread(connect, tmp_path)
        with pytest.raises(SlowNodeError, match=r"process \d+\) .* 0\.2 s"):
            await asyncio.to_thread(node.stop, 0.2)
        assert leaving.is_set()
        stopping = asyncio.create_task(asyncio.to_thread(node.stop))
        leaving.clear()
        await leaving.wait()
        assert not stopping.done()
    await stopping


GOOD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ZIPPED = GOOD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"
AWAY = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"


@asynccontextmanager
async def answering(home: Path, reply: bytes) -> Any:
    """A program that took the port of a node that died, and gives this reply to everything."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            writer.write(reply)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        except ConnectionError:  # the asker had enough
            return

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    (home / "control.json").write_text(json.dumps({"port": port, "token": "t", "pid": 1}))
    async with server:
        yield


def body(text: bytes, head: bytes = GOOD) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(text) + text


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (body(b" " * (17 << 20)), NotRunningError, "no node"),
        (body(b"<html>hello</html>"), SwarmNodeError, "this version"),
        (body(b"\xff\xfe"), SwarmNodeError, "this version"),
        (body(b"[" * 100_000), SwarmNodeError, "this version"),
        (body(b'{"schema": "one"}'), SwarmNodeError, "got `str`"),
        (body(b'{"schema": 1}'), SwarmNodeError, "`peer_id`"),
        (body(b"null"), SwarmNodeError, "got `null`"),
        (GOOD + b"Content-Length: 99\r\n\r\n{", NotRunningError, "no node"),
        (ZIPPED, NotRunningError, "no node"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", NotRunningError, "no node"),
        (b"", NotRunningError, "no node"),
        (AWAY, SwarmNodeError, "302"),
        (body(b"\x1b[31mred\x07 alert", b"HTTP/1.1 500 Oh\r\n"), SwarmNodeError, r"500:  \[31mred"),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, bytes) else None,
)
async def test_a_strange_answer_is_a_clear_error(
    tmp_path: Path, reply: bytes, kind: type[SwarmNodeError], words: str
) -> None:
    async with answering(tmp_path, reply):
        with pytest.raises(SwarmNodeError, match=words) as caught:
            await asyncio.to_thread(connect, tmp_path)
        assert type(caught.value) is kind


def test_an_interrupt_does_not_wait_for_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for another thread is interrupted, as by a notebook's button."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("concurrent.futures.Future.result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            connect(tmp_path)
