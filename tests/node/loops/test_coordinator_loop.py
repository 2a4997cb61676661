"""A node's end of a coordinator: what it sends, what it believes, and that nothing waits for it."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import IPv4Address
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from builders import quiet_snapshot
from coordinator_runs import Hand, Running, coordinator
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from light_nodes import LightNode, heartbeat
from swarm_keys import DAY, Swarm

from swarm_node.clock import Clock
from swarm_node.errors import ConfigError, CoordinatorError
from swarm_node.node.home.home import Membership
from swarm_node.node.loops.node_parts import Tally
from swarm_node.node.loops.peers.coordinator_client import CoordinatorClient
from swarm_node.node.loops.peers.coordinator_loop import (
    CoordinatorLoop,
    hints_of,
    next_pause,
    report_of,
)
from swarm_node.node.loops.supervisor import Supervisor
from swarm_node.node.metrics.history import GroupCounts
from swarm_node.node.metrics.snapshot import CoordinatorRow, EvalPoint, PeerRow
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.coordinator.coordination import MAX_REPORT_BYTES, SignedBatch, open_batch
from swarm_node.p2p.membership.credentials import Credentials, MemoryOffice
from swarm_node.p2p.membership.statements import revocations, state
from swarm_node.p2p.peers.peers import Directory
from swarm_node.p2p.peers.standing import LEAST_HINT, Standing, draw
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.wire import pack
from swarm_node.simulation.seeded import EPOCH


class End:
    """One node's loop with the coordinator, over the real parts of a light node. Each round is one
    call of `ask`."""

    def __init__(self, place: Path, url: str, member: Membership, clock: Clock) -> None:
        transport = MemoryTransport(MemoryNetwork(random.Random(0)), member.identity)
        self.node = LightNode(place, clock, transport, member)
        self.member = member
        self.clock = clock
        self.office = MemoryOffice()
        self.tally = Tally()
        self.alarms = self.tally.alarms
        self.credentials = Credentials(
            self.node.local, member.chain, office=self.office, use_secret=lambda secret: None
        )
        self.loop = self.make(url)

    def make(self, url: str) -> CoordinatorLoop:
        return CoordinatorLoop(
            self.node.local,
            url,
            credentials=self.credentials,
            discovery=self.node.exchange.discovery,
            keeper=self.office,
            rng=random.Random(1),
            tally=self.tally,
        )

    def send_heartbeat(self) -> None:
        presence = heartbeat(self.member, self.clock.wall(), self.address)
        self.node.directory.heartbeat = presence

    @property
    def address(self) -> str:
        return f"/memory/p2p/{self.member.identity.peer_id}"

    async def ask(self) -> None:
        self.send_heartbeat()
        await self.loop._round(quiet_snapshot)

    def knows(self, other: End) -> bool:
        book = self.node.exchange.discovery._book
        return book.get(other.member.identity.peer_id) is not None

    def close(self) -> None:
        self.node.storage.close()


class Scene(NamedTuple):
    """A coordinator, and ends of as many members as are asked for."""

    running: Running
    swarm: Swarm
    hand: Hand
    end: Callable[[int], End]


@asynccontextmanager
async def play(tmp_path: Path) -> AsyncIterator[Scene]:
    swarm, hand = Swarm(), Hand(10.0)
    ends: list[End] = []
    async with coordinator(tmp_path / "c", swarm, hand) as running:

        def end(index: int) -> End:
            place = tmp_path / str(index)
            place.mkdir()
            ends.append(End(place, running.url, swarm.member(index), hand.clock()))
            return ends[-1]

        try:
            yield Scene(running, swarm, hand, end)
        finally:
            for each in ends:
                each.close()


async def test_two_nodes_that_know_only_the_coordinator_hear_of_each_other(tmp_path: Path) -> None:
    async with play(tmp_path) as (running, _, _, end):
        one, two = end(1), end(2)
        await one.ask()
        await two.ask()
        assert two.knows(one)
        assert not one.knows(two)
        assert one.tally.coordinator == CoordinatorRow(running.url, reported=one.clock.wall()), (
            "nobody was there to be introduced"
        )
        await one.ask()
        assert one.knows(two)
        assert one.tally.coordinator.introduced == 1
        _, answer = await running.ask("GET", "/v1/members", by=one.member)
        assert [row["model"] for row in answer["rows"]] == ["tiny", "tiny"], "both reported"


async def test_reports_come_soon_then_rarely_and_never_too_often(tmp_path: Path) -> None:
    async with play(tmp_path) as (_, __, hand, end):
        one, report_times = end(1), []
        for _ in range(120):
            await one.ask()  # raises when the coordinator refuses a report
            if one.tally.coordinator.reported not in report_times:
                report_times.append(one.tally.coordinator.reported)
            hand.seconds += 10
        pauses = [after - before for before, after in pairwise(report_times)]
        assert pauses[0] <= 60
        assert all(40 * 0.9 <= pause <= 300 * 1.1 + 10 for pause in pauses), pauses
        assert pauses[:4] == sorted(pauses[:4])
        assert pauses[-1] >= 270


async def test_a_node_that_restarts_after_its_report_is_not_too_early(tmp_path: Path) -> None:
    async with play(tmp_path) as (running, _, hand, end):
        one = end(1)
        await one.ask()
        hand.seconds += 5
        one.loop, first = one.make(running.url), one.tally.coordinator.reported
        for _ in range(12):
            await one.ask()  # raises when the coordinator refuses a report
            hand.seconds += 5
        assert one.tally.coordinator.reported > first


async def test_after_an_hour_away_a_round_brings_the_coordinator_its_picture_back(
    tmp_path: Path,
) -> None:
    swarm, hand = Swarm(), Hand(10.0)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        one, two = (
            End(tmp_path, running.url, swarm.member(index), hand.clock()) for index in (1, 2)
        )
        for each in (one, two):
            await each.ask()
    hand.seconds += 3600
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        for each in (one, two):
            each.loop._client._base = running.url
            await each.ask()
            each.close()
        _, answer = await running.ask("GET", "/v1/members", by=one.member)
        now = one.clock.wall()
        assert [(row["introduced"], row["reported"]) for row in answer["rows"]] == [(True, now)] * 2
        assert two.tally.coordinator.introduced == 2, "before and after"


async def test_a_revocation_list_passes_the_coordinator_in_both_directions(tmp_path: Path) -> None:
    async with play(tmp_path) as (running, swarm, _, end):
        one, two, gone = end(1), end(2), swarm.member(3)
        body = revocations(1, EPOCH, EPOCH + DAY, [gone.identity.public_key])
        await one.ask()
        assert one.credentials.lists.offer(state(swarm.root.key, b"", swarm.info, body)) is None
        await one.ask()
        await two.ask()
        assert two.credentials.lists.number == 1
        assert (await running.ask("GET", "/v1/members", by=gone))[0] == 403
        await two.ask()


async def test_a_dead_coordinator_is_one_line_and_one_that_is_back_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    real_sleep = asyncio.sleep

    async def soon(seconds: float, result: object = None) -> None:
        if seconds >= 1.0:
            pauses.append(seconds)
        await real_sleep(0)

    shown: list[str] = []
    async with play(tmp_path) as (_, _, hand, end):
        one = end(1)
        one.send_heartbeat()
        dead = one.make("http://127.0.0.1:9")
        monkeypatch.setattr("swarm_node.node.loops.peers.coordinator_loop.asyncio.sleep", soon)
        one.node.directory.apply_hints({"x": 0.5})
        task = asyncio.create_task(
            Supervisor(Counter(), {}, hand.clock()).repeat(
                "coordinate", partial(dead.step, quiet_snapshot)
            )
        )
        async with asyncio.timeout(60):
            while len(pauses) < 15:
                await real_sleep(0.01)
        row = one.tally.coordinator
        assert (row.answers, row.lowered) == (False, 0)
        assert "not answer" in row.fault
        dead._client = one.loop._client
        async with asyncio.timeout(60):
            while "the coordinator answers again" not in (said := capsys.readouterr().out):
                shown.append(said)
                await real_sleep(0.01)
        shown.append(said)
        assert (row := one.tally.coordinator) is not None
        assert (row.answers, row.fault) == (True, "")
        task.cancel()
    assert "".join(shown).count("is unreachable") == 1
    assert pauses[13] > 39, "it asks less and less often"
    assert max(pauses) <= 60, "it is back within a minute"


async def test_what_no_coordinator_says_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    """A server that answers with anything, with much, with redirects, and not at all."""
    reached: Counter[str] = Counter()

    async def answer(request: web.Request) -> web.StreamResponse:
        reached[request.match_info["how"]] += 1
        match request.match_info["how"]:
            case "text":
                return web.Response(text="hello")
            case "odd":
                return web.json_response({"peer_records": [1], "revoked": -1})
            case "many":
                return web.Response(body=b" " * (api.MAX_ANSWER_BYTES + 1))
            case "away":
                raise web.HTTPFound("/secret/v1/reputation")
            case _:
                return web.json_response({"count": 0, "median": 0.0, "rows": []})

    app = web.Application()
    app.router.add_get("/{how}/v1/reputation", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    for how in ("text", "odd", "many", "away"):
        client = CoordinatorClient(f"http://127.0.0.1:{port}", None, lambda: 0.0)
        client._base += f"/{how}"
        with pytest.raises(CoordinatorError, match=r"127\.0\.0\.1"):
            await client.reputation()
    assert reached["secret"] == 0
    client._base = client._base.replace("away", "right")
    assert (await client.reputation()).rows == []
    await runner.cleanup()


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1.example:99999", "http://8.8.8.8", "http://[2600::1]:80"]
)
def test_plain_http_to_the_internet_is_refused_by_name(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"network\.coordinator"):
        CoordinatorClient(url, None, lambda: 0.0)


async def test_a_name_on_the_internet_gets_no_plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(self: object, host: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 80))]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", found)
    client = CoordinatorClient("http://swarm.example", None, lambda: 0.0)
    with pytest.raises(CoordinatorError, match="with https"):
        await client.reputation()


async def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    """TLS with a key of its own, which is what an impostor has."""
    app = web.Application()
    runner = web.AppRunner(app, access_log=None, logger=logging.getLogger("quiet"))
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_certificate(tmp_path))
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    port = runner.addresses[0][1]
    client = CoordinatorClient(f"https://127.0.0.1:{port}", None, lambda: 0.0)
    with pytest.raises(CoordinatorError, match="CERTIFICATE_VERIFY_FAILED"):
        await client.reputation()
    await runner.cleanup()


def _certificate(place: Path) -> tuple[Path, Path]:
    """Files of a certificate for 127.0.0.1 that signs itself, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    files = place / "certificate.pem", place / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


async def test_a_forked_history_is_an_alarm_and_stays_one_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.server.TICK_SECONDS", 0.05)
    async with play(tmp_path) as (running, swarm, hand, end):
        one = end(1)
        await one.ask()
        while one.loop._last_batch is None:
            # The coordinator signs a batch a minute; a second one on the same data does it now.
            hand.seconds += 400
            await one.ask()
            await asyncio.sleep(0.05)
        assert one.alarms == {}
        first = one.loop._last_batch
        other = Identity.generate()
        forged = seal(other, swarm.info.swarm_id, Kind.BATCH, pack(first.body))
        held = open_batch(forged, swarm.info.swarm_id)
        assert isinstance(held, SignedBatch)
        one.loop._last_batch = held
        await one.loop._follow()
        assert "another key" in one.alarms["coordinator"]
        again = one.make(running.url)
        assert again._last_batch == first, "what was held before is in the home"
        assert one.make("https://another.example")._last_batch is None


def test_rounds_become_rarer_while_peers_are_few_or_nobody_answers() -> None:
    pauses = [next_pause(1.0, hurried=True)]
    while pauses[-1] < 50.0:
        pauses.append(next_pause(pauses[-1], hurried=True))
    assert pauses[:4] == [2.0, 3.0, 4.5, 6.75]
    assert pauses[-1] == next_pause(50.0, hurried=True) == 50.0
    assert sum(pauses) < 180, "a new node hears of others soon"
    assert next_pause(2.0, hurried=False) == 50.0


def test_a_report_says_what_the_owner_sees_and_fits() -> None:
    peers = [
        PeerRow(
            peer_id=Identity.generate().peer_id,
            version=1,
            seconds_since_seen=1.0,
            announced=9,
            accepted=n,
            rejected=n,
            addresses=[],
            rejected_by_reason={"signature": n, "a/b": 1},
        )
        for n in range(200)
    ]
    families = {f"family {n}": 1.5 for n in range(200)}
    snapshot = quiet_snapshot(
        model="hub/Some Model!",
        peers=peers,
        groups=GroupCounts(sampled=5, accepted=6, trained_local=7, trained_external=8),
        evals=[EvalPoint(1.0, 3, 0.5, 0.5, None, families, split_version=1)],
    )
    report = report_of(snapshot, 12)
    assert (report.model, report.sampled, report.trained_external) == ("Some Model_", 5, 8)
    assert set(dict(report.eval_reward).values()) == {1.0}
    assert dict(report.peers[5].rejected) == {"signature": 5, "a_b": 1}
    assert all(found.accepted or found.rejected for found in report.peers)
    sealed = seal(Identity.generate(), b"i" * 32, Kind.REPORT, pack(report))
    assert len(sealed) <= MAX_REPORT_BYTES


def test_a_hint_lowers_to_a_half_at_most_and_never_lifts() -> None:
    rows = [
        api.ReputationRow("bad", 0.0, 0.0, 3),
        api.ReputationRow("poor", 0.05, 0.05, 3),
        api.ReputationRow("one of many of a ticket", 0.05, 0.2, 3),
        api.ReputationRow("fair", 0.2, 0.2, 3),
        api.ReputationRow("best", 0.75, 0.75, 3),
    ]
    hints = hints_of(api.Reputation(4, 0.2, rows))
    assert hints == pytest.approx({"bad": LEAST_HINT, "poor": LEAST_HINT + 0.25})
    good = Standing(useful_count=100.0)
    for hint in (-5.0, 0.0, 0.5, 1.0, 9.0, float("inf")):
        good.hint = hint
        assert LEAST_HINT * good.score <= good.weight <= good.score


def test_a_lowered_peer_is_drawn_half_as_often_and_no_less() -> None:
    rng = random.Random(3)
    offering = [(str(n), Standing(useful_count=100.0)) for n in range(2)]
    offering[0][1].hint = 0.0
    drawn = Counter(draw(rng, offering) for _ in range(6000))
    assert drawn[0] / drawn[1] == pytest.approx(0.5, abs=0.05)


def test_hints_hold_for_peers_met_later_and_end_with_the_coordinator(tmp_path: Path) -> None:
    directory = Directory("me")
    early = directory.meet("early", 0.0)
    directory.apply_hints({"early": 0.5, "late": 0.7})
    late = directory.meet("late", 0.0)
    assert (early.standing.hint, late.standing.hint) == (0.5, 0.7)
    directory.apply_hints({})
    assert (early.standing.hint, late.standing.hint) == (1.0, 1.0)
