"""Cost of watching a node, and speed of the page with many nodes.

    python benchmarks/watching.py [--pairs 12] [--seconds 10] [--watchers 10]

The page in Chromium with 500 nodes and a day of history: milliseconds of processor time that
script, layout and painting of an event and of a chart take (limit: 100, which people notice). Then
a real `swarm-node join --model tiny`. Windows come in pairs, whose order alternates: nobody
watches, or `--watchers` watchers do. Each is a page, which takes events and asks for history and
samples, and a scraper that asks for /metrics every five seconds. Prints the processor time of all
processes of the node for each update in both, and what one watcher costs of it (goal: at most 1%).
Processor time, because other work on the machine hides in it least. Needs
tests/requirements-page.txt, and Debian's chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path

import aiohttp
from node_process import NodeProcess, cpu_seconds

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from page_server import CHROMIUM, FLAGS, peer, point, row, served, snapshot
from playwright.sync_api import sync_playwright

from swarm_node.node.control.control import ControlClient
from swarm_node.node.home.home import Home

#: Rows of a day's history: one every 20 seconds.
_DAY_ROWS = 86_400 // 20


def cost(pairs: int, seconds: float, watchers: int) -> None:
    """CPU seconds for each update, watched and not."""
    measured_pairs: list[dict[int, tuple[int, float]]] = []
    with tempfile.TemporaryDirectory() as place:
        node = NodeProcess(Path(place), ["model=tiny", "run.threads=1"])
        try:
            node.start()
            for number in range(pairs):
                pair = {}
                for many in (0, watchers) if number % 2 else (watchers, 0):
                    before, cpu = node.status().steps, cpu_seconds(node.process.pid)
                    asyncio.run(_watch(node.home, seconds, many))
                    spent = cpu_seconds(node.process.pid) - cpu
                    pair[many] = node.status().steps - before, spent
                measured_pairs.append(pair)
        finally:
            node.stop()
    for many in (0, watchers):
        updates = sum(pair[many][0] for pair in measured_pairs)
        cpu = sum(pair[many][1] for pair in measured_pairs)
        print(f"{many} watchers: {updates} updates, {1000 * cpu / updates:.1f} CPU ms for each")
    each = [
        pair[watchers][1] / pair[watchers][0] * pair[0][0] / pair[0][1] - 1
        for pair in measured_pairs
    ]
    mean, error = statistics.mean(each), statistics.stdev(each) / math.sqrt(len(each))
    print(f"one watcher: {100 * mean / watchers:.2f} ± {100 * error / watchers:.2f}% (goal 1%)")


async def _watch(home: Home, seconds: float, watchers: int) -> None:
    async with asyncio.TaskGroup() as group:
        kinds = (_page, _scrape) * watchers
        tasks = [group.create_task(each(home)) for each in kinds]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()


async def _page(home: Home) -> None:
    address, _, key = (await ControlClient(home.control_file).page()).partition("#")
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{address}v1/enter", json={"key": key}) as answer:
            headers = {"Authorization": f"Bearer {(await answer.json())['token']}"}
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(_remember(session, address, headers))
            async with session.get(f"{address}v1/events", headers=headers) as events:
                async for _ in events.content.iter_any():
                    pass
            asking.cancel()


async def _remember(session: aiohttp.ClientSession, address: str, headers: dict[str, str]) -> None:
    since = 0.0
    while True:
        url = f"{address}v1/history?since={since}"
        async with session.get(url, headers=headers) as answer:
            rows = (await answer.json())["rows"]
        since = rows[-1]["time"] if rows else since
        async with session.get(f"{address}v1/samples", headers=headers) as answer:
            await answer.read()
        await asyncio.sleep(10)


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
        tools = page.context.new_cdp_session(page)
        tools.send("Performance.enable", {"timeDomain": "threadTicks"})

        def spent() -> float:
            page_metrics = tools.send("Performance.getMetrics")["metrics"]
            return float(
                next(item["value"] for item in page_metrics if item["name"] == "TaskDuration")
            )

        for what, call in (
            ("an event of 500 nodes", "show({...shown, evals: []})"),
            ("a chart of a day", "drawMetric()"),
        ):
            before = spent()
            page.evaluate(
                f"async () => {{ for (let n = 0; n < 20; n++) {{ {call};"
                " await new Promise(requestAnimationFrame); } }"
            )
            print(f"{what}: {1000 * (spent() - before) / 20:.1f} CPU ms (limit 100)")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--watchers", type=int, default=10, help="fewer than 16 pages")
    args = parser.parse_args()
    drawn()
    cost(args.pairs, args.seconds, args.watchers)


if __name__ == "__main__":
    main()
