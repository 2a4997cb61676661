"""Script time of an update of both pages, with 200 nodes.

    python benchmarks/page.py [--nodes 200] [--updates 20]

The page of a node that knows as many others, all of which taught it, and the page of a coordinator
to which as many members report, in Chromium. Every row of every table is shown, and in an update
figures of every node change. Prints the milliseconds that the script of an update takes by the
clock (goal: at most 50), and the processor time of script, layout and painting together.
Needs tests/requirements-page.txt, and Debian's chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
# Before this folder, whose coordinator.py has a package's name.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from coordinator_crowd import report_of_crowd
from coordinator_runs import Hand, coordinator
from page_server import CHROMIUM, FLAGS, crowd, events, point, row, served
from playwright.async_api import Browser, Page, async_playwright
from swarm_keys import Swarm

from coordinator.admin import AdminClient

#: What a node's page does with an event, and every fifth time with the slower answers.
_NODE = """(n) => {
  for (const peer of shown.peers) {
    peer.version += 1; peer.seconds_since_seen += 2; peer.accepted += 1; peer.sent += 1;
  }
  for (const taught of shown.taught) taught.rollouts += 1;
  show({...shown, evals: [{...evals[evals.length - 1], seconds: 1e4 + n}]});
  if (n % 5) return;
  rows.push({...rows[rows.length - 1], time: rows[rows.length - 1].time + 10});
  drawMetric();
}"""
#: What a coordinator's page does with the answers of ten seconds.
_COORDINATOR = """(n) => {
  for (const row of shown.members) {
    row.version += 1; row.sampled += 3; row.accepted += 2; row.trained_external += 1;
    row.eval_reward.gcd = (n % 10) / 10;
  }
  take(shown.members.map((row, m) => ({...row, id: 1e6 + n, eval_reward: (n % 10) / 10,
    at: reports[reports.length - 1].at + (m === 0 ? 10 : 0)})));
  for (const cell of given.groups) cell[2] += 1;
  showExchange(given);
  show({...shown, time: shown.time + 10});
}"""


async def _measure(page: Page, what: str, update: str, updates: int) -> None:
    while await page.locator(".more:visible").count():
        await page.locator(".more:visible").first.click()
    tools = await page.context.new_cdp_session(page)
    await tools.send("Performance.enable", {"timeDomain": "threadTicks"})

    async def spent() -> float:
        page_metrics = (await tools.send("Performance.getMetrics"))["metrics"]
        return next(float(item["value"]) for item in page_metrics if item["name"] == "TaskDuration")

    loop = f"""async (times) => {{
      const update = {update};
      let script = 0;
      for (let n = 0; n < times; n++) {{
        const began = performance.now();
        update(n);
        await Promise.resolve(); // the chart draws then
        script += performance.now() - began;
        await new Promise(requestAnimationFrame);
      }}
      return script / times;
    }}"""
    await page.evaluate(loop, 3)  # the browser compiles it
    before = await spent()
    script = await page.evaluate(loop, updates)
    milliseconds = 1000 * (await spent() - before) / updates
    times_text = (
        f"{script:.1f} ms of script (goal 50), {milliseconds:.1f} CPU ms with layout and painting"
    )
    print(f"{what}: {times_text}", flush=True)


async def node_page(browser: Browser, place: Path, nodes: int, updates: int) -> None:
    now = crowd(nodes, evals=[point(number) for number in range(400)])
    with served(place, now, [row(number) for number in range(4096)]) as one:
        one.log = events(nodes)
        page = await browser.new_page()
        await page.goto(await asyncio.to_thread(one.address))
        await page.wait_for_selector("#log-section:not([hidden])")
        await _measure(page, f"node's page, {nodes} nodes", _NODE, updates)


async def coordinator_page(browser: Browser, place: Path, nodes: int, updates: int) -> None:
    swarm, hand = Swarm(), Hand(1000.0)
    async with coordinator(place / "c", swarm, hand) as running:
        await report_of_crowd(running, swarm, hand, nodes)
        page = await browser.new_page()
        await page.goto(await AdminClient(running.data).page())
        await page.wait_for_selector("#taught-section:not([hidden])")
        await page.evaluate(
            "async () => { window.given = await (await ask('/v1/exchange')).json() }"
        )
        for chart in ("eval reward, by name", "eval reward"):
            await page.locator("#metric").select_option(chart)
            what = f"coordinator's page, {nodes} nodes, {chart}"
            await _measure(page, what, _COORDINATOR, updates)


async def measured(nodes: int, updates: int) -> None:
    pages: tuple[Any, ...] = (node_page, coordinator_page)
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for measure_page in pages:
            with tempfile.TemporaryDirectory() as place:
                await measure_page(browser, Path(place), nodes, updates)
        await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--updates", type=int, default=20)
    args = parser.parse_args()
    asyncio.run(measured(args.nodes, args.updates))


if __name__ == "__main__":
    main()
