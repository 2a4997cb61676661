"""A child that does what it is asked: `python -m obedient in-order` or `concurrent`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import msgspec

from swarm_node.process import serve, serve_concurrently


class Echo(msgspec.Struct, tag=True):
    value: Any = None


class Wait(msgspec.Struct, tag=True):
    """Concurrent: wait for so many seconds or until the call is cut. In order: block."""

    seconds: float


class Dropped(msgspec.Struct, tag=True):
    """How many waits were dropped."""


class Helper(msgspec.Struct, tag=True):
    """Start another process, with `named` in its command."""

    named: str = ""


class Share(msgspec.Struct, tag=True):
    """Make shared memory, and leave it to Python to remove it."""


class Do(msgspec.Struct, tag=True):
    """Fail, run into a bug, die, write garbage, or answer with another type than asked for."""

    what: str


class Echoed(msgspec.Struct, tag=True):
    value: Any = None


class Waited(msgspec.Struct, tag=True):
    ended: str


class Counted(msgspec.Struct, tag=True):
    count: int


class Named(msgspec.Struct, tag=True):
    name: str


class Started(msgspec.Struct, tag=True):
    pid: int


Request = Echo | Wait | Dropped | Helper | Share | Do
Reply = Echoed | Waited | Counted | Named | Started
HELPER = [sys.executable, "-c", "import time; time.sleep(600)"]


class Obedient:
    def __init__(self) -> None:
        self.replies = os.dup(1)
        self.dropped = 0

    def in_order(self, request: Request) -> Reply:
        match request:
            case Wait():
                time.sleep(request.seconds)
                return Waited("late")
            case Echo():
                print("a library's stray print")
                return Echoed(request.value)
            case Dropped():
                return Counted(self.dropped)
            case Helper():
                return Started(subprocess.Popen([*HELPER, request.named]).pid)
            case Share():
                self.shared = SharedMemory(create=True, size=1 << 16)
                return Named(self.shared.name)
            case Do(what="fail"):
                raise ValueError("no such thing")
            case Do(what="bug"):
                raise KeyError("a bug")
            case Do(what="die"):
                os._exit(3)
            case Do(what="garbage"):
                os.write(self.replies, b"\xff" * 64)
            case Do(what="nothing"):
                os.close(1), os.closerange(3, 1 << 20)
                time.sleep(600)
        return Waited("never")

    async def concurrently(self, request: Request, cut: asyncio.Event) -> Reply:
        if not isinstance(request, Wait):
            return self.in_order(request)
        try:
            async with asyncio.timeout(request.seconds):
                await cut.wait()
            return Waited("early")
        except TimeoutError:
            return Waited("late")
        except asyncio.CancelledError:
            self.dropped += 1
            raise


if __name__ == "__main__":
    _obedient = Obedient()
    if sys.argv[1] == "concurrent":
        asyncio.run(serve_concurrently(_obedient.concurrently, Request))
    else:
        serve(_obedient.in_order, Request)
