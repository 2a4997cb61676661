"""SIGHUP: read again with a terminal or without one, stop when the terminal is gone."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from swarm_node.config.reloading import Reloaded
from swarm_node.errors import ConfigError
from swarm_node.node.start.system import _no_thread_per_child, on_hangup, run_loop

CODE = """
import fcntl, os, signal, sys, termios, time
from pathlib import Path
from swarm_node.config.reloading import Reloaded
from swarm_node.node.start.system import on_hangup, run_loop

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
said = []

def reload():
    said.append("reload")
    return Reloaded("", [], [], {})

handler = on_hangup(reload, lambda: said.append("stop"))
signal.signal(signal.SIGHUP, lambda *_: handler())
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGHUP)
print("asked", flush=True)
while "stop" not in said:
    time.sleep(0.01)
print("into nothing", flush=True)
Path(sys.argv[1]).write_text(",".join(said))
"""


def test_a_terminal_that_goes_away_stops_what_it_started(tmp_path: Path) -> None:
    """A session of its own has the terminal, as that of a shell over ssh."""
    out = tmp_path / "out"
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", CODE, out],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    seen = b""
    while b"asked" not in seen:
        seen += os.read(master, 1024)
    os.close(master)
    assert child.wait(120) == 0
    assert out.read_text() == "reload,stop"


@pytest.mark.parametrize("refused", [False, True])
def test_without_a_terminal_it_is_a_reload(refused: bool) -> None:
    asked: list[str] = []

    def reload() -> Reloaded:
        asked.append("reload")
        if refused:
            raise ConfigError("run.max_steps: no")
        return Reloaded("", [], [], {})

    on_hangup(reload, lambda: asked.append("stop"))()
    assert asked == ["reload"]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="elsewhere a child has a thread")
def test_a_running_loop_starts_no_thread_for_a_child_or_for_work() -> None:
    async def main() -> None:
        before = {*threading.enumerate()}
        children = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", "exit(3)") for _ in range(3)
        ]
        names = await asyncio.gather(
            *(asyncio.to_thread(lambda: threading.current_thread().name) for _ in range(20))
        )
        assert {name.partition("_")[0] for name in names} == {"asyncio"}
        assert {*threading.enumerate()} <= before
        assert [await child.wait() for child in children] == [3, 3, 3]

    run_loop(main())


@pytest.mark.parametrize("version", [(3, 12, 0), (3, 14, 0)])
def test_a_python_that_starts_no_thread_for_a_child_is_left_as_it_is(
    version: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[object] = []
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setattr(asyncio, "set_child_watcher", replaced.append, raising=False)
    with _no_thread_per_child():
        pass
    assert replaced == []
