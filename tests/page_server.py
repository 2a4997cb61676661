"""A control server with invented figures, for the tests and the benchmark of the page."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from builders import quiet_snapshot
from control_servers import control_server

from swarm_node.node.control.control import ControlClient
from swarm_node.node.figures.history import GroupCounts, HistoryReport, HistoryRow
from swarm_node.node.figures.samples import SampleRow
from swarm_node.node.figures.snapshot import EvalPoint, PeerRow, Said, Snapshot

CHROMIUM = shutil.which("chromium")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
FAMILIES = ("gcd", "products", "spell_backward")


def peer(number: int, **changes: Any) -> PeerRow:
    known: dict[str, Any] = {
        "peer_id": f"12D3KooW{number:044}",
        "version": number,
        "seconds_since_seen": 1.0,
        "published": 9,
        "received": 3,
        "rejected": 0,
        "addresses": [],
        "name": f"node {number}",
        "standing": "member",
        "until": 2_000_000_000,
        "via": "",
    }
    return PeerRow(**{**known, **changes})


def point(number: int) -> EvalPoint:
    reward = number / 400
    families = dict.fromkeys(FAMILIES, reward)
    seen = (1 + reward) / 2
    return EvalPoint(5.0 * number, number, reward, reward, reward / 2, families, seen=seen, split=1)


def row(number: int) -> HistoryRow:
    counts: dict[str, Any] = dict.fromkeys(
        ("version", "updates", "made", "announced", "taken", "received"), number
    )
    rates: dict[str, Any] = dict.fromkeys(
        ("updates_per_second", "sampled_tokens_per_second", "trained_tokens_per_second"), 1.0
    )
    return HistoryRow(
        time=1.7e9 + 20.0 * number,
        seconds=20.0,
        **counts,
        **rates,
        trained_own=number,
        trained_peers=number,
        refused=0,
        peers=2,
        memory=10**9,
        rows=64,
        sampler_busy=0.5,
        trainer_busy=0.5,
        entropy=1.0,
    )


def snapshot(**changes: Any) -> Snapshot:
    known: dict[str, Any] = {
        "evals": [point(number) for number in range(300)],
        "own_families": ["gcd"],
        "groups": GroupCounts(published=7),
        "peers": [peer(1, name=HOSTILE, refused={HOSTILE: 2}), peer(2, via=None)],
        "alarms": [HOSTILE],
        "findings": [Said("together", "good", "learning and sharing", HOSTILE)],
    }
    return quiet_snapshot(**{**known, **changes})


class Served:
    """A control server on a thread of its own; `now` and `rows` are what it shows, `stopped` how
    often it was told to stop."""

    def __init__(self, file: Path, now: Snapshot, rows: Sequence[HistoryRow]) -> None:
        self.file, self.now, self.rows = file, now, list(rows)
        self.stopped = 0
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()])

    def address(self) -> str:
        asked = ControlClient(self.file).page()
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result(30)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(30)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        self._loop.close()

    async def _serve(self) -> None:
        def stop() -> None:
            self.stopped += 1

        server = control_server(
            self.file,
            snapshot=lambda: self.now,
            history=lambda since: HistoryReport(1, [r for r in self.rows if r.time > since]),
            samples=lambda: [SampleRow("gcd", HOSTILE, HOSTILE, 1.0, 3, "12D3KooWpeer")],
            stop=stop,
        )
        await server.start()
        self._ready.set()
        await self._stop.wait()
        await server.close()


@contextmanager
def served(place: Path, now: Snapshot, rows: Sequence[HistoryRow] = ()) -> Iterator[Served]:
    """A server with its control file in `place`."""
    one = Served(place / "control.json", now, rows)
    one.start()
    try:
        yield one
    finally:
        one.end()
