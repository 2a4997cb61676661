"""The page of the swarm: who may see it, and what a browser makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from coordinator_crowd import report_of_crowd
from coordinator_runs import Hand, Running, coordinator, found, request, sealed_report
from page_server import CHROMIUM, FLAGS
from swarm_keys import Swarm

from coordinator.admin import AdminClient
from swarm_node.node.home.home import Membership
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.page.entrance import Key
from swarm_node.simulation.seeded import EPOCH

NEEDS_BROWSER = pytest.mark.skipif(
    CHROMIUM is None or find_spec("playwright") is None,
    reason="NOT RUN: needs chromium (apt-get install chromium) and playwright",
)


@asynccontextmanager
async def browsing(running: Running) -> AsyncIterator[tuple[Any, Callable[..., Awaitable[Any]]]]:
    """What expects something of a page, and what opens that of a coordinator in a new window. The
    scripts of the page must not fail."""
    from playwright.async_api import async_playwright, expect

    errors: list[Any] = []
    async with async_playwright() as started:
        browser = await started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        async def opened(**window: Any) -> Any:
            page = await browser.new_page(**window)
            page.on("pageerror", lambda error: errors.append(error))
            await page.goto(await AdminClient(running.data).page())
            return page

        yield expect, opened
        assert errors == []
        await browser.close()


async def test_a_pass_is_for_looking(tmp_path: Path) -> None:
    async with coordinator(tmp_path / "c", Swarm(), Hand(1000.0)) as running:
        place, _, key = (await AdminClient(running.data).page()).rpartition("/#")

        async def ask(method: str, path: str, token: str, sent: bytes = b"") -> int:
            headers = {"Authorization": f"Bearer {token}"}
            return (await request(method, place + path, sent, headers))[0]

        assert await ask("GET", "/v1/picture", key) == 401
        body = b'{"key":"%b"}' % key.encode()
        status, answer = await request("POST", place + "/v1/enter", body, {})
        assert status == 200
        for path in ("/v1/picture", "/v1/exchange", "/v1/log", "/v1/codes", "/v1/trusted"):
            assert await ask("GET", path, answer["token"]) == 200
        for method, path in (("POST", "/v1/codes"), ("PUT", "/v1/trusted"), ("POST", "/v1/key")):
            assert await ask(method, path, answer["token"], b"{}") == 401
        public = await request("GET", running.url + "/", b"", {})
        assert public[0] == 404  # members of the public get no page
        assert len(Key(key).key) > 40
        assert (await request("POST", place + "/v1/enter", body, {}))[0] == 401
        assert await ask("GET", "/v1/picture", answer["token"]) == 401, "two had the key"


async def _told(running: Running, swarm: Swarm, hand: Hand) -> None:
    members = [swarm.member(number) for number in (1, 2)]
    for minute in range(4):
        for one, other in (members, members[::-1]):
            report = sealed_report(
                one,
                EPOCH + hand.seconds,
                eval_reward=(("gcd", minute / 4), ("chess", 0.5)),
                sampled=10 * minute,
                peers=(found(other, 5),),
            )
            assert (await running.ask("POST", "/v1/reports", report, by=one))[0] == 200
        hand.seconds += 60


@pytest.mark.slow(reason="starts a browser")
@NEEDS_BROWSER
async def test_a_browser_shows_the_swarm_on_a_wide_and_on_a_narrow_screen(tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="NOT RUN: needs axe")
    swarm, hand = Swarm(), Hand(1000.0)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        await _told(running, swarm, hand)
        async with browsing(running) as (expect, opened):
            sizes = [(width, scheme) for width in (390, 1280) for scheme in ("light", "dark")]
            for width, scheme in [*sizes, (360, "dark")]:
                page = await opened(viewport={"width": width, "height": 800}, color_scheme=scheme)
                await expect(page.locator("#nodes tbody tr")).to_have_count(2)
                await expect(page.locator("#said")).to_have_text("2 of 2 members report")
                await expect(page.locator("#chart canvas")).to_be_visible()
                await expect(page.locator("#chart-empty")).to_have_text("")
                await expect(page.locator("#held")).to_have_text("0.625")
                await expect(page.locator("#taught tbody tr")).to_have_count(2)
                for closed in await page.locator("summary").all():
                    await closed.press("Enter")
                result = await axe.Axe().run(page)
                assert result.violations_count == 0, result.generate_report()
                assert await page.evaluate("document.documentElement.scrollWidth") <= width
                wide = "e => e.filter(one => one.scrollWidth > one.clientWidth).length"
                assert await page.locator(".wide").evaluate_all(wide) == 0, "it scrolls sideways"


@pytest.mark.nightly(reason="a browser, as in the test above")
@pytest.mark.slow(reason="starts a browser")
@NEEDS_BROWSER
async def test_before_there_is_a_curve_the_page_says_what_it_waits_for(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(1000.0)
    async with (
        coordinator(tmp_path / "c", swarm, hand) as running,
        browsing(running) as (expect, opened),
    ):
        page = await opened()
        await expect(page.locator("#said")).to_contain_text("waiting for the first")
        one = swarm.member(1)
        report = sealed_report(one, EPOCH + hand.seconds)
        assert (await running.ask("POST", "/v1/reports", report, by=one))[0] == 200
        page = await opened()
        await expect(page.locator("#said")).to_have_text("1 of 1 members report")
        await expect(page.locator("#chart-empty")).to_contain_text("two reports")
        await page.locator("#metric").select_option("eval reward")
        await expect(page.locator("#chart-empty")).to_contain_text("second report")
        await expect(page.locator("#nodes tr.stale")).to_have_count(0)
        hand.seconds += 1000
        page = await opened()
        await expect(page.locator("#nodes tr.stale")).to_have_count(1)
        await expect(page.locator("#said")).to_contain_text("no member reported")


@pytest.mark.nightly(reason="a browser, as in the test above")
@pytest.mark.slow(reason="starts a browser")
@NEEDS_BROWSER
async def test_members_are_compared_by_name(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(1000.0)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        await report_of_crowd(running, swarm, hand, 9)
        async with browsing(running) as (expect, opened):
            page = await opened()
            lines = page.locator("#chart .u-legend .u-label")
            names = [f"node {number}" for number in range(1, 10)]
            await expect(lines).to_have_text(["time", *names[:6]])
            await page.locator("#over").select_option("groups sampled")
            await expect(lines).to_have_text(["groups sampled", *names[:6]])
            unseen = page.locator("#nodes th").filter(has_text="eval")
            await unseen.get_by_role("button").press("Enter")
            best = ["groups sampled", *names[:2:-1]]
            await expect(lines).to_have_text(best)
            section = page.locator("section", has=page.locator("#h-nodes"))
            await section.get_by_label("filter").fill(swarm.member(9).identity.peer_id[-8:])
            await expect(lines).to_have_text(["groups sampled", "node 9"])
            await page.locator("#metric").select_option("eval reward")
            await expect(lines).to_have_text(["time", "mean", "lowest", "highest"])


async def test_reports_tell_who_got_groups_from_whom_and_whose_were_refused(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(1000.0)
    members = [swarm.member(number) for number in range(1, 4)]
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        known = (found(members[1], 9, signature=2), found(members[2], 4, unreachable=3))
        known = (*known, found(swarm.member(99), 5))  # nobody here knows that one
        for one, peers in zip(members, (known, (), ()), strict=True):
            report = sealed_report(one, EPOCH + hand.seconds, peers=peers)
            assert (await running.ask("POST", "/v1/reports", report, by=one))[0] == 200
        _, told = await running.admin("GET", "/v1/exchange")
        got = {
            (told["peers"][learner], told["peers"][author]): (useful, refused)
            for learner, author, useful, refused in told["groups"]
        }
        one, two, three = (member.identity.peer_id for member in members)
        assert got == {(one, two): (7, 2), (one, three): (4, 0)}


async def test_only_the_last_page_of_history_comes_with_members(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(1000.0)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        await _told(running, swarm, hand)
        after, members = 0, []
        while True:
            _, picture = await running.admin("GET", f"/v1/picture?limit=3&after={after}")
            members.append(len(picture["members"]))
            after = picture["next"]
            if not after:
                break
        assert members == [0, 0, 2]


@pytest.mark.nightly(reason="a browser, as in the test above")
@pytest.mark.slow(reason="starts a browser")
@NEEDS_BROWSER
async def test_names_that_members_invent_do_not_fill_the_page(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(1000.0)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        for number in range(1, 5):
            one = swarm.member(number)
            invented = tuple((f"a{number} {n}", 1.0) for n in range(62))
            families = (("gcd", 0.5), ("__proto__", 0.25), *invented)
            report = sealed_report(one, EPOCH + hand.seconds, eval_reward=families)
            assert (await running.ask("POST", "/v1/reports", report, by=one))[0] == 200
        async with browsing(running) as (expect, opened):
            page = await opened()
            rows = page.locator("#families tbody tr")
            await expect(rows).to_have_count(64)
            for name in ("gcd", "__proto__"):
                await expect(rows.filter(has_text=name)).to_have_count(1)


async def test_what_happens_to_members_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.server.TICK_SECONDS", 0.05)
    swarm, hand = Swarm(), Hand(1000.0)
    one, other = (swarm.member(number, name=f"node {number}") for number in (1, 2))

    async with coordinator(tmp_path / "c", swarm, hand) as running:

        async def greet(member: Membership, **head: object) -> None:
            hand.seconds += 60
            asked = api.Introduction(swarm.presence(member, hand.seconds, **head))
            assert (await running.ask("POST", "/v1/introductions", asked, by=member))[0] == 200

        async def log(count: int) -> list[tuple[str, str]]:
            """The log, the newest row first, once it has so many."""
            for _ in range(200):
                _, told = await running.admin("GET", "/v1/log")
                if len(told["rows"]) == count:
                    return [(row["name"], row["kind"]) for row in told["rows"]]
                await asyncio.sleep(0.05)
            raise AssertionError(told)

        await greet(one)
        assert await log(1) == [("node 1", "joined")]
        await greet(one, epoch=2, addresses=("/ip4/192.0.2.1/tcp/1",))
        kinds = ["address changed", "restarted", "joined"]
        assert await log(3) == [("node 1", kind) for kind in kinds]
        report = sealed_report(other, EPOCH + hand.seconds, peers=(found(one, 5, signature=2),))
        assert (await running.ask("POST", "/v1/reports", report, by=other))[0] == 200
        assert {*(await log(5))[:2]} == {("node 1", "refused"), ("node 2", "joined")}
