"""Codes that newcomers redeem for tickets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from coordinator_runs import Hand, Running, coordinator, issuer_file
from swarm_keys import DAY, Swarm
from typer.testing import CliRunner

from coordinator.main import app
from swarm_node.errors import CoordinatorError, TicketError, TicketExpiredError
from swarm_node.node.home.home import Home
from swarm_node.node.loops.peers.coordinator_client import CoordinatorClient
from swarm_node.node.loops.peers.coordinator_client import redeem as ask_for_ticket
from swarm_node.p2p.addresses.addresses import coordinator_address
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.membership.issuer_file import tickets_of
from swarm_node.p2p.membership.membership import SwarmInfo
from swarm_node.p2p.membership.ticket import parse_ticket, redeem, with_addresses
from swarm_node.p2p.wire.identity import Identity
from swarm_node.simulation.seeded import EPOCH


@asynccontextmanager
async def _admitting(place: Path, tickets: int, **options: Any) -> AsyncIterator[Running]:
    """A coordinator with a file of so many tickets."""
    swarm = Swarm()
    options |= {"issuer_file": issuer_file(place, swarm, tickets)}
    async with coordinator(place / "c", swarm, Hand(10.0), **options) as running:
        yield running


async def _redeem(
    running: Running, code: str, who: Identity | None = None
) -> tuple[int, dict[str, str]]:
    asked = api.redemption(code, who or Identity.generate())
    return await running.ask("POST", "/v1/redemptions", asked)


async def _code(running: Running, uses: int = 1, seconds: int = DAY) -> str:
    asked = api.NewCode("alice", uses, seconds)
    status, made = await running.admin("POST", "/v1/codes", asked)
    assert status == 200, made
    return str(made["code"])


async def test_of_a_hundred_that_redeem_a_code_at_once_one_gets_a_ticket(tmp_path: Path) -> None:
    # A proxy may open a hundred connections.
    async with _admitting(tmp_path, 3, behind_proxy=True) as running:
        code = await _code(running)
        answers = await asyncio.gather(*(_redeem(running, code) for _ in range(100)))
        won = [answer for status, answer in answers if status == 200]
        lost = {(status, answer["reason"]) for status, answer in answers if status != 200}
        assert len(won) == 1
        assert lost == {(410, "used_up")}
        ticket = parse_ticket(won[0]["ticket"], EPOCH)
        _, chain = redeem(ticket, Identity.generate(), EPOCH)
        assert chain[0] == ticket.issuer_certificate
        _, listed = await running.admin("GET", "/v1/codes")
        assert (listed["codes"][0]["left"], listed["tickets"]) == (0, 2)
        assert listed["codes"][0]["tickets"] == [ticket.issuer.name]


async def test_a_newcomer_that_lost_the_answer_gets_the_same_ticket_also_after_a_restart(
    tmp_path: Path,
) -> None:
    swarm, hand = Swarm(), Hand(10.0)
    file, who = issuer_file(tmp_path, swarm, 2), Identity.generate()
    async with coordinator(tmp_path / "c", swarm, hand, issuer_file=file) as running:
        code = await _code(running)
        _, first = await _redeem(running, code, who)
    async with coordinator(tmp_path / "c", swarm, hand, issuer_file=file) as running:
        status, again = await _redeem(running, code.lower().replace("-", " "), who)
        assert status == 200
        keys = [
            parse_ticket(answer["ticket"], EPOCH).issuer.issuer_key for answer in (first, again)
        ]
        assert keys[0] == keys[1]
        assert (await running.admin("GET", "/v1/codes"))[1]["tickets"] == 1


async def test_a_code_ends_with_its_uses_time_withdrawal_and_tickets(tmp_path: Path) -> None:
    async with _admitting(tmp_path, 3) as running:
        assert (await _redeem(running, "AAAAA-AAAAA-AAAAA-AAAAA"))[1]["reason"] == "unknown_code"
        twice, short, withdrawn = [await _code(running, *how) for how in ((2,), (1, 60), (1,))]
        assert [(await _redeem(running, twice))[0] for _ in range(3)] == [200, 200, 410]
        assert (await running.admin("DELETE", "/v1/codes/3"))[0] == 200
        assert (await _redeem(running, withdrawn))[1]["reason"] == "withdrawn"
        running.hand.seconds += 61
        assert (await _redeem(running, short))[1]["reason"] == "expired"
        many = await _code(running, 5)
        assert [(await _redeem(running, many))[0] for _ in range(2)] == [200, 409]
        assert (await running.admin("DELETE", "/v1/codes/99"))[0] == 404


async def test_who_reads_a_used_code_gets_no_ticket_for_it_whoever_it_says_to_be(
    tmp_path: Path,
) -> None:
    """All that is known of the newcomer is public: its key, its peer id, its certificates."""
    alice = Identity.generate()
    async with _admitting(tmp_path, 2) as running:
        code = await _code(running)
        assert (await _redeem(running, code, alice))[0] == 200
        for known in (alice.public_key, hashlib.sha256(alice.public_key).digest()):
            asked = {"code": code, "newcomer": base64.b64encode(known).decode()}
            _, answer = await running.ask("POST", "/v1/redemptions", asked)
            assert answer["reason"] == "used_up"
        asked = {"code": code, "peer_id": alice.peer_id}
        assert (await running.ask("POST", "/v1/redemptions", asked))[0] == 400


async def test_a_member_cannot_have_newcomers_dial_what_it_names(tmp_path: Path) -> None:
    """What a ticket names is dialled as it is, also on one's own machine."""
    swarm, hand = Swarm(), Hand(10.0)
    file, bad, newcomer = issuer_file(tmp_path, swarm, 1), swarm.member(1), Identity.generate()
    address = f"/ip4/127.0.0.1/tcp/6379/p2p/{bad.identity.peer_id}"
    async with coordinator(tmp_path / "c", swarm, hand, issuer_file=file) as running:
        asked = api.Introduction(swarm.presence(bad, 10.0, addresses=(address,)))
        assert (await running.ask("POST", "/v1/introductions", asked, by=bad))[0] == 200
        code = await _code(running)
        text = await ask_for_ticket(running.url, code, newcomer, hand.clock().wall)
        assert parse_ticket(text, EPOCH).addresses == (coordinator_address(running.url),)


async def test_nor_can_a_coordinator(tmp_path: Path) -> None:
    swarm = Swarm()
    (text,) = tickets_of(issuer_file(tmp_path, swarm, 1), EPOCH)
    ticket, bad = (
        parse_ticket(text, EPOCH),
        f"/ip4/127.0.0.1/tcp/6379/p2p/{Identity.generate().peer_id}",
    )

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"ticket": with_addresses(ticket, ticket.info, [bad] * 8)})

    app = web.Application()
    app.router.add_post("/v1/redemptions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    given = await ask_for_ticket(url, "AAAAA-AAAAA-AAAAA-AAAAA", Identity.generate(), lambda: EPOCH)
    assert parse_ticket(given, EPOCH).peers == []
    await runner.cleanup()


async def test_a_ticket_that_has_expired_is_no_fault_of_the_coordinator(tmp_path: Path) -> None:
    who = Identity.generate()
    async with _admitting(tmp_path, 1) as running:
        code = await _code(running, seconds=300 * DAY)
        assert (await _redeem(running, code, who))[0] == 200
        running.hand.seconds += 31 * DAY
        with pytest.raises(TicketExpiredError, match="new one"):
            await ask_for_ticket(running.url, code, who, running.hand.clock().wall)


async def test_a_newcomer_joins_by_a_code_which_names_its_ticket_and_who_came_by_it(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "carol")
    home.begin()
    async with _admitting(tmp_path, 1) as running:
        code, wall = await _code(running), running.hand.clock().wall

        async def listed() -> str:
            typed = ["code", "list", "--data", str(running.data)]
            return (await asyncio.to_thread(CliRunner().invoke, app, typed)).stdout

        text = await ask_for_ticket(running.url, f" {code}\n", home.identity(), wall)
        ticket = parse_ticket(text, EPOCH)
        home.join_swarm(ticket, EPOCH)
        assert home.coordinator() == running.url
        own, name = home.membership(), ticket.issuer.name
        assert f"gave {name} " in await listed()
        client = CoordinatorClient(
            running.url, (own.identity, own.swarm.swarm_id, lambda: own.chain), wall
        )
        await client.reputation()
        _, answer = await running.admin("GET", "/v1/codes")
        peer_id = own.identity.peer_id
        assert answer["codes"][0]["holders"] == {name: [peer_id]}
        assert f"gave {name} (…{peer_id[-8:]})" in await listed()
        with pytest.raises(CoordinatorError, match=r"\(used_up\)"):
            await ask_for_ticket(running.url, code, Identity.generate(), wall)


async def test_without_an_issuer_file_nobody_is_admitted(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(10.0)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        assert (await running.admin("POST", "/v1/codes", api.NewCode("alice")))[0] == 409
        status, answer = await _redeem(running, "AAAAA-AAAAA-AAAAA-AAAAA")
        assert (status, answer["reason"]) == (409, "no_tickets")


async def test_an_issuer_file_of_another_swarm_is_refused(tmp_path: Path) -> None:
    swarm, hand, other = Swarm(), Hand(10.0), Swarm()
    other.info = SwarmInfo("day shift", other.root.key.public_key, b"s" * 32)
    file = issuer_file(tmp_path, other, 1)
    with pytest.RaisesGroup(pytest.RaisesExc(TicketError, match="another swarm")):
        async with coordinator(tmp_path / "c", swarm, hand, issuer_file=file):
            pass
