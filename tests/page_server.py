"""A control server with invented figures, for the tests and the benchmark of the page."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from builders import quiet_snapshot
from control_servers import control_server

from swarm_node.node.control.control import ControlClient
from swarm_node.node.metrics.history import GroupCounts, HistoryReport, HistoryRow
from swarm_node.node.metrics.samples import SampleRow
from swarm_node.node.metrics.snapshot import EvalPoint, PeerRow, Said, Snapshot, TaughtRow
from swarm_node.page.event_log import EventLog, Sight

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
        "announced": 9,
        "accepted": 3,
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
    return EvalPoint(
        5.0 * number, number, reward, reward, reward / 2, families, train=seen, split_version=1
    )


def row(number: int) -> HistoryRow:
    counts: dict[str, Any] = dict.fromkeys(
        ("version", "steps", "sampled", "announced", "sent", "accepted"), number
    )
    rates: dict[str, Any] = dict.fromkeys(
        ("steps_per_second", "sampled_tokens_per_second", "trained_tokens_per_second"), 1.0
    )
    return HistoryRow(
        time=1.7e9 + 20.0 * number,
        seconds=20.0,
        **counts,
        **rates,
        trained_local=number,
        trained_external=number,
        rejected=0,
        peers=2,
        memory=10**9,
        rollouts=64,
        sampler_busy=0.5,
        trainer_busy=0.5,
        entropy=1.0,
    )


def snapshot(**changes: Any) -> Snapshot:
    known: dict[str, Any] = {
        "evals": [point(number) for number in range(300)],
        "local_families": ["gcd"],
        "groups": GroupCounts(sampled=7),
        "peers": [peer(1, name=HOSTILE, rejected_by_reason={HOSTILE: 2}), peer(2, via=None)],
        "alarms": [HOSTILE],
        "findings": [Said("together", "good", "learning and sharing", HOSTILE)],
    }
    return quiet_snapshot(**{**known, **changes})


def events(nodes: int) -> EventLog:
    """A log in which each node joined, one changed its address and was refused, and one left."""
    log, began = EventLog(), 1.7e9
    for number in range(nodes):
        seen = Sight(f"node {number}", f"{number:02}", "member", True, 1, ("/ip4/10.0.0.1/tcp/1",))
        log.see(peer(number).peer_id, seen, began + number)
    if nodes > 1:
        moved = replace(seen, name=HOSTILE, addresses=(HOSTILE,), rejections={HOSTILE: 2})
        log.see(peer(nodes - 1).peer_id, moved, began + 3600)
        log.see(peer(0).peer_id, Sight("node 0", "00", "member", False, 2), began + 7200)
    return log


def crowd(nodes: int, **changes: Any) -> Snapshot:
    """A node that knows as many others, and was taught by all of them."""
    families = ["gcd", "products", "spell_backward", *(f"family_{n}" for n in range(12))]
    taught = [
        TaughtRow(peer(number).peer_id, family, 1, 1 + (7 * number + 5 * place) % 60)
        for number in range(nodes)
        for place, family in enumerate(families)
        if (number + place) % 3
    ]
    peers = [
        peer(
            number,
            seconds_since_seen=number * 1.7,
            announced=40 + number,
            accepted=number % 40,
            sent=number * 3 % 50,
            trained_fraction=1 / nodes,
            useful_fraction=number % 10 / 10,
            via=None if number % 7 == 3 else "",
            rejected_by_reason={"author_reward": number} if number % 9 == 8 else {},
        )
        for number in range(nodes)
    ]
    return snapshot(peers=peers, taught=taught, **changes)


class Served:
    """A control server on a thread of its own; `now` and `rows` are what it shows, `stopped` how
    often it was told to stop."""

    def __init__(self, file: Path, now: Snapshot, rows: Sequence[HistoryRow]) -> None:
        self.file, self.now, self.rows = file, now, list(rows)
        self.stopped = 0
        self.log = EventLog()
        self.samples = [SampleRow("gcd", HOSTILE, HOSTILE, 1.0, 3, "12D3KooWpeer")]
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
            samples=lambda: self.samples,
            settings=lambda: {"model": "tiny", "network.listen": [HOSTILE]},
            log=lambda: self.log.report(),
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
