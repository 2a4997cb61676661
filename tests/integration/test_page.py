"""The page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from page_server import CHROMIUM, FLAGS, HOSTILE, point, row, served, snapshot

from swarm_node.node.snapshot import CoordinatorRow

playwright = pytest.importorskip("playwright.sync_api", reason="NOT RUN: needs playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="NOT RUN: needs axe")

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="NOT RUN: needs chromium (apt-get install chromium)"
    ),
    pytest.mark.slow(reason="starts a browser"),
]


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
    with served(tmp_path, snapshot(), [row(number) for number in range(3)]) as one:
        page.goto(one.address())
        playwright.expect(page.locator("#metrics canvas")).to_be_visible()
        playwright.expect(page.locator("#held")).to_have_text("0.748")
        playwright.expect(page.locator("#held-seen")).to_have_text("seen texts 0.874")
        playwright.expect(page.locator("#nodes tbody tr")).to_have_count(2)
        assert page.url.endswith("/"), "the key stays in the address"
        assert HOSTILE in page.locator("#nodes tbody tr").first.inner_text()
        assert page.locator("#alarms li").inner_text() == HOSTILE
        playwright.expect(page.locator("#said")).to_have_text("learning and sharing")
        playwright.expect(page.locator(".sample pre").last).to_have_text(HOSTILE)
        assert page.locator("img, main script").count() == 0
        assert page.title() != "owned"
        one.now = snapshot(evals=[point(number) for number in range(320)])
        playwright.expect(page.locator("#held")).to_have_text("0.797", timeout=15_000)
        page.reload()  # the pass is kept
        playwright.expect(page.locator("#held")).to_have_text("0.797")
    assert errors == []


def test_what_was_measured_alone_is_a_line_of_its_own(
    tmp_path: Path, said: tuple[Any, list[str]]
) -> None:
    page, errors = said
    alone = [replace(point(number), alone=number < 9) for number in range(20)]
    told = CoordinatorRow("https://swarm.example", True, introduced=7)
    with served(tmp_path, snapshot(evals=alone, coordinator=told)) as one:
        page.goto(one.address())
        lines = page.locator("#reward .u-legend .u-label")
        every = ["up", "all families", "sampled here", "never sampled", "alone", "seen texts"]
        playwright.expect(lines).to_have_text(every)
        page.locator("#family").select_option("gcd")
        playwright.expect(lines).to_have_text(["up", "gcd", "alone"])
        assert "https://swarm.example: 7 introductions" in page.locator("#machine").inner_text()
        one.now = snapshot(evals=[point(number) for number in range(3)])
        page.reload()
        playwright.expect(lines).to_have_text([*every[:-2], "seen texts"])
    assert errors == []


def test_what_was_measured_on_the_old_ground_is_marked(
    tmp_path: Path, said: tuple[Any, list[str]]
) -> None:
    page, errors = said
    old = [replace(point(number), split=0, seen=None) for number in range(280, 290)]
    with served(tmp_path, snapshot(evals=old)) as one:
        page.goto(one.address())
        lines = page.locator("#reward .u-legend .u-label")
        playwright.expect(lines).to_have_text(["up", "old ground"])
        playwright.expect(page.locator("#held-seen")).to_have_text("old ground: held out by seed")
        after = [replace(point(number), seconds=2000.0 + number) for number in (40, 44)]
        one.now = snapshot(evals=[*old, *after])
        page.reload()
        every = ["up", "all families", "sampled here", "never sampled", "seen texts", "old ground"]
        playwright.expect(lines).to_have_text(every)
        playwright.expect(page.locator("#held")).to_have_text("0.110")
        playwright.expect(page.locator("#held-more")).to_contain_text("0.100 at first")
        page.locator("#family").select_option("gcd")
        playwright.expect(lines).to_have_text(["up", "gcd", "old ground"])
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
