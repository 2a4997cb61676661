"""Reports, the signed batches of them, and what is made of them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from coordinator_runs import Hand, Running, coordinator, found, sealed_report
from swarm_keys import DAY, Swarm

from coordinator.reputation import trust
from coordinator.service import _useful
from coordinator.store import Store
from swarm_node.node.home.home import Membership
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.coordinator.coordination import (
    SignedBatch,
    content_digest,
    follow,
    open_batch,
    open_report,
)
from swarm_node.p2p.membership.statements import revocations, state
from swarm_node.simulation.seeded import EPOCH


async def _report(running: Running, by: Membership, **fields: Any) -> int:
    report = sealed_report(by, EPOCH + running.hand.seconds, **fields)
    return (await running.ask("POST", "/v1/reports", report, by=by))[0]


async def test_a_report_is_the_authors_and_newer_than_the_last(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(1000.0)
    one, two = swarm.member(1), swarm.member(2)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        assert await _report(running, one) == 200
        assert await _report(running, one) == 409
        wall = EPOCH + hand.seconds
        for report, reason in (
            (sealed_report(two, wall), "author"),
            (sealed_report(one, wall - 400), "outdated"),
            (sealed_report(one, wall + 400), "outdated"),
            (api.Reported(b"x"), "schema"),
        ):
            _, answer = await running.ask("POST", "/v1/reports", report, by=one)
            assert answer["reason"] == reason
        hand.seconds += 300
        assert await _report(running, one, version=9) == 200
        target = f"/v1/reports/{one.identity.peer_id}"
        _, answer = await running.ask("GET", target, by=two)
        kept = open_report(base64.b64decode(answer["report"]), swarm.info.swarm_id)
        assert not hasattr(kept, "reason")
        assert kept.body.version == 9
        _, answer = await running.ask("GET", "/v1/history", by=two)
        assert [row["version"] for row in answer["rows"]] == [3, 9]


async def _pages(running: Running, by: Membership, what: str, start: str, key: str) -> list[Any]:
    """The values of `key` in all rows of a list, which comes in pages of two from `start` on."""
    found, after = [], start
    while True:
        _, page = await running.ask("GET", f"/v1/{what}?limit=2&after={after}", by=by)
        found += [row[key] for row in page["rows"]]
        assert len(page["rows"]) <= 2
        after = page["next"]
        if not after:
            return found


async def test_history_and_members_come_in_pages_and_history_from_a_time_on(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(1000.0)
    one, *others = (swarm.member(n) for n in range(1, 6))
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        for version in range(5):
            assert await _report(running, one, version=version) == 200
            hand.seconds += 300
        assert await _pages(running, one, "history", "0", "version") == [0, 1, 2, 3, 4]
        since = EPOCH + 1000 + 3 * 300
        _, page = await running.ask("GET", f"/v1/history?since={since}", by=one)
        assert [row["version"] for row in page["rows"]] == [3, 4]
        for other in others:
            await running.ask("GET", "/v1/reputation", by=other)
        seen = await _pages(running, one, "members", "", "peer_id")
        assert seen == sorted(each.identity.peer_id for each in (one, *others))


async def _batches(running: Running, by: Membership, since: int = 0) -> list[Any]:
    _, answer = await running.ask("GET", f"/v1/batches?since={since}", by=by)
    return [open_batch(base64.b64decode(raw), by.swarm.swarm_id) for raw in answer["batches"]]


async def test_batches_are_numbered_chained_and_name_their_reports(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(1000.0)
    one, two = swarm.member(1), swarm.member(2)
    # The block's end is a tick.
    for round_ in range(3):
        async with coordinator(tmp_path / "c", swarm, hand) as running:
            reports = [sealed_report(by, EPOCH + hand.seconds) for by in (one, two)]
            for by, report in zip((one, two), reports, strict=True):
                assert (await running.ask("POST", "/v1/reports", report, by=by))[0] == 200
        async with coordinator(tmp_path / "c", swarm, hand) as running:
            batches = await _batches(running, one)
        assert all(isinstance(batch, SignedBatch) for batch in batches)
        assert [batch.body.number for batch in batches] == list(range(1, round_ + 2))
        digests = [hashlib.sha256(report.report).digest() for report in reports]
        assert batches[-1].body.content == content_digest(digests)
        held, fault = follow(None, batches)
        assert (held, fault) == (batches[-1], "")
        hand.seconds += 300
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        for since, numbers in ((0, [1, 2, 3]), (2, [2, 3]), (3, [3]), (9, [3])):
            opened = await _batches(running, one, since)
            assert [batch.body.number for batch in opened] == numbers


async def test_a_ticket_with_many_keys_pushes_nobody_off_the_operators_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MAX_ROWS", 5)
    swarm, hand = Swarm(), Hand(1000.0)
    honest = [swarm.member(n, swarm.issuer(f"ticket {n}"), f"ticket {n}") for n in range(1, 5)]
    thief = swarm.issuer("thief")
    keys = [swarm.member(100 + n, thief, "thief") for n in range(20)]
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        for member in (*honest, *keys):  # the keys report last
            assert await _report(running, member) == 200
            hand.seconds += 1
        _, page = await running.admin("GET", "/v1/picture")
        shown = {row["peer_id"] for row in page["members"]}
        assert {member.identity.peer_id for member in honest} < shown
        assert len(shown) == 5


async def test_reputation_follows_reports_and_begins_with_whom_the_operator_trusts(
    tmp_path: Path,
) -> None:
    swarm, hand = Swarm(), Hand(1000.0)
    issuers = [swarm.issuer(f"ticket {n}") for n in range(4)]
    one, two, three, bad = (swarm.member(n + 1, issuers[n], f"ticket {n}") for n in range(4))
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        assert (await running.admin("PUT", "/v1/trusted", api.Trusted(["ticket 0"])))[0] == 200
        assert await _report(running, bad, peers=(found(one, 1),)) == 200
        assert await _report(running, three) == 200
        peers = (found(two, 40), found(three, 30), found(bad, 3, signature=2, stale=90))
        assert await _report(running, one, peers=peers) == 200
        assert await _report(running, two, peers=(found(three, 9), found(bad, 1, tokens=4))) == 200
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        _, answer = await running.ask("GET", "/v1/reputation", by=one)
        shares = {row["peer_id"]: row["share"] for row in answer["rows"]}
        names = [m.identity.peer_id for m in (bad, two, three)]
        assert shares[names[0]] < min(shares[names[1]], shares[names[2]]) / 5
        assert answer["rows"][0]["peer_id"] == names[0], "the least trusted first"
        assert (await running.admin("GET", "/v1/trusted"))[1] == {"who": ["ticket 0"]}
        rows = (await running.admin("DELETE", f"/v1/reports/{names[0]}"))[1]["rows"]
        assert rows == 2, "a report and its row of history"
        _, answer = await running.ask("GET", f"/v1/reports/{names[0]}", by=one)
        assert answer["reason"] == "unknown_member"


def _fill(store: Store, peer_id: str, issuer: str, times: Iterable[float]) -> None:
    for at in times:
        store.report(peer_id, b"r", api.ReportRow(0, at, peer_id, 0, None, 0, 0, 0, 0), issuer)


def test_a_ticket_with_many_keys_pushes_no_history_of_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.store.MAX_HISTORY", 100)
    store = Store(tmp_path / "c.db")
    for issuer in ("one", "two"):
        _fill(store, issuer, issuer, range(20))
    for key in range(40):
        _fill(store, f"key {key}", "crowd", range(20, 26))
        store.tidy(30.0, ())
    kept = Counter(row.peer_id for row in store.history(0, 0.0, 1000))
    assert (kept["one"], kept["two"]) == (20, 20)
    assert 50 < kept.total() <= 100
    assert max(kept) == "two"
    assert "key 39" in kept, "the newest stay"
    store.close()


@pytest.mark.slow(reason="stores 2,000 reports")
def test_history_from_a_time_on_does_not_walk_over_what_came_before(tmp_path: Path) -> None:
    store, steps = Store(tmp_path / "c.db"), [0]

    def step() -> None:
        steps[0] += 1

    _fill(store, "one", "one", range(2000))
    store._connection.set_progress_handler(step, 100)
    assert store.history(0, 9e9, 10) == []
    assert [row.at for row in store.history(0, 1990.0, 5)] == [1990, 1991, 1992, 1993, 1994]
    assert [row.at for row in store.history(1996, 1000.0, 5)] == [1996, 1997, 1998, 1999]
    assert steps[0] < 10
    store.close()


async def test_a_new_key_costs_no_write_of_the_disk_before_the_next_tick(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(10.0)
    many = swarm.issuer("many")
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        written = tmp_path / "c" / "coordinator.db-wal"
        before = written.stat().st_size
        for n in range(1, 9):
            one = swarm.member(n, many, "many")
            assert (await running.ask("GET", "/v1/reputation", by=one))[0] == 200
        assert written.stat().st_size == before
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        _, page = await running.ask("GET", "/v1/members", by=one)
        assert len(page["rows"]) == 8


async def test_a_ticket_with_many_keys_leaves_the_disk_to_reports_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.service._ISSUER_REPORTS", (0.1, 3.0))
    swarm, hand = Swarm(), Hand(10.0)
    many = swarm.issuer("many")
    keys = [swarm.member(n, many, "many") for n in range(2, 7)]
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        assert [await _report(running, key) for key in keys] == [200] * 3 + [429] * 2
        assert await _report(running, swarm.member(1)) == 200
        hand.seconds += 60
        assert await _report(running, keys[4]) == 200


async def test_no_request_waits_while_trust_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm, hand = Swarm(), Hand(10.0)
    where: list[threading.Thread] = []

    def noted(*given: Any) -> dict[str, float]:
        where.append(threading.current_thread())
        return trust(*given)

    monkeypatch.setattr("coordinator.service.trust", noted)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        assert (await running.admin("PUT", "/v1/trusted", api.Trusted(["x"])))[0] == 200
    assert len(where) == 2
    assert threading.main_thread() not in where


def test_old_history_is_thinned_out_to_a_row_an_hour(tmp_path: Path) -> None:
    store = Store(tmp_path / "c.db")
    day = 86_400.0
    _fill(store, "one", "i", (60.0 * minute for minute in range(0, 48 * 60, 5)))
    store.tidy(2 * day, ())
    kept = [row.at for row in store.history(0, 0.0, 10_000)]
    assert len([at for at in kept if at < day]) == 24
    assert len([at for at in kept if at >= day]) == 24 * 12
    store.close()


async def test_members_beyond_the_limit_are_forgotten_those_of_the_largest_issuer_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.service.MAX_MEMBERS", 3)
    swarm, hand = Swarm(), Hand(10.0)
    many = swarm.issuer("many")
    honest, *keys = [swarm.member(1), *(swarm.member(n, many, "many") for n in range(2, 7))]
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        for one in (honest, *keys):
            hand.seconds += 1
            assert await _report(running, one) == 200
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        _, answer = await running.ask("GET", "/v1/members", by=honest)
        here = {row["peer_id"] for row in answer["rows"] if row["reported"]}
        assert here == {one.identity.peer_id for one in (honest, *keys[-2:])}


async def test_a_member_reports_every_few_minutes_and_not_all_the_time(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(10.0)
    one = swarm.member(1)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        assert await _report(running, one) == 200
        hand.seconds += 20
        assert await _report(running, one) == 429
        hand.seconds += 20
        assert await _report(running, one) == 200


async def test_former_members_rate_nobody_and_end_no_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that were expelled it remembers some."""
    monkeypatch.setattr("swarm_node.p2p.membership.members._MAX_FORMER", 1)
    monkeypatch.setattr("coordinator.server.TICK_SECONDS", 0.05)
    swarm, hand = Swarm(), Hand(10.0)
    one, two, *gone = (swarm.member(n) for n in range(1, 5))
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        assert await _report(running, two) == 200
        for bad in gone:
            assert await _report(running, bad, peers=(found(two, 9),)) == 200
        await _until(running, one, "reputation", 1)
        keys = [bad.identity.public_key for bad in gone]
        statement = state(swarm.root.key, b"", swarm.info, revocations(1, EPOCH, EPOCH + DAY, keys))
        hand.seconds += 60
        asked = api.Introduction(swarm.presence(one, hand.seconds), 1, statement)
        assert (await running.ask("POST", "/v1/introductions", asked, by=one))[0] == 200
        assert await _report(running, two) == 200
        rows = await _until(running, one, "members", 3)  # of four
        assert sorted(row["standing"] for row in rows) == ["member", "member", "revoked"]
        await _until(running, one, "reputation", 0)


async def _until(running: Running, by: Membership, what: str, count: int) -> list[dict[str, Any]]:
    """The rows of a list, once there are so many."""
    async with asyncio.timeout(60):
        while True:
            running.hand.seconds += 2  # a member asks once a second
            status, page = await running.ask("GET", f"/v1/{what}", by=by)
            assert status == 200
            if len(page["rows"]) == count:
                rows: list[dict[str, Any]] = page["rows"]
                return rows
            await asyncio.sleep(0.05)


def test_what_is_nobodys_fault_makes_a_peer_no_less_useful() -> None:
    peer = Swarm().member(1)
    assert _useful(found(peer, 10, stale=9, signature=2)) == 8.0
    assert _useful(found(peer, 1, tokens=5)) == 0.0
