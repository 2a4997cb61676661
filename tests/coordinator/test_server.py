"""The public API: who may ask, what is introduced to whom, and what a restart keeps."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from coordinator_runs import Hand, Running, coordinator, found, request, sealed_report
from swarm_keys import DAY, Swarm

from coordinator.routes import ADMIN, PUBLIC, Route
from coordinator.server import read_swarm
from swarm_node.errors import ConfigError
from swarm_node.node.home.home import Membership
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.membership.membership import create_swarm
from swarm_node.p2p.membership.statements import revocations, state
from swarm_node.p2p.wire.identity import Identity
from swarm_node.simulation.seeded import EPOCH

START = 10.0


def _revoked_list(swarm: Swarm, *gone: Membership) -> bytes:
    keys = [each.identity.public_key for each in gone]
    body = revocations(1, EPOCH, EPOCH + DAY, keys)
    return state(swarm.root.key, b"", swarm.info, body)


def _another_swarms(swarm: Swarm) -> Membership:
    """A membership of a swarm with another name, under the same keys."""
    other = Swarm()
    other.info = create_swarm("day shift", other.root.key, b"s" * 32)
    return Membership(
        (member := swarm.member(5)).identity,
        other.info,
        other.chain(member.identity, other.issuer("owner"), "owner"),
    )


def _target(route: Route) -> str:
    return route.path.replace("{peer_id}", Swarm().member(1).identity.peer_id).replace(
        "{code}", "1"
    )


async def _leave(running: Running, swarm: Swarm, *members: Membership) -> list[dict[str, Any]]:
    answers = []
    for member in members:
        presence = api.Introduction(swarm.presence(member, running.hand.seconds))
        status, answer = await running.ask("POST", "/v1/introductions", presence, by=member)
        assert status == 200, answer
        answers.append(answer)
    return answers


async def test_of_every_route_and_every_kind_of_asker_only_the_right_ones_get_in(
    tmp_path: Path,
) -> None:
    swarm, hand = Swarm(member_seconds=10 * DAY), Hand(START)
    member, revoked, expired = (swarm.member(n) for n in (1, 2, 3))
    late = Membership(
        swarm.member(4).identity,
        swarm.info,
        swarm.chain(swarm.member(4).identity, swarm.delegate, "owner", begin=8 * DAY),
    )
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        statement = _revoked_list(swarm, revoked)
        asked = api.Introduction(swarm.presence(member, START), 1, statement)
        assert (await running.ask("POST", "/v1/introductions", asked, by=member))[0] == 200
        forged = Membership(Identity.generate(), swarm.info, member.chain)
        for route in PUBLIC:
            target = _target(route)

            async def status(by: Membership | None, **call: Any) -> int:
                return (await running.ask(route.method, target, by=by, call=call))[0]  # noqa: B023

            inside = {200, 400, 404}  # let in: the answer depends on what is asked
            if route.access == "anybody":
                assert await status(None) in inside, target
                continue
            assert await status(None) == 401, target
            operator = {"Authorization": f"Bearer {running.token}"}
            given = await request(route.method, running.url + target, b"", operator)
            assert given[0] == 401, "the operator is no member"
            assert await status(member) in inside, target
            assert await status(revoked) == 403, target
            assert await status(forged) == 403, target
            assert await status(_another_swarms(swarm)) == 401, target
            assert await status(late) == 403, target
            assert await status(member, target="/v1/health") == 401, target
            assert await status(member, method="PATCH") == 401, target
            assert await status(member, digest=bytes(32)) == 401, target
            for away in (-301, 301):
                issued = int((EPOCH + hand.seconds + away) * 1000)
                assert await status(member, issued_ms=issued) == 401, target
            hand.seconds += 20  # the limit of requests of a member
        _, page = await running.ask("GET", "/v1/members", by=member)
        assert [row["peer_id"] for row in page["rows"]] == [member.identity.peer_id], "no others"
        hand.seconds = 11 * DAY
        assert (await running.ask("GET", "/v1/members", by=expired))[0] == 403
        assert (await running.ask("GET", "/v1/members", by=late))[0] == 200


async def test_answers_are_of_the_types_of_the_table(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(10.0)
    one, two = swarm.member(1), swarm.member(2)
    bodies = {
        "introduce": api.Introduction(swarm.presence(one, 10.0)),
        "report": sealed_report(one, EPOCH + 10, peers=(found(two, 5, signature=1),)),
    }
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        for route in (*PUBLIC, *PUBLIC):  # the second report is too early
            body = bodies.get(route.operation)
            status, answer = await running.ask(route.method, _target(route), body, by=one)
            kind = route.answer if status == 200 else api.Problem
            msgspec.json.decode(msgspec.json.encode(answer), type=kind)


async def test_only_the_operator_with_the_token_reaches_the_other_address(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(START)
    member, revoked = swarm.member(1), swarm.member(2)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        asked = api.Introduction(swarm.presence(member, START), 1, _revoked_list(swarm, revoked))
        assert (await running.ask("POST", "/v1/introductions", asked, by=member))[0] == 200
        operator = Running(running.admin_port, running.admin_port, running.data, hand)
        for route in ADMIN:
            target = _target(route)
            if route.access == "anybody":
                assert (await operator.ask(route.method, target))[0] == 400, "it needs a key"
                continue
            assert (await operator.ask(route.method, target))[0] == 401
            assert (await operator.ask(route.method, target, by=member))[0] == 401
            assert (await operator.ask(route.method, target, by=revoked))[0] == 401
            assert (await running.admin(route.method, target))[0] in (200, 400, 404), target
            assert (await running.ask(route.method, target, by=member))[0] in (200, 404, 405)
            hand.seconds += 20
        tokens = [running.data / name for name in ("admin.token", "metrics.token")]
        assert [token.stat().st_mode & 0o077 for token in tokens] == [0, 0]
        scraper = {"Authorization": f"Bearer {tokens[1].read_text()}"}
        for route in ADMIN:
            url = f"http://127.0.0.1:{running.admin_port}{_target(route)}"
            status, _ = await request(route.method, url, b"", scraper)
            assert status == (
                200 if route.path == "/metrics" else 400 if route.access == "anybody" else 401
            )


async def test_the_tokens_of_a_run_end_with_it(tmp_path: Path) -> None:
    """Whoever listens at its port after a crash is shown them by Prometheus and by the commands."""
    swarm, hand, shown = Swarm(), Hand(START), []
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        shown += [(running.data / name).read_text() for name in ("admin.token", "metrics.token")]
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        for token in shown:
            url = f"http://127.0.0.1:{running.admin_port}/metrics"
            assert (await request("GET", url, b"", {"Authorization": f"Bearer {token}"}))[0] == 401


async def test_a_signed_request_is_answered_once_and_only_as_it_was_signed(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(START)
    member = swarm.member(1)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        call = {"nonce": b"n" * 16}
        assert (await running.ask("GET", "/v1/members?limit=5", by=member, call=call))[0] == 200
        status, answer = await running.ask("GET", "/v1/members?limit=5", by=member, call=call)
        assert (status, answer["reason"]) == (401, "duplicate")
        status, answer = await running.ask(
            "GET", "/v1/members?limit=6", by=member, call={"target": "/v1/members?limit=5"}
        )
        assert (status, answer["reason"]) == (401, "call")


async def test_what_an_earlier_run_may_have_answered_is_not_answered_again(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(START)
    member, call = swarm.member(1), {"nonce": b"n" * 16, "issued_ms": int((EPOCH + START) * 1000)}
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        assert (await running.ask("GET", "/v1/members", by=member, call=call))[0] == 200
        hand.seconds += 250
        assert (await running.ask("GET", "/v1/members", by=member, call=call))[0] == 401
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        status, answer = await running.ask("GET", "/v1/members", by=member, call=call)
        assert (status, answer["reason"]) == (401, "outdated")
        assert (await running.ask("GET", "/v1/members", by=member))[0] == 200


async def test_members_get_each_others_presences_until_these_are_old(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(START)
    one, two, three = (swarm.member(n) for n in (1, 2, 3))
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        first, second, third = await _leave(running, swarm, one, two, three)
        assert first["peer_records"] == []
        assert second["peer_records"] == [base64.b64encode(swarm.presence(one, START)).decode()]
        assert len(third["peer_records"]) == 2
        hand.seconds += 901
        (answer,) = await _leave(running, swarm, one)
        assert answer["peer_records"] == []


async def test_what_does_not_introduce_its_caller_is_refused(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(START)
    one, two = swarm.member(1), swarm.member(2)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        for asked, reason in (
            (api.Introduction(swarm.presence(two, START)), "author"),
            (api.Introduction(swarm.presence(one, START - 1000)), "outdated"),
            (api.Introduction(b"x"), "schema"),
            # It brings the list that expels it.
            (api.Introduction(swarm.presence(one, START), 1, _revoked_list(swarm, one)), "revoked"),
        ):
            _, answer = await running.ask("POST", "/v1/introductions", asked, by=one)
            assert answer["reason"] == reason
        assert (await _leave(running, swarm, two))[0]["peer_records"] == []


async def test_a_revocation_list_comes_with_one_member_and_goes_to_all(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(START)
    one, two, gone = (swarm.member(n) for n in (1, 2, 3))
    statement = _revoked_list(swarm, gone)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        await _leave(running, swarm, gone)
        asked = api.Introduction(swarm.presence(one, START), 1, statement)
        status, answer = await running.ask("POST", "/v1/introductions", asked, by=one)
        assert (status, answer["peer_records"], answer["revoked"]) == (200, [], 1)
        (answer,) = await _leave(running, swarm, two)
        assert base64.b64decode(answer["revocation_list"]) == statement
        status, answer = await running.ask("GET", "/v1/members", by=gone)
        assert (status, answer["reason"]) == (403, "revoked")
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        status, answer = await running.ask("GET", "/v1/members", by=gone)
        assert (status, answer["reason"]) == (403, "revoked"), "the list survives a restart"


async def test_a_forged_list_expels_nobody(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(START)
    one, two = swarm.member(1), swarm.member(2)
    body = revocations(7, EPOCH, EPOCH + DAY, [two.identity.public_key])
    forger = Swarm()
    forger.info = create_swarm("day shift", forger.root.key, b"s" * 32)
    statement = state(forger.root.key, b"", forger.info, body)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        asked = api.Introduction(swarm.presence(one, START), 7, statement)
        status, _ = await running.ask("POST", "/v1/introductions", asked, by=one)
        assert status == 422
        assert (await running.ask("GET", "/v1/members", by=two))[0] == 200


async def test_a_restart_keeps_members_reports_and_history(tmp_path: Path) -> None:
    swarm, hand = Swarm(), Hand(START)
    one, two = swarm.member(1), swarm.member(2)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        await _leave(running, swarm, one, two)
        report = sealed_report(one, EPOCH + START)
        assert (await running.ask("POST", "/v1/reports", report, by=one))[0] == 200
        _, before = await running.ask("GET", "/v1/members", by=two)
    async with coordinator(tmp_path / "c", swarm, hand) as running:
        _, after = await running.ask("GET", "/v1/members", by=two)
        rows = [{**row, "introduced": True} for row in after["rows"]]
        assert rows == before["rows"]
        row = next(row for row in rows if row["peer_id"] == one.identity.peer_id)
        assert (row["eval_reward"], row["sampled"], row["model"]) == (
            {"gcd": 0.25, "chess": 0.75},
            5,
            "tiny",
        )
        _, history = await running.ask("GET", "/v1/history", by=two)
        assert [(r["peer_id"], r["eval_reward"]) for r in history["rows"]] == [
            (one.identity.peer_id, 0.5)
        ]
        assert (await _leave(running, swarm, two, one))[1]["report"] is False


@pytest.mark.parametrize("wrong", ["", "name = 3", 'name = "x"\nroot_key = "00"'])
def test_a_file_that_describes_no_swarm_is_refused(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "swarm.toml"
    file.write_text(wrong)
    with pytest.raises(ConfigError, match="--swarm-file"):
        read_swarm(file)
    file.unlink()
    with pytest.raises(ConfigError, match=r"or directory\)"):
        read_swarm(file)
