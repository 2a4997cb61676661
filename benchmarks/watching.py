"""What it costs to watch a node, and whether the page stays quick with many nodes.

    python benchmarks/watching.py [--windows 6] [--seconds 20]

The page in Chromium with 500 nodes and a day of history: milliseconds that an event and a chart
take (limit: 100, which people notice). Then a real `swarm-node join --model tiny`. Windows
alternate: nobody watches, or a page takes events and a scraper asks for /metrics every five
seconds. Prints updates and the processor time of the node's own process in both, and the ratio of
updates (goal: at least 0.99). Needs tests/requirements-page.txt, and Debian's chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

import aiohttp
import psutil
from node_process import NodeProcess

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from page_server import CHROMIUM, FLAGS, peer, point, row, served, snapshot
from playwright.sync_api import sync_playwright

from swarm_node.node.control import ControlClient
from swarm_node.node.home import Home

#: What a node keeps of a day: a row every 20 seconds.
_DAY_ROWS = 86_400 // 20


def cost(windows: int, seconds: float) -> None:
    """Updates and CPU seconds, watched and not."""
    found = {False: [0.0, 0.0], True: [0.0, 0.0]}
    with tempfile.TemporaryDirectory() as place:
        node = NodeProcess(Path(place), ["model=tiny", "run.threads=1"])
        try:
            node.start()
            own = psutil.Process(node.process.pid)
            for number in range(2 * windows):
                watched = number % 2 == 1
                before, cpu = node.status().updates, sum(own.cpu_times()[:2])
                asyncio.run(_watch(node.home, seconds, watched))
                found[watched][0] += node.status().updates - before
                found[watched][1] += sum(own.cpu_times()[:2]) - cpu
        finally:
            node.stop()
    for watched, (updates, cpu) in found.items():
        said = "watched" if watched else "unwatched"
        print(f"{said}: {updates:.0f} updates, {cpu:.2f} CPU s of the node's process")
    print(f"ratio of updates {found[True][0] / found[False][0]:.3f} (goal 0.99)")


async def _watch(home: Home, seconds: float, watched: bool) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each(home)) for each in (_page, _scrape) if watched]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()


async def _page(home: Home) -> None:
    address, _, key = (await ControlClient(home.control_file).page()).partition("#")
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{address}v1/enter", json={"key": key}) as answer:
            headers = {"Authorization": f"Bearer {(await answer.json())['token']}"}
        async with session.get(f"{address}v1/events", headers=headers) as events:
            async for _ in events.content.iter_any():
                pass


async def _scrape(home: Home) -> None:
    target = json.loads((home.path / "prometheus.json").read_text())[0]["targets"][0]
    token = (home.path / "metrics.token").read_text()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        while True:
            async with session.get(f"http://{target}/metrics") as answer:
                await answer.read()
            await asyncio.sleep(5)


def drawn() -> None:
    """Milliseconds in a browser."""
    crowd = snapshot(
        peers=[peer(number) for number in range(500)],
        evals=[point(number) for number in range(2000)],
    )
    rows = [row(number) for number in range(_DAY_ROWS)]
    with (
        tempfile.TemporaryDirectory() as place,
        served(Path(place), crowd, rows) as one,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.goto(one.address())
        page.wait_for_selector("#nodes tbody tr")
        page.wait_for_selector("#metrics canvas")
        for what, call in (
            ("an event of 500 nodes", "show({...shown, evals: []})"),
            ("a chart of a day", "drawMetric()"),
        ):
            spent = page.evaluate(
                "() => { const began = performance.now();"
                f" for (let n = 0; n < 20; n++) {call};"
                " return (performance.now() - began) / 20; }"
            )
            print(f"{what}: {spent:.1f} ms (limit 100)")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    drawn()
    cost(args.windows, args.seconds)


if __name__ == "__main__":
    main()
