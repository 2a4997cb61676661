"""Supervised children: real processes that answer, fail, hang and die."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from swarm_node.errors import ChildError
from swarm_node.process import Child

MODULE = """
import os, sys, time
from swarm_node.process import serve

def handle(request):
    op = request["op"]
    if op == "echo":
        print("a library's stray print")
        return {"value": request["value"]}
    if op == "fail":
        raise ValueError("no such thing")
    if op == "bug":
        raise KeyError("a bug")
    if op == "hang":
        time.sleep(60)
    if op == "die":
        os._exit(3)
    return {}

serve(handle)
"""


@pytest.fixture
def with_child(tmp_path: Path) -> Callable[[Callable[[Child], Awaitable[None]]], None]:
    (tmp_path / "echo_child.py").write_text(MODULE)

    def run(body: Callable[[Child], Awaitable[None]]) -> None:
        async def main() -> None:
            search = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
            child = Child("echo", "echo_child", env={"PYTHONPATH": search})
            await child.start()
            try:
                await body(child)
            finally:
                await child.stop()
            assert not child.alive

        asyncio.run(main())

    return run


def test_answers_in_order_whatever_it_prints(with_child) -> None:
    async def body(child: Child) -> None:
        values = [b"\x00" * 100_000, "text", [1, 2.5, None]]
        calls = (child.call({"op": "echo", "value": v}, patience=60) for v in values)
        assert [reply["value"] for reply in await asyncio.gather(*calls)] == values

    with_child(body)


def test_a_reported_error_leaves_it_alive(with_child) -> None:
    async def body(child: Child) -> None:
        with pytest.raises(ChildError, match="no such thing"):
            await child.call({"op": "fail"}, patience=60)
        assert (await child.call({"op": "echo", "value": 1}, patience=60))["value"] == 1

    with_child(body)


@pytest.mark.parametrize(
    ("op", "message"), [("die", "exit code 3|died"), ("bug", "died"), ("hang", "did not answer")]
)
def test_a_dead_or_silent_child_is_an_error_and_can_be_started_again(
    with_child, op: str, message: str
) -> None:
    async def body(child: Child) -> None:
        with pytest.raises(ChildError, match=message):
            await child.call({"op": op}, patience=2 if op == "hang" else 60)
        assert not child.alive
        with pytest.raises(ChildError, match="not running"):
            await child.call({"op": "echo", "value": 1}, patience=2)
        await child.start()
        assert (await child.call({"op": "echo", "value": 1}, patience=60))["value"] == 1

    with_child(body)


def test_a_cancelled_call_does_not_leave_half_a_reply_behind(with_child) -> None:
    async def body(child: Child) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await child.call({"op": "hang"}, patience=60)
        assert not child.alive

    with_child(body)


def test_stopping_leaves_no_process(with_child) -> None:
    async def body(child: Child) -> None:
        await child.call({"op": "echo", "value": 1}, patience=60)
        pid = child.pid
        assert pid is not None
        await child.stop()
        assert not psutil.pid_exists(pid)

    with_child(body)
