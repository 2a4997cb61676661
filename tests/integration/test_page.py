"""The page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from page_server import (
    CHROMIUM,
    FAMILIES,
    FLAGS,
    HOSTILE,
    crowd,
    events,
    peer,
    point,
    row,
    served,
    snapshot,
)

from swarm_node.node.metrics.history import CHARTS
from swarm_node.node.metrics.samples import SampleRow
from swarm_node.node.metrics.snapshot import (
    CoordinatorRow,
    LevelRow,
    Said,
    TaughtRow,
    UnmetRow,
    WorkRow,
)

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
def page(browser: Any) -> Iterator[Any]:
    """A page whose scripts complain of nothing."""
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console", lambda message: errors.append(message.text) if message.type == "error" else None
    )
    yield page
    complaints = [*errors]  # before it notices that its server is gone
    page.close()
    assert complaints == []


def test_it_shows_the_node_and_what_peers_write_stays_text(tmp_path: Path, page: Any) -> None:
    with served(tmp_path, snapshot(), [row(number) for number in range(3)]) as one:
        page.goto(one.address())
        playwright.expect(page.locator("#metrics canvas")).to_be_visible()
        playwright.expect(page.locator("#held")).to_have_text("0.748")
        playwright.expect(page.locator("#held-seen")).to_have_text("training prompts 0.874")
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
        playwright.expect(page.locator("#metric option")).to_have_text(list(CHARTS))
        for title, drawn in (
            ("groups per minute", {"sent": 3, "accepted": 3}),
            ("turns per rollout", {"local": None}),
            ("memory in MB", {"all processes": 1000}),
        ):
            page.locator("#metric").select_option(title)
            time, *values = page.evaluate("Object.entries(figures.records().pop())")
            assert (time[0], dict(values)) == ("time", drawn)


@pytest.mark.nightly(reason="another look at the page in a browser")
def test_before_the_first_step_it_shows_how_far_that_is(tmp_path: Path, page: Any) -> None:
    barren = Said("nothing_to_learn", "bad", "nothing to learn", f"set {HOSTILE}")
    ladders = [
        LevelRow("addition", 2, 4, True, {"addition-1": 0.9, "addition-2": 0.5}, 0.5),
        LevelRow(HOSTILE, 1, 5, False, {}),
    ]
    batch = WorkRow("sampling", 3, 64, 18.4, 90.0, None, first_step=600.0)
    begun = snapshot(work=batch, levels=ladders, steps=0, findings=[barren])
    with served(tmp_path, begun) as one:
        page.goto(one.address())
        facts, rows = page.locator("#now dd"), page.locator("#levels tbody tr")
        batch_told = "sampling: 3 of 64 completions, 18 tokens/s"
        playwright.expect(facts).to_have_text([batch_told, "waits", "begins in about 10 min"])
        assert page.locator("#remedy").inner_text() == f"→ set {HOSTILE}"
        addition = rows.filter(has_text="addition").locator("td")
        measured = "addition-1 0.90, addition-2 0.50"
        playwright.expect(addition).to_have_text(["addition", "2 of 4", "0.50", measured])
        playwright.expect(rows.filter(has_text=HOSTILE[:63])).to_contain_text("being measured")
        assert page.locator("img").count() == 0
        one.now = snapshot(work=WorkRow(training=7.0, end=300.0), steps=3)
        playwright.expect(facts).to_have_text(
            ["waits", "step 4 for 7 s", "done in about 5 min"], timeout=15_000
        )
        playwright.expect(page.locator("#levels-section")).to_be_hidden()
        one.now = snapshot()
        playwright.expect(page.locator("#now-section")).to_be_hidden(timeout=15_000)


@pytest.mark.nightly(reason="another look at the page in a browser")
def test_what_was_measured_alone_is_a_line_of_its_own(tmp_path: Path, page: Any) -> None:
    alone = [replace(point(number), isolated=number < 9) for number in range(20)]
    told = CoordinatorRow("https://swarm.example", True, introduced=7)
    with served(tmp_path, snapshot(evals=alone, coordinator=told)) as one:
        page.goto(one.address())
        lines = page.locator("#reward .u-legend .u-label")
        families = ["local families", "external-only families"]
        every = ["up", "all families", *families, "isolated", "training prompts"]
        playwright.expect(lines).to_have_text(every)
        page.locator("#family").select_option("gcd")
        playwright.expect(lines).to_have_text(["up", "gcd", "isolated"])
        assert "swarm.example: 7" in page.locator("#machine").inner_text()
        one.now = snapshot(evals=[point(number) for number in range(3)])
        page.reload()
        playwright.expect(lines).to_have_text([*every[:-2], "training prompts"])


@pytest.mark.nightly(reason="another look at the page in a browser")
def test_links_lead_to_parts_that_are_there(tmp_path: Path, page: Any) -> None:
    with served(tmp_path, snapshot()) as one:
        page.goto(one.address())
        links = page.locator("nav a:visible")
        there = ["reward", "families", "nodes", "links", "completions", "this node"]
        playwright.expect(links).to_have_text(there)
        one.log = events(3)
        playwright.expect(links).to_have_text([*there[:4], "events", *there[4:]], timeout=30_000)


@pytest.mark.nightly(reason="another look at the page in a browser")
def test_without_a_key_it_shows_nothing_and_says_what_to_do(tmp_path: Path, browser: Any) -> None:
    page = browser.new_page()
    with served(tmp_path, snapshot()) as one:
        address = one.address()
        page.goto(address.partition("#")[0])
        playwright.expect(page.locator("#remedy")).to_contain_text("swarm-node open")
        assert page.locator("#nodes tbody tr").count() == 0
        page.goto("about:blank")
        page.goto(address)
        playwright.expect(page.locator("#nodes tbody tr")).to_have_count(2)


@pytest.mark.nightly(reason="another look at the page in a browser")
def test_it_says_so_when_the_node_ends(tmp_path: Path, browser: Any) -> None:
    page = browser.new_page()
    with served(tmp_path, snapshot()) as one:
        page.goto(one.address())
        playwright.expect(page.locator("#nodes tbody tr")).to_have_count(2)
    playwright.expect(page.locator("#said")).to_have_text(
        "the node does not answer", timeout=15_000
    )


@pytest.mark.nightly(reason="another look at the page in a browser")
def test_nodes_are_filtered_and_sorted_by_keyboard(tmp_path: Path, page: Any) -> None:
    with served(tmp_path, crowd(60)) as one:
        page.goto(one.address())
        rows, head = page.locator("#nodes tbody tr"), page.locator("#nodes th")
        playwright.expect(rows).to_have_count(50)
        region = page.get_by_role("region", name="table of nodes")
        region.get_by_role("button", name="show 10 more of 60").press("Enter")
        playwright.expect(rows).to_have_count(60)
        version = head.filter(has_text="version")
        version.get_by_role("button").press("Enter")
        playwright.expect(rows.first).to_contain_text("node 59")
        playwright.expect(version).to_have_attribute("aria-sort", "descending")
        version.get_by_role("button").press("Enter")
        playwright.expect(rows.first).to_contain_text("node 0")
        head.filter(has_text="name").get_by_role("button").press("Enter")
        names = rows.locator("td.name").all_inner_texts()
        assert names == [f"node {number}" for number in range(60)], "numbers sort as numbers"
        page.locator("#h-nodes").locator("xpath=../..").get_by_label("filter").fill("author_reward")
        playwright.expect(rows).to_have_count(6)
        one.now = crowd(10)  # the next event keeps filter and order
        playwright.expect(rows).to_have_count(1, timeout=15_000)
        playwright.expect(rows).to_contain_text("node 8")


@pytest.mark.nightly(reason="another look at the page in a browser")
def test_the_matrix_sums_up_what_does_not_fit(tmp_path: Path, page: Any) -> None:
    now = crowd(40)
    with served(tmp_path, now) as one:
        page.set_viewport_size({"width": 390, "height": 800})
        page.goto(one.address())
        rows = page.locator("#taught tbody tr")
        playwright.expect(rows).to_have_count(12)
        playwright.expect(rows.last.locator("th")).to_have_text("29 others")
        titles = page.locator("#taught tbody td[title]")
        counted = titles.evaluate_all(
            "cells => cells.map(({title}) => Number(title.split(': ').pop().replaceAll(',', '')))"
        )
        assert sum(counted) == sum(row.rollouts for row in now.taught)
        one.now = snapshot(
            peers=[peer(1, name=HOSTILE)],
            taught=[TaughtRow(peer(1).peer_id, HOSTILE, 1, 5), TaughtRow("gone", "gcd", 1, 2)],
        )
        playwright.expect(rows).to_have_count(2, timeout=15_000)
        playwright.expect(rows.first.locator("th")).to_have_text(HOSTILE[:39] + "…")
        assert page.locator("img").count() == 0


@pytest.mark.nightly(reason="another look at the page in a browser")
def test_the_log_shows_what_happened_to_peers(tmp_path: Path, page: Any) -> None:
    with served(tmp_path, snapshot()) as one:
        one.log = events(3)
        page.goto(one.address())
        lines = page.locator("#log li")
        kinds = ["left", "restarted", "refused", "address changed", *["joined"] * 3]
        playwright.expect(lines.locator(".kind")).to_have_text(kinds)
        assert HOSTILE[:39] in lines.nth(2).inner_text()
        assert page.locator("img").count() == 0
        page.locator("#log select").select_option("left")
        playwright.expect(lines).to_have_count(1)
        playwright.expect(lines).to_contain_text("node 0")
        playwright.expect(page.locator("#settings")).to_contain_text("network.listen")


@pytest.mark.nightly(reason="another look at the page in a browser")
def test_figures_and_tables_are_saved_as_files(tmp_path: Path, page: Any) -> None:
    odd = snapshot(
        peers=[peer(1, name="=1+1"), peer(2, name='"a", b\x00\u202e')],
        taught=[TaughtRow(peer(1).peer_id, HOSTILE, 1, 5)],
    )
    rows = [
        row(1),
        replace(row(2), eval_reward={"gcd": 0.5}, split_version=1),
        replace(row(3), eval_reward={}),
    ]
    with served(tmp_path, odd, rows) as one:
        page.goto(one.address())
        playwright.expect(page.locator("#metrics canvas")).to_be_visible()

        def saved(part: str, kind: str) -> bytes:
            menu = page.locator(f"#save-{part} details")
            if menu.get_attribute("open") is None:
                menu.locator("summary").press("Enter")
            with page.expect_download() as going:
                menu.get_by_role("button", name=kind, exact=True).press("Enter")
            assert going.value.suggested_filename.endswith(f".{kind.lower()}")
            return Path(going.value.path()).read_bytes()

        table = [*csv.DictReader(io.StringIO(saved("nodes", "CSV").decode()))]
        assert [line["name"] for line in table] == ["'=1+1", '"a", b  ']
        assert [line["version"] for line in table] == ["1", "2"]
        points = json.loads(saved("reward", "JSON"))
        assert len(points) == 300
        assert points[-1]["all families"] == 299 / 400
        for part in ("reward", "metrics", "taught"):
            root = ElementTree.fromstring(saved(part, "SVG"))
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert len(root) >= 5
            kinds = {element.tag.rpartition("}")[2] for element in root.iter()}
            assert kinds <= {"svg", "rect", "polyline", "text"}, "names are text in it"
            assert saved(part, "PNG").startswith(b"\x89PNG")
        page.locator("#over").select_option("groups sampled here")
        assert json.loads(saved("reward", "JSON")) == [
            {"groups sampled here": 2, "all families": 0.5, "training prompts": None}
        ]


@pytest.mark.nightly(reason="another look at the page in a browser")
def test_samples_are_two_a_family_and_all_of_the_one_that_is_chosen(
    tmp_path: Path, page: Any
) -> None:
    with served(tmp_path, snapshot()) as one:
        one.samples = [
            SampleRow(family, "question", f"answer {number}", number % 2, number, author)
            for family in FAMILIES
            for number, author in enumerate(("", "", peer(1).peer_id))
        ]
        page.goto(one.address())
        shown = page.locator(".sample")
        playwright.expect(shown).to_have_count(6)
        page.locator("#sample-by").select_option("peers")
        playwright.expect(shown).to_have_count(3)
        page.locator("#sample-by").select_option("everybody")
        page.locator("#sample-family").select_option("gcd")
        playwright.expect(shown).to_have_count(3)
        page.locator("#sample-mark").select_option("right")
        playwright.expect(shown).to_have_count(1)
        playwright.expect(shown).to_contain_text("answer 1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 390, 1280])
@pytest.mark.nightly(reason="another look at the page in a browser")
def test_people_who_cannot_see_it_well_can_use_it(
    tmp_path: Path, browser: Any, scheme: str, width: int
) -> None:
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    hostile = peer(99, name=HOSTILE, rejected_by_reason={HOSTILE: 3})
    shown = crowd(
        9,
        former=[hostile],
        work=WorkRow("evaluating", 3, 64, 18.4, 90.0, 7.0, 600.0, 9000.0),
        levels=[LevelRow(HOSTILE, 1, 5, False, {HOSTILE: 0.5}, 0.5)],
    )
    with served(tmp_path, shown, [row(1), row(2)]) as one:
        one.log = events(9)
        page.goto(one.address())
        playwright.expect(page.locator("#nodes tbody tr")).to_have_count(10)
        playwright.expect(page.locator("#settings-section")).to_be_visible()
        for closed in page.locator("summary").all():
            closed.press("Enter")
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth)"
        assert page.evaluate(f"{wide}.map(e => e.ariaLabel)") == [], "it scrolls sideways"
    page.close()


@pytest.mark.nightly(reason="another look at the page in a browser")
def test_links_have_an_address_a_round_trip_and_bytes_or_the_reason_why_there_is_none(
    tmp_path: Path, page: Any
) -> None:
    why = Said("unreachable", "warning", HOSTILE, "open the port")
    shown = replace(
        snapshot(),
        peers=[
            peer(1, address="10.0.0.1:31330", round_trip=0.0034, bytes_in=812, bytes_out=3_400_000),
            peer(2, via="12D3KooW" + "0" * 43 + "1", round_trip=0.21),
        ],
        unmet=[UnmetRow("12D3KooW" + "0" * 43 + "9", "late", "", [], why)],
        unmet_total=3,
    )
    with served(tmp_path, shown) as one:
        page.goto(one.address())
        rows = page.locator("#links tbody tr")
        playwright.expect(rows).to_have_count(3)
        none = "\N{EN DASH}"
        cells = [row.locator("td").all_inner_texts() for row in rows.all()]
        by_name = {name: rest for name, *rest in cells}
        assert by_name["node 1"] == ["direct", "10.0.0.1:31330", "3.4", "812 B", "3.4 MB", ""]
        assert by_name["node 2"][:3] == ["via node 1 …00000001", none, "210"]
        assert by_name["late"] == [none] * 5 + [HOSTILE]
        playwright.expect(page.locator("#links-more")).to_contain_text("2 more members")


@pytest.mark.nightly(reason="another look at the page in a browser")
def test_a_legend_shows_the_newest_values_and_the_caption_explains_drawn_lines_only(
    tmp_path: Path, page: Any
) -> None:
    points = [replace(point(n), external_only=None, isolated=True) for n in range(5)]
    with served(tmp_path, replace(snapshot(), evals=points), [row(1), row(2)]) as one:
        page.goto(one.address())
        legend = page.locator("#reward .u-value")
        playwright.expect(legend.first).to_have_text("20 s")
        assert legend.all_inner_texts()[1] == f"{points[-1].reward:.3g}"
        playwright.expect(page.locator("[data-line='training prompts']")).to_be_visible()
        for absent in ("external-only families", "isolated"):
            playwright.expect(page.locator(f"[data-line='{absent}']")).to_be_hidden()
