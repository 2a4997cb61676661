"""The page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from builders import quiet_snapshot

from swarm_node.node.control import ControlClient, ControlServer
from swarm_node.node.history import HistoryReport
from swarm_node.node.snapshot import EvalPoint, GroupCounts, PeerRow, Snapshot

playwright = pytest.importorskip("playwright.sync_api", reason="NOT RUN: needs playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="NOT RUN: needs axe")

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="NOT RUN: needs chromium (apt-get install chromium)"
    ),
    pytest.mark.slow(reason="starts a browser"),
]
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
    return EvalPoint(
        5.0 * number, number, reward, reward, reward / 2, dict.fromkeys(FAMILIES, reward)
    )


def snapshot(**changes: Any) -> Snapshot:
    known: dict[str, Any] = {
        "evals": [point(number) for number in range(300)],
        "own_families": ["gcd"],
        "groups": GroupCounts(published=7),
        "peers": [peer(1, name=HOSTILE, refused={HOSTILE: 2}), peer(2, via=None)],
        "alarms": [HOSTILE],
    }
    return quiet_snapshot(**{**known, **changes})


class Served:
    """A control server on a thread of its own; `now` is what it shows."""

    def __init__(self, file: Path, now: Snapshot) -> None:
        self.file, self.now = file, now
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
        async def unasked() -> Any:
            raise AssertionError("a page does not ask for this")

        server = ControlServer(
            self.file,
            snapshot=lambda: self.now,
            history=lambda since: HistoryReport(1, []),
            network=unasked,
            evaluate=unasked,
            stop=lambda: None,
        )
        await server.start()
        self._ready.set()
        await self._stop.wait()
        await server.close()


@contextmanager
def served(place: Path, now: Snapshot) -> Iterator[Served]:
    one = Served(place / "control.json", now)
    one.start()
    try:
        yield one
    finally:
        one.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


@pytest.fixture
def said(browser: Any) -> Iterator[tuple[Any, list[str]]]:
    """A page, and what its scripts complained of."""
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console", lambda message: errors.append(message.text) if message.type == "error" else None
    )
    yield page, errors
    page.close()


def test_it_shows_the_node_and_what_peers_write_stays_text(
    tmp_path: Path, said: tuple[Any, list[str]]
) -> None:
    page, errors = said
    with served(tmp_path, snapshot()) as one:
        page.goto(one.address())
        playwright.expect(page.locator("#held")).to_have_text("0.748")
        playwright.expect(page.locator("#nodes tbody tr")).to_have_count(2)
        assert page.url.endswith("/"), "the key stays in the address"
        assert HOSTILE in page.locator("#nodes tbody tr").first.inner_text()
        assert page.locator("#alarms li").inner_text() == HOSTILE
        assert page.locator("img, #alarms script").count() == 0
        assert page.title() != "owned"
        one.now = snapshot(evals=[point(number) for number in range(320)])
        playwright.expect(page.locator("#held")).to_have_text("0.797", timeout=15_000)
        page.reload()  # the pass is kept
        playwright.expect(page.locator("#held")).to_have_text("0.797")
    assert errors == []


def test_without_a_key_it_shows_nothing_and_says_what_to_do(
    tmp_path: Path, said: tuple[Any, list[str]]
) -> None:
    page, _ = said
    with served(tmp_path, snapshot()) as one:
        address = one.address()
        page.goto(address.partition("#")[0])
        playwright.expect(page.locator("#remedy")).to_contain_text("swarm-node open")
        assert page.locator("#nodes tbody tr").count() == 0
        page.goto("about:blank")
        page.goto(address)
        playwright.expect(page.locator("#nodes tbody tr")).to_have_count(2)


def test_it_says_so_when_the_node_ends(tmp_path: Path, said: tuple[Any, list[str]]) -> None:
    page, _ = said
    with served(tmp_path, snapshot()) as one:
        page.goto(one.address())
        playwright.expect(page.locator("#nodes tbody tr")).to_have_count(2)
    playwright.expect(page.locator("#said")).to_have_text(
        "the node does not answer", timeout=15_000
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_people_who_cannot_see_it_well_can_use_it(
    tmp_path: Path, browser: Any, scheme: str, width: int
) -> None:
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    with served(tmp_path, snapshot()) as one:
        page.goto(one.address())
        playwright.expect(page.locator("#nodes tbody tr")).to_have_count(2)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
