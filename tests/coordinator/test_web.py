"""What a connection may cost, and what an error looks like."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from coordinator_runs import Hand, Running, authorization, coordinator, request
from swarm_keys import Swarm

from coordinator import web
from swarm_node.node.home.home import Membership
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.page import listening
from swarm_node.page.listening import site_of
from swarm_node.simulation.seeded import EPOCH

_HEAD = b"POST /v1/redemptions HTTP/1.1\r\nHost: x\r\n"


@asynccontextmanager
async def _opened(
    running: Running, sent: bytes = b""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which this was `sent`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(sent)
    yield reader, writer
    writer.close()


async def _closes(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other end closes."""
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def _takes_no_more_than(running: Running, most: int) -> None:
    """So many connections are answered while they are held, and one more is closed."""
    async with AsyncExitStack() as held:
        for _ in range(most):
            asked = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
            reader, _ = await held.enter_async_context(_opened(running, asked))
            assert b" 200 " in await reader.readline()
        async with _opened(running) as (reader, _):
            assert await _closes(reader) == b""


@pytest.mark.slow(reason="waits for the limits of slow clients")
async def test_who_sends_its_head_or_its_body_slowly_is_cut_off_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(listening, "_LINGERING_SECONDS", 0.1)
    monkeypatch.setattr(web, "BODY_SECONDS", 0.2)
    async with coordinator(tmp_path / "c", Swarm(), Hand(10.0)) as running:
        for sent in (b"", b"GET /v1/hea", _HEAD, _HEAD + b"Content-Length: 99\r\n\r\n{"):
            async with _opened(running, sent) as (reader, _):
                assert (await running.ask("GET", "/v1/health"))[0] == 200
                answer = await _closes(reader)
            assert not answer or b" 408 " in answer


async def test_a_head_that_trickles_in_is_cut_off_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.2)
    async with (
        coordinator(tmp_path / "c", Swarm(), Hand(10.0)) as running,
        _opened(running, _HEAD) as (reader, writer),
    ):

        async def trickle() -> None:
            while True:
                writer.write(b"X-Slow: 1\r\n")
                await asyncio.sleep(0.05)

        drip = asyncio.create_task(trickle())
        await _closes(reader)
        drip.cancel()


async def test_a_body_over_the_limit_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_LINGERING_SECONDS", 0.1)
    async with coordinator(tmp_path / "c", Swarm(), Hand(10.0)) as running:
        for size, status in ((api.MAX_BODY_BYTES, 400), (api.MAX_BODY_BYTES + 1, 413)):
            assert (await running.ask("POST", "/v1/redemptions", raw=b"x" * size))[0] == status
        head = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
        async with _opened(running, head) as (reader, writer):
            with suppress(ConnectionError):
                for _ in range(64):
                    writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                    await writer.drain()
            assert b" 413 " in await _closes(reader)
        long = b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n"
        async with _opened(running, long) as (reader, _):
            assert b" 400 " in await _closes(reader)


@pytest.mark.parametrize(
    "limit", ["coordinator.server.MAX_OF_ADDRESS", "swarm_node.page.listening.MAX_CONNECTIONS"]
)
async def test_connections_are_bounded_in_all_and_of_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(limit, 5)
    monkeypatch.setattr(listening, "HEAD_SECONDS", 600.0)  # nothing else closes them
    async with coordinator(tmp_path / "c", Swarm(), Hand(10.0)) as running:
        await _takes_no_more_than(running, 5)
        async with asyncio.timeout(30):
            while True:
                with suppress(OSError):
                    assert (await running.ask("GET", "/v1/health"))[0] == 200
                    break


def test_a_site_is_an_ipv4_address_in_either_form_or_an_ipv6_64() -> None:
    assert site_of("192.0.2.1") == site_of("::ffff:192.0.2.1") != site_of("::ffff:192.0.2.2")
    assert site_of("2001:db8:1:2::1") == site_of("2001:db8:1:2:3::4") != site_of("2001:db8:1:3::1")
    assert site_of("fe80::1%eth0") == site_of("fe80::2")
    assert site_of("nonsense") == ""


async def test_connections_of_an_ipv6_site_are_those_of_one_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one address of ::/64 is here, so each connection says that it comes from another."""
    monkeypatch.setattr("coordinator.server.MAX_OF_ADDRESS", 3)
    monkeypatch.setattr(listening, "HEAD_SECONDS", 600.0)
    number = itertools.count(1)
    real = asyncio.selector_events._SelectorSocketTransport.get_extra_info

    def elsewhere(self: Any, name: str, default: Any = None) -> Any:
        found = real(self, name, default)
        return (f"2001:db8::{next(number):x}", 7, 0, 0) if name == "peername" else found

    async with coordinator(tmp_path / "c", Swarm(), Hand(10.0)) as running:
        monkeypatch.setattr(
            asyncio.selector_events._SelectorSocketTransport, "get_extra_info", elsewhere
        )
        await _takes_no_more_than(running, 3)


async def test_a_large_answer_counts_as_many_requests_of_a_member_and_its_issuer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_PRICED_BYTES", 10)
    monkeypatch.setattr(web, "_ISSUER", (1.0, 100.0))
    swarm, hand = Swarm(), Hand(10.0)
    many = swarm.issuer("many")
    one, two = (swarm.member(n, many, "many") for n in (1, 2))
    async with coordinator(tmp_path / "c", swarm, hand) as running:

        async def status(by: Membership) -> int:
            return (await running.ask("GET", "/v1/members", by=by))[0]

        assert await status(one) == 200
        assert await status(one) == 429, "it takes what the answer weighed"
        assert await status(two) == 200
        assert await status(swarm.member(3, many, "many")) == 429, "so do those of its ticket"
        assert await status(swarm.member(4)) == 200
        hand.seconds += 600
        assert await status(one) == 200


async def test_requests_of_an_address_and_of_a_member_have_limits(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(10.0)
    one, two = swarm.member(1), swarm.member(2)
    async with coordinator(tmp_path / "c", swarm, hand) as running:

        async def statuses(count: int, **by: Any) -> list[int]:
            return [(await running.ask("GET", "/v1/reputation", **by))[0] for _ in range(count)]

        assert await statuses(21, by=one) == [200] * 20 + [429]
        assert await statuses(1, by=two) == [200]
        assert 429 in await statuses(300)
        hand.seconds += 60
        assert await statuses(1, by=one) == [200]


async def test_requests_of_all_addresses_together_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_ALL", (1.0, 5.0))
    async with coordinator(tmp_path / "c", Swarm(), Hand(10.0), behind_proxy=True) as running:
        asked = []
        for n in range(6):
            header = {"X-Forwarded-For": f"203.0.113.{n}"}
            asked.append((await request("GET", running.url + "/v1/health", b"", header))[0])
        assert asked == [200] * 5 + [429]


@pytest.mark.slow(reason="asks 400 times")
async def test_behind_a_proxy_the_address_is_the_one_that_the_proxy_adds(tmp_path: Path) -> None:
    async with coordinator(tmp_path / "c", Swarm(), Hand(10.0), behind_proxy=True) as running:

        async def status(forwarded: str) -> int:
            header = {"X-Forwarded-For": forwarded}
            return (await request("GET", running.url + "/v1/health", b"", header))[0]

        flood = [await status(f"203.0.113.{n}, 198.51.100.1") for n in range(201)]
        assert flood == [200] * 200 + [429]
        assert await status("198.51.100.1, 203.0.113.5") == 200
        flood = [await status(f"2001:db8:1:2::{n:x}") for n in range(201)]
        assert flood[-1] == 429, "an IPv6 site is one address"


async def test_every_answer_is_json_and_has_the_headers_a_browser_needs(tmp_path: Path) -> None:
    swarm = Swarm()
    async with (
        coordinator(tmp_path / "c", swarm, Hand(10.0)) as running,
        ClientSession() as session,
    ):
        for method, path, status in (
            ("GET", "/v1/health", 200),
            ("GET", "/", 404),
            ("PUT", "/v1/health", 405),
            ("GET", "/v1/members", 401),
            ("POST", "/v1/redemptions", 400),
        ):
            async with session.request(method, running.url + path) as response:
                assert response.status == status
                assert "json" in response.content_type
                if status != 200:
                    assert response.content_type == "application/problem+json"
                    problem = await response.json(content_type=None)
                    assert problem["status"] == status
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Cache-Control"] == "no-store"
                assert "frame-ancestors" in response.headers["Content-Security-Policy"]
                assert response.headers["Server"] == "swarm-coordinator"


async def test_odd_requests_are_refused_and_nothing_fails(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(10.0)
    one = swarm.member(1)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        for target in (
            "/v1/members?limit=0",
            "/v1/members?limit=1001",
            "/v1/members?limit=1&limit=2",
            "/v1/members?nothing=1",
            "/v1/history?since=nan",
            "/v1/history?since=-1",
            "/v1/reports/l0l",
            "/v1/batches?since=99999999999999999999",
        ):
            status, answer = await running.ask("GET", target, by=one)
            assert status == 400, (target, answer)
        for raw in (b"\xff", b"[" * 60_000, b'{"presence": 1}', b'{"presence": "!"}', b"null"):
            status, _ = await running.ask("POST", "/v1/introductions", raw=raw, by=one)
            assert status == 400, raw[:20]
        hand.seconds += 60
        for value in ("Swarm", "Swarm x", "Swarm " + "A" * 9000, "Bearer x", "Swarm ä"):
            header = {"Authorization": value}
            status, _ = await request("GET", running.url + "/v1/members", b"", header)
            assert status in (400, 401), value
        right = authorization(one, "GET", "/v1/members", b"", EPOCH + hand.seconds, {})
        for cut in range(6, len(right) - 4, 97):
            header = {"Authorization": right[:cut] + right[cut + 4 :]}
            status, _ = await request("GET", running.url + "/v1/members", b"", header)
            assert status == 401
        _, text = await running.admin("GET", "/metrics")
        assert 'status="500"' not in text
        for value in ("Bearer ä", "Bearer \udcff", ""):
            header = {"Authorization": value}
            url = f"http://127.0.0.1:{running.admin_port}/v1/codes"
            assert (await request("GET", url, b"", header))[0] == 401
