"""An engine's process that answers out of order: real processes that answer, fail, hang and die."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from swarm_node.errors import ChildError
from swarm_node.policy.sampling.vllm.engine_child import EngineChild

MODULE = """
import asyncio, os, subprocess, sys
from swarm_node.policy.sampling.vllm.engine_child import EngineServer

class Handler:
    def __init__(self):
        self.cut = {}
        self.dropped = 0

    async def __call__(self, request):
        op = request["op"]
        if op == "wait":
            event = self.cut[request["id"]] = asyncio.Event()
            try:
                async with asyncio.timeout(request["seconds"]):
                    await event.wait()
                return {"ended": "early"}
            except TimeoutError:
                return {"ended": "late"}
            except asyncio.CancelledError:
                self.dropped += 1
                raise
        if op == "abort":
            self.cut[request["target"]].set()
            return {}
        if op == "dropped":
            return {"count": self.dropped}
        if op == "helper":
            command = [sys.executable, "-c", "import time; time.sleep(600)"]
            return {"pid": subprocess.Popen(command).pid}
        if op == "fail":
            raise ValueError("no such thing")
        if op == "bug":
            raise KeyError("a bug")
        if op == "die":
            os._exit(3)
        if op == "garbage":
            os.write(replies, b"\\xff" * 64)
        return {"value": request.get("value")}

requests, replies = os.dup(0), os.dup(1)
os.dup2(2, 1)
asyncio.run(EngineServer(Handler()).serve(requests, replies))
"""

Body = Callable[[EngineChild], Awaitable[None]]


@pytest.fixture
def with_child(tmp_path: Path) -> Callable[[Body], None]:
    (tmp_path / "engine_program.py").write_text(MODULE)
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}

    def run(body: Body) -> None:
        async def main() -> None:
            child = EngineChild("engine", "engine_program")
            await child.start(env)
            try:
                await body(child)
            finally:
                await child.kill()
            assert child.pid is None

        asyncio.run(main())

    return run


def test_requests_are_answered_when_they_are_done(with_child: Callable[[Body], None]) -> None:
    async def body(child: EngineChild) -> None:
        slow = asyncio.ensure_future(child.call({"op": "wait", "seconds": 2.0}, patience=60))
        values = [b"\x00" * 300_000, "text", None]
        calls = (child.call({"op": "echo", "value": value}, patience=60) for value in values)
        assert [reply["value"] for reply in await asyncio.gather(*calls)] == values
        assert not slow.done()
        assert (await slow)["ended"] == "late"

    with_child(body)


def test_a_call_can_be_cut_short_and_still_answers(with_child: Callable[[Body], None]) -> None:
    async def body(child: EngineChild) -> None:
        cut = asyncio.Event()
        call = asyncio.ensure_future(
            child.call({"op": "wait", "seconds": 60}, patience=60, cut=cut)
        )
        await child.call({"op": "echo"}, patience=60)
        cut.set()
        assert (await call)["ended"] == "early"

    with_child(body)


def test_a_cancelled_call_is_dropped_in_the_child(with_child: Callable[[Body], None]) -> None:
    async def body(child: EngineChild) -> None:
        call = asyncio.ensure_future(child.call({"op": "wait", "seconds": 60}, patience=60))
        await child.call({"op": "echo"}, patience=60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await child.call({"op": "dropped"}, patience=60))["count"] == 1

    with_child(body)


def test_a_reported_error_leaves_it_alive(with_child: Callable[[Body], None]) -> None:
    async def body(child: EngineChild) -> None:
        with pytest.raises(ChildError, match="no such thing"):
            await child.call({"op": "fail"}, patience=60)
        assert (await child.call({"op": "echo", "value": 1}, patience=60))["value"] == 1

    with_child(body)


@pytest.mark.parametrize(
    ("op", "message"), [("die", "exit code 3"), ("bug", "died"), ("garbage", "protocol")]
)
def test_a_dead_child_fails_every_call_and_can_be_started_again(
    with_child: Callable[[Body], None], op: str, message: str
) -> None:
    async def body(child: EngineChild) -> None:
        other = asyncio.ensure_future(child.call({"op": "wait", "seconds": 60}, patience=60))
        with pytest.raises(ChildError, match=message):
            await child.call({"op": op}, patience=60)
        with pytest.raises(ChildError, match=message):
            await other
        with pytest.raises(ChildError, match="not running"):
            await child.call({"op": "echo"}, patience=2)

    with_child(body)


def test_a_silent_child_is_killed_with_its_helpers(with_child: Callable[[Body], None]) -> None:
    async def body(child: EngineChild) -> None:
        helper = psutil.Process((await child.call({"op": "helper"}, patience=60))["pid"])
        pid = child.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ChildError, match="did not answer"):
            await child.call({"op": "echo"}, patience=0.5)
        assert child.pid is None
        assert not psutil.pid_exists(pid)
        gone, _ = psutil.wait_procs([helper], timeout=60)
        assert gone or helper.status() == psutil.STATUS_ZOMBIE

    with_child(body)
